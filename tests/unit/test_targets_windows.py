"""The layout of buffers: every byte is a tensor, a window or guard, and the plan survives JSON."""

from __future__ import annotations

import json
import math
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerneltui.model.workload import Role
from kerneltui.targets import cuda
from kerneltui.targets.cpu import memory as memory_module
from kerneltui.targets.cpu.memory import GroupMemory
from kerneltui.targets.errors import MemoryFailure
from kerneltui.targets.patterns import Poison, broken_guards, poison, write_guards
from kerneltui.targets.windows import GUARD_BYTES, DType, GroupLayout, TensorSpec, first_row

tensors = st.builds(
    TensorSpec,
    name=st.sampled_from("ABCDEFGH"),
    dtype=st.sampled_from(DType),
    role=st.sampled_from(Role),
    shape=st.lists(st.integers(0, 40), min_size=1, max_size=4).map(tuple),
    shard=st.sampled_from([None, 0]),
    symmetric=st.booleans(),
)
plans = st.builds(
    lambda tensors, ranks, sets, words, window, shift, offered: GroupLayout.plan(
        tensors,
        {"M": 3},
        ranks=ranks,
        sets=sets,
        signal_words=words,
        window_bytes=window,
        address_shift=256 * shift,
        offered=offered,
    ),
    tensors=st.lists(tensors, max_size=4, unique_by=lambda t: t.name),
    ranks=st.integers(1, 4),
    sets=st.integers(1, 3),
    words=st.integers(0, 2000),
    window=st.integers(0, 9000),
    shift=st.integers(0, 3),
    offered=st.booleans(),
)


def gather_plan(**more: int) -> GroupLayout:
    specs = [
        TensorSpec("A", DType.FLOAT32, Role.INPUT, (101, 7), shard=0),
        TensorSpec("C", DType.FLOAT32, Role.OUTPUT, (101, 7), symmetric=True),
    ]
    return GroupLayout.plan(specs, {"M": 101}, ranks=2, sets=2, **more)


@given(plans)
@settings(max_examples=60, deadline=None)
def test_every_byte_has_exactly_one_owner(layout: GroupLayout) -> None:
    for rank in layout.ranks:
        for symmetric, size, guards in (
            (False, rank.private_bytes, rank.private_guards),
            (True, rank.symmetric_bytes, rank.symmetric_guards),
        ):
            spans = [(g.offset, g.nbytes, "guard") for g in guards]
            spans += [
                (t.offset, t.nbytes, t.name)
                for row in rank.sets
                for t in row
                if t.symmetric is symmetric
            ]
            if symmetric:
                spans.append((layout.window.offset, layout.window.nbytes, "window"))
            spans = sorted(s for s in spans if s[1])
            assert sum(nbytes for _, nbytes, _ in spans) == size
            end = 0
            for offset, nbytes, _ in spans:
                assert offset == end
                end = offset + nbytes


@given(plans)
@settings(max_examples=60, deadline=None)
def test_tensors_are_aligned_and_have_wide_guards(layout: GroupLayout) -> None:
    for rank in layout.ranks:
        for row in rank.sets:
            for tensor in row:
                assert tensor.offset % 256 == 0
                assert tensor.nbytes == math.prod(tensor.local_shape) * tensor.dtype.itemsize
                guards = rank.symmetric_guards if tensor.symmetric else rank.private_guards
                before = [g for g in guards if g.offset + g.nbytes == tensor.offset]
                after = [g for g in guards if g.offset == tensor.offset + tensor.nbytes]
                assert max(g.nbytes for g in before) >= GUARD_BYTES or tensor.nbytes == 0
                assert after or tensor.nbytes == 0


@given(plans)
@settings(max_examples=60, deadline=None)
def test_symmetric_offsets_are_the_same_on_every_rank(layout: GroupLayout) -> None:
    places = [[t.offset for row in rank.sets for t in row if t.symmetric] for rank in layout.ranks]
    assert all(p == places[0] for p in places)
    assert len({rank.symmetric_bytes for rank in layout.ranks}) == 1


@given(plans)
@settings(max_examples=60, deadline=None)
def test_json_gives_the_layout_back(layout: GroupLayout) -> None:
    assert GroupLayout.from_json(json.loads(json.dumps(layout.to_json()))) == layout


def test_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 99"):
        GroupLayout.from_json({**gather_plan().to_json(), "version": 99})


@given(rows=st.integers(0, 1000), ranks=st.integers(1, 9))
def test_shards_cover_all_rows(rows: int, ranks: int) -> None:
    edges = [first_row(rows, rank, ranks) for rank in range(ranks + 1)]
    assert edges[0] == 0 and edges[-1] == rows and edges == sorted(edges)


