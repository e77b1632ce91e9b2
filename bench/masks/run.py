#!/usr/bin/env python3
"""What masks cost the decode: serves MODEL with INTERBED, the binary, and has SEQUENCES answers decoded at once, in turns
without a schema and with one. Usage: run.py INTERBED MODEL [SEQUENCES [TOKENS [TURNS [TEMPERATURE]]]]. A model with a
large vocabulary is made by `interbed synth --like llama-3.2-1b`. Figures are tokens per second of decode, over all
answers. At a temperature above 0, an answer without a schema is drawn among all tokens of the vocabulary, which takes
longer than drawing it among the few that a schema allows: 0 shows masks alone."""

import concurrent.futures
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

binary, model = sys.argv[1], sys.argv[2]
SEQUENCES, TOKENS, TURNS, TEMPERATURE = map(int, sys.argv[3:7] + ["32", "48", "5", "0"][len(sys.argv[3:7]):])
# No answer to it ends within the tokens that are asked for.
RECORD = {"type": "object", "required": ["name", "age", "tags"], "additionalProperties": False, "properties": {
    "name": {"type": "string", "minLength": 4, "maxLength": 40}, "age": {"type": "integer", "minimum": 0},
    "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 6}}}
SCHEMA = {"type": "array", "items": RECORD, "minItems": 1000}
FREE = {"ignore_eos": True}
BOUND = {"response_format": {"type": "json_schema", "json_schema": {"name": "records", "schema": SCHEMA}}}


def stream(url, index, more):
    """When the first token of an answer came, when the last, and how many there were."""
    body = {"prompt": f"Record {index}:", "max_tokens": TOKENS, "seed": index, "temperature": TEMPERATURE, "stream": True,
            "stream_options": {"include_usage": True}} | more
    request = urllib.request.Request(f"{url}/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    first, last, count = None, None, 0
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            now = time.monotonic()
            # While the server computes a prompt, it sends chunks that have neither text nor a reason.
            if any(choice.get("text") or choice["finish_reason"] for choice in chunk["choices"]):
                first, last = first or now, now
            if chunk.get("usage"):
                count = chunk["usage"]["completion_tokens"]
    assert count == TOKENS, f"an answer has {count} tokens, not {TOKENS}"
    return first, last


def decode(url, more):
    """Tokens per second, from when all answers have begun until the first one ends."""
    with concurrent.futures.ThreadPoolExecutor(SEQUENCES) as pool:
        times = list(pool.map(lambda index: stream(url, index, more), range(SEQUENCES)))
    seconds = max(last for _, last in times) - max(first for first, _ in times)
    return SEQUENCES * (TOKENS - 1) / seconds


def spent(pid):
    """Processor seconds of the threads that compute masks, and of the server."""
    masks, all_of_it = 0, 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        stat = (task / "stat").read_text()
        name, fields = stat[stat.index("(") + 1:stat.rindex(")")], stat[stat.rindex(")") + 2:].split()
        ticks = int(fields[11]) + int(fields[12])
        masks, all_of_it = masks + ticks * (name == "masks"), all_of_it + ticks
    return masks / os.sysconf("SC_CLK_TCK"), all_of_it / os.sysconf("SC_CLK_TCK")


with tempfile.TemporaryDirectory() as folder:
    log = pathlib.Path(folder, "log")
    with open(log, "w") as told:
        server = subprocess.Popen([binary, "serve", model, "--port", "0"], stdout=told, stderr=told)
    try:
        while not (found := re.search(r"on (http://\S+/v1)", log.read_text())):
            assert server.poll() is None, log.read_text()
            time.sleep(0.2)
        url = found[1]
        decode(url, FREE), decode(url, BOUND)
        turns, shares = [], []
        for _ in range(TURNS):
            free, before = decode(url, FREE), spent(server.pid)
            turns.append((free, decode(url, BOUND)))
            masks, all_of_it = (now - then for now, then in zip(spent(server.pid), before))
            shares.append(masks / all_of_it)
    finally:
        server.terminate()
        server.wait()

with open("/proc/cpuinfo") as processor:
    print(re.search(r"model name\s*: (.*)", processor.read())[1], f"{SEQUENCES} sequences, {TOKENS} tokens each")
for (free, bound), share in zip(turns, shares):
    print(f"without a schema {free:8.1f} tokens/s, with one {bound:8.1f}: {100 * (1 - bound / free):5.1f} % less; "
          f"{100 * share:.1f} % of the processor time went into masks")
print(f"median: {100 * (1 - statistics.median(bound / free for free, bound in turns)):.1f} % less, "
      f"{100 * statistics.median(shares):.1f} % of the processor time")
