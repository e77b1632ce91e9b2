"""Another engine, in a process of its own that sleeps while others are measured."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent

# What engines need from their environment to be at their best. tcmalloc gives memory back late, which accelerate, with
# little of it, cannot afford.
TORCH_LIBRARIES = ("libtcmalloc_minimal.so.4", "libiomp5.so")
PRELOADED = {"vllm": TORCH_LIBRARIES, "transformers": TORCH_LIBRARIES, "accelerate": TORCH_LIBRARIES[1:]}


class PeerFailed(Exception):
    """The engine cannot measure this; the message says why."""


class Peer:
    """One engine with one model. `start` loads, `measure` measures, `close` ends.

    Whoever makes one must see to it that it is closed, also when `start` fails: a session of its own keeps the process
    away from the terminal's Ctrl-C."""

    def __init__(self, engine: str, model: Path, log_folder: Path):
        self.engine, self.model = engine, model
        self.version = None
        self.process = None
        self.log = log_folder / f"{engine}.log"
        self.unread = b""
        # Shapes that it cannot measure.
        self.given_up = set()

    def start(
        self, threads: int, most_sequences: int, longest: int, patience: float, launcher=(), further=()
    ) -> None:
        """`launcher` are words before the worker's command that end by becoming it, `further` arguments of its own."""
        command = [*launcher, sys.executable, str(HERE / "worker.py"), self.engine, str(self.model)]
        command += ["--threads", str(threads), "--most-sequences", str(most_sequences), "--longest", str(longest)]
        command += ["--parent", str(os.getpid()), *further]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=HERE,
                env=environment(self.engine, threads), start_new_session=True,
            )
        self.version = self._answer(patience)["version"]
        self._signal(signal.SIGSTOP)

    def measure(self, request: dict, patience: float) -> list[float]:
        """Seconds of each pass."""
        if self.process is None:
            raise PeerFailed("it has ended")
        self._signal(signal.SIGCONT)
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            measured = self._answer(patience)["seconds"]
        except BrokenPipeError:
            raise PeerFailed(f"it died; see {self.log}") from None
        finally:
            self._signal(signal.SIGSTOP)
        if not measured or not all(seconds > 0 for seconds in measured):
            raise PeerFailed("it gave no times")
        return measured

    def read_bytes(self) -> int:
        """What the process has had read from disk so far, by whatever way."""
        if self.process is None:
            raise PeerFailed("it has ended")
        return disk_read_bytes(self.process.pid)

    def close(self) -> None:
        if self.process is not None:
            self._signal(signal.SIGCONT)
            self._signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def _answer(self, patience: float) -> dict:
        """The next line that the worker writes."""
        end = time.monotonic() + patience
        channel = self.process.stdout.fileno()
        while b"\n" not in self.unread:
            ready, _, _ = select.select([channel], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                self.close()
                raise PeerFailed(f"no answer within {patience:.0f} s; see {self.log}")
            piece = os.read(channel, 1 << 16)
            if not piece:
                code = self.process.wait()
                self.process = None
                reason = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
                raise PeerFailed(f"it died with {reason}; see {self.log}")
            self.unread += piece
        line, _, self.unread = self.unread.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerFailed(answer["error"])
        return answer

    def _signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                pass


def disk_read_bytes(process: int) -> int:
    """What all threads of a process have had read from disk so far: page faults and what is read ahead of them count,
    what the page cache had does not."""
    lines = Path(f"/proc/{process}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


def environment(engine: str, threads: int) -> dict:
    """The variables that give this engine its threads and libraries."""
    variables = dict(os.environ)
    variables.update(OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads), TOKENIZERS_PARALLELISM="false")
    variables.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    if engine == "vllm":
        cores = sorted(os.sched_getaffinity(0))[:threads]
        variables.update(
            VLLM_CPU_OMP_THREADS_BIND=",".join(map(str, cores)),
            VLLM_CPU_KVCACHE_SPACE="2",
            # One process, so that it can be stepped by hand and put to sleep.
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_NO_USAGE_STATS="1",
        )
    found = [path for path in map(library, PRELOADED.get(engine, ())) if path]
    if found:
        variables["LD_PRELOAD"] = ":".join(found + variables.get("LD_PRELOAD", "").split())
    return variables


def library(name: str) -> str | None:
    """Where a shared library lies: in the environment of this Python, or among the system's."""
    own = Path(sys.prefix) / "lib" / name
    if own.exists():
        return str(own)
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    paths = (line.rpartition("=> ")[2] for line in listed.splitlines() if line.split()[:1] == [name])
    return next(paths, None)
