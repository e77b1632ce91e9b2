"""A memory cgroup with a hard limit, for programs that are to make do with less than the machine has."""

import os
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PAGE_CACHE = Path("/proc/sys/vm/drop_caches")

# Puts the shell that runs it into the group "$0", and becomes the program that follows.
ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'

# How long a group may take to let go of programs that have ended.
REMOVAL_SECONDS = 10.0


class CgroupFailed(Exception):
    """No such group can be made here; the message says why."""


class MemoryCgroup:
    """A group of its own for one program, removed at the end of a `with`. Version 1 and 2 of the kernel's interface."""

    def __init__(self, limit_bytes: int):
        self.limit_bytes = limit_bytes
        self.version, parent = hierarchy()
        self.folder = parent / f"interbed-peers-{os.getpid()}"

    def __enter__(self) -> "MemoryCgroup":
        try:
            self.folder.mkdir()
        except OSError as problem:
            raise CgroupFailed(f"cannot make memory cgroup {self.folder} ({problem.strerror}); run as root") from None
        try:
            self._set_limit()
        except OSError as problem:
            self.__exit__()
            raise CgroupFailed(
                f"cannot limit the memory of {self.folder} to {self.limit_bytes} bytes ({problem.strerror})"
            ) from None
        return self

    def __exit__(self, *_reason) -> None:
        """Removes the group. Whoever started programs in it has ended them by now."""
        end = time.monotonic() + REMOVAL_SECONDS
        while True:
            try:
                return self.folder.rmdir()
            except OSError as problem:
                if time.monotonic() > end:
                    raise CgroupFailed(
                        f"cannot remove {self.folder} ({problem.strerror}); end what is listed in its cgroup.procs, "
                        "then rmdir it"
                    ) from None
                time.sleep(0.1)

    def launcher(self) -> list[str]:
        """Words before a command that have it run in the group, under the process id of its start."""
        return ["/bin/sh", "-c", ENTER, str(self.folder)]

    def peak_bytes(self) -> int:
        """Most memory charged to the group at a time so far, page cache included."""
        return int((self.folder / ("memory.peak" if self.version == 2 else "memory.max_usage_in_bytes")).read_text())

    def kills(self) -> int:
        """Programs of the group that the kernel has killed for memory."""
        events = self.folder / ("memory.events" if self.version == 2 else "memory.oom_control")
        return next(int(line.split()[1]) for line in events.read_text().splitlines() if line.startswith("oom_kill "))

    def _set_limit(self) -> None:
        limit = str(self.limit_bytes)
        if self.version == 2:
            (self.folder / "memory.max").write_text(limit)
            swap, most = self.folder / "memory.swap.max", "0"
        else:
            (self.folder / "memory.limit_in_bytes").write_text(limit)
            # That of memory and swap together.
            swap, most = self.folder / "memory.memsw.limit_in_bytes", limit
        # The file is missing where the kernel does not count swap.
        if swap.exists():
            swap.write_text(most)


def hierarchy() -> tuple[int, Path]:
    """The interface's version and the folder to make groups in."""
    if (ROOT / "memory" / "memory.limit_in_bytes").exists():
        return 1, ROOT / "memory"
    control = ROOT / "cgroup.subtree_control"
    if not control.exists():
        raise CgroupFailed(f"no memory cgroups under {ROOT}; this needs Linux with cgroups mounted there")
    if "memory" not in control.read_text().split():
        try:
            control.write_text("+memory")
        except OSError as problem:
            raise CgroupFailed(f"cannot switch on memory in {control} ({problem.strerror}); run as root") from None
    return 2, ROOT


def drop_page_cache() -> None:
    """Has the kernel forget every file that nobody holds mapped, so that what comes next starts cold."""
    os.sync()
    try:
        PAGE_CACHE.write_text("3")
    except OSError as problem:
        raise CgroupFailed(f"cannot write {PAGE_CACHE} ({problem.strerror}); run as root") from None
