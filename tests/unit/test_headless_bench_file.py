"""Files of side-by-side runs: gone on with by a run of the same on the same kind of machine, by no other."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_nvml import FakeNvml

from kerneltui.engine.opening import workload_on
from kerneltui.evaluation.bench_plan import BenchPlan, chosen_shapes
from kerneltui.evaluation.bench_result import LaneResult, Mode, ModeTimes, ShapeResult
from kerneltui.headless import bench_machine as module
from kerneltui.headless.bench_file import BenchFile
from kerneltui.headless.bench_head import head_of
from kerneltui.headless.bench_machine import compare_machines, machine_of
from kerneltui.model.errors import UserError
from kerneltui.model.kernel import parse_kernel
from kerneltui.model.workload import Shape
from kerneltui.targets.cuda.device import Gpus

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "gemm-h200.json.gz"
KERNEL = "gemm_sm90.cu"
SOURCE = (ROOT / "kernels" / "gemm" / KERNEL).read_text(encoding="utf-8")
RUNTIME = "// kerneltui: runtime TILE in 0 1 default {}\nint x;\n"
PLAN = BenchPlan(tuple(Shape(name, {"M": 64}, ("bench",), 1) for name in "abc"))
PLACE = {
    "machine": "Xeon",
    "cores": "16",
    "kernel": "6.1",
    "clocks": "unlocked",
    "compiler": "nvcc 13.0.88",
    "torch": "2.11.0",
    "driver": "580.159.04",
    "gpu 0": "NVIDIA H200, 143771 MiB, sm_90a",
    "gpu 0 uuid": "GPU-0000",
    "cuBLAS": "13.1.0",
    "nccl windows": "yes, by NCCL 2.28.9",
    "load": "0.1",
}


def result(name: str = "a", *, left_out: str = "") -> ShapeResult:
    lane = LaneResult("nn", True, {Mode.OFFLINE: ModeTimes(((100.0, 101.0, 102.0),) * 4)})
    return ShapeResult(
        shape=name, dimensions={"M": 64}, flops=2.0**30, bound_ns=50, bound_kind="memory", sets=3,
        set_bytes=1 << 20, cold=False, calls=10, lanes=() if left_out else (lane,), seconds=1.0,
        least_delta=0.01, left_out=left_out,
    )  # fmt: skip


def gemm_head(text: str = SOURCE, plan: BenchPlan | None = None, target: str = "cuda") -> Any:
    """The head of a run as that of the published results of `gemm`."""
    workload, spec = workload_on(ROOT / "workloads" / "gemm", target)
    published = BenchPlan(chosen_shapes(workload, None), server=True, rounds=11, gap_ns=250_000)
    return head_of(workload, spec, {KERNEL: parse_kernel(text, KERNEL)}, plan or published)


def bench_file(path: Path, text: str = RUNTIME.format(0), plan: BenchPlan = PLAN) -> BenchFile:
    return BenchFile(path, gemm_head(text, plan))


def written(path: Path, *results: ShapeResult, **part: Any) -> Path:
    """A file with one part."""
    made = bench_file(path)
    made.begin().update(part)
    for found in results:
        made.add(found)
    made.write()
    return path


def published(folder: Path) -> Path:
    path = folder / "gemm-h200.json"
    path.write_bytes(gzip.decompress(RESULTS.read_bytes()))
    return path


# -- going on


def test_a_run_goes_on_with_its_file(tmp_path: Path):
    path = tmp_path / "new" / "bench.json"
    first = bench_file(path)
    first.check()
    first.go_on()
    assert not first.measured
    first.begin()["environment"] = PLACE
    first.add(result("a"))
    second = bench_file(path)
    second.go_on()
    assert second.done == {"a"}
    second.begin()
    second.compare(PLACE, 1)
    second.add(result("b"))
    third = bench_file(path)
    third.go_on()
    assert [(part, found.shape) for part, found in third.results] == [(0, "a"), (1, "b")]
    assert third.parts[0]["environment"] == PLACE
    assert not third.remarks and third.parts[1]["remarks"] == []
    assert [file.name for file in path.parent.iterdir()] == ["bench.json"]


def test_a_shape_that_was_left_out_is_tried_again_and_replaced(tmp_path: Path):
    path = written(tmp_path / "bench.json", result("a"), result("b", left_out="no room"))
    again = bench_file(path)
    again.go_on()
    assert again.done == {"a"}
    assert [found.left_out for found in again.measured] == ["", "no room"]
    again.begin()
    again.add(result("b"))
    assert again.done == {"a", "b"}
    assert [part for part, _ in again.results] == [0, 1]


def test_what_is_no_file_of_a_benchmark_is_refused(tmp_path: Path):
    path = tmp_path / "bench.json"
    path.write_text("{")
    with pytest.raises(UserError, match="is no file of a benchmark"):
        bench_file(path).go_on()
    path.write_text("[]")
    with pytest.raises(UserError, match="another run \\(other schema\\)"):
        bench_file(path).go_on()
    record = json.loads(written(path, result("a")).read_text())
    record["shapes"][0]["part"] = 7
    path.write_text(json.dumps(record))
    with pytest.raises(UserError, match="is no file of a benchmark"):
        bench_file(path).go_on()
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        bench_file(blocked / "bench.json").check()


# -- what is measured


@pytest.mark.parametrize(
    ("text", "plan", "why"),
    [
        (RUNTIME.format(1), PLAN, f"other kernels: {KERNEL} runtime TILE was 0 and is 1"),
        (RUNTIME.format(0) + "int y;", PLAN, f"other kernels: {KERNEL} text was [0-9a-f]+ and is"),
        (RUNTIME.format(0), replace(PLAN, rounds=3), "other plan: rounds was 22 and is 3"),
        (RUNTIME.format(0), replace(PLAN, shapes=PLAN.shapes[:2]), "other plan: shapes differs"),
        (
            RUNTIME.format(0),
            replace(PLAN, shapes=(*PLAN.shapes[:2], Shape("d", {"M": 64}, (), 1))),
            "other plan: shapes differs",
        ),
    ],
)
def test_a_file_of_another_run_is_refused_with_what_differs(
    tmp_path: Path, text: str, plan: BenchPlan, why: str
):
    path = written(tmp_path / "bench.json", result("a"))
    with pytest.raises(UserError, match=f"is of another run \\({why}"):
        bench_file(path, text, plan).go_on()


def test_the_budget_of_a_later_part_may_be_another(tmp_path: Path):
    path = written(tmp_path / "bench.json", result("a"))
    bench_file(path, plan=replace(PLAN, budget_s=3.0)).go_on()


def test_another_reference_or_kernel_that_is_a_baseline_is_another_run(tmp_path: Path):
    path = tmp_path / "bench.json"
    written(path, result("a"))
    record = json.loads(path.read_text())
    for key, value in (("reference", "0"), ("baselines", {"lsa": {"text": "0", "runtime": {}}})):
        path.write_text(json.dumps({**record, key: value}))
        with pytest.raises(UserError, match=f"other {key}"):
            bench_file(path).go_on()


def test_kernels_that_are_baselines_stand_in_the_head_as_they_are_configured():
    folder = ROOT / "workloads" / "gemm_allgather"
    workload, spec = workload_on(folder, "cuda")
    head = head_of(workload, spec, {}, PLAN)
    assert head["baselines"]
    assert set(head["baselines"]) < set(spec.baselines)  # others are built in
    name = next(iter(head["baselines"]))
    tuned = parse_kernel(RUNTIME.format(1), "other.cu")
    spec = replace(spec, baselines=(name,))
    assert head_of(workload, spec, {"k": tuned}, PLAN)["baselines"] == {
        name: head["baselines"][name]
    }
    assert head["reference"] != gemm_head(plan=PLAN)["reference"]


# -- the published results


def test_the_published_results_are_gone_on_with(tmp_path: Path):
    file = BenchFile(published(tmp_path), gemm_head())
    file.go_on()
    assert len(file.measured) == len(file.done) == 64
    file.begin()
    file.write()
    again = BenchFile(file.path, gemm_head())
    again.go_on()
    assert len(again.done) == 64 and len(again.parts) == 2


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("9 10 11 default 0", "9 10 11 default 4", "TILE was 0 and is 4"),
        (
            "runtime TURN_K in 0 1 default 1",
            "runtime TURN_K in 0 1 default 0",
            "TURN_K was 1 and is 0",
        ),
        ("#include", "#include /* */", "text was [0-9a-f]{16} and is"),
    ],
)
def test_the_published_results_are_those_of_one_kernel(
    tmp_path: Path, before: str, after: str, why: str
):
    assert before in SOURCE
    file = BenchFile(published(tmp_path), gemm_head(SOURCE.replace(before, after, 1)))
    with pytest.raises(UserError, match=f"other kernels: {KERNEL} .*{why}"):
        file.go_on()


def test_the_published_results_are_those_of_one_plan(tmp_path: Path):
    workload, _ = workload_on(ROOT / "workloads" / "gemm", "cuda")
    tuned = BenchPlan(chosen_shapes(workload, "tune"), server=True, rounds=11, gap_ns=250_000)
    with pytest.raises(UserError, match="other plan: shapes differs"):
        BenchFile(published(tmp_path), gemm_head(plan=tuned)).go_on()


def test_a_file_from_before_heads_told_all_of_it_is_refused(tmp_path: Path):
    path = written(tmp_path / "bench.json", result("a"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 2}))
    with pytest.raises(UserError, match="other schema"):
        bench_file(path).go_on()


# -- where it is measured


@pytest.mark.parametrize(
    "change",
    [
        {"driver": "590.1"},
        {"torch": "2.12.0"},
        {"cuBLAS": "13.2.0"},
        {"compiler": "nvcc 13.1"},
        {"gpu 0": "NVIDIA H100, 81559 MiB, sm_90a"},
    ],
)
def test_another_model_or_version_is_refused(tmp_path: Path, change: dict[str, str]):
    path = written(tmp_path / "bench.json", result("a"), environment=PLACE)
    file = bench_file(path)
    file.go_on()
    file.begin()
    (name,) = change
    expected = f"{name} was {PLACE[name]} and is {change[name]}"
    with pytest.raises(UserError, match="measured on another machine") as refused:
        file.compare({**PLACE, **change}, 1)
    assert expected in str(refused.value) and "\n" not in str(refused.value)


def test_another_gpu_of_the_model_is_told_and_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = written(tmp_path / "bench.json", result("a"), environment=PLACE)
    file = bench_file(path)
    file.go_on()
    part = file.begin()
    file.compare({**PLACE, "gpu 0 uuid": "GPU-0001", "load": "9.0"}, 1)
    (line,) = capsys.readouterr().err.splitlines()
    assert "gpu 0 uuid was GPU-0000 and is GPU-0001" in line and "load" not in line
    assert part["remarks"] == file.remarks and len(file.remarks) == 1


def test_a_part_of_which_no_shape_is_kept_does_not_matter(tmp_path: Path):
    path = written(tmp_path / "bench.json", result("a", left_out="no room"), environment=PLACE)
    file = bench_file(path)
    file.go_on()
    file.begin()
    file.compare({**PLACE, "driver": "590.1"}, 1)
    assert not file.remarks


def test_what_was_not_recorded_is_told():
    before = {name: value for name, value in PLACE.items() if name not in ("cuBLAS", "gpu 0 uuid")}
    assert compare_machines(before, PLACE, 1) == ([], ["cuBLAS was not recorded"])


def test_only_gpus_that_take_part_must_be_the_same():
    other = {**PLACE, "gpu 1": "NVIDIA H100", "nccl windows": "no"}
    both = {**PLACE, "gpu 1": "NVIDIA H200"}
    assert compare_machines(both, other, 1) == ([], [])
    refused, _ = compare_machines(both, other, 2)
    assert [text.split(" was ")[0] for text in refused] == ["gpu 1", "nccl windows"]
    assert compare_machines(both, PLACE, 2)[0] == ["gpu 1 was NVIDIA H200 and is not there"]


def test_without_gpus_the_processor_is_the_machine():
    place = {"machine": "Xeon", "cores": "16", "compiler": "g++ 12", "torch": "2.13.0+cpu"}
    other = {**place, "machine": "EPYC"}
    assert compare_machines(place, other, 2)[0] == ["machine was Xeon and is EPYC"]
    assert compare_machines(PLACE, {**PLACE, "machine": "EPYC"}, 1)[0] == []


def test_a_machine_is_described_with_ids_and_libraries(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "pynvml", FakeNvml(2))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(module, "math_libraries", lambda: {"torch": "2.11.0", "cuBLAS": "13.1.0"})
    target = SimpleNamespace(gpus=Gpus())
    made: Any = SimpleNamespace(
        environment=lambda: {"torch": "2.11.0+cu130"}, stand=SimpleNamespace(target=target)
    )
    found = machine_of(made)
    assert found["torch"] == "2.11.0+cu130" and found["cuBLAS"] == "13.1.0"
    assert found["gpu 1 uuid"] == "GPU-0001" and found["gpu 0 power limit"] == "700 W"
    assert found["nvmath-python"]
    del target.gpus
    assert machine_of(made) == {"torch": "2.11.0+cu130"}
