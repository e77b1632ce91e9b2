"""Runs Ollama's client against a server at the URL given; ends at the first thing that is not as it should be."""

import asyncio
import datetime
import json
import math
import subprocess
import sys

import ollama
import pydantic

URL = sys.argv[1].rstrip("/")
CLIENT = ollama.Client(URL)
MODEL = CLIENT.list().models[0].model
ASK = [{"role": "user", "content": "Tell me a story about a fox."}]
SHORT = {"num_predict": 24, "seed": 7}


def refused(status, words, call):
    try:
        call()
    except ollama.ResponseError as error:
        assert error.status_code == status and words in error.error, (error.status_code, error.error)
        return
    raise AssertionError(f"{words} was not refused")


def lists():
    [known] = CLIENT.list().models
    assert known.model == "storyteller:latest" and known.size > 1_000_000 and len(known.digest) == 64, known
    assert known.details.family == "llama" and known.details.parameter_size.endswith("M"), known.details
    assert known.modified_at.year >= 2024
    [loaded] = CLIENT.ps().models
    assert loaded.model == known.model and loaded.digest == known.digest and loaded.context_length > 100
    assert loaded.expires_at > datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=36500)


def shows():
    shown = CLIENT.show(MODEL)
    assert {"completion", "tools"} <= set(shown.capabilities), shown.capabilities
    family = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{family}.context_length"] == CLIENT.ps().models[0].context_length
    assert "<|assistant|>" in shown.template and "num_ctx" in shown.parameters and "FROM" in shown.modelfile
    refused(404, "not served here", lambda: CLIENT.show("no-such"))


def generates():
    asked = dict(model=MODEL, prompt="Tell me a story.", options=SHORT)
    whole = CLIENT.generate(**asked)
    assert whole.done and whole.done_reason == "length" and whole.eval_count == 24 and whole.model == MODEL
    assert whole.prompt_eval_count > 4 and whole.total_duration >= whole.eval_duration > 0
    assert whole.prompt_eval_duration > 0 and whole.load_duration == 0
    datetime.datetime.fromisoformat(whole.created_at.replace("Z", "+00:00"))
    parts = list(CLIENT.generate(**asked, stream=True))
    assert "".join(part.response for part in parts) == whole.response and len(parts) > 4
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == 24 and parts[-1].eval_duration > 0
    assert CLIENT.generate(**{**asked, "options": {**SHORT, "seed": 8}}).response != whole.response


def continues_raw_text():
    asked = dict(model=MODEL, prompt="Once upon a time", options={**SHORT, "temperature": 0})
    raw = CLIENT.generate(**asked, raw=True)
    kind = CLIENT.generate(**asked, system="Be kind.")
    assert raw.response and kind.prompt_eval_count > raw.prompt_eval_count
    stop = raw.response.split()[2]
    cut = CLIENT.generate(**{**asked, "options": {**asked["options"], "stop": [stop]}}, raw=True)
    assert cut.done_reason == "stop" and stop not in cut.response and raw.response.startswith(cut.response)


