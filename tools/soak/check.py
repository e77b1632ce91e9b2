"""Clients that connect, stream, vanish, send garbage and come back; then nothing may be left of them.

Usage: check.py URL PID SECONDS [CLIENTS]. Ends with an error if an answer is wrong or late, if the server is unhealthy
for a moment, or if blocks, memory, descriptors or threads are not what they were.
"""

import asyncio
import collections
import json
import os
import random
import re
import sys
import time
import urllib.parse

URL, PID, SECONDS = urllib.parse.urlsplit(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
CLIENTS = int(sys.argv[4]) if len(sys.argv) > 4 else 64
RANDOM = random.Random(7)
# Longer than any of these requests takes when 64 wait.
PATIENCE = 120
# Memory that the system's allocator may keep after the first round.
SLACK = 16 << 20
done = collections.Counter()


async def connect():
    return await asyncio.open_connection(URL.hostname, URL.port)


def request(path, body, close=True):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    ending = "close" if close else "keep-alive"
    head = f"POST {path} HTTP/1.1\r\nHost: {URL.netloc}\r\nConnection: {ending}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def prompt():
    # Some beginnings are shared.
    generator = random.Random(RANDOM.randrange(20))
    return [generator.randrange(10, 500) for _ in range(RANDOM.randrange(1, 300))]


def completion(**more):
    asked = dict(prompt=prompt(), max_tokens=RANDOM.randrange(1, 80), temperature=RANDOM.choice([0, 1]))
    return {**asked, "ignore_eos": True, **more}


def conversation(**more):
    messages = [{"role": "user", "content": "Tell me of " + RANDOM.choice(["a fox", "the sea", "an owl"])}]
    return dict(messages=messages, max_tokens=RANDOM.randrange(1, 80), **more)


def unchunked(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return head, body
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        whole += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return head, whole


async def exchange(data):
    reader, writer = await connect()
    try:
        writer.write(data)
        await writer.drain()
        return unchunked(await asyncio.wait_for(reader.read(), PATIENCE))
    finally:
        writer.close()


async def whole():
    """An answer in one piece, with as many tokens as were asked for."""
    asked = completion(n=RANDOM.choice([1, 1, 1, 3]))
    head, body = await exchange(request("/v1/completions", asked))
    if b" 200 " not in head[:20]:
        assert b" 429 " in head[:20] or b" 503 " in head[:20], (head, body)
        return
    tokens = json.loads(body)["usage"]["completion_tokens"]
    assert tokens == asked["max_tokens"] * asked["n"], (tokens, asked)


async def streamed():
    path, asked = RANDOM.choice([("/v1/completions", completion), ("/v1/chat/completions", conversation)])
    head, body = await exchange(request(path, asked(stream=True)))
    if b" 200 " in head[:20]:
        assert body.rstrip().endswith(b"data: [DONE]"), body[-300:]


async def vanish():
    """Goes away in the middle of a stream, politely or not."""
    reader, writer = await connect()
    writer.write(request("/v1/completions", completion(stream=True, max_tokens=200)))
    await writer.drain()
    await asyncio.wait_for(reader.read(RANDOM.randrange(1, 2000)), PATIENCE)
    writer.close() if RANDOM.random() < 0.5 else writer.transport.abort()


async def leave_early():
    """Does not wait for the answer."""
    _, writer = await connect()
    writer.write(request("/v1/completions", completion(max_tokens=200)))
    await writer.drain()
    await asyncio.sleep(RANDOM.random() * 0.2)
    writer.transport.abort()


async def deaf():
    """Asks for a stream and reads nothing of it for a while."""
    _, writer = await connect()
    writer.write(request("/v1/completions", completion(stream=True, max_tokens=200)))
    await writer.drain()
    await asyncio.sleep(RANDOM.random() * 5)
    writer.transport.abort()


async def garbage():
    reader, writer = await connect()
    writer.write(RANDOM.randbytes(RANDOM.randrange(1, 3000)))
    try:
        writer.write_eof()
        await asyncio.wait_for(reader.read(), PATIENCE)
    except ConnectionError:
        pass
    writer.close()


async def bad_request():
    body = RANDOM.choice(
        [b"{", b"\xff\xfe", b"[]", b'{"prompt": 3}', b'{"prompt": "x", "max_tokens": -7}', b'{"messages": [[]]}', b"[" * 999]
    )
    head, answer = await exchange(request(RANDOM.choice(["/v1/completions", "/v1/chat/completions"]), body))
    assert head.startswith(b"HTTP/1.1 4"), (body, head)
    assert json.loads(answer)["error"]["message"], answer


async def half_a_request():
    data = request("/v1/completions", completion())
    _, writer = await connect()
    writer.write(data[: RANDOM.randrange(1, len(data))])
    await writer.drain()
    await asyncio.sleep(RANDOM.random() * 2)
    writer.close()


async def nothing():
    _, writer = await connect()
    await asyncio.sleep(RANDOM.random() * 2)
    writer.close()


KINDS = [whole] * 4 + [streamed] * 4 + [vanish] * 3 + [leave_early, deaf, garbage, bad_request, half_a_request, nothing]


async def client(end):
    while time.monotonic() < end:
        kind = RANDOM.choice(KINDS)
        try:
            await kind()
        # The server may close on garbage before all of it was sent.
        except (ConnectionError, asyncio.IncompleteReadError):
            assert kind not in (whole, streamed, bad_request), kind
        done[kind.__name__] += 1


async def page(path):
    head, body = await exchange(f"GET {path} HTTP/1.1\r\nHost: {URL.netloc}\r\nConnection: close\r\n\r\n".encode())
    return int(head.split()[1]), body.decode()


async def metrics():
    _, text = await page("/metrics")
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[re.sub(r'(model_name|engine)="[^"]*",?', "", name)] = float(value)
    return found


def sum_of(found, name, label=""):
    return sum(value for key, value in found.items() if key.split("{")[0] == name and label in key)


async def healthy(end):
    """Asks all the time, and must always be told that all is well."""
    while time.monotonic() < end:
        status, body = await page("/health")
        assert status == 200, body
        await asyncio.sleep(1)


def process():
    status = open(f"/proc/{PID}/status").read()
    number = lambda name: int(re.search(rf"{name}:\s+(\d+)", status)[1])
    return dict(
        memory=number("VmRSS") << 10, threads=number("Threads"), descriptors=len(os.listdir(f"/proc/{PID}/fd"))
    )


async def idle():
    """What the process holds once nobody is served."""
    for _ in range(1200):
        found = await metrics()
        used = sum_of(found, "interbed:kv_blocks", 'state="used"')
        if used == sum_of(found, "vllm:num_requests_running") == sum_of(found, "vllm:num_requests_waiting") == 0:
            break
        await asyncio.sleep(0.1)
    else:
        sys.exit(f"{used:.0f} blocks are still used after two minutes")
    # Connections end a moment after their clients, and threads of pools when they have been idle for ten seconds.
    await asyncio.sleep(15)
    return process()


def quantile(found, name, share):
    """An upper bound, from the buckets of a histogram."""
    buckets = []
    for key, value in found.items():
        if key.startswith(name + "_bucket"):
            buckets.append((float(re.search(r'le="([^"]+)"', key)[1]), value))
    buckets.sort()
    return next(edge for edge, count in buckets if count >= share * buckets[-1][1])


async def load(seconds):
    end = time.monotonic() + seconds
    await asyncio.gather(healthy(end), *(client(end) for _ in range(CLIENTS)))


async def main():
    # The first round fills caches, buffers and pools of threads.
    await load(min(60, SECONDS / 5))
    before = await idle()
    await load(SECONDS)
    after = await idle()
    found = await metrics()
    leaks = sum_of(found, "interbed:kv_leaks_found_total")
    overhead = quantile(found, "interbed:kv_allocation_seconds", 0.99)
    print(f"{sum(done.values())} connections: " + ", ".join(f"{count} {kind}" for kind, count in sorted(done.items())))
    print(f"before: {before}\nafter:  {after}\nscheduling takes at most {overhead * 1e3:g} ms in 99 of 100 steps")
    assert leaks == 0, f"{leaks} leaks"
    assert after["threads"] <= before["threads"], "threads are left"
    assert after["descriptors"] <= before["descriptors"], "descriptors are left"
    assert after["memory"] <= before["memory"] + SLACK
    assert overhead <= 1e-3


asyncio.run(main())
