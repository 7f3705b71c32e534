"""Counters: the command, the table of the profiler, and what the evaluation makes of it."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from evaluation_fakes import shape, workload

from kerneltui.evaluation import profile as module
from kerneltui.evaluation.outcome import EvaluationError, Interrupted
from kerneltui.evaluation.profile import profile, profiled_shape
from kerneltui.evaluation.stand import Stand
from kerneltui.model.kernel import parse_kernel
from kerneltui.model.workload import Shape
from kerneltui.targets.cuda.ncu import ncu_arguments, read_counters
from kerneltui.targets.cuda.policy import DEFAULT_POLICY, MachinePolicy, load_policy
from kerneltui.targets.errors import TargetError

HEAD = (
    '"ID","Process ID","Kernel Name","Block Size","Grid Size","gpu__time_duration.sum",'
    '"lts__t_sector_hit_rate.pct","launch__grid_size","launch__waves_per_multiprocessor",'
    '"sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active",'
    '"sm__inst_executed_pipe_tensor_op_imma.avg.pct_of_peak_sustained_active",'
    '"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",'
    '"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio","dram__bytes.sum.per_second"'
)
UNITS = '"","","","","","ns","%","","","%","%","inst","inst","byte/s"'
GEMM = "void (anonymous namespace)::gemm_kernel<(anonymous namespace)::Config<256, 3> >(Params)"


def row(number: int, time_ns: str = "742,100", name: str = GEMM, rate: str = "1.03e12") -> str:
    return (
        f'"{number}","77","{name}","(384, 1, 1)","(132, 1, 1)","{time_ns}","71.25","132","1.5",'
        f'"74.0","99.0","2.5","0.25","{rate}"'
    )


def table(*rows: str) -> str:
    return "\n".join(["==PROF== Connected to process 77", HEAD, UNITS, *rows])


def test_the_table_of_the_profiler_is_read() -> None:
    (kernel,) = read_counters(table(row(0, "800,000"), row(1)))
    assert kernel["name"] == "gemm_kernel<Config<256, 3> >"
    assert kernel["launches"] == 2
    assert kernel["counters"] == [
        ["time", 742.1, "us"],  # the last launch, which found everything warm
        ["L2 hit", 71.25, "%"],
        ["DRAM rate", 1030.0, "GB/s"],
        ["grid", 132.0, "CTAs"],
        ["waves", 1.5, ""],
        ["tensor pipe", 74.0, "%"],
        ["stall long scoreboard", 2.5, "warps/issue"],
        ["stall barrier", 0.25, "warps/issue"],
    ]


def test_what_a_chip_does_not_have_is_left_out() -> None:
    (kernel,) = read_counters(table(row(0, rate="n/a")))
    assert "DRAM rate" not in [name for name, _, _ in kernel["counters"]]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "does not permit"),
        ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded", "LibraryNotLoaded"),
        ("==WARNING== No kernels were profiled.", "saw no kernel"),
        (table(), "saw no kernel"),
        ("", "saw no kernel"),
    ],
)
def test_no_counters_have_a_reason(text: str, why: str) -> None:
    with pytest.raises(TargetError, match=why):
        read_counters(text)


def test_the_profiler_leaves_clocks_alone_and_looks_at_the_kernels_alone() -> None:
    command = ncu_arguments(
        Path("/opt/ncu"), ["gemm_kernel", "gemm_kernel", "wait"], Path("/t.csv")
    )
    assert command[0] == "/opt/ncu"
    assert command[command.index("--clock-control") + 1] == "none"
    assert command[command.index("--kernel-name") + 1] == r"regex:\b(gemm_kernel|wait)\b"
    assert command[command.index("--log-file") + 1] == "/t.csv"
    assert "gemm|" in " ".join(ncu_arguments(Path("/ncu"), [], Path("/t")))


def test_several_ranks_become_one_on_its_share_of_the_rows() -> None:
    found = profiled_shape(Shape("8x6x4", {"M": 8, "N": 6, "K": 4}, ("tune",), 2, 2))
    assert found == Shape("4x6x4", {"M": 4, "N": 6, "K": 4}, ("tune",), 1, 2)
    alone = Shape("8x6x4", {"M": 8, "N": 6, "K": 4}, ("tune",), 1, 2)
    assert profiled_shape(alone) is alone


KERNEL = parse_kernel("int x;", "kernel.cu")


def stand(tmp_path: Path, **more: Any) -> Stand:
    class Toolchain:
        def code_record(self, build: object) -> dict[str, Any]:
            return {"kernels": [{"name": "ns::gemm_kernel<Config<256> >"}]}

    library = tmp_path / "kernel.so"
    known = {
        "target": SimpleNamespace(
            name=more.get("target", "cuda"),
            policy=more.get("policy", DEFAULT_POLICY),
            toolchain=Toolchain(),
            lock=SimpleNamespace(compiling=nullcontext),
        ),
        "workload": workload(),
        "begin": lambda: None,
        "build": lambda kernel: SimpleNamespace(library=library),
        "checkpoint": more.get("checkpoint", lambda: None),
    }
    return cast(Stand, SimpleNamespace(**known))


def profiler(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program in the place of the profiler; it finds the name of the table as its first argument."""
    monkeypatch.setattr(module, "find_ncu", lambda: Path("ncu"))

    def arguments(ncu: Path, kernels: list[str], table: Path) -> list[str]:
        assert kernels == ["gemm_kernel"]
        return [sys.executable, "-c", script, str(table)]

    monkeypatch.setattr(module, "ncu_arguments", arguments)


