#!/usr/bin/env python3
"""Measures Strata beside other engines on the same models and prints a Markdown table.

Every engine computes the same shapes with the same number of threads. They take turns: in each round each engine is
measured once, in an order that moves on from round to round, while the others sleep (stopped, not just idle). A round's
figure is the median of its passes, the table's is the median of the rounds. The machine's limits come from `strata
bench`, which measures them beside every pass of its own.

Make the models first, for instance:

  strata synth --like llama-3.2-1b /tmp/bf16
  strata synth --like llama-3.2-1b --dtype q8_0 /tmp/q8_0
  bench/peers/run.py --model /tmp/bf16 --gguf /tmp/q8_0/model.gguf

Run nothing else meanwhile."""

import argparse
import json
import sys
from pathlib import Path

import report
import strata
from machine import Machine
from peer import Peer, PeerFailed
from shapes import Shape, weights_of

HERE = Path(__file__).resolve().parent
BF16_PEERS = ("llama.cpp", "vllm", "transformers")
GGUF_PEERS = ("llama.cpp", "openvino")


def main() -> None:
    options = parse()
    options.work.mkdir(parents=True, exist_ok=True)
    if not options.strata.exists():
        sys.exit(f"{options.strata} is missing; build it with `cargo build --release`, or name it with --strata")
    models = [options.model] if options.model else []
    models += options.gguf
    if not models:
        sys.exit("nothing to measure; give --model DIRECTORY (bf16) or --gguf FILE (`strata synth` makes both)")
    for model in models:
        if not model.exists():
            sys.exit(f"{model} does not exist; `strata synth` makes models of random weights")
    machine = Machine.here(options.threads)
    results = [compare(model, options) for model in models]
    document = report.document(machine, results, strata.version(options.strata))
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    print(report.markdown(document))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="Hugging Face directory in bf16")
    parser.add_argument("--gguf", type=Path, nargs="*", default=[], help="GGUF files, such as Q8_0, Q4_0 and Q4_K")
    parser.add_argument("--bf16-gguf", type=Path, help="--model as GGUF for llama.cpp (otherwise made in --work)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=numbers, default=[1, 8, 32], help="sequences that decode together (1,8,32)")
    parser.add_argument("--context", type=int, default=32, help="tokens of each sequence before decode (32)")
    parser.add_argument("--prompt-tokens", type=numbers, default=[512], help="lengths of prompts to prefill (512)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each engine (5)")
    parser.add_argument("--steps", type=int, default=6, help="passes of each turn, 2 of a prefill (6)")
    parser.add_argument("--peers", type=names, help="only these of llama.cpp, vllm, transformers, openvino")
    parser.add_argument("--strata", type=Path, default=HERE.parents[1] / "target/release/strata", help="the program")
    parser.add_argument("--work", type=Path, default=Path("/tmp/strata-peers"), help="folder for logs and conversions")
    parser.add_argument("--patience", type=float, default=1200, help="seconds that an engine may take to answer (1200)")
    parser.add_argument("--json", type=Path, help="also write everything that was measured to this file")
    options = parser.parse_args()
    counts = [options.threads, options.context, options.rounds, options.steps, *options.batch, *options.prompt_tokens]
    if min(counts) < 1:
        parser.error("numbers count from 1")
    return options


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def names(text: str) -> list[str]:
    return text.split(",")


def compare(model: Path, options) -> dict:
    """All engines on one model."""
    shapes = [Shape("decode", batch, options.context) for batch in options.batch]
    shapes += [Shape("prefill", tokens, 0) for tokens in options.prompt_tokens]
    notes, measured = [], {}
    peers = start_peers(model, options, notes)
    try:
        for turn in range(options.rounds):
            engines = ["Strata", *peers]
            for engine in engines[turn % len(engines) :] + engines[: turn % len(engines)]:
                say(f"{model.name}, round {turn + 1} of {options.rounds}: {engine}")
                if engine == "Strata":
                    take_strata_turn(model, shapes, options, measured, notes)
                else:
                    take_turn(peers[engine], shapes, options, measured, notes)
    finally:
        for peer in peers.values():
            peer.close()
    return {
        "model": model.parent.name if model.is_file() else model.name,
        "weights": weights_of(model),
        "versions": {name: peer.version for name, peer in peers.items()},
        "shapes": [{"kind": shape.kind, "size": shape.size, **measured.get(shape, {})} for shape in shapes],
        "machine": measured.get("machine", []),
        "notes": notes,
    }


def start_peers(model: Path, options, notes) -> dict:
    wanted = GGUF_PEERS if model.is_file() else BF16_PEERS
    longest = max([options.context + options.steps + 8, *(tokens + 8 for tokens in options.prompt_tokens)])
    peers = {}
    for engine in wanted:
        if options.peers is not None and engine not in options.peers:
            continue
        say(f"{model.name}: loading into {engine}")
        peer = None
        try:
            own = model
            if engine == "llama.cpp" and model.is_dir():
                own = options.bf16_gguf or converted(model, options.work)
            peer = Peer(engine, own, options.work)
            peer.start(options.threads, max(options.batch), longest, options.patience)
            peers[engine] = peer
        except PeerFailed as failure:
            if peer is not None:
                peer.close()
            notes.append(f"{engine}: not measured on {weights_of(model)}: {failure}")
    return peers


def converted(model: Path, work: Path) -> Path:
    """The GGUF file of a bf16 directory."""
    target = work / f"{model.name}-bf16.gguf"
    newest = max(path.stat().st_mtime for path in model.iterdir())
    if target.exists() and target.stat().st_mtime >= newest:
        return target
    try:
        import bf16_gguf

        bf16_gguf.convert(model, target)
    except (ImportError, SystemExit) as problem:
        raise PeerFailed(f"{problem} (give a GGUF with --bf16-gguf)") from None
    return target


def take_turn(peer: Peer, shapes, options, measured, notes) -> None:
    for shape in shapes:
        if shape in peer.given_up:
            continue
        try:
            passes = peer.measure(shape.request(options.steps), options.patience)
        except PeerFailed as failure:
            peer.given_up.add(shape)
            notes.append(f"{peer.engine}: {shape}: {failure}")
            continue
        series = measured.setdefault(shape, {}).setdefault("rounds", {}).setdefault(peer.engine, [])
        series.append(shape.tokens / report.median(passes))


def take_strata_turn(model: Path, shapes, options, measured, notes) -> None:
    try:
        log = options.work / "strata.log"
        found = strata.measure(options.strata, model, shapes, options.threads, options.steps, log)
    except strata.StrataFailed as failure:
        if str(failure) not in notes:
            notes.append(str(failure))
        return
    measured.setdefault("machine", []).extend(found["machine"])
    for shape in shapes:
        line = found.get((shape.kind, shape.size))
        if line is None:
            continue
        entry = measured.setdefault(shape, {})
        entry.setdefault("rounds", {}).setdefault("Strata", []).append(line["value"])
        entry.setdefault("bounds", []).append(line["bound"])
        entry.setdefault("shares", []).append(line["share_of_bound"])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
