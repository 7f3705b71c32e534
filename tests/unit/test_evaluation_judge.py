"""The judge as a process: fill, compare, refuse; over real shared memory."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from evaluation_fakes import WORKLOAD_FOLDER, shape, workload  # noqa: E402

from kerneltui.evaluation.judge import Judge  # noqa: E402
from kerneltui.evaluation.judge_client import JudgeClient, JudgeFailure  # noqa: E402
from kerneltui.evaluation.values import FaultKind, ValueClass  # noqa: E402
from kerneltui.model.workload import Role, Shape  # noqa: E402
from kerneltui.targets.channel import Channel  # noqa: E402
from kerneltui.targets.cpu.memory import GroupMemory  # noqa: E402
from kerneltui.targets.patterns import Poison  # noqa: E402
from kerneltui.targets.windows import GroupLayout, TensorSpec  # noqa: E402

SHAPE = "127x61x89"


@pytest.fixture(scope="module")
def judge() -> Iterator[JudgeClient]:
    client = JudgeClient(WORKLOAD_FOLDER, 1)
    client.start()
    client.wait()
    yield client
    client.close()


class Rig:
    """A make-believe group: the test plays the ranks."""

    def __init__(self, judge: JudgeClient, name: str = SHAPE, sets: int = 2) -> None:
        self.judge = judge
        self.shape: Shape = shape(name)
        layout = GroupLayout.plan(
            [TensorSpec.of(t, self.shape) for t in workload().tensors],
            self.shape.dimensions,
            ranks=self.shape.ranks,
            sets=sets,
        )
        self.memory = GroupMemory.create(layout)
        judge.attach("rig", name, layout, self.memory.descriptors)

    def tensor(self, rank: int, name: str, index: int = 0):
        place = self.memory.layout.ranks[rank].tensor(index, name)
        flat = torch.frombuffer(bytearray(self.memory.view(rank, place)), dtype=torch.float32)
        return flat.view(place.local_shape)

    def write(self, rank: int, value, index: int = 0) -> None:
        place = self.memory.layout.ranks[rank].tensor(index, "C")
        view = self.memory.view(rank, place)
        view[:] = value.contiguous().numpy().tobytes()
        view.release()

    def product(self, index: int = 0):
        a = torch.cat([self.tensor(r, "A", index) for r in range(self.shape.ranks)])
        return a @ self.tensor(0, "B", index)

    def answer(self, index: int = 0) -> None:
        right = self.product(index)
        for rank in range(self.shape.ranks):
            self.write(rank, right, index)


@pytest.fixture
def rig(judge: JudgeClient) -> Iterator[Rig]:
    made = Rig(judge)
    yield made
    judge.detach("rig")
    made.memory.close()


@pytest.mark.parametrize("values", ValueClass)
def test_a_right_answer_passes_in_every_value_class(rig: Rig, values: ValueClass) -> None:
    rig.judge.fill("rig", [0], values)
    rig.answer()
    report = rig.judge.check("rig", [0])
    assert report.passed, report.reason
    assert report.error <= 1.0


def test_the_last_digit_of_a_large_element_is_allowed_where_k_is_short(judge: JudgeClient) -> None:
    rig = Rig(judge, "257x129x1")
    try:
        for _ in range(30):
            rig.judge.fill("rig", [0], ValueClass.WIDE)
            rig.answer()
            report = rig.judge.check("rig", [0])
            assert report.passed, report.reason
    finally:
        judge.detach("rig")
        rig.memory.close()


@pytest.mark.parametrize("poison", Poison)
def test_an_output_that_nobody_wrote_is_refused(rig: Rig, poison: Poison) -> None:
    rig.judge.fill("rig", [0], poison=poison)
    report = rig.judge.check("rig", [0])
    kind = FaultKind.NOT_FINITE if poison is Poison.NAN else FaultKind.VALUE
    assert {fault.kind for fault in report.faults} == {kind}
    assert {fault.rank for fault in report.faults} == {0, 1}


def test_the_output_of_an_earlier_fill_is_refused(rig: Rig) -> None:
    rig.judge.fill("rig", [0])
    rig.answer()
    rig.judge.fill("rig", [0], poison=None)
    assert not rig.judge.check("rig", [0]).passed


def test_every_fill_changes_both_inputs(rig: Rig) -> None:
    rig.judge.fill("rig", [0])
    before = [rig.tensor(r, n) for r in (0, 1) for n in ("A", "B")]
    rig.judge.fill("rig", [0])
    for one, other in zip(
        before, [rig.tensor(r, n) for r in (0, 1) for n in ("A", "B")], strict=True
    ):
        assert not torch.equal(one, other)


def test_every_row_is_new_even_to_one_who_forgets_scales(rig: Rig) -> None:
    rig.judge.fill("rig", [0])
    known = {_mantissas(row) for r in (0, 1) for row in rig.tensor(r, "A")}
    rig.judge.fill("rig", [0])
    fresh = [_mantissas(row) for r in (0, 1) for row in rig.tensor(r, "A")]
    assert not known & set(fresh)


def _mantissas(row) -> tuple[float, ...]:
    return tuple(torch.frexp(row).mantissa.tolist())


def test_a_single_edit_changes_one_element_and_the_answer(rig: Rig) -> None:
    rig.judge.fill("rig", [0])
    before = torch.cat([rig.tensor(r, "A") for r in (0, 1)])
    rig.answer()
    stale = rig.product()
    rig.judge.edit("rig", [0])
    after = torch.cat([rig.tensor(r, "A") for r in (0, 1)])
    assert int((before != after).sum()) == 1
    for rank in (0, 1):
        rig.write(rank, stale)
    assert not rig.judge.check("rig", [0]).passed
    rig.answer()
    assert rig.judge.check("rig", [0]).passed


def test_each_rank_and_set_is_compared_and_named(rig: Rig) -> None:
    rig.judge.fill("rig", [0, 1])
    rig.answer(0)
    rig.answer(1)
    wrong = rig.product(1)
    wrong[126, 60] += 1.0
    rig.write(1, wrong, 1)
    report = rig.judge.check("rig", [0, 1])
    assert [(f.rank, f.buffer_set) for f in report.faults] == [(1, 1)]
    assert "C[126, 60] on rank 1 is wrong" in report.reason


def test_zeros_and_ones_must_match_bit_for_bit(rig: Rig) -> None:
    rig.judge.fill("rig", [0], ValueClass.EXACT)
    right = rig.product()
    near = torch.nextafter(right, torch.full_like(right, 1e9))
    rig.write(0, near)
    rig.write(1, right)
    report = rig.judge.check("rig", [0])
    assert [fault.rank for fault in report.faults] == [0]
    assert "must match bit for bit" in report.reason


def test_many_small_errors_are_inaccurate(rig: Rig) -> None:
    rig.judge.fill("rig", [0])
    right = rig.product()
    scale = right.square().mean(dim=1, keepdim=True).sqrt()
    column = right.square().mean(dim=0, keepdim=True).sqrt() / right.square().mean().sqrt()
    near = right + 5e-6 * scale * column * torch.sign(torch.randn_like(right))
    for rank in (0, 1):
        rig.write(rank, near)
    kinds = {fault.kind for fault in rig.judge.check("rig", [0]).faults}
    assert kinds <= {FaultKind.INACCURATE, FaultKind.VALUE}
    assert kinds


def test_a_changed_input_is_found(rig: Rig) -> None:
    rig.judge.fill("rig", [0])
    rig.answer()
    place = rig.memory.layout.ranks[1].tensor(0, "B")
    view = rig.memory.view(1, place)
    view[5] ^= 1
    view.release()
    report = rig.judge.check("rig", [0])
    assert [(f.kind, f.rank) for f in report.faults] == [(FaultKind.INPUT_CHANGED, 1)]


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_byte_outside_of_a_tensor_is_found(rig: Rig, side: str) -> None:
    rig.judge.fill("rig", [0])
    rig.answer()
    place = rig.memory.layout.ranks[0].tensor(0, "C")
    at = place.offset - 1 if side == "before" else place.offset + place.nbytes
    memory = rig.memory.symmetric(0)
    old = memory[at]
    memory[at] = old ^ 0xFF
    report = rig.judge.check("rig", [0])
    memory[at] = old
    assert [fault.kind for fault in report.faults] == [FaultKind.GUARD_BROKEN]
    assert "1 bytes outside the tensors" in report.reason


def test_equal_outputs_have_equal_digests(rig: Rig) -> None:
    rig.judge.fill("rig", [0])
    rig.answer()
    one = rig.judge.check("rig", [0], digest=True).digests
    rig.judge.poison("rig", [0])
    rig.answer()
    assert rig.judge.check("rig", [0], digest=True).digests == one


def test_seeds_are_told_only_when_nothing_hangs_on_them(judge: JudgeClient) -> None:
    judge.seeds(everything=True)
    made = Rig(judge)
    judge.fill("rig", [0])
    assert judge.seeds() == []
    judge.detach("rig")
    made.memory.close()
    assert [sorted(row) for row in judge.seeds()] == [["fills", "group", "secret", "shape"]]
    assert [row["values"] for row in judge.seeds(everything=True)] == ["natural"]


def test_an_unknown_group_is_a_fault_of_the_harness_and_the_judge_lives_on(
    judge: JudgeClient,
) -> None:
    with pytest.raises(JudgeFailure, match="nobody"):
        judge.fill("nobody", [0])
    assert judge.seeds() is not None


def test_a_judge_that_dies_is_told_from_a_verdict() -> None:
    client = JudgeClient(WORKLOAD_FOLDER, 1)
    client.start()
    client.wait()
    os.kill(client.pid, signal.SIGKILL)
    with pytest.raises(JudgeFailure, match="gone"):
        client.seeds()
    client.close()


def test_a_workload_without_a_mutant_list_does_not_open(tmp_path: Path) -> None:
    folder = tmp_path / "workloads" / "gemm_allgather"
    shutil.copytree(WORKLOAD_FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = (folder / "reference.py").read_text()
    (folder / "reference.py").write_text(text.replace("MUTANTS:", "NOTHING:"))
    client = JudgeClient(folder, 1)
    client.start()
    with pytest.raises(JudgeFailure, match="MUTANTS is missing"):
        client.wait()
    client.close()


def test_the_workload_refuses_its_mutants_and_passes_its_honest_variants(
    judge: JudgeClient,
) -> None:
    rows = judge.self_test()
    assert [row for row in rows if not row["ok"]] == []
    kinds = {row["kind"] for row in rows}
    assert kinds == {"lint", "honest", "mutant"}
    assert sum(row["kind"] == "mutant" for row in rows) >= 2 * 15


def test_a_loose_tolerance_shows_in_the_self_test(tmp_path: Path) -> None:
    folder = tmp_path / "workloads" / "gemm_allgather"
    shutil.copytree(WORKLOAD_FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = (folder / "workload.toml").read_text()
    loose = text.replace("factor = 8.0", "factor = 1e7").replace("library = 4.0", "library = 1e7")
    assert loose != text
    (folder / "workload.toml").write_text(loose)
    client = JudgeClient(folder, 1)
    client.start()
    client.wait()
    rows = client.self_test()
    client.close()
    passed = {
        row["name"].split(",")[0] for row in rows if row["kind"] == "mutant" and not row["ok"]
    }
    assert "zeros" in passed


def test_roles_of_the_workload_are_what_the_tests_assume() -> None:
    assert [t.role for t in workload().tensors] == [Role.INPUT, Role.INPUT, Role.OUTPUT]


def test_no_device_is_waited_for_that_no_rank_has(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    broken: list[bool] = [False]

    def synchronize(device: int) -> None:
        waited.append(device)
        if broken[0]:
            raise RuntimeError("an illegal memory access was encountered")

    made = Judge(WORKLOAD_FOLDER.parent / "gemm", 1, "cuda")
    made.makes_memory = True
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert "ok" in made.answer({"op": "hello"}, ())
    assert waited == [0], "that would open a context on the GPUs of others"
    assert made.answer({"op": "detach"}, ()) == {"error": "KeyError: 'group'", "broken": False}
    broken[0] = True
    answer = made.answer({"op": "hello"}, ())
    assert answer["broken"] and "illegal memory access" in answer["error"]


def test_a_judge_whose_device_is_broken_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    client = JudgeClient(WORKLOAD_FOLDER, 1)
    client.start()
    client.wait()
    pid = client.pid
    answer = {"error": "RuntimeError: an illegal memory access was encountered", "broken": True}
    with monkeypatch.context() as changed:
        changed.setattr(Channel, "receive_with_descriptors", lambda *_: (answer, []))
        with pytest.raises(JudgeFailure, match="illegal memory access"):
            client.detach("nobody")
    assert not client.pid and not Path(f"/proc/{pid}").exists()
