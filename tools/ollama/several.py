"""Runs Ollama's client against a server of several models at the URL given; ends at the first thing that is not as it
should be. The server has the storyteller, and the Hub that it fetches from has the model NAME given besides."""

import asyncio
import datetime
import json
import sys
import time
import urllib.request

import ollama

URL, NAME = sys.argv[1].rstrip("/"), sys.argv[2]
CLIENT = ollama.Client(URL)
OWN = "storyteller"
BOTH = [OWN, NAME]
ASK = [{"role": "user", "content": "Tell me a story about a fox."}]
SHORT = {"num_predict": 16, "seed": 7}


def refused(status, words, call):
    try:
        call()
    except ollama.ResponseError as error:
        assert error.status_code == status and words in error.error, (error.status_code, error.error)
        return
    raise AssertionError(f"{words} was not refused")


def present():
    return [model.model.removesuffix(":latest") for model in CLIENT.ps().models]


def gone():
    end = time.monotonic() + 30
    while present():
        assert time.monotonic() < end, "the model stays"
        time.sleep(0.05)


def begins_with_its_own():
    assert [model.model for model in CLIENT.list().models] == [f"{OWN}:latest"] and present() == []
    refused(404, "interbed pull", lambda: CLIENT.generate(NAME, "Once"))


def pulls():
    parts = list(CLIENT.pull(NAME, stream=True))
    assert parts[0].status == "pulling manifest" and parts[-1].status == "success", parts
    told = [part for part in parts if part.total]
    assert told and told[-1].completed == told[-1].total > 1_000_000 and told[0].digest, parts
    assert CLIENT.pull(NAME).status == "success"
    refused(400, "has no model org/none", lambda: CLIENT.pull("org/none"))
    refused(400, "no name of a model", lambda: CLIENT.pull("none-of-all"))


def lists():
    known = {model.model.removesuffix(":latest"): model for model in CLIENT.list().models}
    assert set(known) == set(BOTH) and all(model.size > 1_000_000 for model in known.values()), known
    assert present() == []


def shows_without_loading():
    for name in BOTH:
        shown = CLIENT.show(name)
        assert "completion" in shown.capabilities and shown.details.family == "llama", shown
    refused(404, "not on this machine", lambda: CLIENT.show("no-such"))
    assert present() == []


def takes_turns():
    texts = {}
    for turn in range(10):
        for name in BOTH:
            told = CLIENT.generate(name, "Once upon a time", raw=True, options=SHORT)
            assert told.model == name and told.eval_count == 16 and told.load_duration > 0, told
            assert texts.setdefault(name, told.response) == told.response
            assert present() == [name]


def chats_in_streams():
    for name in BOTH * 2:
        parts = list(CLIENT.chat(name, ASK, options=SHORT, stream=True))
        assert parts[-1].done and "".join(part.message.content for part in parts), parts


def embeds():
    for name in BOTH:
        assert len(CLIENT.embed(name, ["A fox.", "The sea."]).embeddings) == 2


def tells_how_long_it_waited():
    CLIENT.generate(OWN, "Once", options=SHORT)
    first = CLIENT.generate(NAME, "Once", options=SHORT).load_duration
    second = CLIENT.generate(NAME, "Once", options=SHORT).load_duration
    assert first > 10 * second and first > 1_000_000, (first, second)


def loads_and_unloads():
    assert CLIENT.generate(NAME).done_reason == "load" and present() == [NAME]
    assert CLIENT.chat(NAME, [], keep_alive=0).done_reason == "unload"
    gone()
    assert CLIENT.generate(OWN, keep_alive=0).done_reason == "unload" and present() == []


def keeps_models_as_long_as_asked():
    year = datetime.timedelta(days=365)
    expires = lambda: CLIENT.ps().models[0].expires_at - datetime.datetime.now(datetime.timezone.utc)
    CLIENT.generate(OWN, "Once", options=SHORT)
    assert datetime.timedelta(minutes=4) < expires() <= datetime.timedelta(minutes=5)
    CLIENT.generate(OWN, "Once", options=SHORT, keep_alive=-1)
    assert expires() > 100 * year
    CLIENT.generate(OWN, "Once", options=SHORT, keep_alive="1s")
    gone()
    CLIENT.generate(OWN, "Once", options=SHORT, keep_alive=0)
    gone()


def a_stream_runs_to_its_end():
    stream = CLIENT.generate(OWN, "Once upon a time", raw=True, options={"num_predict": 400, "seed": 3}, stream=True)
    first = next(stream)
    assert first.response is not None

    async def other():
        return await ollama.AsyncClient(URL).generate(NAME, "Once", options=SHORT)

    async def both():
        asked = asyncio.create_task(other())
        rest = await asyncio.to_thread(lambda: list(stream))
        assert rest[-1].done and rest[-1].eval_count > 16
        return await asked

    assert asyncio.run(both()).done and present() == [NAME]


def side_by_side():
    async def all_of_them():
        client = ollama.AsyncClient(URL)
        return await asyncio.gather(*(client.generate(BOTH[i % 2], "Once", options=SHORT) for i in range(12)))

    assert [told.model for told in asyncio.run(all_of_them())] == BOTH * 6


def other_apis():
    def post(path, body):
        request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"content-type": "application/json"})
        return json.load(urllib.request.urlopen(request, timeout=60))

    for name in BOTH:
        body = {"model": name, "messages": ASK, "max_tokens": 8}
        assert post("/v1/chat/completions", body)["model"] == name
        assert post("/v1/messages", body)["usage"]["output_tokens"] == 8
        assert present() == [name]
    listed = json.load(urllib.request.urlopen(URL + "/v1/models", timeout=60))
    assert sorted(model["id"] for model in listed["data"]) == sorted(BOTH)


def goes_on_after_one_that_is_given_up():
    async def given_up():
        asked = asyncio.create_task(ollama.AsyncClient(URL).generate(OWN, "Once", options={"num_predict": 4000}))
        await asyncio.sleep(0.2)
        asked.cancel()

    asyncio.run(given_up())
    assert CLIENT.generate(NAME, "Once", options=SHORT).done


CHECKS = [begins_with_its_own, pulls, lists, shows_without_loading, takes_turns, chats_in_streams, embeds,
          tells_how_long_it_waited, loads_and_unloads, keeps_models_as_long_as_asked, a_stream_runs_to_its_end,
          side_by_side, other_apis, goes_on_after_one_that_is_given_up]
for check in CHECKS:
    check()
    print(f"ok {check.__name__}", flush=True)
print(f"{len(CHECKS)} checks of Ollama's client with several models passed")
