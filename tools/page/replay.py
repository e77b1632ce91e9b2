"""A made-up stream of a busy server, and a server that replays it in front of a real one."""

import http.client
import http.server
import json
import random
import threading
import time
from collections import deque
from pathlib import Path
from urllib.parse import urlsplit

WITHDRAWN, FREE, CACHED, MOVING, FIRST_OWNER, SHARED = 0, 1, 2, 3, 4, 0x8000


def runs(values):
    """`[length, code, …]`, as the server writes lists."""
    out = []
    for value in values:
        if out and out[-1] == value:
            out[-2] += 1
        else:
            out += [1, value]
    return out


def changes(before, now):
    """`[skip, length, code, …]`: how `now` differs from `before`."""
    out, at, written = [], 0, 0
    while at < len(now):
        if before[at] == now[at]:
            at += 1
            continue
        start, value = at, now[at]
        while at < len(now) and now[at] == value and before[at] != value:
            at += 1
        out += [start - written, at - start, value]
        written = at
    return out


class Busy:
    """A server with so many blocks that is never done: requests come, share beginnings, grow and leave."""

    def __init__(self, blocks, seed=1, streams=True, sequences=48):
        self.random = random.Random(seed)
        self.codes = [FREE] * blocks
        self.withdrawn = blocks // 12
        self.codes[blocks - self.withdrawn:] = [WITHDRAWN] * self.withdrawn
        self.usable = blocks - self.withdrawn
        self.free = deque(range(self.usable))
        self.cached = deque()
        self.sequences = {}
        self.next_id = 40
        self.most = sequences
        self.streams = streams
        self.units = [4] * 24
        self.groups = [[f"layer {number}", 24, 24 * 8_400_000] for number in range(32)] + [["head", 30, 262_000_000]]
        self.place = 0
        self.at = 100.0
        self.totals = {"prompt": 81_000, "cached": 39_000, "generated": 22_100, "steps": 4_000, "finished": 212}
        self.stream = {"bytes_read": 9e11, "stall_s": 40.0, "compute_s": 260.0, "passes": 4000}
        self.before = None
        self.ended = deque(maxlen=12)
        while len(self.sequences) < sequences:
            self.arrive()

    def take(self, code):
        if not self.free:
            self.free.append(self.cached.popleft())
        block = self.free.popleft()
        self.codes[block] = code
        return block

    def arrive(self):
        used = {sequence["number"] for sequence in self.sequences.values()}
        number = next(number for number in range(10_000) if number not in used)
        prompt = self.random.choice([200, 900, 2_000, 6_000]) + self.random.randrange(200)
        want = max(1, prompt * self.usable // (self.most * 6_400))
        shared = []
        if self.sequences and self.random.random() < 0.6:
            other = self.random.choice(list(self.sequences.values()))
            shared = other["blocks"][: min(want, len(other["blocks"])) * 2 // 3]
            for block in shared:
                owner = min(number, (self.codes[block] & ~SHARED) - FIRST_OWNER)
                self.codes[block] = (FIRST_OWNER + owner) | SHARED
        blocks = shared + [self.take(FIRST_OWNER + number) for _ in range(want - len(shared))]
        cached = len(shared) * prompt // max(1, want)
        self.sequences[self.next_id] = {"number": number, "prompt": prompt, "generated": 0, "blocks": blocks,
                                        "cached": cached, "came": self.at, "end": self.random.randrange(60, 400)}
        self.totals["prompt"] += prompt
        self.totals["cached"] += cached
        self.next_id += 1

    def leave(self, name):
        sequence = self.sequences.pop(name)
        self.totals["finished"] += 1
        took = self.at - sequence["came"]
        self.ended.appendleft({"at": self.at, "took": took, "queued": 0.1, "first": 0.8, "decoding": took * 0.8,
                               "key": "alice" if name % 3 else None, "prompt": sequence["prompt"],
                               "cached": sequence["cached"], "generated": sequence["generated"], "finish": "stop",
                               "status": 200})
        others = {}
        for other in self.sequences.values():
            for block in other["blocks"]:
                others.setdefault(block, []).append(other["number"])
        for block in sequence["blocks"]:
            holders = others.get(block, [])
            if not holders:
                self.codes[block] = CACHED
                self.cached.append(block)
            else:
                self.codes[block] = FIRST_OWNER + min(holders) | (SHARED if len(holders) > 1 else 0)

    def step(self, seconds):
        self.at += seconds
        self.totals["steps"] += 3
        for name, sequence in list(self.sequences.items()):
            sequence["generated"] += 2
            self.totals["generated"] += 2
            if self.random.random() < 0.25:
                for _ in range(max(1, self.usable // (self.most * 400))):
                    sequence["blocks"].append(self.take(FIRST_OWNER + sequence["number"]))
            if sequence["generated"] > sequence["end"]:
                self.leave(name)
                self.arrive()
        self.stream["bytes_read"] += (2.2 + 0.3 * self.random.random()) * 1e9 * seconds
        self.stream["stall_s"] += 0.22 * seconds * (1 + 0.4 * self.random.random())
        self.stream["compute_s"] += 0.7 * seconds
        self.place += 7

    def weights(self):
        """Five of six pieces stay; the window goes over the others."""
        count = sum(units for _, units, _ in self.groups)
        codes = []
        for unit in range(count):
            ahead = (unit - self.place) % count
            if unit % 6:
                codes.append(2 + 8 + (1 if ahead < 4 else 0))
            else:
                codes.append(3 if ahead < 4 else 2 if ahead < 30 else 1 if ahead < 54 else 0)
        return codes

    def figures(self):
        kinds = {kind: 0 for kind in (WITHDRAWN, FREE, CACHED)}
        for code in self.codes:
            if code in kinds:
                kinds[code] += 1
        total, block_bytes = len(self.codes), 2_400_000_000 // len(self.codes)
        used = total - sum(kinds.values())
        return {
            "health": "ok", "steps": self.totals["steps"], "running": len(self.sequences), "waiting": 7, "swapped": 2,
            "prompt_tokens": self.totals["prompt"], "cached_tokens": self.totals["cached"],
            "generated_tokens": self.totals["generated"], "finished": self.totals["finished"], "cancelled": 3,
            "failed": 0, "preemptions": 12, "preemptions_swap": 5,
            "weights_bytes": 5_600_000_000,
            "kv": {"total": total, "used": used, "cached": kinds[CACHED], "free": kinds[FREE],
                   "withdrawn": kinds[WITHDRAWN], "bytes": (total - kinds[WITHDRAWN]) * block_bytes,
                   "block_bytes": block_bytes, "evictions": 512, "merged": 88, "copied": 31},
            "swap": {"total": 2000, "used": 310, "out": 900, "in": 590},
            "stream": {**self.stream, "bytes_copied": 0, "bytes_on_host": 0, "waits_for_copies": 0, "reads_failed": 0,
                       "io_s": 300.0, "disk_bytes_per_s": 3.1e9, "host_bytes": 5_500_000_000, "device_bytes": 0}
            if self.streams else None,
            "device": None,
            "disk": {"used": 6_000_000_000, "total": 20_000_000_000, "blocks": 9000, "queued": 0, "written_bytes": 1,
                     "read_bytes": 1, "fetched_tokens": 15_800, "fetches": 9, "fetch_s": 1.9, "frame_s": 0, "long": 0},
        }

    def rows(self):
        rows = [[name, s["number"], "running", s["prompt"], s["prompt"] + s["generated"] - 1, s["generated"],
                 len(s["blocks"]), 0, s["cached"], "alice" if name % 3 else None, s["came"]]
                for name, s in self.sequences.items()]
        waiting = [[self.next_id + 100 + i, 0, "waiting", 300 + 70 * i, 0, 0, 0, 0, 0, "bob", self.at]
                   for i in range(7)]
        return rows + [[39, 3000, "swapped", 800, 811, 12, 0, 0, 0, None, 60.0]] + waiting

    def recent(self):
        return {"requests": list(self.ended), "prompt_token_s": 0.0021}

    def whole(self, about):
        self.before = (self.codes[:], self.weights())
        data = {"at": self.at, "about": about, "groups": self.groups if self.streams else None,
                "figures": self.figures(), "sequences": self.rows(), "recent": self.recent(),
                "blocks": runs(self.codes),
                "units": runs(self.before[1]) if self.streams else []}
        return event("whole", data)

    def change(self, seconds):
        self.step(seconds)
        codes, units = self.before
        self.before = (self.codes[:], self.weights())
        data = {"at": self.at, "figures": self.figures(), "sequences": self.rows(), "recent": self.recent(),
                "blocks": changes(codes, self.codes)}
        if self.streams:
            data["units"] = changes(units, self.before[1])
        return event("step", data)


ABOUT = {"version": "0", "model": "made-up-7b", "chats": True, "block_tokens": 16, "context": 8192,
         "memory_bytes": 8_600_000_000, "model_bytes": 6_710_000_000, "processor": "16 threads, avx512",
         "reserved": [["process", 290_000_000], ["weights", 5_600_000_000], ["scratch", 61_000_000],
                      ["requests", 210_000_000], ["KV blocks", 2_400_000_000]]}


def event(name, data):
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def recorded(busy, events, seconds):
    """A stream: the whole, and so many changes, each after some time."""
    return [busy.whole(ABOUT)] + [busy.change(seconds) for _ in range(events)]


class Replay(http.server.ThreadingHTTPServer):
    """Passes everything on to the server at `behind`, but for the stream of events, which is replayed."""

    daemon_threads = True

    def __init__(self, behind, events, seconds, folder=None):
        self.behind, self.events, self.seconds, self.folder = behind, events, seconds, folder
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path == "/live/events":
            self.replay()
        elif self.server.folder:
            self.local()
        else:
            self.pass_on()

    def replay(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        begin = time.monotonic()
        try:
            for index, data in enumerate(self.server.events):
                time.sleep(max(0, begin + index * self.server.seconds - time.monotonic()))
                self.wfile.write(data)
            time.sleep(3600)
        except OSError:
            pass

    def local(self):
        """For work on the page: its files as they are now."""
        path = urlsplit(self.path).path.removeprefix("/page/").strip("/") or "index.html"
        file = Path(self.server.folder) / path
        kinds = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
        body = file.read_bytes() if file.is_file() else b""
        self.send_response(200 if body else 404)
        self.send_header("content-type", kinds.get(file.suffix, "text/plain"))
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def pass_on(self):
        connection = http.client.HTTPConnection(urlsplit(self.server.behind).netloc)
        connection.request("GET", self.path)
        answer = connection.getresponse()
        body = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "date"):
                self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
