#!/usr/bin/env python3
"""Measures Interbed beside other engines on a model larger than the memory they get, and prints a Markdown table.

Each engine runs alone, in a memory cgroup of its own with a hard limit, and starts with a cold page cache. They take
turns: in each round each engine is started, measured and ended once, in an order that moves on from round to round.
Needs Linux and root, and disk for the model twice where it comes as a directory (llama.cpp reads GGUF only):

  bench/peers/setup.sh peers llama.cpp torch
  interbed synth --like llama-3-8b models/8b
  interbed synth --like llama-3-8b --gguf models/8b-gguf
  interbed pack models/8b models/8b.interbed
  peers/bin/python bench/peers/stream.py --model models/8b --packed models/8b.interbed \
    --gguf models/8b-gguf/model.gguf --limit 6G

Run nothing else meanwhile."""

import argparse
import importlib.util
import json
import signal
import sys
import tempfile
from pathlib import Path

import interbed
import stream_report
from cgroup import CgroupFailed, MemoryCgroup, drop_page_cache, hierarchy
from machine import Machine
from peer import Peer, PeerFailed
from run import HERE, close, interrupt, names, say
from shapes import NotComparable, weights_of

ENGINES = ("Interbed", "Interbed-packed", "llama.cpp-mapped", "accelerate")

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

# What accelerate keeps of its limit, and what it tries in the next round where that was too much.
RESIDENT_SHARE = 0.75


def main() -> None:
    options = parse()
    problem = next(unmet(options), None)
    if problem:
        sys.exit(problem)
    # Ctrl-C has an exception of its own that ends the engine on its way; these end a program at once otherwise.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    if options.work is None:
        options.work = Path(tempfile.mkdtemp(prefix="interbed-peers-"))
    options.work.mkdir(parents=True, exist_ok=True)
    say(f"logs are in {options.work}")
    machine = Machine.here(options.threads)
    turns = []
    try:
        for number in range(options.rounds):
            start = number % len(options.only)
            for engine in options.only[start:] + options.only[:start]:
                say(f"round {number + 1} of {options.rounds}: {engine}")
                turns.append(take_turn(engine, number + 1, options))
    except KeyboardInterrupt:
        say("interrupted; nothing is left running, and what was measured follows")
    except (CgroupFailed, NotComparable) as failure:
        sys.exit(str(failure))
    document = stream_report.document(machine, options, turns, interbed.version(options.interbed))
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    print(stream_report.markdown(document))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face directory in bf16, or a GGUF file")
    parser.add_argument("--gguf", type=Path, help="the same model as GGUF, for llama.cpp, where --model is a directory")
    parser.add_argument("--packed", type=Path, help="the same model from `interbed pack`, for turns of Interbed with it")
    parser.add_argument("--limit", type=size, required=True, help="memory that each engine gets, such as 6G (6 GiB)")
    parser.add_argument("--memory", type=size, help="what Interbed is told with --memory (limit less 1/32)")
    resident = "accelerate's max_memory (three quarters of the limit; where that fails, less in the next round)"
    parser.add_argument("--accelerate-memory", type=size, help=resident)
    parser.add_argument("--tokens", type=int, default=4, help="tokens of each turn that count, at one sequence (4)")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="length of the prompt to prefill (128)")
    parser.add_argument("--batch", type=int, default=32, help="sequences that decode together; 1 leaves it out (32)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each engine (3)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", type=names, help=f"only these of {', '.join(ENGINES)}")
    parser.add_argument("--interbed", type=Path, default=HERE.parents[1] / "target/release/interbed", help="the program")
    parser.add_argument("--work", type=Path, help="folder for logs")
    parser.add_argument("--patience", type=float, default=1200, help="seconds that an engine may take to answer (1200)")
    parser.add_argument("--json", type=Path, help="also write everything that was measured to this file")
    options = parser.parse_args()
    if min(options.tokens, options.prompt_tokens, options.batch, options.rounds, options.threads) < 1:
        parser.error("numbers count from 1")
    given = [engine for engine in ENGINES if engine != "Interbed-packed" or options.packed]
    options.only = options.only or given
    unknown = [engine for engine in options.only if engine not in given]
    if unknown:
        parser.error(f"--only: {', '.join(unknown)}: give any of {', '.join(given)}")
    options.memory = options.memory or options.limit - options.limit // 32
    options.accelerate_memory = options.accelerate_memory or int(options.limit * RESIDENT_SHARE)
    if options.model.is_file():
        options.gguf = options.model
    return options


