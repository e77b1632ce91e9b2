#!/usr/bin/env python3
"""Fetches a model of gigabytes from a Hub on this machine, kills the download with SIGKILL, and has it go on.

    cargo build -p interbed && cargo build -p interbed-hub --example hub_of_folder --features testing
    tools/hub/resume.py FOLDER_OF_A_MODEL [SECONDS_UNTIL_THE_KILL]

Prints what came before and after, what came twice, and how long it took. Nothing but the standard library is needed;
if huggingface_hub is installed, it reads the cache too.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILT = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / os.environ.get("PROFILE", "debug")
NAME = "org/resumed"


def main():
    folder = Path(sys.argv[1])
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 4.0
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    hub = subprocess.Popen([BUILT / "examples/hub_of_folder", folder, NAME],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    endpoint = hub.stdout.readline().strip()

    def sent():
        hub.stdin.write("\n")
        hub.stdin.flush()
        return int(hub.stdout.readline())

    with tempfile.TemporaryDirectory() as cache:
        variables = dict(os.environ, HF_ENDPOINT=endpoint, HF_HUB_CACHE=cache)
        variables.pop("HF_TOKEN", None)
        # What is packed is fetched first; the pack itself is not wanted.
        fetch = [BUILT / "interbed", "pack", NAME, "/nonexistent/model.interbed"]
        begun = time.monotonic()
        first = subprocess.Popen(fetch, env=variables, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        first.send_signal(signal.SIGKILL)
        first.wait()
        kept = sum(file.stat().st_size for file in Path(cache).glob("models--*/blobs/*"))
        before = sent()
        print(f"killed after {time.monotonic() - begun:.1f} s: {before:,} bytes were sent, {kept:,} of {size:,} are kept")
        if first.returncode != -signal.SIGKILL:
            sys.exit("it was done before the kill; give fewer seconds or a larger model")
        begun = time.monotonic()
        second = subprocess.run(fetch, env=variables, stderr=subprocess.PIPE, text=True)
        took = time.monotonic() - begun
        after = sent() - before
        told = [line for line in second.stderr.splitlines() if line.startswith("fetched")]
        print(f"it went on in {took:.1f} s: {after:,} further bytes; {before + after - size:,} beyond the weights in all")
        print("\n".join(told) or second.stderr)
        begun = time.monotonic()
        verified = subprocess.run([BUILT / "interbed", "verify", NAME], env=variables, capture_output=True, text=True)
        print(f"verify, {time.monotonic() - begun:.1f} s: {verified.stdout}{verified.stderr}")
        python(cache)
    hub.stdin.close()
    hub.wait()
    sys.exit(verified.returncode)


def python(cache):
    try:
        from huggingface_hub import scan_cache_dir, snapshot_download
    except ImportError:
        return
    path = snapshot_download(NAME, cache_dir=cache, local_files_only=True)
    found = scan_cache_dir(cache)
    print(f"huggingface_hub finds {found.size_on_disk:,} bytes, {len(found.warnings)} warnings, in {Path(path).name}")


if __name__ == "__main__":
    main()
