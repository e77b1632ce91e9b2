"""Follows a server's KV events as vLLM declares them, under random load, and compares what it knows with the server.

Usage: check.py URL EVENTS REPLAY. Some messages are lost on purpose and asked for again. At the end the index must have
as many blocks as the server has cached, and say of any prompt how much of it will be found.
"""

import concurrent.futures
import json
import random
import sys
import threading
import time
import urllib.request

import msgspec
import zmq

URL, EVENTS, REPLAY = sys.argv[1:4]
RANDOM = random.Random(23)


# Fields, order and defaults are those of vllm/distributed/kv_events.py.
class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


class Index:
    """The cached blocks, by what they continue and their tokens."""

    def __init__(self):
        self.blocks, self.next, self.block_size = {}, {}, None

    def apply(self, batch):
        for event in batch.events:
            if isinstance(event, BlockStored):
                self.block_size = size = event.block_size
                assert len(event.token_ids) == size * len(event.block_hashes), event
                parent = event.parent_block_hash
                assert parent is None or parent in self.blocks, f"{parent} is not known"
                for at, block in enumerate(event.block_hashes):
                    key = (parent, tuple(event.token_ids[at * size : (at + 1) * size]))
                    assert block not in self.blocks and key not in self.next, f"{block} was stored twice"
                    self.blocks[block], self.next[key] = key, block
                    parent = block
            elif isinstance(event, BlockRemoved):
                for block in event.block_hashes:
                    del self.next[self.blocks.pop(block)]
            else:
                self.blocks, self.next = {}, {}

    def cached_tokens(self, prompt):
        parent, count = None, 0
        # A prompt's last token is always computed.
        while (end := (count + 1) * self.block_size) < len(prompt):
            parent = self.next.get((parent, tuple(prompt[end - self.block_size : end])))
            if parent is None:
                break
            count += 1
        return count * self.block_size


class Subscriber(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.index, self.expected, self.lost, self.repeated = Index(), 0, 0, 0
        self.lock, self.decoder = threading.Lock(), msgspec.msgpack.Decoder(KVEventBatch)
        context = zmq.Context.instance()
        self.events, self.replay = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        self.events.setsockopt(zmq.SUBSCRIBE, b"kv@")
        self.events.connect(EVENTS)
        self.replay.connect(REPLAY)

    def run(self):
        while True:
            topic, number, payload = self.events.recv_multipart()
            assert topic == b"kv@interbed", topic
            if RANDOM.random() < 0.05:
                self.lost += 1
                continue
            with self.lock:
                number = int.from_bytes(number, "big")
                if number > self.expected:
                    self.ask_again()
                # What was repeated may arrive once more.
                if number == self.expected:
                    self.apply(payload)

    def ask_again(self):
        self.replay.send_multipart([b"", self.expected.to_bytes(8, "big")])
        while True:
            empty, number, payload = self.replay.recv_multipart()
            number = int.from_bytes(number, "big", signed=True)
            if number < 0:
                return
            assert empty == b"" and number == self.expected, (number, self.expected)
            self.repeated += 1
            self.apply(payload)

    def apply(self, payload):
        self.index.apply(self.decoder.decode(payload))
        self.expected += 1


def ask(prompt, max_tokens, stream=False, read=None):
    body = dict(prompt=prompt, max_tokens=max_tokens, temperature=1, ignore_eos=True, stream=stream)
    request = urllib.request.Request(f"{URL}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        # A client that goes away after some bytes.
        return answer.read(read) if stream else json.load(answer)


def metric(name, label=""):
    page = urllib.request.urlopen(f"{URL}/metrics", timeout=60).read().decode()
    lines = [line for line in page.splitlines() if line.startswith(name + "{") and label in line]
    assert len(lines) == 1, (name, label, lines)
    return float(lines[0].rsplit(" ", 1)[1])


def cached_blocks():
    return int(metric("interbed:kv_blocks", 'state="cached"'))


def prompt():
    # Conversations that share beginnings.
    generator = random.Random(RANDOM.randrange(6))
    return [generator.randrange(10, 500) for _ in range(RANDOM.randrange(1, 400))]


def load(clients=16, requests=150):
    def one(_):
        stream = RANDOM.random() < 0.3
        ask(prompt(), RANDOM.randrange(1, 60), stream, RANDOM.randrange(1, 2000))

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        list(pool.map(one, range(requests)))


def settled(subscriber):
    """Once the server is idle and what it has told has arrived."""
    for _ in range(600):
        assert subscriber.is_alive(), "what the subscriber was told made no sense to it"
        if metric("vllm:num_requests_running") == metric("vllm:num_requests_waiting") == 0:
            with subscriber.lock:
                subscriber.ask_again()
                known = len(subscriber.index.blocks)
            if known == cached_blocks():
                return known
        time.sleep(0.1)
    sys.exit(f"the subscriber knows {known} blocks, but {cached_blocks()} are cached")


def main():
    subscriber = Subscriber()
    subscriber.start()
    found = 0
    for _ in range(4):
        load()
        known = settled(subscriber)
        for _ in range(10):
            asked = prompt()
            expected = subscriber.index.cached_tokens(asked)
            usage = ask(asked, 1)["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert cached == expected, f"{cached} tokens were found, {expected} were expected"
            found += cached > 0
            settled(subscriber)
    evictions = metric("interbed:kv_evictions_total")
    assert found and subscriber.lost and subscriber.repeated and evictions, "the load was too light to show anything"
    print(
        f"KV events: {subscriber.expected} batches, {subscriber.lost} lost and {subscriber.repeated} repeated; "
        f"{known} blocks known as cached, {evictions:.0f} evicted before; 40 prompts found as expected, {found} of them cached"
    )


main()
