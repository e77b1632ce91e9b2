#!/usr/bin/env python3
"""Serves the small model of FOLDER with INTERBED, the binary, and asks it questions with tools of which one must be
called. Usage: ask.py FOLDER INTERBED; ends with 1 if an answer is neither a valid call nor said to be cut off."""

import collections
import json
import pathlib
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import jsonschema

folder, binary = pathlib.Path(sys.argv[1]), sys.argv[2]
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
URL = f"http://127.0.0.1:{port}"


def post(body):
    request = urllib.request.Request(f"{URL}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]


def ask(question):
    functions = question["functions"]
    choice = post({"messages": question["question"], "max_tokens": 256, "seed": 1, "parallel_tool_calls": False,
                   "tools": [{"type": "function", "function": function} for function in functions],
                   "tool_choice": "required"})
    if choice["finish_reason"] == "length":
        return "cut off, and says so"
    assert choice["finish_reason"] == "tool_calls", choice
    [call] = choice["message"]["tool_calls"]
    schema = next(function["parameters"] for function in functions if function["name"] == call["function"]["name"])
    arguments = json.loads(call["function"]["arguments"])
    jsonschema.validate(arguments, schema, cls=jsonschema.Draft202012Validator)
    return "valid"


log = open(folder / "server.log", "w")
server = subprocess.Popen([binary, "serve", str(next(folder.glob("*.gguf"))), "--port", str(port), "--tool-parser",
                           "hermes"], stdout=log, stderr=log)
counted, wrong = collections.Counter(), 0
try:
    while True:
        try:
            urllib.request.urlopen(f"{URL}/health")
            break
        except urllib.error.URLError:
            assert server.poll() is None, f"the server ended: {folder}/server.log"
            time.sleep(0.2)
    for line in (folder / "questions.jsonl").read_text().strip().split("\n"):
        question = json.loads(line)
        try:
            counted[ask(question)] += 1
        except (AssertionError, ValueError, StopIteration, jsonschema.ValidationError) as problem:
            print(f"{question['functions'][0]['name']}: {problem!r}"[:500])
            wrong += 1
finally:
    server.terminate()
    server.wait()
print(dict(counted), f"wrong: {wrong}")
sys.exit(wrong > 0)
