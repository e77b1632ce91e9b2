"""Runs the official clients against a server at the URL given; ends at the first thing that is not as it should be."""

import json
import math
import os
import re
import sys
import typing
import urllib.request

# This library would fetch a table of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import agents
import anthropic
import jsonschema
import langchain_anthropic
import langchain_openai
import litellm
import openai
import pydantic

import parameters

URL = sys.argv[1].rstrip("/")
KEY = sys.argv[2] if len(sys.argv) > 2 else "none"
ASK = [{"role": "user", "content": "Tell me a story about a fox."}]
OPENAI = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
ANTHROPIC = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
litellm.suppress_debug_info = True
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


class Weather(pydantic.BaseModel):
    """The weather in a city."""

    model_config = pydantic.ConfigDict(extra="forbid")
    sky: typing.Literal["clear", "cloudy"]
    degrees: int = pydantic.Field(ge=-40, le=40)


def tool(name):
    parameters = {"type": "object", "additionalProperties": False, "required": ["city", "days"], "properties": {
        "city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}}
    return {"type": "function", "function": {"name": name, "description": f"Tells the {name}.",
                                             "parameters": parameters}}


TOOLS = [tool("weather"), tool("time")]


def formats():
    asked = dict(model=MODEL, messages=ASK, max_tokens=200, seed=5)
    parsed = OPENAI.chat.completions.parse(**asked, response_format=Weather).choices[0]
    assert parsed.finish_reason == "stop" and isinstance(parsed.message.parsed, Weather), parsed
    free = OPENAI.chat.completions.create(**asked, response_format={"type": "json_object"}).choices[0]
    assert free.finish_reason == "length" or isinstance(json.loads(free.message.content), dict), free
    for rule, holds in [({"regex": "[ab]{3}-[0-9]"}, lambda text: re.fullmatch("[ab]{3}-[0-9]", text)),
                        ({"choice": ["red", "green"]}, {"red", "green"}.__contains__),
                        ({"grammar": 'start: "a" ("b" | "c")'}, {"ab", "ac"}.__contains__),
                        ({"grammar": 'root ::= "a" [bc]'}, {"ab", "ac"}.__contains__),
                        ({"json": Weather.model_json_schema()}, Weather.model_validate_json)]:
        text = OPENAI.chat.completions.create(**asked, extra_body={"structured_outputs": rule}).choices[0]
        assert holds(text.message.content), (rule, text)
        chunks = OPENAI.chat.completions.create(**asked, extra_body={"structured_outputs": rule}, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text.message.content, rule
        # With white space, which JSON may have anywhere, an answer can be longer than any number of tokens.
        whole = OPENAI.completions.create(model=MODEL, prompt="A colour: ", max_tokens=200, n=2, best_of=3, logprobs=1,
                                          seed=5, extra_body={"structured_outputs": rule})
        assert all(choice.finish_reason == "length" and "json" in rule or holds(choice.text)
                   for choice in whole.choices), (rule, whole)
    beams = OPENAI.completions.create(model=MODEL, prompt="A colour: ", max_tokens=20, n=2, extra_body={
        "use_beam_search": True, "structured_outputs": {"choice": ["red", "green", "blue"]}})
    assert {choice.text for choice in beams.choices} <= {"red", "green", "blue"}, beams
    old = OPENAI.completions.create(model=MODEL, prompt="x", extra_body={"guided_choice": ["red"]}, max_tokens=20)
    assert old.choices[0].text == "red", old
    rest = {"type": "array", "unevaluatedItems": {"type": "string"}}
    refused(openai.BadRequestError, "#/unevaluatedItems", lambda: OPENAI.completions.create(
        model=MODEL, prompt="x", extra_body={"structured_outputs": {"json": rest}}))


def tools():
    asked = dict(model=MODEL, messages=ASK, max_tokens=300, tools=TOOLS, seed=1)
    for choice in ["required", {"type": "function", "function": {"name": "time"}}]:
        whole = OPENAI.chat.completions.create(**asked, tool_choice=choice, parallel_tool_calls=False).choices[0]
        name, arguments, ids = "", "", set()
        for chunk in OPENAI.chat.completions.create(
                **asked, tool_choice=choice, parallel_tool_calls=False, stream=True):
            for call in [call for choice in chunk.choices for call in choice.delta.tool_calls or []]:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
                ids |= {call.id} if call.id else set()
        [call] = whole.message.tool_calls
        assert whole.finish_reason == "tool_calls" and len(ids) == 1, whole
        assert (name, arguments) == (call.function.name, call.function.arguments)
        jsonschema.validate(json.loads(arguments), TOOLS[0]["function"]["parameters"])
    assert name == "time"
    back = ASK + [whole.message.model_dump(exclude_none=True),
                  {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    told = OPENAI.chat.completions.create(model=MODEL, messages=back, tools=TOOLS, max_tokens=8)
    assert told.choices[0].message.content is not None and told.usage.prompt_tokens > 0
    many = OPENAI.chat.completions.create(**asked | {"max_tokens": 500}, tool_choice="required").choices[0]
    for call in many.message.tool_calls[:-1] if many.finish_reason == "length" else many.message.tool_calls:
        jsonschema.validate(json.loads(call.function.arguments), TOOLS[0]["function"]["parameters"])
    free = OPENAI.chat.completions.create(**asked, extra_body={"chat_template_kwargs": {"enable_thinking": False}},
                                          reasoning_effort="low").choices[0]
    assert free.message.content is not None or free.message.tool_calls, free
    none = OPENAI.chat.completions.create(**asked, tool_choice="none").choices[0]
    assert not none.message.tool_calls and none.message.content
    refused(openai.BadRequestError, "tool_choice", lambda: OPENAI.chat.completions.create(
        **asked, tool_choice={"type": "function", "function": {"name": "no-such"}}))


def tools_of_others():
    """The same tools in the forms of Anthropic's messages and of OpenAI's responses, whole and streamed."""
    given = [{"name": one["function"]["name"], "description": one["function"]["description"],
              "input_schema": one["function"]["parameters"]} for one in TOOLS]
    asked = dict(model=MODEL, messages=ASK, max_tokens=500, tools=given, extra_body={"temperature": 0},
                 tool_choice={"type": "tool", "name": "time", "disable_parallel_tool_use": True})
    whole = ANTHROPIC.messages.create(**asked)
    with ANTHROPIC.messages.stream(**asked) as stream:
        last = stream.get_final_message()
    [call], [again] = [[part for part in one.content if part.type == "tool_use"] for one in (whole, last)]
    assert whole.stop_reason == last.stop_reason == "tool_use", whole
    assert (call.name, call.input) == (again.name, again.input) and call.name == "time"
    jsonschema.validate(call.input, given[1]["input_schema"])
    back = ASK + [{"role": "assistant", "content": whole.content}, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": call.id, "content": "noon"}]}]
    more = ANTHROPIC.messages.create(model=MODEL, messages=back, tools=given, max_tokens=8)
    assert more.usage.input_tokens + more.usage.cache_read_input_tokens > whole.usage.input_tokens
    counted = ANTHROPIC.messages.count_tokens(model=MODEL, messages=back, tools=given).input_tokens
    assert counted == more.usage.input_tokens + more.usage.cache_read_input_tokens

    asked |= {"tool_choice": {"type": "any"}}
    assert ANTHROPIC.messages.create(**asked).content[-1].name in ("weather", "time")
    none = ANTHROPIC.messages.create(**asked | {"tool_choice": {"type": "none"}, "max_tokens": 20})
    assert [part.type for part in none.content] == ["text"] and none.stop_reason == "max_tokens", none
    thinking = {"type": "enabled", "budget_tokens": 1024}
    assert ANTHROPIC.messages.create(model=MODEL, messages=ASK, max_tokens=8, thinking=thinking).content

    given = [{"type": "function", **one["function"], "strict": True} for one in TOOLS]
    asked = dict(model=MODEL, input="The time?", max_output_tokens=500, tools=given, temperature=0,
                 tool_choice={"type": "function", "name": "time"}, parallel_tool_calls=False)
    whole = OPENAI.responses.create(**asked)
    arguments = ""
    for event in OPENAI.responses.create(**asked, stream=True):
        arguments += event.delta if event.type == "response.function_call_arguments.delta" else ""
        last = event
    [call], [again] = [[item for item in one.output if item.type == "function_call"] for one in (whole, last.response)]
    assert call.arguments == again.arguments == arguments and call.name == "time", whole
    jsonschema.validate(json.loads(arguments), given[1]["parameters"])
    items = [{"role": "user", "content": "The time?"}, call.model_dump(exclude_none=True),
             {"type": "function_call_output", "call_id": call.call_id, "output": "noon"}]
    assert OPENAI.responses.create(model=MODEL, input=items, tools=given, max_output_tokens=8).usage.input_tokens > 0
    shaped = OPENAI.responses.parse(model=MODEL, input="The weather?", text_format=Weather, max_output_tokens=500)
    assert isinstance(shaped.output_parsed, Weather), shaped


def loops():
    """Anthropic's loop over tools asks for a thread, is refused, and goes on with the whole conversation."""
    @anthropic.beta_tool
    def weather(city: typing.Literal["Rome", "Oslo"]) -> str:
        """The weather in a city."""
        return f"sun in {city}"

    answers = list(ANTHROPIC.beta.messages.tool_runner(
        model=MODEL, messages=ASK, max_tokens=500, tools=[weather], tool_choice={"type": "any"}, max_iterations=5,
        extra_body={"temperature": 0}))
    assert [answer.stop_reason for answer in answers] == ["tool_use"] * 5, answers
    read = [answer.usage.input_tokens + answer.usage.cache_read_input_tokens for answer in answers]
    assert read == sorted(set(read)), read
    assert all(answer._request_id.startswith("req-") for answer in answers)
    # The thread's own error reaches whoever asks for one without the loop.
    refused(anthropic.BadRequestError, "thread", lambda: ANTHROPIC.beta.messages.create(
        model=MODEL, messages=ASK, max_tokens=1, extra_body={"thread": {"type": "create"}}))


def sdk():
    """OpenAI's agents SDK, over both APIs: five turns, in each of which a tool is called, and an answer of a schema."""
    client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
    agents.set_tracing_disabled(True)
    calls = []

    # Without arguments, a call that is required is spelled out by its grammar, on any machine.
    @agents.function_tool
    def clock() -> str:
        """The time."""
        calls.append(len(calls))
        return "noon"

    settings = agents.ModelSettings(temperature=0, max_tokens=60, tool_choice="required", parallel_tool_calls=False)
    for model in (agents.OpenAIChatCompletionsModel(model=MODEL, openai_client=client),
                  agents.OpenAIResponsesModel(model=MODEL, openai_client=client)):
        calls.clear()
        agent = agents.Agent(name="a", instructions="Use the tool.", tools=[clock], model=model,
                             model_settings=settings, reset_tool_choice=False)
        try:
            agents.Runner.run_sync(agent, "The time?", max_turns=5)
        except agents.MaxTurnsExceeded:
            pass
        assert len(calls) == 5, calls
        shaped = agents.Agent(name="b", instructions="Say it.", output_type=Weather, model=model,
                              model_settings=agents.ModelSettings(temperature=0, max_tokens=500))
        assert isinstance(agents.Runner.run_sync(shaped, "The weather?").final_output, Weather)


def all_parameters():
    taken, refused = parameters.check(OPENAI, ANTHROPIC, MODEL)
    assert taken > 120 and len(refused) <= 8, (taken, refused)


def plumbing():
    """Keys, ids, origins, tokens, and what is refused by name."""
    asked = OPENAI.completions.with_raw_response.create(model=MODEL, prompt="x", max_tokens=1,
                                                        extra_headers={"x-request-id": "mine"})
    assert asked.headers["x-request-id"] == "mine"
    refused(openai.AuthenticationError, "API key", lambda: OPENAI.with_options(api_key="wrong").models.list())
    refused(anthropic.AuthenticationError, "API key", lambda: ANTHROPIC.with_options(api_key="wrong").messages.create(
        model=MODEL, messages=ASK, max_tokens=1))
    asks = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    with urllib.request.urlopen(urllib.request.Request(f"{URL}/v1/models", headers=asks, method="OPTIONS")) as allowed:
        assert allowed.headers["access-control-allow-origin"] == "https://example.org"
    chat = told("/tokenize", {"messages": ASK})
    assert chat["count"] == len(chat["tokens"]) and chat["max_model_len"] > 0
    assert "fox" in told("/detokenize", {"tokens": chat["tokens"]})["prompt"]
    cut = OPENAI.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=1,
                                    extra_body={"truncate_prompt_tokens": 3})
    assert cut.usage.prompt_tokens == 3
    ranked = OPENAI.chat.completions.create(model=MODEL, messages=ASK, max_tokens=1, extra_body={"prompt_logprobs": 1})
    assert len(ranked.prompt_logprobs) == ranked.usage.prompt_tokens
    refused(openai.BadRequestError, "suffix", lambda: OPENAI.completions.create(model=MODEL, prompt="x", suffix="y"))
    refused(anthropic.BadRequestError, "logit_bias", lambda: ANTHROPIC.messages.create(
        model=MODEL, messages=ASK, max_tokens=1, extra_body={"logit_bias": {"1": 5}}))


def langchain():
    chat = langchain_openai.ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key=KEY, temperature=0, max_tokens=500,
                                       max_retries=0)
    whole = chat.invoke("Tell me a story.")
    assert whole.content and whole.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.content for chunk in chat.stream("Tell me a story.")) == whole.content
    assert isinstance(chat.with_structured_output(Weather).invoke("The weather?"), Weather)
    [call] = chat.bind_tools(TOOLS, tool_choice="any", parallel_tool_calls=False).invoke("The weather?").tool_calls
    assert call["name"] in ("weather", "time") and call["args"]["city"] in ("Rome", "Oslo"), call
    spoken = langchain_openai.ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key=KEY, temperature=0, max_tokens=20,
                                         use_responses_api=True, max_retries=0)
    assert spoken.invoke("Tell me a story.").text
    vectors = langchain_openai.OpenAIEmbeddings(model=MODEL, base_url=f"{URL}/v1", api_key=KEY,
                                                check_embedding_ctx_length=False)
    assert len(vectors.embed_query("a fox")) == len(vectors.embed_documents(["the sea"])[0])
    claude = langchain_anthropic.ChatAnthropic(model=MODEL, base_url=URL, api_key=KEY, temperature=0, max_tokens=20,
                                               max_retries=0)
    whole = claude.invoke("Tell me a story.")
    assert whole.content and whole.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.text for chunk in claude.stream("Tell me a story.")) == whole.content


def lite():
    asked = dict(messages=ASK, max_tokens=16, temperature=0, api_key=KEY, num_retries=0)
    for model, base in [(f"openai/{MODEL}", f"{URL}/v1"), (f"hosted_vllm/{MODEL}", f"{URL}/v1"),
                        (f"anthropic/{MODEL}", URL)]:
        whole = litellm.completion(model=model, api_base=base, **asked).choices[0].message.content
        chunks = litellm.completion(model=model, api_base=base, stream=True, **asked)
        assert whole and "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole, model
    called = litellm.completion(model=f"openai/{MODEL}", api_base=f"{URL}/v1", tools=TOOLS, tool_choice="required",
                                **asked | {"max_tokens": 500}).choices[0]
    assert called.finish_reason == "tool_calls" and called.message.tool_calls[0].function.name in ("weather", "time")
    assert litellm.embedding(model=f"openai/{MODEL}", input=["a fox"], api_base=f"{URL}/v1", api_key=KEY,
                             encoding_format="float").data[0]["embedding"]


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


for check in [models, completions, chats, messages, responses, embeddings, document, words, formats, tools,
              tools_of_others, loops, sdk, all_parameters, plumbing, langchain, lite]:
    check()
    print(f"{check.__name__}: good")
