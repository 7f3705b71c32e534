"""What is refused before anything is spent on it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kerneltui.agents.port import Proposal
from kerneltui.engine import proposal_check
from kerneltui.engine.opening import Start, create_session, kernel_path, load_state
from kerneltui.engine.proposal_check import ProposalCheck
from kerneltui.engine.recorder import Recorder, unheard
from kerneltui.evaluation.device_lint import LintContext, lint_device_code
from kerneltui.model.candidate import AgentName, Failure, Origin
from kerneltui.model.directive import Backend, Directive, Issuer, Placement, Sync
from kerneltui.model.event import AcceptRule, CandidateFailed, ConstraintKind, ConstraintSet
from kerneltui.model.kernel import parse_kernel
from kerneltui.model.measurement import FailureKind, Stage
from kerneltui.model.workload_file import load_workload
from kerneltui.targets.cuda.finding import Finding, one_line

WORKLOAD = load_workload(Path(__file__).parents[2] / "workloads" / "gemm_allgather")

HOST = Directive(Backend.HOST, Placement.SEQUENTIAL, Sync.WORLD, Issuer.DEDICATED, 0)


@pytest.fixture
def check(tmp_path: Path) -> Iterator[ProposalCheck]:
    start = Start("cpu", "offline", 1, AcceptRule.NONE, 4, None)
    with create_session(tmp_path / "session", WORKLOAD, start) as session:
        path = kernel_path(WORKLOAD.name, "host.cpp")
        recorder = Recorder(session, load_state(session), path, unheard)
        yield ProposalCheck(recorder, Path(path).name)


def proposal(source: str, origin: Origin = Origin.DIFF) -> Proposal:
    return Proposal(source, "a reason", AgentName.SLOW, origin, ("c0000",), None, "host.cpp", 1)


def test_a_change_inside_a_region_may_be_evaluated(check: ProposalCheck):
    seed = check.recorder.source("c0000")
    changed = seed.replace("float *const own_rows", "float *const mine")
    changed = changed.replace("own_rows,", "mine,")
    assert changed != seed
    assert check.problem(proposal(changed)) is None


def test_a_change_outside_the_regions_is_refused_unless_it_may_replace_the_file(
    check: ProposalCheck,
):
    changed = check.recorder.source("c0000").replace("struct State {", "struct State { int more;")
    failure = check.problem(proposal(changed))
    assert failure is not None and failure.kind is FailureKind.REFUSED
    assert "outside the evolve regions of c0000" in failure.reason
    assert check.problem(proposal(changed, Origin.TRANSFORM)) is None
    assert check.problem(proposal(changed, Origin.EDIT)) is None


def test_a_transform_that_keeps_the_host_collectives_changes_regions_only(check: ProposalCheck):
    changed = check.recorder.source("c0000").replace("struct State {", "struct State { int more;")
    failure = check.problem(
        replace(proposal(changed, Origin.TRANSFORM), directive=HOST, calls=(1,))
    )
    assert failure is not None and failure.stage is Stage.PATCH
    assert "'struct State { int more;') is outside of every evolve region" in failure.reason
    begin, end = "// kerneltui: evolve begin state\n", "// kerneltui: evolve end\n"
    line = "struct State { int more;\n"
    changed = changed.replace(line, f"{begin}{line}int first;\n{end}")
    failure = check.problem(
        replace(proposal(changed, Origin.TRANSFORM), directive=HOST, calls=(1,))
    )
    assert failure is not None and "the region state leaves a block open" in failure.reason
    seed = check.recorder.source("c0000")
    proven = seed.replace("struct State {", f"{begin}struct More {{}};\n{end}struct State {{")
    assert (
        check.problem(replace(proposal(proven, Origin.TRANSFORM), directive=HOST, calls=(1,)))
        is None
    )


def test_a_kernel_of_the_library_needs_no_marks_and_may_be_driven_by_the_host(check: ProposalCheck):
    marks = re.compile(r"^\s*// kerneltui: evolve .*\n", re.MULTILINE)
    own = marks.sub("", check.recorder.source("c0000")).replace(
        "struct State {", "struct State { int a;"
    )
    library = replace(proposal(own, Origin.TRANSFORM), directive=HOST)
    assert check.problem(library) is None
    refused = check.problem(replace(library, calls=(1,)))
    assert refused is not None and refused.kind is FailureKind.REFUSED


def test_a_repair_of_a_failed_transform_is_held_against_what_that_stood_on(check: ProposalCheck):
    seed = check.recorder.source("c0000")
    begin, end = "// kerneltui: evolve begin state\n", "// kerneltui: evolve end\n"
    wrong = seed.replace("struct State {", f"{begin}struct More {{}};\n{end}struct State {{")
    first = replace(proposal(wrong, Origin.TRANSFORM), directive=HOST)
    made = check.recorder.propose(first)
    failure = Failure(Stage.COMPILE, FailureKind.COMPILE_ERROR, "no")
    check.recorder.record(CandidateFailed(at=1, id=made, failure=failure))
    hidden = wrong.replace(begin, "").replace(f"}};\n{end}struct", "};\nstruct")
    repair = replace(first, calls=(1,), source=hidden + "int f;\n", parents=(made,))
    refused = check.problem(repair)
    assert refused is not None and "struct More" in refused.reason


def test_a_region_that_swallows_frozen_code_is_refused(check: ProposalCheck):
    seed = check.recorder.source("c0000")
    end = "    // kerneltui: evolve end"
    failure = check.problem(proposal(seed.replace(end, f'    auto t = R"(\n{end}')))
    assert failure is not None and failure.kind is FailureKind.REFUSED
    assert "the region schedule leaves a raw string open" in failure.reason


def test_what_a_model_made_of_a_banned_kind_meanwhile_is_refused(check: ProposalCheck):
    seed = check.recorder.source("c0000")
    changed = seed.replace("struct State {", "struct State { int more;")
    lsa = replace(HOST, backend=Backend.LSA)
    asked = replace(proposal(changed, Origin.EDIT), directive=lsa, calls=(1,))
    assert check.problem(asked) is None
    check.recorder.record(
        ConstraintSet(at=1, kind=ConstraintKind.BAN, field="backend", value="lsa")
    )
    failure = check.problem(asked)
    assert failure is not None and failure.kind is FailureKind.REFUSED
    assert failure.reason == "it does not keep to what the human asks: backend=lsa is banned"
    assert check.problem(replace(asked, calls=())) is None
    check.recorder.record(
        ConstraintSet(at=1, kind=ConstraintKind.FORCE, field="backend", value="gin")
    )
    step = replace(asked, origin=Origin.TRANSFORM, directive=HOST, source=seed + "\n// more\n")
    failure = check.problem(step)
    assert failure is None or "human asks" not in failure.reason, "it is a step of the host's"


def test_another_number_is_not_linted_again(check: ProposalCheck, monkeypatch: pytest.MonkeyPatch):
    linted: list[str] = []

    def lint(text: str, context: LintContext) -> tuple[Finding, ...]:
        linted.append(text)
        return lint_device_code(text, context)

    monkeypatch.setattr(proposal_check, "lint_device_code", lint)
    check.recorder.state.target = "cuda"
    folder = Path(__file__).parents[2] / "kernels" / "gemm_allgather"
    kernel = parse_kernel((folder / "lsa_chunked.cu").read_text(), "kernel.cu")
    flawed = (
        kernel.source + "\n__global__ void late(int *f) { __ldg(f); cuMulticastCreate(0, 0); }\n"
    )
    kernel = parse_kernel(flawed, "kernel.cu")
    tuned = kernel.tunables[0]
    texts = [kernel.render({tuned.name: value}) for value in tuned.values]
    found = [check.findings(proposal(text, Origin.TUNABLES)) for text in texts]
    assert len(set(texts)) > 1 and len(linted) == 1 and len(set(found)) == 1
    check.findings(proposal(flawed.replace("late", "later"), Origin.DIFF))
    assert len(linted) == 2
    direct = lint_device_code(texts[-1], LintContext(gin=True))
    assert list(found[-1]) == [one_line(finding, check.kernel_file) for finding in direct]


def test_comments_do_not_make_another_program(check: ProposalCheck):
    changed = check.recorder.source("c0000").replace("(void)epoch;", "(void)epoch; /* again */")
    failure = check.problem(proposal(changed, Origin.EDIT))
    assert failure is not None and failure.kind is FailureKind.DUPLICATE
    assert failure.reason == "the same program as c0000"


def test_a_malformed_declaration_is_refused_with_its_line(check: ProposalCheck):
    changed = "// kerneltui: tunable X\n" + check.recorder.source("c0000")
    failure = check.problem(proposal(changed, Origin.EDIT))
    assert failure is not None and failure.kind is FailureKind.REFUSED
    assert "line 1" in failure.reason
