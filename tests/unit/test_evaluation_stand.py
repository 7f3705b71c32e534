import pytest
from evaluation_fakes import workload

from kerneltui.evaluation.canary import broken_kernel
from kerneltui.evaluation.kernel_lint import lint
from kerneltui.evaluation.kernel_text import identity_of, kernel_text
from kerneltui.evaluation.outcome import KernelFault
from kerneltui.model.kernel import parse_kernel
from kerneltui.model.measurement import FailureKind, Stage

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
