"""The made-up session as one on two GPUs: readings, reports of the compiler, counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tui_record import record
from tui_session import START, Session

from kerneltui.model.event import Calibrated, CandidateMeasured, Event, SessionOpened
from kerneltui.model.measurement import GpuUse, Measurement
from kerneltui.model.reading import GpuReading

GIB = 1 << 30
READINGS = (
    GpuReading(
        0,
        1_000_000_000,
        1755,
        3201,
        652.4,
        9e6,
        38 * GIB,
        141 * GIB,
        61,
        0.97,
        ("power cap",),
        10**12,
    ),
    GpuReading(1, 1_000_000_000, 1980, 3201, 598.0, 9e6, 38 * GIB, 141 * GIB, 58, 0.96, (), 10**12),
)


def kernel(name: str, ctas: int | None = 1, **metrics: int) -> dict[str, Any]:
    known = {"registers": 168, "spill stores": 0, "spill loads": 0, "stack": 0, "static smem": 0}
    return {
        "name": name,
        "metrics": {**known, "barriers": 1, **metrics},
        "threads": 384 if ctas else 0,
        "cluster": 0,
        "ctas": ctas,
        "limiter": "registers" if ctas else "",
        "warps": 0.188 if ctas else None,
    }


def report(*kernels: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    known = {
        "arch": "sm_90a",
        "compiler": "13.0.88",
        "kernels": list(kernels),
        "more": 0,
        "findings": [],
        "missing": "",
        "schema": 1,
    }
    return {"codegen": {**known, **more}}


SERIALISED = (
    "Potential Performance Loss: wgmma.mma_async instructions are serialized due to non wgmma "
    "instructions defining accumulator registers of a wgmma between start and end of the pipeline "
    "stage in the function 'gemm_kernel'"
)
NOTES = {
    "c0025": report(
        kernel("gemm_kernel<Config<256, 3, 4> >", all=2022, HGMMA=24, UTMALDG=21, UTMASTG=3, BAR=2),
        kernel("epoch_kernel", ctas=None, all=6, registers=8),
        kernel("wait_kernel", ctas=None, all=62, registers=15),
    ),
    "c0028": report(
        kernel(
            "gemm_kernel<Config<256, 4, 4> >",
            all=2391,
            HGMMA=32,
            UTMALDG=28,
            UTMASTG=3,
            BAR=2,
            LDL=16,
            registers=168,
            **{"spill stores": 64, "spill loads": 64, "stack": 64},
        ),
        kernel("epoch_kernel", ctas=None, all=6, registers=8),
        kernel("gate_kernel", ctas=None, all=33, registers=14),
        findings=[
            {"loud": True, "code": "C7510", "line": 214, "text": SERIALISED},
            {"loud": False, "code": "#177-D", "line": 17, "text": 'variable "x" was never used'},
        ],
    ),
    "c0031": {"codegen": {"missing": "build 5d20b77 is gone from the cache; compile it again"}},
}
MACHINE = {
    "c0028": {
        "parent": "c0025",
        "lines": [
            "## gemm_kernel",
            "@@ -412,6 +412,8 @@",
            "     HGMMA.64x256x16.F32.BF16 R24, gdesc[UR4], R24, gsb0;",
            "+    STL.64 [R1+0x8], R152;",
            "+    LDL.64 R152, [R1+0x8];",
            "     WARPGROUP.DEPBAR.LE gsb0, 0x0;",
            "-    @P0 BRA .L12;",
            "+    @P0 BRA .L13;",
            "## gate_kernel: new, 33 lines",
        ],
        "same": ["epoch_kernel"],
    }
}


def _on_gpus(measurement: Measurement) -> Measurement:
    shapes = []
    for index, part in enumerate(measurement.shapes):
        held = 9 if index == 1 else 0
        use = GpuUse(
            1755.0 if held else 1980.0,
            3201.0,
            1250.4 - 90 * index,
            part.candidate_ns * 1.25e-6,
            index == 2,
            3512.0 * part.bound_share,
            part.rounds,
            held,
            0,
            held if index else 0,
            0,
        )
        shapes.append(replace(part, gpu=use))
    remarks = (
        "4096x1024x256: a power limit held the clock down in 9 of 11 rounds of the candidate, and in "
        "0 of the incumbent",
    )
    return replace(measurement, shapes=tuple(shapes), remarks=remarks)


def _moved(event: Event) -> Event:
    match event:
        case SessionOpened():
            known = {
                "machine": "Xeon 8481C",
                "compiler": "nvcc 13.0.88, for sm_90a",
                "torch": "torch 2.11.0",
                "sandbox": "landlock 7 + seccomp",
                "gpu 0": "NVIDIA H200, 143771 MiB, sm_90a",
                "gpu 1": "NVIDIA H200, 143771 MiB, sm_90a",
                "driver": "580.65.06",
            }
            return replace(event, target="cuda", environment=known, seed_file="host_nccl.cu")
        case Calibrated():
            shapes = tuple(
                replace(part, reachable_ns=round(part.bound_ns * 1.06)) for part in event.shapes
            )
            return replace(event, shapes=shapes)
        case CandidateMeasured():
            return replace(event, measurement=_on_gpus(event.measurement))
        case _:
            return event


def on_gpus(start: int = START) -> Session:
    """Returns the session of `record` as if it had run on two GPUs."""
    session = record(start)
    session.events = [_moved(event) for event in session.events]
    session.notes = dict(NOTES)
    session.machine = dict(MACHINE)
    session.readings = READINGS
    return session


def counted(time_us: float, hit: float, waves: float = 1.5) -> dict[str, Any]:
    """What a profiler counted of one kernel."""
    return {
        "shape": "256x512x512",
        "alone": True,
        "ranks": 2,
        "vendor": False,
        "kernels": [
            {
                "name": "gemm_kernel<Config<256, 4, 4> >",
                "launches": 2,
                "counters": [
                    ["time", time_us, "us"],
                    ["L2 hit", hit, "%"],
                    ["waves", waves, ""],
                    ["stall long scoreboard", 1.25, "warps/issue"],
                ],
            }
        ],
        "schema": 1,
    }