def chats():
    asked = dict(model=MODEL, messages=ASK, options=SHORT)
    whole = CLIENT.chat(**asked)
    assert whole.message.role == "assistant" and whole.message.content and whole.eval_count == 24
    parts = list(CLIENT.chat(**asked, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert parts[-1].done_reason == "length" and parts[-1].prompt_eval_count == whole.prompt_eval_count
    more = CLIENT.chat(**{**asked, "messages": [*ASK, whole.message, {"role": "user", "content": "And then?"}]})
    assert more.prompt_eval_count > whole.prompt_eval_count + 24


def options():
    every = ollama.Options(
        num_keep=5, seed=42, num_predict=8, top_k=20, top_p=0.9, typical_p=1.0, repeat_last_n=-1, temperature=0.8,
        repeat_penalty=1.2, presence_penalty=1.5, frequency_penalty=1.0, mirostat=0, penalize_newline=True,
        stop=["user:"], numa=False, num_ctx=1024, num_batch=2, num_gpu=1, main_gpu=0, low_vram=False,
        use_mmap=True, use_mlock=False, num_thread=8,
    )
    assert CLIENT.chat(model=MODEL, messages=ASK, options=every).eval_count == 8
    refused(400, "options.typical_p", lambda: CLIENT.chat(model=MODEL, messages=ASK, options={"typical_p": 0.7}))
    refused(400, "options.num_ctx", lambda: CLIENT.chat(model=MODEL, messages=ASK, options={"num_ctx": 3}))


def loads():
    for told in [CLIENT.generate(model=MODEL), CLIENT.chat(model=MODEL, messages=[], keep_alive="10m")]:
        assert told.done and told.done_reason == "load", told
    refused(400, "keep_alive", lambda: CLIENT.generate(model=MODEL, keep_alive=0))


class Animal(pydantic.BaseModel):
    name: str
    legs: int
    wild: bool


def formats():
    asked = dict(model=MODEL, messages=ASK, options={"num_predict": 200, "seed": 3, "temperature": 0.5})
    told = CLIENT.chat(**asked, format=Animal.model_json_schema())
    if told.done_reason == "stop":
        Animal.model_validate_json(told.message.content)
    told = CLIENT.generate(model=MODEL, prompt="A fox as JSON.", format="json", options=asked["options"])
    assert told.response.lstrip().startswith("{"), told.response
    if told.done_reason == "stop":
        assert isinstance(json.loads(told.response), dict)
    refused(400, "format", lambda: CLIENT.chat(**asked, format={"type": "strange"}))


def weather(city: str, days: int = 1) -> str:
    """Tell the weather.

    Args:
        city: The city
        days: How many days
    """
    return f"{city}: rain for {days} days"


def tools():
    asked = dict(model=MODEL, options=SHORT, tools=[weather])
    first = CLIENT.chat(messages=ASK, **asked)
    assert first.prompt_eval_count > CLIENT.chat(model=MODEL, messages=ASK, options=SHORT).prompt_eval_count + 20
    call = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
    called = [*ASK, ollama.Message(role="assistant", content="", tool_calls=[call]),
              {"role": "tool", "tool_name": "weather", "content": weather("Rome")}]
    assert CLIENT.chat(messages=called, **asked).prompt_eval_count > first.prompt_eval_count + 10
    parts = list(CLIENT.chat(messages=called, **asked, stream=True))
    assert parts[-1].done


def thinks():
    refused(400, "does not support thinking", lambda: CLIENT.chat(model=MODEL, messages=ASK, think=True))
    assert CLIENT.chat(model=MODEL, messages=ASK, options=SHORT, think=False).message.thinking is None


def logprobs():
    told = CLIENT.chat(model=MODEL, messages=ASK, options=SHORT, logprobs=True, top_logprobs=2)
    assert len(told.logprobs) == 24 and all(len(entry.top_logprobs) == 2 for entry in told.logprobs)
    assert "".join(entry.token for entry in told.logprobs).startswith(told.message.content[:8])
    parts = list(CLIENT.chat(model=MODEL, messages=ASK, options=SHORT, logprobs=True, top_logprobs=2, stream=True))
    assert sum(len(part.logprobs or []) for part in parts) == 24


def embeds():
    told = CLIENT.embed(model=MODEL, input=["A fox.", "A fox.", "The sea is deep and blue."])
    one, same, other = told.embeddings
    dot = lambda a, b: sum(x * y for x, y in zip(a, b))
    assert math.isclose(dot(one, one), 1, rel_tol=1e-4) and one == same and dot(one, other) < 0.9999
    assert CLIENT.embed(model=MODEL, input="A fox.").embeddings[0] == one
    assert len(CLIENT.embed(model=MODEL, input="A fox.", dimensions=8).embeddings[0]) == 8
    long = CLIENT.embed(model=MODEL, input="a fox " * 5000)
    assert long.prompt_eval_count == CLIENT.ps().models[0].context_length
    refused(400, "context", lambda: CLIENT.embed(model=MODEL, input="a fox " * 5000, truncate=False))
    older = CLIENT.embeddings(model=MODEL, prompt="A fox.").embedding
    assert len(older) == len(one) and math.isclose(dot(older, one), math.sqrt(dot(older, older)), rel_tol=1e-3)


def what_is_not_served():
    picture = [{"role": "user", "content": "a", "images": ["aGk="]}]
    refused(400, "images", lambda: CLIENT.chat(model=MODEL, messages=picture))
    refused(400, "suffix", lambda: CLIENT.generate(model=MODEL, prompt="a", suffix="b"))
    refused(400, "template", lambda: CLIENT.generate(model=MODEL, prompt="a", template="{{ .Prompt }}"))
    refused(404, "not served here", lambda: CLIENT.chat(model="no-such", messages=ASK))
    refused(404, "interbed serve", lambda: CLIENT.pull("llama3.2"))
    refused(404, "Hub", lambda: CLIENT.push("me/mine"))
    refused(404, "GGUF", lambda: CLIENT.create(model="mine", from_="llama3.2"))
    refused(404, "--served-model-name", lambda: CLIENT.copy(MODEL, "mine"))
    refused(404, "interbed rm", lambda: CLIENT.delete(MODEL))


def side_by_side():
    async def all_of_them():
        client = ollama.AsyncClient(URL)

        async def one(seed):
            parts = await client.chat(model=MODEL, messages=ASK, options={**SHORT, "seed": seed}, stream=True)
            return "".join([part.message.content async for part in parts])

        return await asyncio.gather(*(one(seed) for seed in range(6)))

    for seed, text in enumerate(asyncio.run(all_of_them())):
        assert text == CLIENT.chat(model=MODEL, messages=ASK, options={**SHORT, "seed": seed}).message.content


def curl(*arguments):
    line = ["curl", "-s", "-w", "\n%{http_code}", *arguments]
    told = subprocess.run(line, capture_output=True, text=True, check=True)
    body, status = told.stdout.rsplit("\n", 1)
    return int(status), body


def documented_lines():
    """As Ollama's documentation has them: `curl` then calls the body a form."""
    asked = '{\n  "model": "storyteller",\n  "prompt": "Why is the sky blue?"\n}'
    status, body = curl(f"{URL}/api/generate", "-d", asked)
    lines = [json.loads(line) for line in body.splitlines()]
    assert status == 200 and lines[-1]["done"] and len(lines) > 3, body
    status, body = curl(f"{URL}/api/chat", "-d", json.dumps({"model": "storyteller", "messages": ASK, "stream": False}))
    assert status == 200 and json.loads(body)["message"]["content"], body
    status, body = curl(f"{URL}/api/embed", "-d", '{"model": "storyteller", "input": "Why is the sky blue?"}')
    assert status == 200 and len(json.loads(body)["embeddings"]) == 1
    assert curl(f"{URL}/api/show", "-d", '{"model": "storyteller"}')[0] == 200
    assert curl(f"{URL}/api/tags")[0] == 200 and curl("-I", f"{URL}/")[0] == 200
    status, body = curl("-H", "Origin: https://evil.example", f"{URL}/api/generate", "-d", '{"prompt": "a"}')
    assert status == 403 and isinstance(json.loads(body)["error"], str), body
    status, body = curl(f"{URL}/v1/completions", "-d", '{"prompt": "a"}')
    assert status == 415, body


CHECKS = [lists, shows, generates, continues_raw_text, chats, options, loads, formats, tools, thinks, logprobs, embeds,
          what_is_not_served, side_by_side, documented_lines]
for check in CHECKS:
    check()
    print(f"ok {check.__name__}", flush=True)
print(f"{len(CHECKS)} checks of Ollama's client passed")
