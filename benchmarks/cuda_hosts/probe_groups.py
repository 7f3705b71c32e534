"""Questions about groups of ranks: how they start and end, their clocks, and two of them side by side."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from probe_ranks import MIB, Group


def fresh_group() -> dict[str, Any]:
    """How long does a group take from nothing, and what does it hold of the GPU's memory?"""
    idle = used_mib()
    tries = []
    for _ in range(2):
        group = Group()
        tries.append({"ready_s": group.ready_s, "parts": group.times[0]})
        held = used_mib()
        gather = group.ask("rank_gather", 16 * MIB)
        begin = time.monotonic()
        group.close()
        gone = until(lambda: used_mib() == idle)
        tries[-1] |= {
            "held_mib": [a - b for a, b in zip(held, idle, strict=True)],
            "gather_16_mib_us": gather,
            "memory_back_s": gone,
            "close_s": round(time.monotonic() - begin, 3),
        }
    return {"idle_mib": idle, "tries": tries}


def clocks() -> dict[str, Any]:
    """Steps of globaltimer, its offset between the GPUs, the latency of a flag, the skew of a gate."""
    group = Group()
    try:
        steps = group.ask("rank_steps")
        pairs = group.ask("rank_ping_pong")[0]
        offsets = [answer - (asked + back) / 2 for asked, answer, back in pairs]
        trips = [back - asked for asked, _, back in pairs]
        offset = median(offsets)
        gates = group.ask("rank_gates")
        skew = [b - a - offset for a, b in zip(*gates, strict=True)]
        return {
            "step_ns": steps,
            "offset_ns": round(offset),
            "offset_p10_p90_ns": [round(sorted(offsets)[len(offsets) * p // 10]) for p in (1, 9)],
            "flag_one_way_ns": round(median(trips) / 2),
            "gate_skew_ns": {
                "median": round(median(map(abs, skew))),
                "max": round(max(map(abs, skew))),
            },
        }
    finally:
        group.close()


def kill_one() -> dict[str, Any]:
    """SIGKILL of one rank while both spin on a flag that never comes; then of the other."""
    return kills([0], [1])


def kill_both() -> dict[str, Any]:
    """SIGKILL of both at once."""
    return kills([0, 1], [])


def kills(first: list[int], then: list[int]) -> dict[str, Any]:
    """Kills spinning ranks and looks what becomes of processes, memory and GPUs."""
    idle = used_mib()
    group = Group()
    group.ask("rank_spin")
    time.sleep(0.5)
    found: dict[str, Any] = {"busy_before": busy_percent()}
    for name, ranks in (("first", first), ("then", then)):
        if not ranks:
            continue
        for rank in ranks:
            os.kill(group.processes[rank].pid or 0, signal.SIGKILL)
        found[name] = {
            "process_gone_s": until(
                lambda r=ranks: not any(group.processes[i].is_alive() for i in r)
            ),
            "memory_back_s": until(lambda r=ranks: all(used_mib()[i] <= idle[i] for i in r)),
            "busy_after": busy_percent(),
        }
    group.close()
    fresh = Group()
    found["fresh_group_after_s"] = fresh.ready_s
    found["gather_after_us"] = fresh.ask("rank_gather", 16 * MIB)
    fresh.close()
    return found


def two_groups() -> dict[str, Any]:
    """Does an idle group on the same GPUs, blocked on the host, slow the other down?"""
    one = Group()
    try:
        alone = one.ask("rank_gather", 64 * MIB)
        held = used_mib()
        other = Group()
        try:
            beside = one.ask("rank_gather", 64 * MIB)
            turn = other.ask("rank_gather", 64 * MIB)
            again = one.ask("rank_gather", 64 * MIB)
            return {
                "alone_us": alone,
                "beside_an_idle_group_us": beside,
                "the_other_us": turn,
                "again_us": again,
                "a_further_group_mib": [b - a for a, b in zip(held, used_mib(), strict=True)],
            }
        finally:
            other.close()
    finally:
        one.close()


def used_mib() -> list[int]:
    """Memory in use on each GPU, by the driver."""
    text = subprocess.check_output(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], text=True
    )
    return [int(line) for line in text.split()]


def busy_percent() -> list[int]:
    """Utilisation of each GPU, by the driver."""
    text = subprocess.check_output(
        ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"], text=True
    )
    return [int(line) for line in text.split()]


def until(condition: Callable[[], bool], limit_s: float = 20.0) -> float | None:
    """Seconds until something holds; None if it does not."""
    begin = time.monotonic()
    while time.monotonic() - begin < limit_s:
        if condition():
            return round(time.monotonic() - begin, 3)
        time.sleep(0.02)
    return None
