"""`kerneltui doctor`: what this machine has, what is missing, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import kerneltui
from kerneltui.config import cache_folder, config_folder
from kerneltui.headless.doctor_gpu import gpu_findings
from kerneltui.headless.finding import MISSING, OFF, OK, Finding, first_line
from kerneltui.headless.output import Exit, table
from kerneltui.model.errors import DefinitionError
from kerneltui.targets.cpu.device import describe_cpu
from kerneltui.targets.cpu.landlock import landlock_version
from kerneltui.targets.cpu.seccomp import seccomp_available
from kerneltui.targets.cuda.policy import load_policy
from kerneltui.targets.device_lock import named_locks
from kerneltui.targets.errors import TargetError

__all__ = ["doctor", "findings"]


def doctor() -> int:
    """Prints the findings; the exit code says whether the CPU target can work."""
    found = list(findings())
    rows = [[finding.state, finding.name, finding.text] for finding in found]
    print(table([["", "what", "found"], *rows]))
    for finding in found:
        if finding.remedy:
            print(f"{finding.name}: {finding.remedy}")
    missing = any(finding.state == MISSING for finding in found)
    return Exit.USAGE if missing else Exit.FINISHED


def findings() -> Iterator[Finding]:
    """Looks at everything that a target needs."""
    checks: list[Callable[[], Finding]] = [
        _python,
        _cores,
        _compiler,
        _git,
        _torch,
        _sandbox,
        _memory,
        _tmux,
        _cache,
    ]
    for check in checks:
        yield check()
    yield from gpu_findings()
    yield _policy()
    yield _key()


def _python() -> Finding:
    try:
        version = importlib.metadata.version("kerneltui")
    except importlib.metadata.PackageNotFoundError:
        version = "from its source folder"
    text = f"{platform.python_version()}, kerneltui {version}"
    # Judge, ranks and compilers start so, that nothing of a folder or the environment gets into them.
    found = first_line(sys.executable, "-I", "-c", "import kerneltui; print(kerneltui.__file__)")
    ours = kerneltui.__file__
    if found and ours and Path(found).resolve() == Path(ours).resolve():
        return Finding("python", OK, text)
    where = f"its processes would take that of {found}" if found else "its processes do not find it"
    remedy = f"{sys.executable} -m pip install -e FOLDER, without PYTHONPATH"
    return Finding(
        "python", MISSING, f"{text} by PYTHONPATH or the current folder; {where}", remedy
    )


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0))
    text = f"{describe_cpu().model}, {cores} cores for this process"
    if cores < 2:
        return Finding("cpu", OFF, text, "two ranks share one core here; times mean little")
    return Finding("cpu", OK, text)


def _compiler() -> Finding:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    for name in names:
        line = first_line(name, "--version")
        if line is not None:
            return Finding("compiler", OK, line)
    remedy = "install one, for example: apt-get install g++ (or set CXX)"
    return Finding("compiler", MISSING, f"none of {', '.join(names)}", remedy)


def _git() -> Finding:
    line = first_line("git", "--version")
    if line is None:
        return Finding("git", MISSING, "not found", "install it, for example: apt-get install git")
    who = first_line("git", "config", "user.name")
    if not who:
        remedy = (
            "decisions are signed $USER@host; to change that: git config --global user.name NAME"
        )
        return Finding("git", OK, f"{line}, no user.name", remedy)
    return Finding("git", OK, f"{line}, {who}")


def _torch() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding("torch", MISSING, "not found", "pip install torch")
    return Finding("torch", OK, importlib.metadata.version("torch"))


def _sandbox() -> Finding:
    version, seccomp = landlock_version(), seccomp_available()
    parts = ([f"landlock {version}"] if version > 0 else []) + (["seccomp"] if seccomp else [])
    level = " + ".join(parts) or "process hygiene only"
    if len(parts) == 2:
        return Finding("sandbox", OK, level)
    remedy = "candidates run with your rights; a kernel with landlock and seccomp confines them"
    return Finding("sandbox", OFF, level, remedy)


def _memory() -> Finding:
    pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Finding("memory", OK, f"{pages * size / 2**30:.1f} GiB free")


def _tmux() -> Finding:
    line = first_line("tmux", "-V")
    if line is None:
        return Finding(
            "tmux", OFF, "not found", "the terminal's own tests need it, nothing else does"
        )
    return Finding("tmux", OK, line)


def _cache() -> Finding:
    folder = cache_folder()
    existing = next((p for p in (folder, *folder.parents) if p.exists()), Path("/"))
    if not os.access(existing, os.W_OK):
        return Finding("cache", MISSING, f"{folder} cannot be written", "set XDG_CACHE_HOME")
    free = shutil.disk_usage(existing).free / 2**30
    return Finding("cache", OK, f"{folder}, {free:.0f} GiB free")


def _policy() -> Finding:
    try:
        policy = load_policy(config_folder())
    except DefinitionError as error:
        return Finding("policy", MISSING, "cannot be read", str(error))
    names = ", ".join(feature.name for feature in policy.features)
    where = f" ({', '.join(policy.files)})" if policy.files else ""
    try:
        locks = named_locks(policy.device_locks)
    except TargetError as error:
        return Finding("policy", MISSING, "names no lock", str(error))
    held = f"; while GPUs are used {', '.join(locks)} is locked" if locks else ""
    return Finding("policy", OK, f"forbidden: {names}{where}{held}")


def _key() -> Finding:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        if os.environ.get(name, "").strip():
            return Finding("key", OK, f"{name} is set; it never reaches a child process")
    return Finding("key", OFF, "ANTHROPIC_API_KEY is not set", "the offline search works without")
