#!/usr/bin/env python3
"""Measures Interbed beside other engines on the same models and prints a Markdown table.

Every engine computes the same shapes with the same number of threads. They take turns: in each round each engine is
measured once, in an order that moves on from round to round, while the others sleep (stopped, not just idle). A round's
figure is the median of its passes, the table's is the median of the rounds. The machine's limits come from `interbed
bench`, which measures them beside every pass of its own.

Make the engines' environment and the models first, for instance:

  bench/peers/setup.sh peers
  interbed synth --like llama-3.2-1b models/bf16
  interbed synth --like llama-3.2-1b --dtype q8_0 models/q8_0
  peers/bin/python bench/peers/run.py --model models/bf16 --gguf models/q8_0/model.gguf

Run nothing else meanwhile."""

import argparse
import hashlib
import importlib.util
import json
import signal
import sys
import tempfile
from pathlib import Path

import report
import interbed
from machine import Machine
from peer import Peer, PeerFailed
from shapes import MOST_PREFILL_PASSES, NotComparable, Shape, weights_of

HERE = Path(__file__).resolve().parent
BF16_PEERS = ("llama.cpp", "vllm", "transformers")
GGUF_PEERS = ("llama.cpp", "openvino")


def main() -> None:
    options = parse()
    if importlib.util.find_spec("gguf") is None:
        sys.exit(
            f"the Python module gguf is missing from {sys.executable}; make an environment with `bench/peers/setup.sh "
            "DIRECTORY` and run this with DIRECTORY/bin/python"
        )
    if not options.interbed.exists():
        sys.exit(f"{options.interbed} is missing; build it with `cargo build --release`, or name it with --interbed")
    models = [options.model] if options.model else []
    models += options.gguf
    if not models:
        sys.exit("nothing to measure; give --model DIRECTORY (bf16) or --gguf FILE (`interbed synth` makes both)")
    for model in [*models, *([options.bf16_gguf] if options.bf16_gguf else [])]:
        if not model.exists():
            sys.exit(f"{model} does not exist; `interbed synth` makes models of random weights")
    try:
        models = {model: weights_of(model) for model in models}
    except NotComparable as problem:
        sys.exit(str(problem))
    # Ctrl-C has an exception of its own that closes the peers on its way; these end a program at once otherwise.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    if options.work is None:
        options.work = Path(tempfile.mkdtemp(prefix="interbed-peers-"))
        options.keep_conversions = False
    options.work.mkdir(parents=True, exist_ok=True)
    say(f"logs are in {options.work}")
    machine = Machine.here(options.threads)
    try:
        results = [compare(model, weights, options) for model, weights in models.items()]
    except KeyboardInterrupt:
        say("interrupted; nothing is left running")
        sys.exit(130)
    document = report.document(machine, results, interbed.version(options.interbed))
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    print(report.markdown(document))


