"""Servers that share KV in a store: what one has computed another finds, tenants and strangers find nothing, damage is
a miss, and a store that is silent, gone or full changes no answer and holds nobody up.

Usage: check.py INTERBED FOLDER, the binary and a folder for files.
"""

import atexit
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import boto3
import botocore.config

INTERBED, FOLDER = sys.argv[1], sys.argv[2]
PROMPTS, TOKENS = 20, 600


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


class Redis:
    def __init__(self, *options):
        self.port = free_port()
        self.address = f"redis://127.0.0.1:{self.port}"
        self.options = ["--save", "", "--appendonly", "no", "--dir", FOLDER, *options]
        self.start()

    def start(self):
        arguments = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), *self.options]
        self.process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        atexit.register(self.process.kill)
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)
        raise SystemExit("redis-server did not start")

    def ask(self, *words):
        arguments = ["redis-cli", "-p", str(self.port), *words]
        return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout.split()

    def kill(self):
        self.process.kill()
        self.process.wait()


class Server:
    def __init__(self, store, *options, **environment):
        more = ["--kv-remote", store] if store else []
        arguments = [INTERBED, "serve", "models/storyteller", "--port", "0", "--served-model-name", "model"]
        arguments += ["--block-size", "16", "--memory", "600M", *more, *options]
        environment = {**os.environ, "RUST_LOG": "error", **environment}
        self.process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=environment)
        for line in self.process.stderr:
            if found := re.search(r"^Serving .* on (http://[^/]*)/v1", line):
                self.url = found[1]
                break
        else:
            raise SystemExit("the server did not start")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, failed, *_):
        if failed:
            return self.process.kill()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=60) == 0, "the server did not end well"

    def complete(self, prompt, key=None, max_tokens=8):
        headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
        body = dict(model="model", prompt=prompt, max_tokens=max_tokens, temperature=0, ignore_eos=True)
        asked = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(), headers)
        began = time.monotonic()
        with urllib.request.urlopen(asked, timeout=120) as answer:
            answer = json.load(answer)
        usage = answer["usage"]
        found = usage.get("interbed", {}).get("remote", {}).get("loaded_tokens", 0)
        return answer["choices"][0]["text"], found, time.monotonic() - began

    def figure(self, name):
        page = urllib.request.urlopen(self.url + "/metrics", timeout=30).read().decode()
        return float(re.search(rf"^{name}(?:{{.*}})? (.*)$", page, re.M)[1])

    def settle(self):
        """Until all that is to be stored is."""
        before = -1
        for _ in range(200):
            stored = self.figure("interbed:kv_remote_stored_blocks_total")
            if self.figure("interbed:kv_remote_queued_blocks") == 0 and stored == before:
                return stored
            before = stored
            time.sleep(0.1)
        raise SystemExit("blocks were not stored within 20 seconds")


def prompts(seed):
    generator = random.Random(seed)
    return [[generator.randrange(10, 500) for _ in range(TOKENS)] for _ in range(PROMPTS)]


def texts(server, asked, key=None):
    return [server.complete(prompt, key)[0] for prompt in asked]


