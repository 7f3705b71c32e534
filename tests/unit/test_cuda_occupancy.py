"""CTAs of an SM, against the toolkit's own arithmetic, and waves of a grid."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import pytest

from kerneltui.targets.cuda.occupancy import DEVICE_LIMITS, limits_of, occupancy, waves
from kerneltui.targets.cuda.packages import find_toolkit
from kerneltui.targets.errors import TargetError

PROGRAM = r"""
#include <climits>
#include <cstdio>
#include "cuda_occupancy.h"
int main() {
  int major, minor, threads, ctas, shared_sm, shared_cta, reserved, t, r, s;
  if (scanf("%d %d %d %d %d %d", &major, &minor, &threads, &shared_sm, &shared_cta, &reserved) != 6) return 1;
  while (scanf("%d %d %d", &t, &r, &s) == 3) {
    cudaOccDeviceProp p;
    p.computeMajor = major; p.computeMinor = minor;
    p.maxThreadsPerBlock = 1024; p.maxThreadsPerMultiprocessor = threads;
    p.regsPerBlock = 65536; p.regsPerMultiprocessor = 65536; p.warpSize = 32;
    p.sharedMemPerBlock = 49152; p.sharedMemPerMultiprocessor = shared_sm; p.numSms = 100;
    p.sharedMemPerBlockOptin = shared_cta; p.reservedSharedMemPerBlock = reserved;
    cudaOccFuncAttributes a;
    a.maxThreadsPerBlock = INT_MAX; a.numRegs = r; a.sharedSizeBytes = 0;
    a.partitionedGCConfig = PARTITIONED_GC_OFF;
    a.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN; a.maxDynamicSharedSizeBytes = shared_cta;
    a.numBlockBarriers = 1;
    cudaOccDeviceState state;
    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    cudaOccResult result;
    int code = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &p, &a, &state, t, s);
    printf("%d\n", code ? -code : result.activeBlocksPerMultiprocessor);
  }
}
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_it_is_what_the_toolkit_computes(arch: str, tmp_path: Path) -> None:
    try:
        header = find_toolkit().root / "include" / "cuda_occupancy.h"
    except TargetError as error:
        pytest.skip(str(error))
    if not header.exists() or shutil.which("g++") is None:
        pytest.skip("no cuda_occupancy.h or no g++")
    source = tmp_path / "occupancy.cpp"
    source.write_text(PROGRAM)
    program = tmp_path / "occupancy"
    command = ["g++", "-w", "-O0", f"-I{header.parent}", str(source), "-o", str(program)]
    subprocess.run(command, check=True, timeout=60)
    limits = DEVICE_LIMITS[arch]
    cases = list(
        itertools.product(
            (32, 96, 128, 160, 256, 384, 512, 1000, 1024),
            (16, 32, 40, 64, 65, 80, 128, 168, 200, 255),
            (0, 1000, 20_000, 50_000, 100_000, limits.shared_per_cta),
        )
    )
    head = f"{arch[3]} {arch[4]} {limits.threads} {limits.shared} {limits.shared_per_cta} 1024"
    text = "\n".join([head, *(" ".join(map(str, case)) for case in cases)])
    answer = subprocess.run(
        [str(program)], input=text, capture_output=True, text=True, check=True, timeout=60
    )
    expected = list(map(int, answer.stdout.split()))
    found = [occupancy(limits, threads=t, registers=r, shared=s).ctas for t, r, s in cases]
    assert len(expected) == len(cases) and max(expected) > 8 and min(expected) == 0
    assert found == expected


def test_the_limiter_is_named() -> None:
    limits = DEVICE_LIMITS["sm_90"]
    assert occupancy(limits, threads=384, registers=168, shared=212_992).limiter == "registers"
    assert occupancy(limits, threads=128, registers=32, shared=100_000).limiter == "shared memory"
    assert occupancy(limits, threads=1024, registers=32, shared=0).limiter == "registers"
    assert occupancy(limits, threads=1024, registers=24, shared=0).ctas == 2
    assert occupancy(limits, threads=32, registers=16, shared=0).limiter == "CTAs"


def test_what_cannot_be_launched_has_no_place() -> None:
    limits = DEVICE_LIMITS["sm_90"]
    assert occupancy(limits, threads=128, registers=32, shared=232_449).ctas == 0
    assert occupancy(limits, threads=1024, registers=128, shared=0).limiter == "registers"
    assert occupancy(limits, threads=1056, registers=16, shared=0).ctas == 0


def test_architectures_are_found_with_and_without_their_letter() -> None:
    assert limits_of("sm_90a") is DEVICE_LIMITS["sm_90"]
    assert limits_of("sm_80") is DEVICE_LIMITS["sm_80"]
    assert limits_of("sm_52") is None


def test_waves_and_tail() -> None:
    assert waves(264, 132).tail == 0 and waves(264, 132).efficiency == 1.0
    partly = waves(256, 132)
    assert (partly.full, partly.tail, partly.places) == (1, 124, 132)
    assert partly.efficiency == pytest.approx(256 / 264)
    with pytest.raises(ValueError, match="fits"):
        waves(10, 0)
