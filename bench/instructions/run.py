#!/usr/bin/env python3
"""Counts the instructions of the hot kernels with callgrind and compares them with those that are kept.

Counts do not depend on how busy or fast a machine is, so a kernel that became longer shows anywhere. They do depend on
the level of vector instructions and, a little, on the compiler: valgrind shows programs a processor of its own, which
leads to level avx2 on x86-64, and counts are kept by level.

Fails if a kernel executes more than a few percent more instructions than kept. Where that is right, or a kernel is new,
run it with --update and commit counts.json with the change that explains it."""

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KEPT = HERE / "counts.json"


def main() -> None:
    options = parse()
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not installed (on Debian: apt-get install valgrind)")
    program = build()
    level, names = kernels(program)
    if options.only:
        names = [name for name in names if options.only in name]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        counts = dict(zip(names, pool.map(lambda name: count(program, name), names)))
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    worse = compare(counts, kept.get(level, {}).get("counts", {}), options.tolerance)
    compilers = [kept.get(level, {}).get("compiler"), compiler()]
    if options.update:
        before = kept.get(level, {}).get("counts", {}) if options.only else {}
        kept[level] = {"compiler": compilers[1], "counts": {**before, **counts}}
        KEPT.write_text(json.dumps(kept, indent=2) + "\n")
        print(f"wrote {KEPT.relative_to(ROOT)}")
        return
    if compilers[0] and compilers[0] != compilers[1]:
        print(f"note: counts were kept with {compilers[0]}, this is {compilers[1]}")
    if worse:
        sys.exit(f"more instructions than kept: {', '.join(worse)}; if that is right, run with --update and commit")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="keep these counts")
    parser.add_argument("--only", metavar="PART", help="only kernels with this in their name")
    parser.add_argument("--tolerance", type=float, default=3.0, help="percent that a count may grow (3)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="kernels to count side by side")
    return parser.parse_args()


def build() -> Path:
    """The program that runs one kernel."""
    command = ["cargo", "build", "--release", "--package", "interbed-kernels", "--example", "instructions"]
    command += ["--message-format", "json-render-diagnostics"]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode != 0:
        sys.exit("the kernels do not build; the reason stands above")
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == "instructions":
            return Path(message["executable"])
    sys.exit("cargo built no program named instructions")


def kernels(program: Path) -> tuple[str, list[str]]:
    """The level that valgrind's processor leads to, and the names of the kernels."""
    listed = subprocess.run(["valgrind", "--quiet", str(program)], capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        sys.exit(f"valgrind cannot run {program}:\n{listed.stderr}")
    first, *names = listed.stdout.splitlines()
    return first.removeprefix("level "), names


def count(program: Path, name: str) -> int:
    """Instructions inside `counted`."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"]
    command += ["--toggle-collect=*counted*", str(program), name]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Collected : (\d+)", ended.stderr)
    if ended.returncode != 0 or found is None or int(found[1]) == 0:
        sys.exit(f"{name}: nothing was counted:\n{ended.stderr}")
    return int(found[1])


def compare(counts: dict, kept: dict, tolerance: float) -> list[str]:
    """Prints each count beside the kept one. Gives the names of those that grew beyond `tolerance` percent."""
    worse = []
    width = max(map(len, counts), default=0)
    for name, now in counts.items():
        if name not in kept:
            print(f"{name:<{width}} {now:>12,}  new")
            continue
        change = 100 * (now / kept[name] - 1)
        grew = change > tolerance
        print(f"{name:<{width}} {now:>12,} {change:>+7.1f} %{'  <- more' if grew else ''}")
        if grew:
            worse.append(name)
    return worse


def compiler() -> str:
    return subprocess.run(["rustc", "--version"], capture_output=True, text=True, cwd=ROOT, check=False).stdout.strip()


if __name__ == "__main__":
    main()
