"""The processor of this machine, and how busy others keep it. All from /proc and /sys."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CpuDevice", "CpuLoad", "LoadMeter", "describe_cpu", "read_frequency_mhz"]

_CPU = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """What the processor is.

    Attributes:
        model: Its name, as the kernel has it.
        cores: Logical cores that this process may use.
        threads_per_core: Logical cores that share one physical core.
        caches: Level and kind, such as "L1d", to bytes of one instance.
        memory_bytes: Main memory.
        kernel: Name and release of the operating system.
    """

    model: str
    cores: int
    threads_per_core: int
    caches: dict[str, int]
    memory_bytes: int
    kernel: str

    def items(self) -> dict[str, str]:
        """The same as text, for the record of an evaluation."""
        caches = ", ".join(f"{name} {size >> 10} KiB" for name, size in self.caches.items())
        return {
            "cpu": self.model,
            "cores": f"{self.cores} ({self.threads_per_core} a physical core)",
            "caches": caches or "unknown",
            "memory": f"{self.memory_bytes >> 20} MiB",
            "system": self.kernel,
        }


@dataclass(frozen=True, slots=True)
class CpuLoad:
    """How busy the machine was between two looks.

    Attributes:
        busy: Share of all cores' time that was used, by anybody, 0 to 1.
        steal: Share that the hypervisor gave to other machines, 0 to 1.
        runnable: Load average of the last minute: processes that run or want to.
        frequency_mhz: Mean frequency of the cores now, or None where it cannot be read.
    """

    busy: float
    steal: float
    runnable: float
    frequency_mhz: float | None

    def items(self) -> dict[str, str]:
        """The same as text."""
        clock = f"{self.frequency_mhz:.0f} MHz" if self.frequency_mhz else "unreadable"
        return {
            "load": f"{self.runnable:.2f}",
            "busy": f"{self.busy:.0%}",
            "steal": f"{self.steal:.1%}",
            "clock": clock,
        }


class LoadMeter:
    """Measures the load from one `read` to the next."""

    def __init__(self) -> None:
        self._last = _cpu_times()

    def read(self) -> CpuLoad:
        """The load since the last reading, or since the meter was made."""
        now = _cpu_times()
        spent = [b - a for a, b in zip(self._last, now, strict=True)]
        self._last = now
        total = sum(spent)
        idle, steal = spent[3] + spent[4], spent[7]
        return CpuLoad(
            busy=(total - idle - steal) / total if total else 0.0,
            steal=steal / total if total else 0.0,
            runnable=os.getloadavg()[0],
            frequency_mhz=read_frequency_mhz(),
        )


def describe_cpu() -> CpuDevice:
    """Reads what the processor is. Unknown parts are "unknown", 0 or missing."""
    return CpuDevice(
        model=_model_name(),
        cores=len(os.sched_getaffinity(0)),
        threads_per_core=_threads_per_core(),
        caches=_caches(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=f"{platform.system()} {platform.release()}",
    )


def read_frequency_mhz() -> float | None:
    """Mean frequency of the cores as the kernel states it; None where it does not."""
    found: list[float] = []
    for path in _CPU.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"):
        text = _read(path)
        if text.isdigit():
            found.append(int(text) / 1000)
    if not found:
        found = [float(v) for v in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", _cpuinfo(), re.MULTILINE)]
    return sum(found) / len(found) if found else None


def _model_name() -> str:
    match = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", _cpuinfo(), re.MULTILINE)
    return match.group(1).strip() if match else platform.processor() or platform.machine()


def _threads_per_core() -> int:
    siblings = _read(_CPU / "cpu0" / "topology" / "thread_siblings_list")
    count = 0
    for part in filter(None, siblings.split(",")):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return max(1, count)


def _caches() -> dict[str, int]:
    found: dict[str, int] = {}
    for folder in sorted((_CPU / "cpu0" / "cache").glob("index*")):
        level, kind = _read(folder / "level"), _read(folder / "type")
        size = re.fullmatch(r"(\d+)([KMG]?)", _read(folder / "size"))
        if size and kind != "Instruction":
            scale = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[size.group(2)]
            found[f"L{level}{'d' if kind == 'Data' else ''}"] = int(size.group(1)) * scale
    return found


def _cpu_times() -> tuple[int, ...]:
    """User, nice, system, idle, iowait, irq, softirq, steal of all cores, in ticks."""
    fields = _read(Path("/proc/stat")).split("\n", 1)[0].split()[1:9]
    return tuple(int(f) for f in fields) if len(fields) == 8 else (0,) * 8


def _cpuinfo() -> str:
    return _read(Path("/proc/cpuinfo"))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
