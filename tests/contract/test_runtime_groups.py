"""Groups of real rank processes: what works, and what is left behind after what does not."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runtime_kernels import COLUMNS, GATHER, ROWS, kernel, layout, specs

from kerneltui.model.workload import Role
from kerneltui.targets.cpu.runtime import CpuTarget
from kerneltui.targets.errors import FailureKind, RankFailure, ServerFailure
from kerneltui.targets.group import RankGroup
from kerneltui.targets.port import GroupRole, Limits
from kerneltui.targets.processes import descendants, is_alive
from kerneltui.targets.windows import DType, GroupLayout, TensorSpec

pytestmark = pytest.mark.slow

LIMITS = Limits(first_call_s=60.0, sample_s=60.0, load_s=60.0, setup_s=60.0)  # for busy machines
HANG = Limits(first_call_s=1.0)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuTarget]:
    with CpuTarget(tmp_path_factory.mktemp("cache")) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_is_left(target: CpuTarget) -> Iterator[None]:
    """After every test the fork server has no process under it and still makes a working group."""
    yield
    assert wait_until(lambda: not descendants([target.server_pid]))
    with open_ready(target, kernel()) as group:
        check_gather(group, epoch=0)
    assert wait_until(lambda: not descendants([target.server_pid]))


def open_ready(
    target: CpuTarget, source: str, *, ranks: int = 2, limits: Limits = LIMITS
) -> RankGroup:
    """A group with a kernel loaded and set up."""
    build = target.toolchain.compile(source)
    group = target.open_group(GroupRole.CANDIDATE, ranks, limits=limits)
    group.load(build.library)
    wanted = group.requirements({"M": ROWS, "N": COLUMNS}, {})
    group.setup(layout(ranks, wanted=wanted), {})
    return group


def check_gather(group: RankGroup, epoch: int, set_index: int = 1) -> None:
    memory = group.memory
    assert memory is not None
    expected = b""
    for rank in range(group.ranks):
        shard = memory.layout.ranks[rank].tensor(set_index, "A")
        with memory.view(rank, shard) as view:
            view[:] = bytes([(epoch + rank + 1) % 256]) * shard.nbytes
            expected += bytes(view)
    group.run(set_index, epoch)
    for rank in range(group.ranks):
        with memory.view(rank, memory.layout.ranks[rank].tensor(set_index, "C")) as view:
            assert bytes(view) == expected


def fails(target: CpuTarget, body: str, *, limits: Limits = LIMITS) -> RankFailure:
    """What running a kernel with this body raises; the group is gone then."""
    group = open_ready(target, kernel(body), limits=limits)
    with pytest.raises(RankFailure) as caught:
        group.run(0, 0)
    proof = group.close()
    assert proof.gone and not proof.left
    assert not any(Path(f"/proc/{pid}").exists() for pid in group.pids)
    assert "\n" not in caught.value.reason
    return caught.value


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


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
    with open_ready(target, kernel()) as group:
        sample = group.run(0, 0, delays_ns=[0, 5_000_000])
        assert sample.ranks[1].start_ns - sample.ranks[0].start_ns > 3_000_000
        assert sample.ranks[0].end_ns > sample.ranks[1].start_ns  # it waited for its peer


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


def test_a_hang_names_the_ranks_and_their_epochs(target: CpuTarget) -> None:
    source = kernel("if (epoch == 3 && c.rank == 1) for (;;) pause();" + GATHER)
    group = open_ready(target, source, limits=HANG)
    for epoch in range(3):
        group.sample(1, 0, epoch)
    with pytest.raises(RankFailure) as caught:
        group.run(0, 3)
    assert caught.value.kind is FailureKind.HANG
    assert "hung in run: no answer within 1 s" in caught.value.reason
    assert "rank 1 in epoch 3" in caught.value.reason
    assert not group.alive
    with pytest.raises(RankFailure, match="has ended"):
        group.ping()


def test_a_hang_that_ignores_sigterm_is_killed(target: CpuTarget) -> None:
    body = "signal(SIGTERM, SIG_IGN); for (;;) pause();"
    group = open_ready(target, kernel(body), limits=HANG)
    with pytest.raises(RankFailure) as caught:
        group.run(0, 0)
    assert caught.value.kind is FailureKind.HANG
    proof = group.close()
    assert proof.gone
    assert {e.signal for e in proof.exits} == {signal.SIGKILL}


def test_a_stopped_rank_is_killed(target: CpuTarget) -> None:
    group = open_ready(target, kernel(), limits=HANG)
    os.kill(group.pids[0], signal.SIGSTOP)
    with pytest.raises(RankFailure) as caught:
        group.run(0, 0)
    assert caught.value.kind is FailureKind.HANG
    proof = group.close()
    assert proof.gone
    assert proof.exits[0].signal != signal.SIGKILL or proof.exits[1].signal != signal.SIGKILL


def test_a_crash_names_the_signal(target: CpuTarget) -> None:
    failure = fails(target, "if (c.rank == 1) *reinterpret_cast<volatile int *>(8) = 1;" + GATHER)
    assert failure.kind is FailureKind.CRASH
    assert failure.rank == 1
    assert failure.reason == "rank 1 crashed in run: signal 11 (SIGSEGV)"


def test_leaving_the_process_is_a_crash(target: CpuTarget) -> None:
    failure = fails(target, "if (c.rank == 0) _exit(3);" + GATHER)
    assert failure.kind is FailureKind.CRASH
    assert failure.reason == "rank 0 left in run with exit code 3"


def test_a_return_code_and_a_reason_come_through(target: CpuTarget) -> None:
    body = 'if (c.rank == 1) { c.fail(c.fail_self, "no such\\n tile"); return 5; }' + GATHER
    failure = fails(target, body)
    assert (failure.kind, failure.rank) == (FailureKind.ERROR, 1)
    assert "kerneltui_run, epoch 0 returned 5: no such tile" in failure.reason


def test_a_c_plus_plus_exception_is_an_error(target: CpuTarget) -> None:
    failure = fails(target, "throw 17;")
    assert failure.kind is FailureKind.ERROR
    assert "kerneltui_run, epoch 0 threw: something that is no std::exception" in failure.reason


def test_memory_beyond_the_limit_is_refused(target: CpuTarget) -> None:
    limits = Limits(memory_bytes=256 << 20, first_call_s=60.0)
    body = r"""
    for (;;) {
        volatile char *taken = new char[16 << 20];
        std::memset(const_cast<char *>(taken), 1, 16 << 20);
    }
    """
    failure = fails(target, body, limits=limits)
    assert failure.kind is FailureKind.OUT_OF_MEMORY


def test_a_crash_near_the_memory_limit_says_memory(target: CpuTarget) -> None:
    limits = Limits(memory_bytes=128 << 20, first_call_s=60.0)
    body = r"""
    for (;;) {
        char *p = static_cast<char *>(std::malloc(1 << 20));
        std::memset(p, 1, 1 << 20);
    }
    """
    failure = fails(target, body, limits=limits)
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert "ran out of memory in run: SIGSEGV" in failure.reason


def test_a_flood_of_output_is_counted_and_cut(target: CpuTarget) -> None:
    limits = Limits(first_call_s=60.0)
    body = r"""
    if (c.rank == 0) {
        std::printf("first words\n");
        char line[1000] = {};
        std::memset(line, 'x', 999);
        for (int i = 0; i < 100000; ++i) std::puts(line);
        std::printf("last words\n");
        std::fflush(stdout);
    }
    """
    with open_ready(target, kernel(body + GATHER), limits=limits) as group:
        check_gather(group, 0)
        expected = len("first words\n") + 100_000_000 + len("last words\n")
        assert wait_until(lambda: group.output()[0].total == expected)
        kept = group.output()[0]
    assert kept.head.startswith(b"first words")
    assert kept.tail.endswith(b"last words\n")
    assert len(kept.head) == len(kept.tail) == 65536
    assert "bytes left out" in kept.text


def test_new_processes_are_refused(target: CpuTarget) -> None:
    if "seccomp" not in target.sandbox_level:
        pytest.skip("this kernel has no seccomp")
    body = r"""
    if (fork() != -1 || errno != EPERM) { pause(); return 1; }
    char *arguments[] = {nullptr};
    if (execv("/bin/true", arguments) != -1 || errno != EPERM) return 2;
    if (socket(AF_INET, SOCK_STREAM, 0) != -1) return 3;
    if (kill(getppid(), 0) != -1 || kill(getpid(), 0) != 0) return 4;
    if (setsid() != -1) return 5;
    if (memfd_create("x", 0) != -1) return 6;
    pthread_t threads[4];  // but threads may be started
    for (auto &t : threads)
        if (pthread_create(&t, nullptr, [](void *p) { return p; }, nullptr)) return 7;
    for (auto &t : threads) pthread_join(t, nullptr);
    """
    with open_ready(target, kernel(body + GATHER)) as group:
        check_gather(group, 0)


def test_what_a_kernel_leaves_behind_goes_with_its_group(target: CpuTarget) -> None:
    # Without sandbox, as on a kernel that offers none.
    body = r"""
    if (c.rank == 0 && fork() == 0) {         // stays in the group
        signal(SIGTERM, SIG_IGN);
        for (;;) pause();
    }
    pid_t middle = c.rank == 1 ? fork() : -1;  // a daemon: its parent is gone
    if (middle == 0) {
        setsid();
        signal(SIGTERM, SIG_IGN);
        if (fork() == 0) for (;;) pause();
        _exit(0);
    }
    if (middle > 0) waitpid(middle, nullptr, 0);
    """
    with CpuTarget(target.cache, confine=False) as open_target:
        group = open_ready(open_target, kernel(body + GATHER))
        assert group.sandbox_level == "process hygiene only"
        check_gather(group, 0)
        assert len(descendants([open_target.server_pid])) >= 3
        proof = group.close()
        assert proof.gone
        assert len(proof.strays) >= 1
        assert not any(is_alive(pid) for pid in proof.strays)
        assert wait_until(lambda: not descendants([open_target.server_pid]))


def test_files_outside_are_out_of_reach(target: CpuTarget, tmp_path: Path) -> None:
    if "landlock" not in target.sandbox_level:
        pytest.skip("this kernel has no Landlock")
    secret = tmp_path / "secret"
    secret.write_text("x")
    body = f"""
    if (open("{secret}", O_RDONLY) != -1) return 1;
    if (open("{tmp_path}/new", O_WRONLY | O_CREAT, 0600) != -1) return 2;
    if (open("/proc/{os.getpid()}/mem", O_RDONLY) != -1) return 3;
    if (open("/proc/{os.getpid()}/environ", O_RDONLY) != -1) return 4;
    if (open("mine", O_WRONLY | O_CREAT, 0600) == -1) return 5;
    const char *theirs = c.rank ? "../rank0/theirs" : "../rank1/theirs";
    if (open(theirs, O_WRONLY | O_CREAT, 0600) != -1) return 6;
    """
    with open_ready(target, kernel(body + GATHER)) as group:
        check_gather(group, 0)
    assert not (tmp_path / "new").exists()


def test_secrets_of_the_environment_stay_outside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: CpuTarget
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sesame")
    monkeypatch.setenv("LC_TOKEN", "sesame")
    source = kernel(
        'for (char **v = environ; *v; ++v) if (std::strstr(*v, "sesame")) return 1;' + GATHER
    )
    with CpuTarget(target.cache) as fresh, open_ready(fresh, source) as group:
        check_gather(group, 0)
        for pid in (fresh.server_pid, *group.pids):
            assert b"sesame" not in Path(f"/proc/{pid}/environ").read_bytes()


def test_a_thread_that_stays_is_seen(target: CpuTarget) -> None:
    body = r"""
    pthread_t thread;
    pthread_create(&thread, nullptr, [](void *) -> void * { for (;;) pause(); }, nullptr);
    """
    with open_ready(target, kernel(body + GATHER)) as group:
        sample = group.sample(2, 0, 0)
        assert [r.threads_after - r.threads_before for r in sample.ranks] == [2, 2]


def test_a_rank_killed_from_outside_ends_the_group(target: CpuTarget) -> None:
    group = open_ready(target, kernel("for (;;) pause();"), limits=LIMITS)
    killer = threading.Timer(0.3, os.kill, (group.pids[1], signal.SIGKILL))
    killer.start()
    with pytest.raises(RankFailure) as caught:
        group.run(0, 0)
    killer.join()
    assert caught.value.rank == 1
    assert "signal 9 (SIGKILL)" in caught.value.reason
    assert group.close().gone


def test_kill_from_another_thread_interrupts(target: CpuTarget) -> None:
    group = open_ready(target, kernel("for (;;) pause();"), limits=Limits(first_call_s=60.0))
    killer = threading.Timer(0.3, group.kill)
    killer.start()
    with pytest.raises(RankFailure) as caught:
        group.run(0, 0)
    killer.join()
    assert caught.value.kind is FailureKind.KILLED
    assert group.close().gone


def test_a_library_that_is_none_is_refused(target: CpuTarget) -> None:
    bad = target.cache / "bad.so"
    bad.write_bytes(b"this is no library")
    group = target.open_group(GroupRole.CANDIDATE, 2)
    with pytest.raises(RankFailure, match="cannot load the kernel"):
        group.load(bad)
    assert group.close().gone


def test_a_missing_function_is_named(target: CpuTarget) -> None:
    build = target.toolchain.compile(kernel().replace("kerneltui_teardown", "kerneltui_tear"))
    group = target.open_group(GroupRole.CANDIDATE, 2)
    with pytest.raises(RankFailure, match="has no kerneltui_teardown"):
        group.load(build.library)


def test_another_abi_version_is_refused(target: CpuTarget) -> None:
    build = target.toolchain.compile(kernel().replace("= KERNELTUI_ABI_VERSION", "= 99"))
    group = target.open_group(GroupRole.CANDIDATE, 1)
    group.load(build.library)
    with pytest.raises(RankFailure, match="ABI version 99"):
        group.requirements({}, {})


def test_a_hanging_constructor_is_a_hang(target: CpuTarget) -> None:
    source = kernel() + "static int waiting = [] { for (;;) pause(); return 0; }();"
    build = target.toolchain.compile(source)
    group = target.open_group(GroupRole.CANDIDATE, 2, limits=Limits(load_s=1.0))
    with pytest.raises(RankFailure, match="hung in load") as caught:
        group.load(build.library)
    assert caught.value.kind is FailureKind.HANG


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


def test_everything_goes_with_the_server(target: CpuTarget) -> None:
    fresh = CpuTarget(target.cache)
    fresh.start()
    group = open_ready(fresh, kernel("for (;;) pause();"))
    os.kill(fresh.server_pid, signal.SIGKILL)
    with pytest.raises(RankFailure):
        group.run(0, 0)
    assert group.close().gone
    assert wait_until(lambda: not any(is_alive(pid) for pid in group.pids))
    with pytest.raises(ServerFailure, match="fork server is gone"):
        fresh.open_group(GroupRole.CANDIDATE, 1)
    fresh.close()


ENGINE = """
import sys, time
from pathlib import Path
from runtime_kernels import kernel, layout
from kerneltui.targets.cpu.runtime import CpuTarget
from kerneltui.targets.port import GroupRole

target = CpuTarget(Path(sys.argv[1]))
target.start()
build = target.toolchain.compile(kernel("signal(SIGTERM, SIG_IGN); for (;;) pause();"))
group = target.open_group(GroupRole.CANDIDATE, 2)
group.load(build.library)
group.setup(layout(), {})
print(target.server_pid, *group.pids, target._processes.directory, flush=True)
group.run(0, 0)
"""


def test_everything_goes_with_a_killed_engine(target: CpuTarget) -> None:
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(target.cache)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent,
        text=True,
    )
    assert engine.stdout is not None
    with engine.stdout as out:
        *pids, directory = out.readline().split()
    assert len(pids) == 3
    engine.kill()
    engine.wait()
    assert wait_until(lambda: not any(is_alive(int(pid)) for pid in pids))
    assert wait_until(lambda: not Path(directory).exists())


def test_windows_of_nccl_are_asked_for_in_vain(target: CpuTarget) -> None:
    source = kernel().replace("out->scratch_bytes", "out->nccl_windows = 1; out->scratch_bytes")
    with pytest.raises(RankFailure, match="there are no NCCL windows on this target"):
        open_ready(target, source).close()
