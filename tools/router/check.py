"""Two servers behind a router that follows their KV events: prefixes go where they are cached, and a dead server takes
only what it was computing with it.

Usage: check.py INTERBED, the binary. Runs examples/router/run.
"""

import concurrent.futures
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

INTERBED = sys.argv[1]
ROUTER = "http://127.0.0.1:8791"
GROUPS, TURNS, ROUNDS = 8, 4, 8


def post(url, path, body, timeout=120):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    return urllib.request.urlopen(request, timeout=timeout)


def get(url, path):
    return urllib.request.urlopen(url + path, timeout=30).read().decode()


def complete(url, prompt, max_tokens=8):
    with post(url, "/v1/completions", dict(model="model", prompt=prompt, max_tokens=max_tokens, temperature=0)) as answer:
        return json.load(answer)


def conversations():
    """Conversations, of which several each begin with one of a few long instructions."""
    generator = random.Random(5)
    words = "fox owl tree river sun moon stone cake boat song bird rain".split()
    text = lambda count: " ".join(generator.choice(words) for _ in range(count))
    instructions = [f"Story number {group}. " + text(200) for group in range(GROUPS)]
    return [[instruction] + [" And then? " + text(20) for _ in range(TURNS)] for instruction in instructions * ROUNDS]


def hit_rate(url):
    def talk(turns):
        usages = []
        for count in range(2, len(turns) + 1):
            usages.append(complete(url, "".join(turns[:count]), 24)["usage"])
            # People read before they go on, and the router hears of blocks a moment later.
            time.sleep(0.1)
        return usages

    # The first of each kind alone: then it is the router's choice where the others go.
    talks = conversations()
    asked = found = 0
    for some in (talks[:GROUPS], talks[GROUPS:]):
        with concurrent.futures.ThreadPoolExecutor(GROUPS) as pool:
            for usage in [usage for usages in pool.map(talk, some) for usage in usages]:
                asked += usage["prompt_tokens"]
                found += usage["prompt_tokens_details"]["cached_tokens"]
    return found / asked


def requests_of(url):
    text = get(url, "/metrics")
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("vllm:request_success_total"))


def main():
    alone = subprocess.Popen(
        [INTERBED, "serve", "models/storyteller", "--port", "0", "--served-model-name", "model", "--block-size", "16"],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "RUST_LOG": "error"},
    )
    try:
        url = next(found[1] for line in alone.stderr if (found := re.search(r"^Serving .* on (http://[^/]*)/v1", line)))
        one = hit_rate(url)
    finally:
        alone.terminate()
        alone.wait()

    fleet = subprocess.Popen(
        ["examples/router/run", INTERBED], stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PORT": ROUTER.rsplit(":", 1)[1], "METRICS_PORT": "28791", "RUST_LOG": "error"},
    )
    try:
        servers = []
        for line in fleet.stdout:
            if found := re.search(r"server: (http://\S+) \(process (\d+)\)", line):
                servers.append((found[1], int(found[2])))
            if line.startswith("router:"):
                break
        for _ in range(300):
            try:
                complete(ROUTER, "Hello", 1)
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)
        before = [requests_of(url) for url, _ in servers]
        two = hit_rate(ROUTER)
        shares = [requests_of(url) - before for (url, _), before in zip(servers, before)]
        print(f"hit rate of one server {one:.3f}, of two behind the router {two:.3f}; requests of each: {shares}")
        assert two >= 0.9 * one, "prefixes do not go to the server that has them"
        assert min(shares) >= 0.1 * sum(shares), "one server does all the work"
        survive(servers)
    finally:
        os.killpg(fleet.pid, signal.SIGTERM)
        fleet.wait()


def survive(servers):
    """Kills a server at once, in the middle of streams on both."""
    ended, lock = [], threading.Lock()

    def stream(number):
        begun, whole = False, False
        try:
            body = dict(model="model", prompt=f"{number}. Once", max_tokens=1000, temperature=0, ignore_eos=True, stream=True)
            with post(ROUTER, "/v1/completions", body) as answer:
                for line in answer:
                    begun = True
                    whole = whole or line.strip() == b"data: [DONE]"
        except Exception as error:
            print(f"  stream {number} was lost: {error!r}")
        with lock:
            ended.append((begun, whole))

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        streams = [pool.submit(stream, number) for number in range(12)]
        running = lambda url: float(re.search(r"^vllm:num_requests_running\{.*\} (\S+)$", get(url, "/metrics"), re.M)[1])
        for _ in range(600):
            at_once = [running(url) for url, _ in servers]
            if min(at_once) > 0 and sum(at_once) == 12:
                break
            time.sleep(0.02)
        assert min(at_once) > 0, f"both should compute, but run {at_once}"
        os.kill(servers[0][1], signal.SIGKILL)
        [future.result() for future in streams]
    lost = sum(not whole for _, whole in ended)
    print(f"a server that computed {at_once[0]:.0f} of 12 streams was killed: {lost} were lost")
    assert lost <= at_once[0], "others were lost with it"
    # From now on the other one answers.
    answers = [complete(ROUTER, f"{number}. A fox", 8) for number in range(20)]
    assert all(answer["choices"][0]["text"] for answer in answers)


main()
