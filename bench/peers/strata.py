"""Strata, and the machine's limits, which it measures beside every pass."""

import json
import subprocess
from pathlib import Path


class StrataFailed(Exception):
    """`strata bench` cannot measure this; the message says why."""


def measure(program: Path, model: Path, shapes, threads: int, repeat: int, log: Path) -> dict:
    """Runs `strata bench` once over `shapes`. Gives {shape: line} and, under "machine", the lines of limits."""
    batches = sorted({shape.size for shape in shapes if shape.kind == "decode"})
    prompts = sorted({shape.size for shape in shapes if shape.kind == "prefill"})
    context = next((shape.context for shape in shapes if shape.kind == "decode"), 32)
    command = [str(program), "bench", str(model), "--json", "--threads", str(threads), "--repeat", str(repeat)]
    command += ["--batch", ",".join(map(str, batches or [1])), "--context", str(context)]
    command += ["--prompt-tokens", ",".join(map(str, prompts or [1]))]
    command += ["--max-num-seqs", str(max(batches + [64]))]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise StrataFailed(f"{program} cannot be run ({error}); build it with `cargo build --release`") from None
    with open(log, "a") as file:
        file.write(ended.stderr)
    if ended.returncode != 0:
        message = ended.stderr.strip().splitlines() or ["no message"]
        raise StrataFailed(f"{message[-1]}; see {log}")
    found = {"machine": []}
    for line in map(json.loads, ended.stdout.splitlines()):
        if line["name"].startswith("machine."):
            found["machine"].append(line)
            continue
        kind = line["name"].partition(".")[0]
        size = line["params"]["batch" if kind == "decode" else "prompt_tokens"]
        found[(kind, size)] = line
    return found


def version(program: Path) -> str:
    """What `strata --version` says, with the commit it stands at where that can be told."""
    try:
        said = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return "strata"
    here = Path(__file__).resolve().parent
    commit = subprocess.run(
        ["git", "-C", str(here), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return f"{said or 'strata'} ({commit})" if commit else said or "strata"
