"""Interbed, and the machine's limits, which it measures beside every pass."""

import json
import subprocess
from pathlib import Path


class InterbedFailed(Exception):
    """`interbed bench` cannot measure this; the message says why."""


def measure(program: Path, model: Path, shapes, threads: int, repeat: int, log: Path) -> dict:
    """Runs `interbed bench` once over `shapes`. Gives {shape: line} and, under "machine", the lines of limits."""
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
        raise InterbedFailed(f"{program} cannot be run ({error}); build it with `cargo build --release`") from None
    with open(log, "a") as file:
        file.write(ended.stderr)
    if ended.returncode != 0:
        message = ended.stderr.strip().splitlines() or ["no message"]
        raise InterbedFailed(f"{message[-1]}; see {log}")
    found = {"machine": []}
    for line in map(json.loads, ended.stdout.splitlines()):
        if line["name"].startswith("machine."):
            found["machine"].append(line)
            continue
        kind = line["name"].partition(".")[0]
        size = line["params"]["batch" if kind == "decode" else "prompt_tokens"]
        found[(kind, size)] = line
    return found


def measure_stream(
    program: Path, model: Path, launcher, memory: int, threads: int, tokens: int, prompt_tokens: int, batch: int,
    log: Path, patience: float,
) -> dict:
    """Runs `interbed bench stream` once behind the words of `launcher`, and gives its figures as `stream.py` keeps those
    of every engine."""
    command = [*launcher, str(program), "bench", "stream", str(model), "--json", "--memory", str(memory)]
    command += ["--threads", str(threads), "--repeat", str(tokens)]
    command += ["--prompt-tokens", str(prompt_tokens), "--batch", ",".join(map(str, sorted({1, batch})))]
    command += ["--policy", "resident"]
    try:
        # It ends with this process, whose Ctrl-C reaches it too.
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience)
    except subprocess.TimeoutExpired:
        raise InterbedFailed(f"no answer within {patience:.0f} s; see --patience") from None
    with open(log, "a") as file:
        file.write(ended.stderr)
    if ended.returncode != 0:
        message = ended.stderr.strip().splitlines() or [f"ended with {ended.returncode}"]
        raise InterbedFailed(f"{message[-1]}; see {log}")
    return stream_figures(ended.stdout, prompt_tokens, batch)


def stream_figures(lines: str, prompt_tokens: int, batch: int) -> dict:
    """The figures in the JSON lines of `interbed bench stream`, those of policy `resident` where it tells of several."""
    found = {}
    try:
        told = [json.loads(line) for line in lines.splitlines() if line.strip()]
    except ValueError:
        raise InterbedFailed("`interbed bench stream` wrote something other than JSON") from None
    for line in told:
        params = line.get("params", {})
        wanted = {"policy": "resident", "prompt_tokens": prompt_tokens}
        # One sequence, but where many are compared with one.
        wanted["batch"] = batch if line["name"] == "stream.batch_speedup" else 1
        if all(params.get(key, value) == value for key, value in wanted.items()):
            found[line["name"]] = line
    try:
        decode, read = found["stream.decode.seconds_per_token"], found["stream.bytes_per_token"]
        figures = {
            "decode_seconds": [decode["value"]],
            "bound_seconds": decode.get("bound"),
            "share_of_bound": decode.get("share_of_bound"),
            "read_bytes_per_token": read["value"],
            "bound_bytes": read.get("bound"),
            "prefill_seconds": prompt_tokens / found["stream.prefill.tokens_per_s"]["value"],
        }
    except KeyError as missing:
        raise InterbedFailed(f"`interbed bench stream` wrote no line {missing}") from None
    if batch > 1 and "stream.batch_speedup" in found:
        # Tokens per second of all sequences together, as a multiple of those of one.
        figures["batch_seconds"] = [decode["value"] * batch / found["stream.batch_speedup"]["value"]]
    return figures


def version(program: Path) -> str:
    """What `interbed --version` says, with the commit it stands at where that can be told."""
    try:
        said = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return "interbed"
    here = Path(__file__).resolve().parent
    commit = subprocess.run(
        ["git", "-C", str(here), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return f"{said or 'interbed'} ({commit})" if commit else said or "interbed"