def test_a_column_shard_has_its_origin() -> None:
    spec = TensorSpec("B", DType.FLOAT64, Role.INPUT, (5, 7), shard=1)
    assert [spec.local_shape(r, 2) for r in range(2)] == [(5, 3), (5, 4)]
    assert spec.origin(1, 2) == (0, 3)


def test_the_address_shift_moves_every_tensor() -> None:
    plain, moved = gather_plan(), gather_plan(address_shift=512)
    assert plain.ranks[0].tensor(0, "A").offset % 4096 == 0
    assert moved.ranks[0].tensor(0, "A").offset % 4096 == 512


@given(plans)
@settings(max_examples=20, deadline=None)
def test_signal_files_hold_all_that_the_gate_of_a_gpu_reads(layout: GroupLayout) -> None:
    text = (Path(cuda.__file__).parent / "harness.cu").read_text()
    (read,) = re.findall(r"kLinkBytes = (\d+);", text)
    assert layout.signal_bytes >= layout.gate_offset + int(read)


@pytest.mark.parametrize(
    ("more", "message"),
    [({"address_shift": 100}, "multiple of 256"), ({"signal_words": -1}, "negative")],
)
def test_numbers_out_of_range_are_refused(more: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gather_plan(**more)


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_byte_beside_a_tensor_is_noticed(side: str) -> None:
    with GroupMemory.create(gather_plan()) as memory:
        guards = memory.layout.ranks[1].symmetric_guards
        mapped = memory.symmetric(1)
        write_guards(mapped, guards, key=5)
        tensor = memory.layout.ranks[1].tensor(1, "C")
        for pattern in Poison:
            poison(mapped, tensor, pattern)
        assert broken_guards(mapped, guards, key=5) == ()
        assert broken_guards(mapped, guards, key=6)  # the canary is that of the key
        place = tensor.offset - 1 if side == "before" else tensor.offset + tensor.nbytes
        mapped[place] ^= 1
        (broken,) = broken_guards(mapped, guards, key=5)
        assert (broken.offset, broken.nbytes) == (place, 1)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64, DType.FLOAT16])
def test_poison_is_nan_or_plausible(dtype: DType) -> None:
    spec = TensorSpec("C", dtype, Role.OUTPUT, (600, 11))
    layout = GroupLayout.plan([spec], {}, ranks=1, sets=1)
    code = {4: "f", 8: "d", 2: "e"}[dtype.itemsize]
    with GroupMemory.create(layout) as memory:
        tensor = layout.ranks[0].tensor(0, "C")
        poison(memory.private(0), tensor, Poison.NAN)
        with memory.view(0, tensor) as view:
            assert all(math.isnan(v) for v in struct.unpack(f"6600{code}", view))
        seen: list[list[float]] = []
        for key in (1, 2):
            poison(memory.private(0), tensor, Poison.PLAUSIBLE, key)
            with memory.view(0, tensor) as view:
                seen.append(list(struct.unpack(f"6600{code}", view)))
            assert all(abs(v) < 10 for v in seen[-1])
        assert seen[0] != seen[1]
        assert seen[0][:11] != seen[0][11:22]


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.INT32, DType.INT64])
def test_plausible_poison_fills_other_types(dtype: DType) -> None:
    spec = TensorSpec("C", dtype, Role.OUTPUT, (600, 11))
    layout = GroupLayout.plan([spec], {}, ranks=1, sets=1)
    with GroupMemory.create(layout) as memory:
        tensor = layout.ranks[0].tensor(0, "C")
        poison(memory.private(0), tensor, Poison.PLAUSIBLE)
        with memory.view(0, tensor) as view:
            assert bytes(view[-64:]).strip(b"\0")


def test_files_cannot_change_their_size() -> None:
    with GroupMemory.create(gather_plan()) as memory:
        for fd in memory.descriptors:
            with pytest.raises(PermissionError):
                memory_module.os.ftruncate(fd, 0)


def test_too_much_memory_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "_available_bytes", lambda: 1 << 20)
    big = GroupLayout.plan(
        [TensorSpec("A", DType.FLOAT32, Role.INPUT, (1 << 20,))], {}, ranks=2, sets=3
    )
    with pytest.raises(MemoryFailure, match=r"need 25 MiB and 1 MiB are free; use a smaller shape"):
        GroupMemory.create(big)


def test_a_refused_allocation_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = memory_module.os.listdir("/proc/self/fd")

    def refuse(_fd: int, _nbytes: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(memory_module, "_allocate", refuse)
    with pytest.raises(MemoryFailure, match="No space left"):
        GroupMemory.create(gather_plan())
    assert memory_module.os.listdir("/proc/self/fd") == opened
