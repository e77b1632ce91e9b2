#!/usr/bin/env python3
"""Holds one engine with one model, and measures what it is asked to.

Requests and answers are JSON objects, one a line, on stdin and on what was stdout when it started; whatever the engine
prints goes to stderr. `run.py` starts it."""

import argparse
import ctypes
import importlib
import json
import os
import signal
import sys
from pathlib import Path

ENGINES = {
    "llama.cpp": ("engines.llama_cpp", "LlamaCpp"),
    "vllm": ("engines.vllm", "Vllm"),
    "transformers": ("engines.transformers", "Transformers"),
    "openvino": ("engines.openvino", "OpenVino"),
    "llama.cpp-mapped": ("engines.llama_cpp_mapped", "MappedLlamaCpp"),
    "accelerate": ("engines.accelerate", "Accelerate"),
}


# From <sys/prctl.h>.
PR_SET_PDEATHSIG = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--most-sequences", type=int, required=True)
    parser.add_argument("--longest", type=int, required=True)
    parser.add_argument("--resident-bytes", type=int, help="memory for weights, where an engine takes that")
    parser.add_argument("--parent", type=int, help="end when this process does, which must have started this one")
    options = parser.parse_args()
    if options.parent is not None:
        end_with(options.parent)
    # Engines print what they like; the answers keep a channel of their own.
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    engine = None

    def answer(work) -> None:
        try:
            print(json.dumps(work()), file=channel)
        except Exception as error:  # Whatever an engine may raise belongs into the table's notes.
            text = " ".join(str(error).split()) or type(error).__name__
            print(json.dumps({"error": text[:300]}), file=channel)

    def load() -> dict:
        nonlocal engine
        module, name = ENGINES[options.engine]
        kind = getattr(importlib.import_module(module), name)
        further = {} if options.resident_bytes is None else {"resident_bytes": options.resident_bytes}
        engine = kind(options.model, options.threads, options.most_sequences, options.longest, **further)
        return {"version": engine.version()}

    answer(load)
    for line in sys.stdin:
        request = json.loads(line)
        method = getattr(engine, request.pop("measure"))
        answer(lambda: {"seconds": method(**request)})


def end_with(parent: int) -> None:
    """Has the kernel kill this process when its parent dies, however that happens: it may be stopped at that moment and
    hold gigabytes, and could not see to it itself."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # It may have died before that.
    if os.getppid() != parent:
        sys.exit("the process that started this one has ended")


if __name__ == "__main__":
    main()