def found(server, asked, expected, key=None):
    """How many prompts were found at least in half; all answers must be what they should."""
    answers = [server.complete(prompt, key) for prompt in asked]
    assert [text for text, _, _ in answers] == expected, "an answer has changed"
    return sum(loaded >= TOKENS // 2 for _, loaded, _ in answers)


def main():
    os.makedirs(FOLDER, exist_ok=True)
    sets = [prompts(seed) for seed in range(8)]
    with Server(None) as alone:
        expected = [texts(alone, asked) for asked in sets]
        # What an answer takes without a store.
        alone_seconds = max(alone.complete(prompt)[2] for prompt in prompts(99))

    redis = Redis()
    key = os.path.join(FOLDER, "key")
    with open(key, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write("0123456789abcdef0123456789abcdef\n")
    own = ["--kv-remote-key", key]
    with Server(redis.address, *own) as first:
        assert texts(first, sets[0]) == expected[0]
        stored = first.settle()
        print(f"{stored:.0f} blocks of {PROMPTS} prompts are in the store")
        assert stored >= PROMPTS * (TOKENS // 16)
    with Server(redis.address, *own) as second:
        count = found(second, sets[0], expected[0])
        print(f"another server finds {count} of {PROMPTS} prompts")
        assert count >= PROMPTS - 2
        hits, asked = (second.figure(f"vllm:external_prefix_cache_{name}_total") for name in ("hits", "queries"))
        assert asked >= hits >= count * TOKENS // 2
    with Server(redis.address) as stranger:
        assert found(stranger, sets[0], expected[0]) == 0, "who lacks the key has found something"
    with Server(redis.address, *own, "--kv-dtype", "q8") as other:
        texts(other, sets[0])
        assert other.figure("interbed:kv_remote_hit_blocks_total") == 0, "KV of another type was found"
    print("who lacks the key finds nothing, nor who keeps KV otherwise")

    # Damage: some bytes of every object.
    for name in redis.ask("KEYS", "*"):
        redis.ask("SETRANGE", name, "1000", "damaged")
    with Server(redis.address, *own) as third:
        assert found(third, sets[0], expected[0]) == 0
        wrong = third.figure("interbed:kv_remote_wrong_objects_total")
        assert wrong >= PROMPTS - 2, wrong
        third.settle()
    with Server(redis.address, *own) as fourth:
        count = found(fourth, sets[0], expected[0])
        print(f"{wrong:.0f} damaged objects were noticed, and written again: {count} prompts are found")
        assert count >= PROMPTS - 2

    keys = ["--api-key", "a-key", "--api-key", "b-key"]
    with Server(redis.address, *own, *keys) as first:
        assert texts(first, sets[1], "a-key") == expected[1]
        first.settle()
    with Server(redis.address, *own, *keys) as second:
        assert found(second, sets[1], expected[1], "b-key") == 0, "a tenant has found what is another's"
    with Server(redis.address, *own, *keys) as third:
        count = found(third, sets[1], expected[1], "a-key")
        print(f"a tenant finds {count} of its own prompts, and none of another's")
        assert count >= PROMPTS - 2

    # Silent, then gone, then back.
    with Server(redis.address, *own) as server:
        assert texts(server, sets[2]) == expected[2]
        for what, act in (("silent", lambda: redis.process.send_signal(signal.SIGSTOP)), ("gone", redis.kill)):
            act()
            answers = [server.complete(prompt) for prompt in sets[3 if what == "silent" else 4]]
            assert [text for text, _, _ in answers] == expected[3 if what == "silent" else 4]
            slowest = sorted(seconds for _, _, seconds in answers)
            print(f"while the store is {what}, answers take {slowest[PROMPTS // 2]:.3f} s, at most {slowest[-1]:.3f} s;"
                  f" without it at most {alone_seconds:.3f} s")
            assert slowest[-1] < alone_seconds + 2
            if what == "silent":
                redis.process.send_signal(signal.SIGCONT)
        redis.start()
        for attempt in range(100):
            texts(server, [prompts(1000 + attempt)[0]])
            if server.figure("interbed:kv_remote_paused") == 0 and redis.ask("KEYS", "*"):
                break
            time.sleep(1)
        else:
            raise SystemExit("the server did not use the store again")
        print("when it is back, it is used again")
    redis.kill()

    # A store that has too little room for them.
    small = Redis("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru")
    with Server(small.address) as first, Server(small.address) as second:
        for asked, answers in zip(sets, expected):
            assert texts(first, asked) == answers
            found(second, asked, answers)
    small.kill()
    full = Redis("--maxmemory", "8mb", "--maxmemory-policy", "noeviction")
    with Server(full.address) as first:
        for asked, answers in zip(sets, expected):
            assert texts(first, asked) == answers
        errors = first.figure("interbed:kv_remote_write_errors_total")
        print(f"a store that is full refuses {errors:.0f} writes, and no answer changes")
        assert errors > 0
    full.kill()

    port = free_port()
    moto = subprocess.Popen([os.path.join(os.path.dirname(sys.executable), "moto_server"), "-p", str(port)],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        endpoint = f"http://127.0.0.1:{port}"
        named = dict(region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test")
        retries = botocore.config.Config(retries=dict(max_attempts=20))
        boto3.client("s3", endpoint_url=endpoint, config=retries, **named).create_bucket(Bucket="interbed-kv")
        s3 = dict(AWS_ENDPOINT_URL=endpoint, AWS_REGION="us-east-1", AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test")
        with Server("s3://interbed-kv/some/where", *own, **s3) as first:
            assert texts(first, sets[5]) == expected[5]
            print(f"{first.settle():.0f} blocks are in a bucket")
        with Server("s3://interbed-kv/some/where", *own, **s3) as second:
            count = found(second, sets[5], expected[5])
            blocks = second.figure("interbed:kv_remote_hit_blocks_total")
            print(f"another server finds {count} of {PROMPTS} prompts there, {blocks:.0f} blocks")
            # It is a slow one: what is computed faster is not waited for.
            assert blocks > 0
    finally:
        moto.kill()
    print("ok")


main()
