"""What a call launches: captured from a made-up driver with the real header, read, and put into words."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from evaluation_fakes import shape

torch = pytest.importorskip("torch")

from kerneltui.evaluation.launch_shapes import launches_on, main_shapes  # noqa: E402
from kerneltui.evaluation.worker_cuda_launches import MOST_NODES, read_launches  # noqa: E402
from kerneltui.evaluation.worker_kernel import KernelError  # noqa: E402
from kerneltui.targets.cuda import driver  # noqa: E402
from kerneltui.targets.cuda.launch_record import launch_record  # noqa: E402
from kerneltui.targets.cuda.packages import find_toolkit  # noqa: E402
from kerneltui.targets.errors import FailureKind, RankFailure, TargetError  # noqa: E402
from kerneltui.targets.port import Build  # noqa: E402

SOURCE = Path(__file__).parent / "drivers" / "captured_driver.cpp"
STREAM = 0x51


def headers() -> Path | None:
    try:
        folder = find_toolkit(None).root / "include"
    except TargetError:
        return None
    return folder if (folder / "cuda.h").exists() else None


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if headers() is None:
        pytest.skip("no CUDA toolkit with cuda.h")
    library = tmp_path_factory.mktemp("driver") / "libcuda.so"
    command = ["g++", "-std=c++17", "-shared", "-fPIC", f"-I{headers()}", str(SOURCE), "-o"]
    subprocess.run([*command, str(library)], check=True, timeout=60)
    return library


@pytest.fixture
def fake(built: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    library = ctypes.CDLL(str(built))
    library.fake_begin()
    monkeypatch.setattr(driver, "_library", lambda: library)
    yield library
    assert not library.fake_capturing()


def launch(
    fake: ctypes.CDLL, symbol: str, grid: int, shared: int = 0, *, cluster: int = 0,
    compiled: int = 0, by_kernel: bool = False, threads: int = 384,
) -> None:  # fmt: skip
    fake.fake_launch(symbol.encode(), grid, 1, threads, shared, cluster, compiled, by_kernel)


def captured(run: Callable[[], Any]) -> dict[str, Any]:
    return read_launches(lambda: run() or 0, STREAM)


def test_grid_and_dynamic_shared_memory_of_every_launch_are_read(fake: ctypes.CDLL) -> None:
    def run() -> None:
        launch(fake, "_ZN12_GLOBAL__N_14gemmILi128EEEvPf", 256, 200_704)
        for _ in range(3):
            launch(fake, "copy", 16, by_kernel=True)
        fake.fake_other(2)
        fake.fake_other(7)  # an event does nothing

    found = captured(run)
    gemm, copy = found["launches"]
    assert gemm["symbol"].endswith("gemmILi128EEEvPf")
    assert (gemm["grid"], gemm["block"]) == ((256, 1, 1), (384, 1, 1))
    assert (gemm["dynamic"], gemm["static"], gemm["registers"]) == (200_704, 1024, 168)
    assert (gemm["ctas"], gemm["cluster"], gemm["clusters"], gemm["count"]) == (1, 1, 0, 1)
    assert (copy["symbol"], copy["count"]) == ("copy", 3)
    assert found["others"] == {"memsets": 1}


@pytest.mark.parametrize("how", [{"cluster": 4}, {"compiled": 4}])
def test_clusters_of_a_launch_and_of_a_compiler_are_counted_by_the_driver(
    fake: ctypes.CDLL, how: dict[str, int]
) -> None:
    (found,) = captured(lambda: launch(fake, "gemm", 128, 200_704, **how))["launches"]
    assert (found["cluster"], found["clusters"]) == (4, 29)


def test_a_call_that_cannot_be_captured_says_why(fake: ctypes.CDLL) -> None:
    with pytest.raises(KernelError, match=r"cannot be captured: cuStreamEndCapture: refused"):
        captured(fake.fake_break)
    fake.fake_begin()
    with pytest.raises(KernelError, match="returned 7"):
        read_launches(lambda: 7, STREAM)


def test_no_more_nodes_are_read_than_a_record_has_room_for(fake: ctypes.CDLL) -> None:
    def run() -> None:
        for number in range(MOST_NODES + 9):
            launch(fake, f"k{number}", 1)

    assert len(captured(run)["launches"]) == MOST_NODES


def told(**changes: Any) -> dict[str, Any]:
    one = {
        "symbol": "_ZN12_GLOBAL__N_14gemmILi128EEEvPf", "grid": (256, 1, 1), "block": (384, 1, 1),
        "dynamic": 200_704, "static": 1024, "registers": 168, "cluster": 1, "ctas": 1,
        "clusters": 0, "count": 1, **changes,
    }  # fmt: skip
    return {"launches": [one], "others": {"memsets": 1}}


def row(**changes: Any) -> dict[str, Any]:
    return launch_record(told(**changes), "sm_90a", 132)["kernels"][0]


def test_waves_and_tail_follow_from_what_fits() -> None:
    found = row()
    assert found["name"] == "gemm<128>"
    assert (found["ctas"], found["limiter"], found["warps"]) == (1, "registers", 0.188)
    assert (found["places"], found["waves"], found["tail"]) == (132, 2, 124)
    assert found["efficiency"] == round(256 / 264, 3)
    small = row(block=(128, 1, 1), dynamic=100_000, ctas=2)
    assert (small["limiter"], small["places"]) == ("shared memory", 264)
    assert (small["waves"], small["tail"]) == (1, 256)
    clustered = row(grid=(128, 1, 1), cluster=4, clusters=29)
    assert (clustered["places"], clustered["waves"], clustered["tail"]) == (116, 2, 12)
    persistent = row(grid=(132, 1, 1))
    assert (persistent["waves"], persistent["tail"], persistent["efficiency"]) == (1, 0, 1.0)


def test_where_the_driver_knows_better_it_is_named() -> None:
    assert row(ctas=3)["limiter"] == "the driver"


@pytest.mark.parametrize(
    "changes",
    [{"grid": (1, 1)}, {"ctas": -1}, {"dynamic": "much"}, {"registers": True}, {"block": (0, 1, 1)},
     {"count": 1 << 60}, {"grid": None}],
)  # fmt: skip
def test_what_a_rank_cannot_have_launched_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(TargetError, match="cannot be"):
        row(**changes)
    with pytest.raises(TargetError, match="cannot be"):
        launch_record({"launches": 3, "others": {}}, "sm_90a", 132)


# -- on the shapes of a candidate


class FakeLane:
    def __init__(self, story: list[str], fails: str = "") -> None:
        self._story, self._fails = story, fails
        self._shape = ""

    def setup(self, part: Any, sets: int) -> None:
        self._shape = part.name
        self._story.append(f"setup {part.name}")

    def launches(self) -> dict[str, Any]:
        if self._fails == self._shape:
            raise RankFailure(FailureKind.ERROR, 0, "it waits for the device")
        return told()

    def teardown(self) -> None:
        self._story.append("teardown")


class Toolchain:
    def launch_record(self, answer: Mapping[str, Any], multiprocessors: int) -> Mapping[str, Any]:
        return launch_record(answer, "sm_90a", multiprocessors)


def stand(toolchain: object) -> Any:
    target = SimpleNamespace(toolchain=toolchain, multiprocessors=132)
    return SimpleNamespace(target=target, checkpoint=lambda: None)


BUILD = Build(Path("kernel.so"), "key", True, 0.0, "")


def found_on(
    lane: FakeLane, *names: str, toolchain: object | None = None, build: Build = BUILD
) -> Any:
    shapes = [shape(name) for name in names]
    return launches_on(
        stand(Toolchain() if toolchain is None else toolchain),
        build,
        lambda ranks: cast(Any, lane),
        main_shapes(shapes),
    )


def test_a_call_is_captured_on_every_shape_and_the_largest_comes_first() -> None:
    story: list[str] = []
    found = found_on(FakeLane(story), "512x512x512", "1024x1024x1024")
    assert [part["shape"] for part in found["launches"]] == ["1024x1024x1024", "512x512x512"]
    assert found["launches"][0]["kernels"][0]["tail"] == 124
    assert story == ["setup 1024x1024x1024", "teardown", "setup 512x512x512", "teardown"]
    assert "unread" not in found


def test_a_capture_that_fails_is_no_fault_of_the_kernel() -> None:
    found = found_on(FakeLane([], "512x512x512"), "512x512x512", "1024x1024x1024")
    assert len(found["launches"]) == 1
    assert found["unread"] == "512x512x512: it waits for the device"


def test_nothing_is_captured_where_nothing_is_launched() -> None:
    story: list[str] = []
    assert found_on(FakeLane(story), "512x512x512", toolchain=object()) == {}
    python = Build(Path("kernel.py"), "key", True, 0.0, "")
    assert found_on(FakeLane(story), "512x512x512", build=python) == {}
    assert story == []
