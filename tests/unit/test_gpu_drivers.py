"""The drivers of tests/gpu as far as they need no GPU: kernels named, built, opened; shapes; what is told."""

from __future__ import annotations

import ctypes
import json
import math
import multiprocessing as mp
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from kerneltui.evaluation.worker_abi import BufferSet, Host, Tensor, Vendor
from kerneltui.model.kernel import parse_kernel

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))

from driver_checks import compare  # noqa: E402
from driver_group import listen  # noqa: E402
from driver_kernel import DriverFault, Opened, Spec, build_all, parse_shapes, parse_spec  # noqa: E402
from driver_tables import print_tables  # noqa: E402
from gemm_shapes import TIME_SHAPES, bound_us, candidates, grid_shapes  # noqa: E402
from kernel_driver import guilty_of  # noqa: E402

TOLD = Path(__file__).parent / "drivers" / "told_kernel.cpp"
GEMM = ROOT / "kernels" / "gemm" / "gemm_sm90.cu"
COMPILER = f"""\
#!/bin/sh
echo "$*" >> "$0.log"
for word; do
  case $word in -DKT*) element=$word;; *.cu) file=$word;; esac
  last=$word
done
exec g++ -std=c++17 -shared -fPIC $element -I {ROOT / "kerneltui/include"} -x c++ "$file" -o "$last"
"""


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler for kernels without device code in nvcc's place; the file that lists its calls."""
    program = tmp_path / "bin" / "nvcc"
    program.parent.mkdir()
    program.write_text(COMPILER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return program.with_suffix(".log")


def built(folder: Path, *texts: str) -> list[Spec]:
    specs = [parse_spec(text) for text in texts]
    build_all(specs, folder, "arch=compute_90a,code=sm_90a", threads=4)
    return specs


def test_a_kernel_is_named_with_values_of_its_tunables():
    spec = parse_spec(f"{GEMM}@STAGES=4,TILE=3")
    assert spec.label == "gemm_sm90@STAGES=4,TILE=3"
    assert spec.defines == {"STAGES": "4"}
    assert spec.runtime["TILE"] == 3
    declared = parse_kernel(GEMM.read_text(), GEMM.name).runtime
    assert spec.runtime == declared | {"TILE": 3}
    assert parse_spec(str(GEMM)).label == "gemm_sm90"


def test_a_tunable_that_the_kernel_has_not_is_refused():
    with pytest.raises(SystemExit, match="no tunable 'STAGE'"):
        parse_spec(f"{GEMM}@STAGE=4")


def test_shapes_are_read():
    assert parse_shapes("1,2,3;40,50,60") == [(1, 2, 3), (40, 50, 60)]
    with pytest.raises(ValueError):
        parse_shapes("1,2")


def test_kernels_that_differ_at_run_time_only_share_a_library_that_is_built_once(
    tmp_path: Path, compiled: Path
):
    names = [str(TOLD), f"{TOLD}@TURN=0", f"{TOLD}@LANES=2,DEPTH=2", f"{TOLD}@DEPTH=2"]
    specs = built(tmp_path, *names)
    libraries = [Path(spec.library) for spec in specs]
    assert libraries[0] == libraries[1] == libraries[3] != libraries[2]
    assert all(library.exists() for library in libraries)
    calls = compiled.read_text().splitlines()
    assert len(calls) == 2
    assert all("-DKT_ELEMENT=KT_ELEMENT_BFLOAT16" in call for call in calls)
    assert [spec.library for spec in built(tmp_path, *names)] == list(map(str, libraries))
    assert len(compiled.read_text().splitlines()) == 2
    assert not list(tmp_path.glob("*.tmp.so"))


def test_what_the_compiler_says_of_a_broken_kernel_is_kept(tmp_path: Path, compiled: Path):
    broken = tmp_path / "broken.cu"
    broken.write_text("// kerneltui: runtime TURN in 0 1 default 1\nint x = nowhere;\n")
    specs = built(tmp_path, str(broken), f"{broken}@TURN=0", str(TOLD))
    assert [bool(spec.library) for spec in specs] == [False, False, True]
    assert all("nowhere" in spec.build_log for spec in specs[:2])
    assert len(compiled.read_text().splitlines()) == 2


def test_a_kernel_is_told_everything_of_its_context(tmp_path: Path, compiled: Path):
    (spec,) = built(tmp_path, f"{TOLD}@DEPTH=2")
    opened = Opened(spec, (5, 6, 8), {"TURN": 0}, rank=1, ranks=2)
    assert (opened.asked.signal_words, opened.asked.scratch_bytes) == (210, 256)
    pointers = ctypes.c_void_p * 2
    out = (ctypes.c_uint64 * 2)()
    peers, signals, side = pointers(71, 72), pointers(81, 82), pointers(91, 92)
    buffers = (BufferSet * 2)()
    rows = []
    for i in range(2):
        rows.append((Tensor * 3)())
        rows[i][2] = Tensor(
            name=b"C",
            shape=(ctypes.c_int64 * 4)(5, 6, 0, 0),
            bytes=60,
            local=ctypes.addressof(out) + 8 * i,
            peers=ctypes.cast(peers, ctypes.c_void_p).value,
        )
        buffers[i] = BufferSet(3, rows[i])
    scratch = (ctypes.c_int64 * 32)()
    opened.set_up(
        buffers,
        ctypes.addressof(scratch),
        signals=signals,
        signal_words=3,
        vendor=ctypes.pointer(Vendor(None, 55)),
        host=ctypes.pointer(Host(None, None, 66)),
        stream=44,
        side_streams=ctypes.cast(side, ctypes.c_void_p).value,
    )
    told = [1, 5, 6, 0, 2, 1, 2, 2, 256, 82, 3, 92, 44, 55, 66, 72, 6, 60]
    assert list(scratch)[: len(told)] == told
    run = opened.library.kerneltui_run
    opened.check("run", run(opened.state, ctypes.c_uint32(1), ctypes.c_uint64(1 << 40), None))
    assert list(out) == [0, 1 << 40]
    assert opened.tear_down() == 5


def test_the_reason_of_a_kernel_that_fails_is_told(tmp_path: Path, compiled: Path):
    (spec,) = built(tmp_path, str(TOLD))
    buffers = (BufferSet * 1)()
    with pytest.raises(DriverFault, match="setup returned 3: 13 rows are unlucky"):
        Opened(spec, (13, 6, 8), {}).set_up(buffers, 0)
    with pytest.raises(DriverFault, match="requirements returned 0, version 99"):
        Opened(spec, (5, 6, 7), {})


def test_candidates_are_legal_values_of_the_kernel():
    kernel = parse_kernel(GEMM.read_text(), GEMM.name)
    values = {tunable.name: tunable.values for tunable in kernel.tunables}
    for shape in [*TIME_SHAPES, *grid_shapes(40)]:
        found = candidates(shape)
        assert found[0] == {"TILE": 1}
        assert len(found) == len({tuple(sorted(entry.items())) for entry in found})
        dimensions = dict(zip("MNK", shape, strict=True)) | {"RANKS": 1}
        for entry in found:
            assert all(value in values[name] for name, value in entry.items())
            assert kernel.valid(kernel.configuration | entry, [dimensions]), (shape, entry)


def test_shapes_of_the_grid_are_the_same_each_time_and_from_all_of_it():
    shapes = grid_shapes(50)
    assert shapes == grid_shapes(50)
    work = [m * n * k for m, n, k in shapes]
    assert work == sorted(work)
    assert work[0] < 64**2 * 2048 and work[-1] > 8192**2 * 4096
    assert len(set(grid_shapes(1000))) == 1000


def test_a_bound_is_arithmetic_or_memory():
    assert bound_us((8192, 8192, 8192)) == pytest.approx(2 * 8192**3 / 790e12 * 1e6)
    assert bound_us((64, 8192, 64)) == pytest.approx(2 * (64 * 64 + 2 * 64 * 8192) / 4.3e6)


@pytest.mark.parametrize("exact", [True, False])
def test_an_output_that_is_left_out_is_wrong(exact: bool):
    right = torch.randint(0, 2, (40, 8)).float()
    outs = [right.bfloat16(), right.bfloat16()]
    assert compare(torch, outs, [right, right], exact) == ("", 0.0)
    outs[1][3, 4] = math.nan
    error, _ = compare(torch, outs, [right, right], exact)
    assert error.startswith("set 1: ")


def test_the_kernel_that_hangs_is_the_one_with_the_longest_name():
    specs = [Spec(text, text, Path("k.cu")) for text in ("k.cu", "k.cu@A=1", "k.cu@A=12", "l.cu")]
    found = guilty_of("hang: ['verify k.cu@A=1 (1, 2, 3)', 'ready']\nl.cu", specs)
    assert found is specs[1]
    assert guilty_of("rank ended with -9: ['start', 'start']", specs) is None


def test_what_ranks_report_is_gathered_until_both_end_or_one_breaks():
    pipes = [mp.Pipe(duplex=False) for _ in range(2)]
    for rank, (_, sender) in enumerate(pipes):
        sender.send(("ready", ""))
        sender.send(("begin", f"time k {rank}"))
        sender.send(("timed", rank + 10))
        sender.close()
    results: dict[str, Any] = {}
    doing = ["start", "start"]
    receivers = [receiver for receiver, _ in pipes]
    assert listen(receivers, doing, results, time.monotonic() + 60) == ""
    assert sorted(results["timed"]) == [(0, 10), (1, 11)]
    assert doing == ["time k 0", "time k 1"]
    receiver, sender = mp.Pipe(duplex=False)
    sender.send(("begin", "verify k"))
    sender.send(("fault", "Traceback"))
    trouble = listen([receiver], ["start"], results, time.monotonic() + 60)
    assert trouble == "fault in rank 0: verify k\nTraceback"
    assert listen([receiver], ["start"], results, time.monotonic() - 1) == "out of time"
    for end in (sender, receiver, *receivers):
        end.close()


def test_tables_say_what_failed_and_what_share_of_the_bound_a_kernel_reaches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    times = {
        "gemm alone": [2.0, 2.0, 9.0],
        "all-gather": [1.0, 1.0, 1.0],
        "a.cu": [4.0, 4.0, 4.0],
        "host_nccl.cu": [8.0, 8.0, 8.0],
    }
    errors = {"a.cu": 1e-3, "host_nccl.cu": 1e-3}
    shape = (64, 64, 64)
    results = {
        "verified": [
            (0, (0, "a.cu", shape, 0, "", 1e-3)),
            (1, (0, "a.cu", shape, 2, "late", 2e-3)),
        ],
        "timed": [(rank, (shape, times, errors, {})) for rank in range(2)],
    }
    specs = [Spec(text, text, Path(text)) for text in ("a.cu", "host_nccl.cu")]
    print_tables(specs, results, tmp_path)
    text = capsys.readouterr().out
    assert "a.cu: 1/2 worst 2.00e-03" in text
    assert "rank 1 (64, 64, 64) case 2: late" in text
    assert "0.500  2.000  (1 shapes)  a.cu" in text
    written = json.loads((tmp_path / "driver.json").read_text())
    assert [entry["ms"]["a.cu"] for entry in written["timed"]] == [4.0]
    assert written["trouble"] == []
