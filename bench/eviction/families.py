"""Families of made traces, each a list of requests, each a list of ids of the blocks of its prompt: equal ids mean prompts that
are equal up to the end of that block. They stand for loads of which no trace is public."""

import heapq
import itertools
import random
from bisect import bisect_left
from dataclasses import dataclass
from math import ceil

Request = list[int]


class Maker:
    """One seed's traces. Every family has its own random numbers, so that changing one changes no other."""

    def __init__(self, seed: int):
        self.seed = seed
        self.ids = itertools.count()

    def families(self) -> dict[str, list[Request]]:
        short = Chat(sessions=2000)
        phases = [
            *self.chat("phases/chat", Chat(sessions=1500)),
            *self.documents("phases/documents", 4000, 500, 0.8, 10, suffix=1),
            *self.loop(150, 10, 15),
            *self.bursts("phases/bursts", 1000, 10, 2.0, 20.0),
            *self.chat("phases/mixed", Chat(sessions=1500, mixed=True, think=20.0)),
        ]
        return {
            "chat": self.chat("chat", Chat()),
            "chat, mixed": self.chat("mixed", Chat(mixed=True, go_on=0.4)),
            "chat, long": self.chat("long", Chat(sessions=1200, go_on=0.92, first=4.0, grow=1.5, between=3.0)),
            "chat, whole blocks": self.chat("whole", Chat(partial=False, systems=0)),
            "agents with tools": self.chat(
                "agents",
                Chat(sessions=9000, between=0.3, go_on=0.3, think=15.0, sigma=1.0, first=3.0, systems=60, alpha=0.9, system=12),
            ),
            "tool loops": self.chat(
                "tools",
                Chat(sessions=1500, between=1.0, go_on=0.9, think=6.0, sigma=0.4, first=5.0, grow=1.0, systems=20, alpha=0.7, system=8),
            ),
            "single blocks, Zipf 0.7": self.documents("0.7", 40000, 8000, 0.7, 1),
            "single blocks, Zipf 1.0": self.documents("1.0", 40000, 8000, 1.0, 1),
            "documents, Zipf 0.9": self.documents("0.9", 8000, 2000, 0.9, 10, suffix=1),
            "documents, renewed": self.documents("renewed", 12000, 1500, 0.9, 8, suffix=1, phase=3000),
            "documents, nearly equal": self.documents("flat", 12000, 1000, 0.2, 6, suffix=1),
            "loop of 1,200 blocks": self.loop(60, 20, 12),
            "loop of 4,000 blocks": self.loop(400, 10, 12),
            "half of it scans": self.scans("half", 8000, 0.5, 150, 5, 20),
            "most of it scans": self.scans("most", 6000, 0.7, 800, 5, 12),
            "bursts": self.bursts("bursts", 3000, 10, 2.0, 8.0),
            "slow bursts": self.bursts("slow", 3000, 10, 2.0, 150.0),
            "tree": self.tree(9000, 8, 6, 0.8),
            "chat and documents": self.mixed(
                self.chat("and/chat", short), self.documents("and/documents", 4000, 1000, 0.9, 8, suffix=1)
            ),
            "chat and scans": self.mixed(self.chat("with/chat", short), self.scans("with/scans", 1500, 0.5, 100, 5, 20)),
            "phases": phases,
        }

    def chat(self, name: str, kind: "Chat") -> list[Request]:
        """Conversations: each turn continues the one before, after a while, behind one of some system prompts."""
        rng = self.random(name)
        systems = [self.fresh(rng.randint(1, 2 * kind.system)) for _ in range(kind.systems)]
        draw = zipf(rng, max(kind.systems, 1), kind.alpha)
        time, turns, number = 0.0, [], itertools.count()
        for _ in range(kind.sessions):
            time += rng.expovariate(1 / kind.between)
            chain = list(systems[draw()]) if systems else []
            chain += self.fresh(min(ceil(lognormal(rng, kind.first, 1.0)), 250))
            go_on = (0.85 if rng.random() < kind.go_on else 0.0) if kind.mixed else kind.go_on
            heapq.heappush(turns, (time, next(number), chain, go_on, lognormal(rng, kind.think, 0.5)))
        requests = []
        while turns:
            time, _, chain, go_on, think = heapq.heappop(turns)
            requests.append(chain + self.fresh(1 if kind.partial else 0))
            if rng.random() < go_on:
                chain = chain + self.fresh(ceil(lognormal(rng, kind.grow, 0.8)))
                if len(chain) < 400:
                    heapq.heappush(turns, (time + lognormal(rng, think, kind.sigma), next(number), chain, go_on, think))
        return requests

    def documents(self, name, count, documents, alpha, length, suffix=0, phase=0) -> list[Request]:
        """Documents asked about by popularity, each time with another question; popularity is dealt anew after `phase`."""
        rng = self.random(name)
        chains = [self.fresh(rng.randint(1, 2 * length - 1)) for _ in range(documents)]
        draw = zipf(rng, documents, alpha)
        requests = []
        for at in range(count):
            if phase and at % phase == 0:
                rng.shuffle(chains)
            requests.append(chains[draw()] + self.fresh(rng.randint(0, 2 * suffix)))
        return requests

    def loop(self, documents, length, rounds) -> list[Request]:
        return [self.fresh(length) for _ in range(documents)] * rounds

    def scans(self, name, count, share, documents, length, scanned) -> list[Request]:
        """A popular set, among prompts that never come again."""
        rng = self.random(name)
        requests = []
        for request in self.documents(name + "/hot", count, documents, 0.7, length):
            while rng.random() < share:
                requests.append(self.fresh(scanned))
            requests.append(request)
        return requests

    def bursts(self, name, documents, length, asked, gap) -> list[Request]:
        """Each document is asked about some times within a while, and then never again."""
        rng = self.random(name)
        events = []
        for document in range(documents):
            chain, time = self.fresh(rng.randint(1, 2 * length)), float(document)
            for _ in range(1 + int(rng.expovariate(1 / asked))):
                events.append((time, document, chain))
                time += rng.expovariate(1 / gap)
        return [chain + self.fresh(rng.randint(1, 3)) for _, _, chain in sorted(events)]

    def tree(self, count, branches, depth, alpha) -> list[Request]:
        """Prompts made of parts, each of which is followed by some parts more often than by others."""
        rng = self.random("tree")
        draw = zipf(rng, branches, alpha)
        parts: dict[tuple[int, ...], Request] = {}
        requests = []
        for _ in range(count):
            path, request = (), []
            for _ in range(rng.randint(1, depth)):
                path += (draw(),)
                if path not in parts:
                    parts[path] = self.fresh(rng.randint(1, 4))
                request = request + parts[path]
            requests.append(request + self.fresh(rng.randint(0, 3)))
        return requests

    def mixed(self, *traces: list[Request]) -> list[Request]:
        """Requests of all in random order, each trace's in its own."""
        order = [number for number, trace in enumerate(traces) for _ in trace]
        self.random("mixed").shuffle(order)
        rest = [iter(trace) for trace in traces]
        return [next(rest[number]) for number in order]

    def random(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")

    def fresh(self, count: int) -> Request:
        return list(itertools.islice(self.ids, count))


@dataclass
class Chat:
    sessions: int = 5000
    between: float = 0.5  # seconds between two new sessions
    go_on: float = 0.5  # chance of another turn
    think: float = 60.0  # seconds between two turns, median
    sigma: float = 0.8
    first: float = 10.0  # blocks of the first turn, median
    grow: float = 2.0  # blocks that a turn adds, median
    systems: int = 1
    alpha: float = 0.0
    system: int = 1
    partial: bool = True  # each prompt ends with a block of its own
    mixed: bool = False  # `go_on` is the share of sessions that go on at all


def zipf(rng: random.Random, count: int, alpha: float):
    sums = list(itertools.accumulate((rank + 1) ** -alpha for rank in range(count)))
    return lambda: min(bisect_left(sums, rng.random() * sums[-1]), count - 1)


def lognormal(rng: random.Random, median: float, sigma: float) -> float:
    return median * rng.lognormvariate(0.0, sigma)
