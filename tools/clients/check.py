"""Runs the official clients against a server at the URL given; ends at the first thing that is not as it should be."""

import json
import math
import sys
import urllib.request

import anthropic
import openai

URL = sys.argv[1].rstrip("/")
KEY = sys.argv[2] if len(sys.argv) > 2 else "none"
ASK = [{"role": "user", "content": "Tell me a story about a fox."}]
OPENAI = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
ANTHROPIC = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
MODEL = OPENAI.models.list().data[0].id


def models():
    model = OPENAI.models.retrieve(MODEL)
    assert model.id == MODEL and model.max_model_len > 0


def completions():
    asked = dict(model=MODEL, prompt="Once upon a time", max_tokens=16, seed=7, n=2, logprobs=2)
    whole = OPENAI.completions.create(**asked)
    texts = ["", ""]
    for chunk in OPENAI.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices] and whole.usage.completion_tokens == 32
    assert len(whole.choices[0].logprobs.tokens) == 16
    ranked = OPENAI.completions.create(model=MODEL, prompt="Once upon", max_tokens=1, extra_body={"prompt_logprobs": 1})
    assert ranked.choices[0].prompt_logprobs[0] is None and ranked.choices[0].prompt_logprobs[1]


def words():
    greedy = dict(model=MODEL, prompt="Once upon a time", max_tokens=12, temperature=0)
    free = OPENAI.completions.create(**greedy).choices[0].text
    bad = next(word for word in free.split() if word.isalpha())
    ruled = OPENAI.completions.create(**greedy, extra_body={"bad_words": [bad]}).choices[0].text
    assert bad not in ruled.split(), (bad, ruled)
    ids = tokens(free)
    some = OPENAI.completions.create(**greedy, extra_body={"allowed_token_ids": ids[:2], "ignore_eos": True})
    assert set(tokens(some.choices[0].text)) <= set(ids[:2]), some


def tokens(text):
    return told("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]


def told(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(URL + path, data, headers)) as answer:
        return json.load(answer)


def chats():
    asked = dict(model=MODEL, messages=ASK, max_tokens=24, seed=3, logprobs=True, top_logprobs=2)
    whole = OPENAI.chat.completions.create(**asked)
    text = ""
    for chunk in OPENAI.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage
    assert text == whole.choices[0].message.content and usage.completion_tokens == whole.usage.completion_tokens
    with OPENAI.chat.completions.stream(model=MODEL, messages=ASK, max_tokens=200, seed=3, stop=".") as stream:
        assert stream.get_final_completion().choices[0].message.content


def messages():
    asked = dict(model=MODEL, messages=ASK, max_tokens=24, system="Be kind.", extra_body={"temperature": 0})
    whole = ANTHROPIC.messages.create(**asked)
    with ANTHROPIC.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == whole.content[0].text == last.content[0].text
    assert whole.stop_reason == last.stop_reason and last.usage.output_tokens == whole.usage.output_tokens
    stop = text.split()[2]
    cut = ANTHROPIC.messages.create(**asked, stop_sequences=[stop])
    assert cut.stop_reason == "stop_sequence" and cut.stop_sequence == stop and stop not in cut.content[0].text
    counted = ANTHROPIC.messages.count_tokens(model=MODEL, messages=ASK, system="Be kind.").input_tokens
    assert counted == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    refused(anthropic.BadRequestError, "tools", lambda: ANTHROPIC.messages.create(
        **asked, tools=[{"name": "f", "input_schema": {"type": "object"}}]))
    refused(anthropic.NotFoundError, "no-such", lambda: ANTHROPIC.messages.create(**{**asked, "model": "no-such"}))


def responses():
    asked = dict(model=MODEL, input="Tell me a story.", instructions="Be kind.", max_output_tokens=24, temperature=0)
    whole = OPENAI.responses.create(**asked)
    text, numbers = "", []
    for event in OPENAI.responses.create(**asked, stream=True):
        numbers.append(event.sequence_number)
        text += event.delta if event.type == "response.output_text.delta" else ""
        last = event
    assert text == whole.output_text == last.response.output_text and numbers == list(range(len(numbers)))
    assert last.type == f"response.{whole.status}" and whole.usage.output_tokens == last.response.usage.output_tokens
    again = whole.output + [{"role": "user", "content": "Go on."}]
    items = [{"role": "user", "content": "Tell me a story."}] + [
        item if isinstance(item, dict) else item.model_dump(exclude_none=True) for item in again]
    assert OPENAI.responses.create(model=MODEL, input=items, max_output_tokens=8).output_text is not None
    # To its own end: this helper of the client knows no other.
    del asked["max_output_tokens"]
    with OPENAI.responses.stream(**asked) as stream:
        assert stream.get_final_response().output_text.startswith(text)
    refused(openai.BadRequestError, "previous_response_id", lambda: OPENAI.responses.create(
        **asked, previous_response_id=whole.id))


def embeddings():
    texts = ["a fox in the wood", "the sea", "a fox in the wood"]
    vectors = [entry.embedding for entry in OPENAI.embeddings.create(model=MODEL, input=texts).data]
    assert vectors[0] == vectors[2] != vectors[1] and abs(math.hypot(*vectors[1]) - 1) < 1e-5
    floats = OPENAI.embeddings.create(model=MODEL, input="the sea", encoding_format="float").data[0].embedding
    assert all(abs(a - b) < 1e-7 for a, b in zip(floats, vectors[1]))
    few = OPENAI.embeddings.create(model=MODEL, input="the sea", dimensions=8).data[0].embedding
    assert len(few) == 8 and abs(math.hypot(*few) - 1) < 1e-5
    refused(openai.BadRequestError, "dimensions", lambda: OPENAI.embeddings.create(
        model=MODEL, input="x", dimensions=len(floats) + 1))


def refused(kind, word, call):
    try:
        call()
    except kind as error:
        assert word in str(error), error
    else:
        raise AssertionError(f"{word} was not refused")


def document():
    described = told("/openapi.json")
    assert described["openapi"].startswith("3.1") and "/v1/messages" in described["paths"]


for check in [models, completions, chats, messages, responses, embeddings, document, words]:
    check()
    print(f"{check.__name__}: good")