def size(text: str) -> int:
    """Bytes of a size such as 6G or 5800M."""
    number, unit = (text[:-1], UNITS[text[-1]]) if text[-1:] in UNITS else (text, 1)
    bytes_ = int(float(number) * unit)
    if bytes_ <= 0:
        raise ValueError(text)
    return bytes_


def unmet(options):
    """What stands in the way of a measurement, one message each."""
    if importlib.util.find_spec("gguf") is None:
        yield (
            f"the Python module gguf is missing from {sys.executable}; make an environment with `bench/peers/setup.sh "
            "DIRECTORY` and run this with DIRECTORY/bin/python"
        )
    if {"Interbed", "Interbed-packed"} & set(options.only) and not options.interbed.exists():
        yield f"{options.interbed} is missing; build it with `cargo build --release`, or name it with --interbed"
    models = [options.model] + ([options.gguf] if options.gguf else [])
    for model in models + ([options.packed] if options.packed else []):
        if not model.exists():
            yield f"{model} does not exist; `interbed synth` makes models of random weights"
    try:
        kinds = {weights_of(model).lower() for model in models}
        if len(kinds) > 1:
            yield f"--model and --gguf are not of one type but {' and '.join(sorted(kinds))}"
    except NotComparable as problem:
        yield str(problem)
    try:
        hierarchy()
        # Both need root, and it is better to hear of it before an engine is loaded.
        drop_page_cache()
        with MemoryCgroup(options.limit):
            pass
    except CgroupFailed as problem:
        yield str(problem)


def take_turn(engine: str, number: int, options) -> dict:
    """Starts an engine cold, measures and ends it. A failure is told under "note", beside what was measured before."""
    turn = {"engine": engine, "round": number}
    drop_page_cache()
    with MemoryCgroup(options.limit) as group:
        try:
            if engine in ("Interbed", "Interbed-packed"):
                measure_interbed(turn, group, options)
            else:
                measure_peer(turn, group, options)
        except (PeerFailed, interbed.InterbedFailed) as failure:
            turn["note"] = str(failure)
            if engine == "accelerate":
                options.accelerate_memory = int(options.accelerate_memory * RESIDENT_SHARE)
        turn["peak_bytes"], turn["killed"] = group.peak_bytes(), group.kills() > 0
    return turn


def measure_interbed(turn: dict, group: MemoryCgroup, options) -> None:
    turn["memory_bytes"] = options.memory
    log = options.work / "interbed.log"
    model = options.packed if turn["engine"] == "Interbed-packed" else options.model
    turn.update(
        interbed.measure_stream(
            options.interbed, model, group.launcher(), options.memory, options.threads, options.tokens,
            options.prompt_tokens, options.batch, log, options.patience,
        )
    )


def measure_peer(turn: dict, group: MemoryCgroup, options) -> None:
    """One other engine. Bytes are those that the kernel counts for its process between the passes."""
    model, further = options.model, []
    if turn["engine"] == "accelerate":
        turn["resident_bytes"] = options.accelerate_memory
        further = ["--resident-bytes", str(options.accelerate_memory)]
    elif options.gguf is None:
        raise PeerFailed("takes GGUF only; give the model as one with --gguf (`interbed synth --gguf` makes it)")
    else:
        model = options.gguf
    # Cache for the prompt with its answer, or for all sequences of the batch with theirs.
    longest = max(options.prompt_tokens + options.tokens + 1, options.batch * (options.tokens + 1))
    peer = Peer(turn["engine"], model, options.work)

    def passes(**request) -> tuple[list[float], float]:
        """Seconds of each pass, and bytes read for one."""
        before = peer.read_bytes()
        seconds = peer.measure(request, options.patience)
        return seconds, (peer.read_bytes() - before) / len(seconds)

    try:
        peer.start(options.threads, options.batch, longest, options.patience, group.launcher(), further)
        turn["version"] = peer.version
        # The first pass of all, and the first token, find memory in a state that does not last.
        passes(measure="begin", batch=1, context=1)
        (turn["prefill_seconds"],), turn["prefill_read_bytes"] = passes(
            measure="begin", batch=1, context=options.prompt_tokens
        )
        passes(measure="decode", steps=1)
        turn["decode_seconds"], turn["read_bytes_per_token"] = passes(measure="decode", steps=options.tokens)
        if options.batch > 1:
            passes(measure="begin", batch=options.batch, context=1)
            turn["batch_seconds"], turn["batch_read_bytes"] = passes(measure="decode", steps=options.tokens)
    finally:
        close({turn["engine"]: peer})


if __name__ == "__main__":
    main()
