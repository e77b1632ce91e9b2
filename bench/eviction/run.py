#!/usr/bin/env python3
"""Compares the default eviction policy with the others on made traces (`families.py`), by `interbed-lab replay`, and prints by how
many points its hit rate is above the best of them, for each family and cache size.

  cargo build --release
  bench/eviction/run.py                  # some minutes
  bench/eviction/run.py --seed 7         # other traces of the same kinds
  bench/eviction/run.py --write traces   # only writes them, in Mooncake's format"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from families import Maker, Request

# Tokens of a block, as in Mooncake's traces.
BLOCK = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blocks", default="300,1000,3000,10000", help="cache sizes (%(default)s)")
    parser.add_argument("--lab", default="target/release/interbed-lab", help="the program (%(default)s)")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write the traces there, and replay nothing")
    options = parser.parse_args()
    sizes = [int(size) for size in options.blocks.split(",")]
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
    else:
        print(f"{'points above the best of the others':<36}" + "".join(f"{size:>9,}" for size in sizes))
    margins = []
    for name, requests in Maker(options.seed).families().items():
        if options.write:
            write(requests, options.write / f"{name.replace(' ', '-').replace(',', '')}.jsonl")
            continue
        rates = replay(options, requests)
        margins.append([rates["default", size] - rates["best", size] for size in sizes])
        print(f"  {name:<34}" + "".join(f"{margin:>+9.2f}" for margin in margins[-1]), flush=True)
    if margins:
        flat = [margin for row in margins for margin in row]
        below = sum(margin < -0.3 for margin in flat)
        print(f"mean {sum(flat) / len(flat):+.2f}, least {min(flat):+.2f}; {below} of {len(flat)} below -0.30")


def write(requests: list[Request], path: Path) -> None:
    with path.open("w") as file:
        for at, ids in enumerate(requests):
            line = {"timestamp": at * 100, "input_length": len(ids) * BLOCK, "output_length": 1, "hash_ids": ids}
            file.write(json.dumps(line) + "\n")


def replay(options: argparse.Namespace, requests: list[Request]) -> dict[tuple[str, int], float]:
    """Hit rates in percent, of the default policy and of the best other one, by cache size."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        write(requests, trace)
        command = [options.lab, "replay", str(trace), "--json", "--repeat", "1", "--blocks", options.blocks]
        # Requests end before the next one comes: what the load takes is not asked here.
        command += ["--prefill-rate", "1000000", "--decode-rate", "1000000"]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    rates: dict[tuple[str, int], float] = {}
    for line in map(json.loads, done.stdout.splitlines()):
        params = line["params"]
        if line["name"] != "replay.hit_rate" or params["policy"] in ("offline", "offline_leaves", "infinite"):
            continue
        key = ("default" if params["default"] else "best", params["blocks"])
        rates[key] = max(rates.get(key, 0.0), 100 * line["value"])
    return rates


if __name__ == "__main__":
    main()
