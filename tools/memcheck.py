#!/usr/bin/env python3
"""Runs the kernels' tests under valgrind's memcheck: reads and writes beyond what was allocated, and decisions that
depend on memory nobody has written.

valgrind's processor leads to level avx2 on x86-64, so that is what is checked, with the plain level beside it. Tests
take some fifty times as long as without; arguments name the tests to run, as for cargo test. The model checker's own
tests are left out: they change stacks, which valgrind cannot follow."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

VALGRIND = ["valgrind", "--quiet", "--error-exitcode=9", "--leak-check=no", "--max-stackframe=8000000"]


def main() -> None:
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not installed (on Debian: apt-get install valgrind)")
    # Few random cases: what is looked for does not depend on many.
    environment = {**os.environ, "INTERBED_CPU": "avx2", "PROPTEST_CASES": os.environ.get("PROPTEST_CASES", "4")}
    wanted = sys.argv[1:]
    failed = []
    for program in programs():
        command = [*VALGRIND, str(program), *wanted, "--test-threads=1", "--skip", "pool::"]
        print(f"{program.name} {' '.join(wanted)}", flush=True)
        if subprocess.run(command, cwd=ROOT / "crates" / "interbed-kernels", env=environment, check=False).returncode:
            failed.append(program.name)
    if failed:
        sys.exit(f"memcheck found something in {', '.join(failed)}; what and where stands above")


def programs() -> list[Path]:
    """The test programs of the kernels, built."""
    command = ["cargo", "test", "--package", "interbed-kernels", "--lib", "--test", "it", "--no-run"]
    command += ["--message-format", "json-render-diagnostics"]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode != 0:
        sys.exit("the tests do not build; the reason stands above")
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    wanted = ("interbed_kernels", "it")
    return [Path(m["executable"]) for m in messages if m.get("executable") and m["target"]["name"] in wanted]


if __name__ == "__main__":
    main()