def test_counters_say_what_they_are_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = table(row(0))
    profiler(monkeypatch, f"import sys; open(sys.argv[1], 'w').write({text!r})")
    found = profile(stand(tmp_path), KERNEL, tmp_path)
    assert found["alone"] and found["ranks"] == 2 and not found["vendor"]
    assert [kernel["name"] for kernel in found["kernels"]] == ["gemm_kernel<Config<256, 3> >"]
    largest = max(
        workload().shapes_for("tune"),
        key=lambda s: s.dimensions["M"] * s.dimensions["N"] * s.dimensions["K"],
    )
    assert found["shape"] == profiled_shape(largest).name


def test_a_program_that_fails_leaves_its_last_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    profiler(monkeypatch, "print('kerneltui_setup: needs two ranks'); raise SystemExit(1)")
    with pytest.raises(EvaluationError, match=r"saw no kernel.*needs two ranks"):
        profile(stand(tmp_path), KERNEL, tmp_path)


def test_a_program_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    profiler(monkeypatch, "import time; time.sleep(60)")
    monkeypatch.setattr(module, "_LIMIT_S", 0.1)
    monkeypatch.setattr(module, "_LOOK_S", 0.05)
    with pytest.raises(EvaluationError, match="did not end within"):
        profile(stand(tmp_path), KERNEL, tmp_path)


def test_the_human_can_end_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stop() -> None:
        raise Interrupted("the evaluation was interrupted")

    profiler(monkeypatch, "import time; time.sleep(60)")
    monkeypatch.setattr(module, "_LOOK_S", 0.05)
    with pytest.raises(Interrupted):
        profile(stand(tmp_path, checkpoint=stop), KERNEL, tmp_path)


def test_a_target_without_gpus_has_no_counters(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="this target has none"):
        profile(stand(tmp_path, target="cpu"), KERNEL, tmp_path)


def test_a_kernel_in_python_is_not_profiled(tmp_path: Path) -> None:
    kernel = parse_kernel("x = 1", "triton_gemm.py")
    with pytest.raises(EvaluationError, match=r"triton_gemm\.py compiles in its ranks"):
        profile(stand(tmp_path), kernel, tmp_path)


def test_a_machine_without_the_profiler_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(
        "kerneltui.targets.cuda.ncu.find_toolkit",
        lambda: (_ for _ in ()).throw(TargetError("none")),
    )
    with pytest.raises(EvaluationError, match="no ncu: install Nsight Compute"):
        profile(stand(tmp_path), KERNEL, tmp_path)


def test_a_made_up_shape_is_not_needed_for_one_rank() -> None:
    assert shape().ranks == 2 and profiled_shape(shape()).ranks == 1


def test_the_program_finds_the_users_rules_and_choice_of_gpus_and_no_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/rules")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    profiler(monkeypatch, "import os; print(sorted(os.environ.items())); raise SystemExit(1)")
    with pytest.raises(EvaluationError) as caught:
        profile(stand(tmp_path), KERNEL, tmp_path)
    said = str(caught.value)
    assert "('CUDA_VISIBLE_DEVICES', '1')" in said and "secret" not in said


def environment_of_the_program(tmp_path: Path, policy: MachinePolicy) -> dict[str, str]:
    """What a real child finds when the profiler starts."""
    with pytest.raises(EvaluationError) as caught:
        profile(stand(tmp_path, policy=policy), KERNEL, tmp_path)
    assert "no counters" in str(caught.value)
    block = (tmp_path / "environ").read_bytes().decode()
    return dict(item.split("=", 1) for item in block.split("\0") if item)


def test_the_program_gets_what_the_policy_sets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    copy = "import shutil; shutil.copyfile('/proc/self/environ', {!r})"
    profiler(monkeypatch, copy.format(str(tmp_path / "environ")))
    found = environment_of_the_program(tmp_path, DEFAULT_POLICY)
    assert DEFAULT_POLICY.environment.items() <= found.items()
    assert found["NCCL_NVLS_ENABLE"] == "0" and found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"

    machine = tmp_path / "machine-wide.toml"
    machine.write_text('version = 1\nallow = ["nvlink_multicast"]\n')
    found = environment_of_the_program(tmp_path, load_policy(tmp_path, machine))
    assert not DEFAULT_POLICY.environment.keys() & found.keys()
