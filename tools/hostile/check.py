"""Sends a server schemas and grammars that take long or much, and looks at what others notice of it.

Usage: check.py URL PID BUDGET_BYTES HOSTILE_KEY OTHER_KEY [COUNT [SEED]]. Eight clients with one key send COUNT of them
(300), two at a time each. Ends with an error if a completion for the other key takes more than a second, the process
and those that it started take more memory than the budget, an answer is a server's error but for the lack of room, or
anything still computes five seconds after the last answer.
"""

import asyncio
import collections
import json
import os
import sys
import time
import urllib.parse

from schemas import hostile

URL, PID, BUDGET = urllib.parse.urlsplit(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
KEY, OTHER_KEY = sys.argv[4], sys.argv[5]
COUNT = int(sys.argv[6]) if len(sys.argv) > 6 else 300
SEED = int(sys.argv[7]) if len(sys.argv) > 7 else 1
CLIENTS, AT_A_TIME = 8, 2
# A completion for the other key, and any answer at all.
LATEST, PATIENCE = 1.0, 120
TICKS = os.sysconf("SC_CLK_TCK")
problems = []
slow = collections.Counter()


async def post(path, body, key):
    reader, writer = await asyncio.open_connection(URL.hostname, URL.port)
    try:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {URL.netloc}\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        await writer.drain()
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        return int(answer.split(b" ", 2)[1]), answer
    finally:
        writer.close()


async def get(path):
    reader, writer = await asyncio.open_connection(URL.hostname, URL.port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {URL.netloc}\r\nConnection: close\r\n\r\n".encode())
        return int((await asyncio.wait_for(reader.read(), 10)).split(b" ", 2)[1])
    finally:
        writer.close()


async def attack(queue, statuses, took):
    while queue:
        number, (kind, fields) = queue.popleft()
        body = {"max_tokens": 48, "temperature": 1, "seed": number, **fields}
        if "tools" in fields:
            path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": "Call f."}]
        else:
            path, body["prompt"] = "/v1/completions", "Once"
        begin = time.monotonic()
        try:
            status, answer = await post(path, body, KEY)
        except Exception as error:
            problems.append(f"{number} ({kind}) got no answer: {error!r}")
            continue
        seconds = time.monotonic() - begin
        statuses[status] += 1
        took.append((seconds, number, kind, status))
        if status >= 500 and status != 503:
            problems.append(f"{number} ({kind}): {answer[-300:]!r}")


async def others(over, took):
    """Completions, texts to tokenize and looks at the health, all the while."""
    while not over.is_set():
        begin = time.monotonic()
        status, answer = await post("/v1/completions", {"prompt": "Once upon", "max_tokens": 8, "ignore_eos": True}, OTHER_KEY)
        took.append(time.monotonic() - begin)
        if status != 200:
            problems.append(f"a completion for another key: {answer[-300:]!r}")
        begin = time.monotonic()
        await post("/tokenize", {"prompt": "Once upon a time"}, OTHER_KEY)
        tokenized = time.monotonic() - begin
        if tokenized > LATEST:
            problems.append(f"a text of another key took {tokenized:.2f} s to be tokenized")
        if (status := await get("/health")) != 200:
            problems.append(f"/health says {status}")
        await asyncio.sleep(0.05)


def family():
    """The server's process and those that it started."""
    try:
        with open(f"/proc/{PID}/task/{PID}/children") as file:
            mine = [int(child) for child in file.read().split()]
        for task in os.listdir(f"/proc/{PID}/task"):
            with open(f"/proc/{PID}/task/{task}/children") as file:
                mine += [int(child) for child in file.read().split()]
    except OSError:
        mine = []
    return {PID, *mine}


def resident(pid):
    """What a process has of its own, and its part of what it shares."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


def processor_time():
    total = 0
    for pid in family():
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        except OSError:
            pass
    return total / TICKS


async def watch_memory(over, peak):
    while not over.is_set():
        now = {pid: resident(pid) for pid in family()}
        if sum(now.values()) > sum(peak.values()):
            peak.clear()
            peak.update(now)
        await asyncio.sleep(0.03)


async def main():
    queue = collections.deque(enumerate(hostile(SEED)[:COUNT]))
    statuses, peak, took, took_others = collections.Counter(), {}, [], []
    over = asyncio.Event()
    # The first that is bound builds what all need.
    await post("/v1/completions", {"prompt": "Once", "max_tokens": 1, "guided_regex": "a"}, OTHER_KEY)
    beside = [asyncio.create_task(others(over, took_others)), asyncio.create_task(watch_memory(over, peak))]
    begin = time.monotonic()
    await asyncio.gather(*(attack(queue, statuses, took) for _ in range(CLIENTS * AT_A_TIME)))
    seconds = time.monotonic() - begin
    over.set()
    await asyncio.gather(*beside)
    await asyncio.sleep(5)
    before = processor_time()
    await asyncio.sleep(2)
    left = (processor_time() - before) / 2
    took_others.sort()
    took.sort(reverse=True)
    print(f"{COUNT} in {seconds:.1f} s: {dict(statuses)}; the longest: {took[:5]}")
    print(f"{len(took_others)} completions for another key: median {took_others[len(took_others) // 2]:.3f} s, ", end="")
    print(f"longest {took_others[-1]:.3f} s")
    print(f"most memory: {sum(peak.values()) / 2**20:.1f} MiB of {BUDGET / 2**20:.0f}, {len(peak)} processes; ", end="")
    print(f"{left * 100:.1f} % of a processor in use five seconds after")
    if took_others[-1] > LATEST:
        problems.append(f"a completion for another key took {took_others[-1]:.2f} s")
    if sum(peak.values()) > BUDGET:
        problems.append(f"{sum(peak.values())} bytes were resident")
    if left > 0.1:
        problems.append("something still computes five seconds after the last answer")
    if problems:
        sys.exit("\n".join(problems[:20]))


asyncio.run(main())
