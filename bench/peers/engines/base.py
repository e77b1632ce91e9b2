"""What every engine can do for a measurement."""

import time
from pathlib import Path


class Unsupported(Exception):
    """This engine cannot do this; the message says why, for the table's notes."""


class Engine:
    """One engine with one model loaded.

    A subclass loads in `__init__` and is used by one worker process. It times nothing but its own forward passes:
    tokens are made up ahead, and what comes out is not sampled from beyond what the engine does by itself.
    """

    name = "?"

    def __init__(self, model: Path, threads: int, most_sequences: int, longest: int):
        """Loads `model` for at most `most_sequences` sequences of at most `longest` tokens, on `threads` threads."""
        raise NotImplementedError

    def version(self) -> str:
        """The version, and what of its build or settings matters for speed."""
        raise NotImplementedError

    def decode(self, batch: int, context: int, steps: int) -> list[float]:
        """Seconds of each of `steps` passes that compute one more token of each of `batch` sequences, each of which has
        `context` tokens before the first. Warm-up is not among them."""
        raise NotImplementedError

    def prefill(self, tokens: int, times: int) -> list[float]:
        """Seconds to compute a prompt of so many tokens up to the logits of its last, `times` times."""
        raise NotImplementedError


def made_up_tokens(count: int, vocabulary: int, seed: int = 0) -> list[int]:
    """Tokens that look like nothing in particular. Dense models take the same time for all."""
    return [(seed * 104729 + i * 7919 + 17) % vocabulary for i in range(count)]


def seconds(work) -> float:
    """How long calling `work` takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