def interrupt(_number, _frame) -> None:
    raise KeyboardInterrupt


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="Hugging Face directory in bf16")
    parser.add_argument("--gguf", type=Path, nargs="*", default=[], help="GGUF files, such as Q8_0, Q4_0 and Q4_K")
    parser.add_argument("--bf16-gguf", type=Path, help="--model as GGUF for llama.cpp (else it is converted)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=numbers, default=[1, 8, 32], help="sequences that decode together (1,8,32)")
    parser.add_argument("--context", type=int, default=32, help="tokens of each sequence before decode (32)")
    parser.add_argument("--prompt-tokens", type=numbers, default=[512], help="lengths of prompts to prefill (512)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each engine (5)")
    passes = f"passes of each turn, of a prefill at most {MOST_PREFILL_PASSES} (6)"
    parser.add_argument("--steps", type=int, default=6, help=passes)
    parser.add_argument("--peers", type=names, help="only these of llama.cpp, vllm, transformers, openvino")
    parser.add_argument("--interbed", type=Path, default=HERE.parents[1] / "target/release/interbed", help="the program")
    parser.add_argument("--work", type=Path, help="folder for logs and conversions, which are kept for the next run")
    parser.add_argument("--patience", type=float, default=1200, help="seconds that an engine may take to answer (1200)")
    parser.add_argument("--json", type=Path, help="also write everything that was measured to this file")
    options = parser.parse_args()
    options.keep_conversions = True
    counts = [options.threads, options.context, options.rounds, options.steps, *options.batch, *options.prompt_tokens]
    if min(counts) < 1:
        parser.error("numbers count from 1")
    return options


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def names(text: str) -> list[str]:
    return text.split(",")


def compare(model: Path, weights: str, options) -> dict:
    """All engines on one model."""
    name = model.resolve().parent.name if model.is_file() else model.resolve().name
    subject = f"{name} ({weights})"
    # Models of one name must not share a folder.
    folder = options.work / f"{name}-{hashlib.sha256(bytes(model.resolve())).hexdigest()[:12]}"
    folder.mkdir(exist_ok=True)
    shapes = [Shape("decode", batch, options.context) for batch in options.batch]
    shapes += [Shape("prefill", tokens, 0) for tokens in options.prompt_tokens]
    notes, measured, peers = [], {}, {}
    try:
        start_peers(model, subject, folder, options, peers, notes)
        for turn in range(options.rounds):
            engines = ["Interbed", *peers]
            for engine in engines[turn % len(engines) :] + engines[: turn % len(engines)]:
                say(f"{subject}, round {turn + 1} of {options.rounds}: {engine}")
                if engine == "Interbed":
                    take_interbed_turn(model, subject, folder, shapes, options, measured, notes)
                else:
                    take_turn(peers[engine], subject, shapes, options, measured, notes)
    finally:
        close(peers)
        if not options.keep_conversions:
            conversion(folder).unlink(missing_ok=True)
    return {
        "model": name,
        "weights": weights,
        "versions": {name: peer.version for name, peer in peers.items()},
        "shapes": [{"kind": shape.kind, "size": shape.size, **measured.get(shape, {})} for shape in shapes],
        "machine": measured.get("machine", []),
        "notes": notes,
    }


def close(peers: dict) -> None:
    """Ends the peers, and is not to be interrupted in that."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        for peer in peers.values():
            peer.close()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_peers(model: Path, subject: str, folder: Path, options, peers: dict, notes: list) -> None:
    """Puts the engines that can be measured into `peers`, each before it starts: whatever happens then, the caller can
    close it."""
    wanted = GGUF_PEERS if model.is_file() else BF16_PEERS
    longest = max([options.context + options.steps + 8, *(tokens + 8 for tokens in options.prompt_tokens)])
    for engine in wanted:
        if options.peers is not None and engine not in options.peers:
            continue
        say(f"{subject}: loading into {engine}")
        try:
            own = model
            if engine == "llama.cpp" and model.is_dir():
                own = options.bf16_gguf or converted(model, conversion(folder))
            peers[engine] = Peer(engine, own, folder)
            peers[engine].start(options.threads, max(options.batch), longest, options.patience)
        except PeerFailed as failure:
            close({name: peer for name, peer in peers.items() if name == engine})
            peers.pop(engine, None)
            notes.append(f"{engine}: not measured on {subject}: {failure}")


def conversion(folder: Path) -> Path:
    """Where a model's conversion lies."""
    return folder / "bf16.gguf"


def converted(model: Path, target: Path) -> Path:
    """The GGUF file of a bf16 directory, written to `target` unless it is there."""
    newest = max(path.stat().st_mtime for path in model.iterdir())
    if target.exists() and target.stat().st_mtime >= newest:
        return target
    try:
        import bf16_gguf

        bf16_gguf.convert(model, target)
    except Exception as problem:  # A model may be odd in many ways, and the other engines can be measured all the same.
        raise PeerFailed(f"conversion failed: {problem!r}; give a GGUF with --bf16-gguf") from None
    return target


def take_turn(peer: Peer, subject: str, shapes, options, measured, notes) -> None:
    for shape in shapes:
        if shape in peer.given_up:
            continue
        try:
            passes = peer.measure(shape.request(options.steps), options.patience)
        except PeerFailed as failure:
            peer.given_up.add(shape)
            notes.append(f"{peer.engine}: {subject}, {shape}: {failure}")
            continue
        series = measured.setdefault(shape, {}).setdefault("rounds", {}).setdefault(peer.engine, [])
        series.append(shape.tokens / report.median(passes))


def take_interbed_turn(model: Path, subject: str, folder: Path, shapes, options, measured, notes) -> None:
    try:
        log = folder / "interbed.log"
        found = interbed.measure(options.interbed, model, shapes, options.threads, options.steps, log)
    except interbed.InterbedFailed as failure:
        note = f"Interbed: {subject}: {failure}"
        if note not in notes:
            notes.append(note)
        return
    measured.setdefault("machine", []).extend(found["machine"])
    for shape in shapes:
        line = found.get((shape.kind, shape.size))
        if line is None:
            continue
        entry = measured.setdefault(shape, {})
        entry.setdefault("rounds", {}).setdefault("Interbed", []).append(line["value"])
        entry.setdefault("bounds", []).append(line["bound"])
        entry.setdefault("shares", []).append(line["share_of_bound"])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
