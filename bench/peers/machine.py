"""The machine that the figures belong to."""

import datetime
import os
import platform
from dataclasses import asdict, dataclass

# What tells processors of one name apart where speed is concerned.
TELLING_FLAGS = (
    *("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"),
    *("asimddp", "i8mm", "bf16"),
)


@dataclass
class Machine:
    date: str
    processor: str
    cores: int
    flags: list
    memory_gb: float
    system: str
    threads: int

    @staticmethod
    def here(threads: int) -> "Machine":
        fields = cpu_fields()
        flags = (fields.get("flags") or fields.get("Features") or "").split()
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Machine(
            date=datetime.date.today().isoformat(),
            processor=fields.get("model name") or platform.processor() or platform.machine(),
            cores=len(os.sched_getaffinity(0)),
            flags=[flag for flag in TELLING_FLAGS if flag in flags],
            memory_gb=round(memory / 1e9, 1),
            system=f"{platform.system()} {platform.release()}",
            threads=threads,
        )

    def to_json(self) -> dict:
        return asdict(self)


def cpu_fields() -> dict:
    """The first processor's fields of /proc/cpuinfo, nothing where there is no such file."""
    fields = {}
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                name, colon, value = line.partition(":")
                if not colon:
                    break
                fields[name.strip()] = value.strip()
    except OSError:
        pass
    return fields
