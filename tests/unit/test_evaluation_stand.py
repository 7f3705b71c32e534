from pathlib import Path

import pytest
from evaluation_fakes import workload

from kerneltui.evaluation.canary import broken_kernel
from kerneltui.evaluation.kernel_lint import lint
from kerneltui.evaluation.kernel_text import identity_of, kernel_text
from kerneltui.evaluation.outcome import KernelFault
from kerneltui.evaluation.stand import Stand
from kerneltui.evaluation.timing import TimingProtocol
from kerneltui.model.kernel import parse_kernel
from kerneltui.model.measurement import FailureKind, Stage
from kerneltui.targets.cpu.runtime import CpuTarget
from kerneltui.targets.errors import TargetError
from kerneltui.targets.locks import MachineLock

SEED = (workload().kernels / "host.cpp").read_text()


def test_a_kernel_without_a_function_of_the_contract_is_refused_with_its_name() -> None:
    source = SEED.replace("kerneltui_teardown", "teardown")
    with pytest.raises(KernelFault) as caught:
        lint(parse_kernel(source, "k.cpp"))
    assert caught.value.stage is Stage.LINT
    assert caught.value.kind is FailureKind.REFUSED
    assert "kerneltui_teardown is missing" in caught.value.reason


def test_words_in_comments_are_no_labels() -> None:
    assert lint(parse_kernel(SEED + "\n/* std::thread, fork(), ptrace() */\n")) == []


def test_what_a_kernel_uses_is_labelled_and_not_refused() -> None:
    extra = "\n#include <thread>\nvoid f() { std::thread([] {}).join(); }\nvoid g() { fork(); }\n"
    assert lint(parse_kernel(SEED + extra)) == ["threads", "processes"]


def test_the_identity_follows_the_text() -> None:
    one, other = parse_kernel(SEED), parse_kernel(SEED + "\n// more\n")
    assert identity_of(one) != identity_of(other)
    assert identity_of(one) in kernel_text(one)


def test_run_time_tunables_share_one_build() -> None:
    text = "// kerneltui: runtime X in 1 2 default "
    one, other = parse_kernel(f"{text}1\n{SEED}"), parse_kernel(f"{text}2\n{SEED}")
    assert identity_of(one) == identity_of(other)
    assert one.runtime != other.runtime


def test_the_canary_keeps_the_kernel_and_its_declarations() -> None:
    broken = parse_kernel(broken_kernel(SEED))
    assert SEED in broken.source
    assert broken.configuration == parse_kernel(SEED).configuration


@pytest.mark.parametrize(
    ("says", "of_the_kernel"),
    [("kernel.cpp:1:1: error: so it is", True), ("ld: failed: No space left on device", False)],
)
def test_a_compiler_that_the_machine_ended_is_no_fault_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, of_the_kernel: bool
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec echo fake 1\necho "{says}"; exit 1\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    stand = Stand(workload(), CpuTarget(tmp_path, lock=MachineLock(tmp_path)), TimingProtocol())
    with pytest.raises(KernelFault if of_the_kernel else TargetError, match=says):
        stand.build(parse_kernel(SEED, "k.cpp"))
