"""Which backend a question is about, and that it holds the digest of that one and of no other."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from test_agents_context import candidate

from kerneltui.agents.backends import ways_on
from kerneltui.agents.context import Material, standing
from kerneltui.agents.hand_over import GRAPH
from kerneltui.agents.model_fast import ModelFastPath
from kerneltui.agents.model_port import Block, ModelCall, Role
from kerneltui.agents.model_slow import ModelSlowPath
from kerneltui.agents.port import SearchView
from kerneltui.agents.prompt_files import prompt
from kerneltui.agents.thinking import Thinker
from kerneltui.model.candidate import AgentName, Candidate, Failure, Origin, Phase
from kerneltui.model.directive import Backend
from kerneltui.model.kernel import parse_kernel
from kerneltui.model.measurement import FailureKind, Stage
from kerneltui.model.state import State
from kerneltui.model.steer_event import ConstraintKind
from kerneltui.model.steering import Constraint, Message
from kerneltui.targets.cuda.network import nccl_words
from kerneltui.targets.cuda.packages import Nccl

KERNELS = Path(__file__).parents[2] / "kernels" / "gemm_allgather"
SHAPE = {"M": 4096, "N": 4096, "K": 4096, "RANKS": 2}
LSA, GIN, ENGINE, HOST = Backend.LSA, Backend.GIN, Backend.COPY_ENGINE, Backend.HOST
NVLINK = {"gpu 0": "NVIDIA H200, 143771 MiB, sm_90a", "nccl windows": "yes, by NCCL 2.28.9"}
CLUSTER = {**NVLINK, "gin": "yes"}
OLD = {"gpu 0": "NVIDIA H200, 143771 MiB, sm_90a", "nccl windows": "no: NCCL 2.27.3 has none"}
SIGNS = {LSA: "__threadfence_system", ENGINE: "cuStreamWaitValue32", GIN: "ncclGin gin("}
"""What only the digest of a backend says."""


def asked(
    environment: dict[str, str], *stated: Backend | None, constraints: tuple[Constraint, ...] = ()
) -> tuple[Block, ...]:
    state = State()
    state.environment, state.constraints = environment, constraints
    state.candidates["c0001"] = candidate("c0001")
    view = SearchView(state, {"c0001": ""}.__getitem__, [], "kernel.cu")
    material = Material("cuda", 2, "name = 1", "")
    return standing(material, view, "a note").blocks(*stated)


def told(blocks: tuple[Block, ...]) -> set[Backend]:
    return {backend for backend, sign in SIGNS.items() if sign in digest(blocks)}


def digest(blocks: tuple[Block, ...]) -> str:
    found = [block.text for block in blocks if block.text.startswith("## The backend ")]
    assert len(found) <= 1
    return "".join(found)


@pytest.mark.parametrize("backend", [LSA, ENGINE, GIN])
def test_a_question_holds_the_digest_of_its_backend_alone(backend: Backend):
    text = digest(asked(CLUSTER, backend))
    assert text.startswith(f"## The backend {backend}\n")
    assert [one for one, sign in SIGNS.items() if sign in text] == [backend]
    whole = "".join(block.text for block in asked(CLUSTER, backend))
    for other in set(SIGNS) - {backend}:
        rest = ways_on("cuda", 2, CLUSTER).digests[other].splitlines()
        assert not [line for line in rest if len(line) > 40 and line in whole and line not in text]


@pytest.mark.parametrize("stated", [(), (None,), (HOST, None)])
def test_before_a_backend_is_chosen_each_has_a_line_and_none_its_digest(
    stated: tuple[Backend, ...],
):
    blocks = asked(CLUSTER, *stated)
    assert not digest(blocks) and not told(blocks)
    lines = re.findall(r"^- `(\w+)`: .{40,}$", blocks[0].text, re.MULTILINE)
    assert lines == ["lsa", "gin", "copy_engine"]
    assert "Not there on this machine: none." in blocks[0].text


def test_a_step_that_the_host_still_drives_is_about_the_backend_that_was_named():
    assert told(asked(CLUSTER, HOST, ENGINE)) == {ENGINE}
    assert told(asked(CLUSTER, GIN, ENGINE)) == {GIN}


def test_the_human_chooses_a_backend_or_takes_one_away():
    force = Constraint(ConstraintKind.FORCE, "backend", "copy_engine")
    ban = Constraint(ConstraintKind.BAN, "BACKEND", "BACKEND_LSA")
    assert told(asked(CLUSTER, LSA, constraints=(force,))) == {ENGINE}
    assert told(asked(CLUSTER, LSA, constraints=(ban,))) == set()  # two are left, nobody chose yet
    assert told(asked(NVLINK, LSA, constraints=(ban,))) == {ENGINE}  # one is left
    other = Constraint(ConstraintKind.FORCE, "placement", "fused")
    assert told(asked(CLUSTER, LSA, constraints=(other,))) == {LSA}


def test_what_all_questions_share_stands_first_and_the_digest_has_a_cache_of_its_own():
    plain, lsa, gin = asked(CLUSTER), asked(CLUSTER, LSA), asked(CLUSTER, GIN)
    assert plain[:2] == lsa[:2] == gin[:2] and all(block.cached for block in lsa[:3])
    assert lsa[2] != gin[2] and lsa[3:] == plain[2:] and not any(b.cached for b in lsa[3:])


def test_lsa_by_nccl_is_told_where_the_machine_has_windows():
    names = ["ncclGetLsaPointer", "ncclLsaBarrierSession", "ncclTeamLsa", "ncclWindow_t",
             "kt_window_offset", "ncclTeamRankIsMember", "memory_order_acq_rel", "nccl_windows"]  # fmt: skip
    assert all(name in digest(asked(NVLINK, LSA)) for name in names)
    assert not any(name in digest(asked(OLD, LSA)) for name in names)
    assert "ctx->signals[q]" in digest(asked(OLD, LSA))


def test_gin_is_told_of_only_where_the_machine_can_run_it():
    blocks = asked(NVLINK, GIN)
    assert not digest(blocks)
    assert "Not there on this machine: gin." in blocks[0].text and "- `gin`" not in blocks[0].text


def test_on_the_cpu_there_is_nothing_to_choose():
    ways = ways_on("cpu", 2, {})
    assert ways.chosen() == ways.chosen(HOST, None) == LSA
    assert "_mm_sfence" in ways.digests[LSA] and ways.missing == (GIN, ENGINE)


def test_every_digest_is_a_file_and_every_file_is_told_somewhere():
    folder = Path(__file__).parents[2] / "kerneltui" / "agents" / "prompts"
    texts = [
        w.digests[b]
        for w in (ways_on("cuda", 2, CLUSTER), ways_on("cpu", 2, {}))
        for b in w.digests
    ]
    files = [path.stem for path in folder.glob("digest_*.md")]
    assert len(files) == 5 and all(any(prompt(name) in text for text in texts) for name in files)


@pytest.mark.parametrize(
    ("code", "port", "windows", "gin"),
    [
        (22809, "4: ACTIVE\n", "yes, by NCCL 2.28.9", "yes"),
        (22809, "1: DOWN\n", "yes, by NCCL 2.28.9", "no: no port of mlx5_0 is active"),
        (22805, "4: ACTIVE\n", "yes, by NCCL 2.28.5", "no: NCCL 2.28.5 has none"),
        (22703, "4: ACTIVE\n", "no: NCCL 2.27.3 has none", "no: NCCL 2.27.3 has none"),
    ],
)
def test_the_machine_says_what_nccl_can_do(
    tmp_path: Path, code: int, port: str, windows: str, gin: str
):
    state = tmp_path / "mlx5_0" / "ports" / "1" / "state"
    state.parent.mkdir(parents=True)
    state.write_text(port)
    nccl = Nccl(tmp_path, None, code, 13, "system")
    assert nccl_words(nccl, tmp_path) == {"nccl windows": windows, "gin": gin}
    assert nccl_words(None, tmp_path)["gin"] == "no: there are no headers of NCCL"
    ways = ways_on("cuda", 2, nccl_words(nccl, tmp_path))
    assert (GIN in ways.briefs) == (gin == "yes")
    assert ("ncclGetLsaPointer" in ways.digests[LSA]) == windows.startswith("yes")


def made(name: str, file: str, *parents: str, agent: AgentName = AgentName.FAST) -> Candidate:
    directive = parse_kernel((KERNELS / file).read_text(), file).directive(SHAPE)
    return Candidate(
        id=name, sha=name, parents=parents, agent=agent, origin=Origin.TRANSFORM, reason="a step",
        directive=directive, proposed_at=1, seed_file=file,
    )  # fmt: skip


def view_of(*candidates: Candidate, said: str = "") -> SearchView:
    state = State()
    state.environment, state.ranks = CLUSTER, 2
    state.candidates = {one.id: one for one in candidates}
    state.base = state.incumbent = candidates[0].id
    if said:
        state.messages = (Message(1, "fast", said),)
    sources = {one.id: (KERNELS / one.seed_file).read_text() for one in candidates}
    return SearchView(state, sources.__getitem__, [SHAPE], "kernel.cu")


def fast_question(view: SearchView) -> ModelCall:
    thinker = Thinker(AgentName.FAST, None, lambda news: None)  # type: ignore[arg-type]
    return ModelFastPath(Material("cuda", 2, "", ""), thinker, lambda: "").preview(view)


def test_the_fast_path_is_told_of_a_backend_once_it_has_named_one():
    seed = made("c0001", "host_nccl.cu", agent=AgentName.HUMAN)
    named = (
        f"{GRAPH}gather (C → C); first directive: copy_engine dedicated stream_overlap counter 0 B"
    )
    describe = fast_question(view_of(seed))
    stage_a = fast_question(view_of(seed, said=named))
    assert describe.tools[0].name == "describe" and not told(tuple(describe.system))
    assert stage_a.tools[0].name == "propose" and told(tuple(stage_a.system)) == {ENGINE}
    failure = Failure(Stage.VERIFY, FailureKind.MISMATCH, "C[0, 0] is wrong")
    other = replace(
        made("c0002", "lsa_fused_sm90.cu", "c0001"), phase=Phase.FAILED, failure=failure
    )
    judge = fast_question(view_of(seed, other, said=named))
    assert judge.role is Role.JUDGE and told(tuple(judge.system)) == {LSA}  # what it became


@pytest.mark.parametrize(("file", "backend"), [("lsa_fused_sm90.cu", LSA), ("gin_put.cu", GIN)])
def test_the_slow_path_is_told_of_its_parents_backend(file: str, backend: Backend):
    seed = made("c0001", "host_nccl.cu", agent=AgentName.HUMAN)
    view = view_of(seed, made("c0002", file, "c0001"))
    pin = Constraint(ConstraintKind.PIN, "candidate", "c0002")
    view.state.constraints = (pin,)
    thinker = Thinker(AgentName.SLOW, None, lambda news: None)  # type: ignore[arg-type]
    slow = ModelSlowPath(Material("cuda", 2, "", ""), thinker, lambda v: True, lambda: "", 1)
    assert told(tuple(slow.preview(view).system)) == {backend}


def test_one_rank_has_nothing_to_move():
    ways = ways_on("cuda", 1, CLUSTER)
    assert ways.chosen(LSA) is None and not ways.digests
    assert "one rank" in ways.overview() and "multicast" in ways.overview()
