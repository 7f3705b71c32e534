"""Groups of real rank processes that end badly: the reason that is told, and what is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from runtime_groups import (
    HANG,
    LIMITS,
    check_gather,
    check_nothing_left,
    fails,
    open_ready,
    wait_until,
)
from runtime_kernels import GATHER, kernel

from kerneltui.targets.cpu.runtime import CpuTarget
from kerneltui.targets.errors import FailureKind, RankFailure, ServerFailure
from kerneltui.targets.locks import MachineLock
from kerneltui.targets.port import GroupRole
from kerneltui.targets.processes import descendants, is_alive

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


def test_a_hang_names_the_ranks_and_their_epochs(target: CpuTarget) -> None:
    source = kernel("if (epoch == 3 && c.rank == 1) for (;;) pause();" + GATHER)
    group = open_ready(target, source, limits=HANG)
    for epoch in range(3):
        group.sample(1, 0, epoch)
    with pytest.raises(RankFailure) as caught:
        group.run(0, 3)
    assert caught.value.kind is FailureKind.HANG
    assert "hung in run: no answer within 5 s" in caught.value.reason
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
    limits = replace(LIMITS, memory_bytes=256 << 20)
    body = r"""
    for (;;) {
        volatile char *taken = new char[16 << 20];
        std::memset(const_cast<char *>(taken), 1, 16 << 20);
    }
    """
    failure = fails(target, body, limits=limits)
    assert failure.kind is FailureKind.OUT_OF_MEMORY


def test_a_crash_near_the_memory_limit_says_memory(target: CpuTarget) -> None:
    limits = replace(LIMITS, memory_bytes=128 << 20)
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
    with open_ready(target, kernel(body + GATHER)) as group:
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
    with CpuTarget(target.cache, lock=target.lock, confine=False) as open_target:
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
    with CpuTarget(target.cache, lock=target.lock) as fresh, open_ready(fresh, source) as group:
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
    group = open_ready(target, kernel("for (;;) pause();"))
    killer = threading.Timer(0.3, os.kill, (group.pids[1], signal.SIGKILL))
    killer.start()
    with pytest.raises(RankFailure) as caught:
        group.run(0, 0)
    killer.join()
    assert caught.value.rank == 1
    assert "signal 9 (SIGKILL)" in caught.value.reason
    assert group.close().gone


def test_kill_from_another_thread_interrupts(target: CpuTarget) -> None:
    group = open_ready(target, kernel("for (;;) pause();"))
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
    group = target.open_group(GroupRole.CANDIDATE, 2, limits=replace(LIMITS, load_s=5.0))
    with pytest.raises(RankFailure, match="hung in load") as caught:
        group.load(build.library)
    assert caught.value.kind is FailureKind.HANG


def test_everything_goes_with_the_server(target: CpuTarget) -> None:
    fresh = CpuTarget(target.cache, lock=target.lock)
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
from kerneltui.targets.locks import MachineLock
from kerneltui.targets.port import GroupRole

folder = Path(sys.argv[1])
target = CpuTarget(folder, lock=MachineLock(folder))
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
