"""Groups of real rank processes: what works in them."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime_groups import (
    LIMITS,
    check_gather,
    check_nothing_left,
    fails,
    open_ready,
)
from runtime_kernels import kernel, layout, specs

from kerneltui.model.workload import Role
from kerneltui.targets.cpu.runtime import CpuTarget
from kerneltui.targets.errors import FailureKind, RankFailure, ServerFailure
from kerneltui.targets.locks import MachineLock
from kerneltui.targets.port import GroupRole
from kerneltui.targets.windows import DType, GroupLayout, TensorSpec

pytestmark = [pytest.mark.slow, pytest.mark.alone]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuTarget]:
    folder = tmp_path_factory.mktemp("cache")
    with CpuTarget(folder, lock=MachineLock(folder)) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_is_left(target: CpuTarget) -> Iterator[None]:
    yield
    check_nothing_left(target)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_rank_gets_every_shard(target: CpuTarget, ranks: int) -> None:
    with open_ready(target, kernel(), ranks=ranks) as group:
        for epoch in range(6):
            check_gather(group, epoch, set_index=epoch % 3)


def test_a_sample_has_a_time_for_every_call_of_every_rank(target: CpuTarget) -> None:
    with open_ready(target, kernel()) as group:
        sample = group.sample(20, 2, 0)
        assert sample.clock_conflict is None
        assert [len(rank.call_ends_ns) for rank in sample.ranks] == [20, 20]
        for rank in sample.ranks:
            assert list(rank.call_ends_ns) == sorted(rank.call_ends_ns)
            assert rank.start_ns <= rank.call_ends_ns[0]
            assert rank.threads_before == rank.threads_after
        assert 0 < sample.duration_ns * 20 <= sample.wall_ns
        group.sample(1, 0, 20)  # epochs go on


def test_delays_move_the_start_of_one_rank(target: CpuTarget) -> None:
    apart_ns: list[int] = []
    with open_ready(target, kernel()) as group:
        for epoch in range(20):
            begin = time.monotonic_ns()
            first, second = group.run(0, epoch, delays_ns=[0, 5_000_000]).ranks
            assert second.start_ns - begin > 5_000_000
            assert first.end_ns > second.start_ns  # it waited for its peer
            apart_ns.append(second.start_ns - first.start_ns)
    # The system can keep the first one waiting behind the gate, too, but not each time.
    assert max(apart_ns) > 3_000_000


def test_a_second_shape_in_the_same_processes(target: CpuTarget) -> None:
    with open_ready(target, kernel()) as group:
        check_gather(group, 0)
        group.teardown()
        assert group.memory is None
        group.setup(layout(sets=2), {})
        check_gather(group, 0)


def test_dimensions_and_tunables_reach_the_kernel(target: CpuTarget) -> None:
    body = r"""
    int64_t m = kt_value(c.dimensions, c.dimension_count, "M", -1);
    int64_t t = kt_value(c.tunables, c.tunable_count, "CHUNK", -1);
    const kt_tensor *a = kt_find(&c.buffers[set], "A");
    if (m != 101 || t != 64 || a->shape[0] != (c.rank ? 51 : 50) || a->offset[0] != 50 * c.rank ||
        c.sets != 3 || c.scratch_bytes != 5000 || c.window_bytes != 1000 || a->peers ||
        reinterpret_cast<uintptr_t>(c.scratch) % 4096) return 7;
    std::memset(c.scratch, 1, c.scratch_bytes);
    std::memset(c.window[(c.rank + 1) % c.ranks], 2, c.window_bytes);
    gather(c, set, epoch);
    """
    build = target.toolchain.compile(kernel(body))
    with target.open_group(GroupRole.CANDIDATE, 2, limits=LIMITS) as group:
        group.load(build.library)
        group.setup(layout(), {"CHUNK": 64})
        check_gather(group, 0)


def test_vendor_gemm_multiplies_row_major(target: CpuTarget) -> None:
    body = r"""
    const kt_tensor *a = kt_find(&c.buffers[set], "A"), *b = kt_find(&c.buffers[set], "B"),
                    *y = kt_find(&c.buffers[set], "C");
    float *to = static_cast<float *>(y->local) + a->offset[0] * 3;
    return c.vendor->gemm(c.vendor->self, a->shape[0], 3, 4, a->local, 4, b->local, 3, to, 3, nullptr);
    """
    build = target.toolchain.compile(kernel(body))
    tensors = [
        TensorSpec("A", DType.FLOAT32, Role.INPUT, (5, 4), shard=0),
        TensorSpec("B", DType.FLOAT32, Role.INPUT, (4, 3)),
        TensorSpec("C", DType.FLOAT32, Role.OUTPUT, (5, 3), symmetric=True),
    ]
    plan = GroupLayout.plan(tensors, {"M": 5}, ranks=2, sets=1)
    a = [float(i + 1) for i in range(20)]
    b = [float((i * 5) % 7) for i in range(12)]
    product = [
        sum(a[i * 4 + k] * b[k * 3 + j] for k in range(4)) for i in range(5) for j in range(3)
    ]
    with target.open_group(GroupRole.CANDIDATE, 2, limits=LIMITS) as group:
        group.load(build.library)
        group.setup(plan, {})
        memory = group.memory
        assert memory is not None
        for rank, rows in ((0, a[:8]), (1, a[8:])):
            for name, values in (("A", rows), ("B", b)):
                with memory.view(rank, plan.ranks[rank].tensor(0, name)) as view:
                    view[:] = struct.pack(f"{len(values)}f", *values)
        group.run(0, 0)
        found: list[float] = []
        for rank, rows in ((0, slice(0, 6)), (1, slice(6, 15))):
            with memory.view(rank, plan.ranks[rank].tensor(0, "C")) as view:
                found += struct.unpack("15f", bytes(view))[rows]
        assert found == product


@pytest.mark.parametrize("ranks", [2, 3])
def test_host_collectives_gather_uneven_shards(target: CpuTarget, ranks: int) -> None:
    body = r"""
    const kt_tensor *a = kt_find(&c.buffers[set], "A"), *y = kt_find(&c.buffers[set], "C");
    uint64_t counts[8];
    for (uint32_t q = 0; q < c.ranks; ++q)
        counts[q] = (kt_first_row(101, q + 1, c.ranks) - kt_first_row(101, q, c.ranks)) * 32;
    if (c.host->barrier(c.host->self, nullptr)) return 1;
    return c.host->all_gather(c.host->self, a->local, y->local, counts, nullptr);
    """
    with open_ready(target, kernel(body), ranks=ranks) as group:
        for epoch in range(3):
            check_gather(group, epoch)


def test_an_error_in_a_host_collective_becomes_a_reason(target: CpuTarget) -> None:
    body = r"""
    uint64_t counts[2] = {UINT64_MAX / 4, 1};
    char byte = 0;
    return c.host->all_gather(c.host->self, &byte, &byte, counts, nullptr);
    """
    failure = fails(target, body)
    assert failure.kind is FailureKind.ERROR
    assert "returned 1" in failure.reason and "all_gather" in failure.reason


def test_the_baseline_multiplies_and_gathers(target: CpuTarget) -> None:
    tensors = [
        TensorSpec("A", DType.FLOAT32, Role.INPUT, (7, 4), shard=0),
        TensorSpec("B", DType.FLOAT32, Role.INPUT, (4, 3)),
        TensorSpec("C", DType.FLOAT32, Role.OUTPUT, (7, 3), symmetric=True),
    ]
    plan = GroupLayout.plan(tensors, {"M": 7}, ranks=2, sets=2)
    with target.open_group(GroupRole.BASELINE, 2, limits=LIMITS) as group:
        group.load_baseline("torch_gloo")
        group.setup(plan, {})
        memory = group.memory
        assert memory is not None
        for rank in range(2):
            for name in ("A", "B"):
                tensor = plan.ranks[rank].tensor(1, name)
                with memory.view(rank, tensor) as view:
                    count = tensor.nbytes // 4
                    view[:] = struct.pack(f"{count}f", *[float(rank + 1)] * count)
        # B differs from rank to rank here, so each half shows who computed it.
        group.run(1, 0)
        for rank in range(2):
            with memory.view(rank, plan.ranks[rank].tensor(1, "C")) as view:
                assert struct.unpack("21f", bytes(view)) == (4.0,) * 9 + (16.0,) * 12
        group.teardown()


def test_only_a_baseline_group_takes_a_baseline(target: CpuTarget) -> None:
    with target.open_group(GroupRole.CANDIDATE, 1) as group, pytest.raises(ValueError):
        group.load_baseline("torch_gloo")


def test_unknown_baseline_is_named(target: CpuTarget) -> None:
    group = target.open_group(GroupRole.BASELINE, 1)
    with pytest.raises(RankFailure, match="no baseline 'nothing'; there are torch_gloo"):
        group.load_baseline("nothing")


def test_groups_live_side_by_side(target: CpuTarget) -> None:
    with open_ready(target, kernel()) as one, open_ready(target, kernel()) as other:
        assert one.group_id != other.group_id
        for epoch in range(3):
            check_gather(one, epoch)
            check_gather(other, epoch)
        one.kill()
        check_gather(other, 3)


def test_a_target_that_is_not_started_says_so(tmp_path: Path) -> None:
    with pytest.raises(ServerFailure, match="not started"):
        CpuTarget(tmp_path).open_group(GroupRole.CANDIDATE, 1)


def test_layout_for_other_ranks_is_refused(target: CpuTarget) -> None:
    with target.open_group(GroupRole.CANDIDATE, 1) as group, pytest.raises(ValueError):
        group.setup(GroupLayout.plan(specs(), {}, ranks=2, sets=1), {})
