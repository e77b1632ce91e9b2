"""What a viewer costs: decode with one that reads and does not draw, over decode without. Usage:
cost.py INTERBED FOLDER [ROUNDS [OPTION…]], with options of `interbed serve`.

Rounds with and without a viewer take turns, so that what else the machine does meets both alike. On a busy machine the
processor time of the server says more than the speed.
"""

import http.client
import os
import shutil
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from server import Server, ask

SEQUENCES, TOKENS = 4, 200


class Viewer:
    """Reads the stream of events, and does nothing with it."""

    def __init__(self, url):
        self.connection = http.client.HTTPConnection(urlsplit(url).netloc)
        self.connection.request("GET", "/live/events")
        self.answer = self.connection.getresponse()
        self.bytes = 0
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        try:
            while piece := self.answer.read1(1 << 16):
                self.bytes += len(piece)
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            pass

    def leave(self):
        self.connection.sock.shutdown(2)
        self.thread.join()
        self.connection.close()


def cpu_seconds(process):
    """Processor time of a process so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def decode(url):
    """Tokens a second of some sequences side by side."""
    def one(seed):
        body = {"prompt": "Once upon a time", "max_tokens": TOKENS, "ignore_eos": True, "temperature": 1, "seed": seed}
        return ask(url, body)["usage"]["completion_tokens"]

    begin = time.monotonic()
    with ThreadPoolExecutor(SEQUENCES) as pool:
        tokens = sum(pool.map(one, range(SEQUENCES)))
    return tokens / (time.monotonic() - begin)


def main():
    binary, folder = str(Path(sys.argv[1]).resolve()), Path(sys.argv[2])
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 15
    root = Path(__file__).resolve().parents[2]
    model = folder / "storyteller"
    shutil.copytree(root / "models/storyteller", model, dirs_exist_ok=True)
    with Server(binary, model, folder / "cost.log", *(sys.argv[4:] or ["--memory", "1G"])) as server:
        decode(server.url)
        ratios, costs, seen = [], [], 0
        for number in range(rounds):
            # Each goes first as often as the other.
            rates, work = {}, {}
            for watched in [number % 2 == 0, number % 2 == 1]:
                viewer = Viewer(server.url) if watched else None
                before = cpu_seconds(server.process)
                rates[watched] = decode(server.url)
                work[watched] = cpu_seconds(server.process) - before
                if viewer:
                    viewer.leave()
                    seen += viewer.bytes
                # The stream's task ends with its next turn.
                time.sleep(0.3)
            ratios.append(rates[True] / rates[False])
            costs.append(work[True] / work[False])
            print(f"{rates[True]:.0f} tokens a second with a viewer, {rates[False]:.0f} without: {ratios[-1]:.3f}; "
                  f"processor time {costs[-1]:.3f}")
    assert seen > 10_000, f"the viewers have read only {seen} bytes"
    print(f"with a viewer, decode has {statistics.median(ratios):.3f} of its speed and takes "
          f"{statistics.median(costs):.3f} of the processor time, medians of {rounds} pairs")


if __name__ == "__main__":
    main()
