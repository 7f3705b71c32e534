"""The compilers of a rank: run beside it while its kernel is set up, confined, and nothing else is run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from kerneltui.evaluation.sandbox import PROCESS_HYGIENE
from kerneltui.targets.processes import is_alive

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed"),
]

# A rank in small: a helper, then the sandbox; what the steps say is printed as JSON.
RANK = """
import json, os, subprocess, sys
from pathlib import Path
from kerneltui.evaluation.sandbox import confine
from kerneltui.evaluation.worker_compilers import CompilerHelper
from kerneltui.targets.cuda.policy import DEFAULT_POLICY

own = Path(sys.argv[1])
helper = CompilerHelper(own, [], DEFAULT_POLICY)
helper.install()
said = {"level": confine([own], []), "helper": helper.pid}
(own / "answer.c").write_text("int answer(void) { return 42; }\\n")

def attempt(name, step):
    try:
        said[name] = step()
    except BaseException as error:
        said[name] = f"{type(error).__name__}: {error}"

def compiled():
    command = [GCC, str(own / "answer.c"), "-shared", "-fPIC", "-o", str(own / "answer.so")]
    return subprocess.run(command, check=True).returncode

GCC = sys.argv[2]
BODY
print(json.dumps(said), flush=True)
"""


def rank(folder: Path, body: str, *, gcc: str = "") -> dict[str, Any]:
    """What a rank with these steps said; its helper is gone afterwards."""
    own = folder / "own"
    own.mkdir(exist_ok=True)
    compiler = gcc or shutil.which("gcc")
    assert compiler is not None
    made = subprocess.run(
        [sys.executable, "-c", RANK.replace("BODY", textwrap.dedent(body)), str(own), compiler],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    said = json.loads(made.stdout.strip().splitlines()[-1])
    end = time.monotonic() + 20
    while is_alive(said["helper"]) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_alive(said["helper"])
    return said


def test_a_library_is_compiled_and_loaded_in_the_sandbox(tmp_path: Path) -> None:
    said = rank(
        tmp_path,
        """
        import ctypes
        helper.allow(True)
        attempt("code", compiled)
        attempt("answer", lambda: ctypes.CDLL(str(own / "answer.so")).answer())
        attempt("version", lambda: subprocess.check_output([GCC, "--version"]).decode())
        attempt("text", lambda: subprocess.run([GCC, "--version"], stdout=subprocess.PIPE,
                                               text=True).stdout)
        def piped():
            with subprocess.Popen([GCC, "--version"], stdout=subprocess.PIPE) as program:
                return program.stdout.read().decode()
        attempt("piped", piped)
        import ctypes.util
        os.environ["TMPDIR"] = str(own)
        attempt("found", lambda: ctypes.util.find_library("c"))
        """,
    )
    assert said["piped"] == said["version"]
    assert said["found"] is None or said["found"].startswith("libc.")
    assert said["code"] == 0
    assert said["answer"] == 42
    assert "gcc" in said["version"].lower()
    assert said["text"] == said["version"]


def test_outside_of_setup_nothing_is_compiled(tmp_path: Path) -> None:
    said = rank(
        tmp_path,
        """
        attempt("before", compiled)
        helper.allow(True); helper.allow(False)
        attempt("after", compiled)
        """,
    )
    for name in ("before", "after"):
        assert said[name].startswith("PermissionError: a kernel compiles in setup alone")


def test_an_error_of_the_compiler_reaches_the_caller(tmp_path: Path) -> None:
    said = rank(
        tmp_path,
        """
        helper.allow(True)
        (own / "answer.c").write_text("int answer(void) { return forty_two; }")
        attempt("code", compiled)
        log = open(own / "log", "w+")
        subprocess.run([GCC, str(own / "answer.c")], stderr=log)
        attempt("log", lambda: (own / "log").read_text())
        """,
    )
    assert said["code"].startswith("CalledProcessError")
    assert "forty_two" in said["log"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("['/bin/true']", "starts no programs"),
        ("['gcc', '--version']", "starts no programs"),
        ("'gcc --version'", "starts no programs"),
        ("[GCC, '-wrapper', '/bin/true,x']", "is not allowed"),
        ("[GCC, '-fplugin=x.so']", "is not allowed"),
        ("[GCC, '@options']", "is not allowed"),
        ("[str(own / 'gcc'), '--version']", "in a folder that the kernel can write"),
        ("[str(own / 'link' / 'gcc'), '--version']", "in a folder that the kernel can write"),
        ("[GCC, str(own / 'red.ptx')]", "refused by the machine's policy"),
    ],
)
def test_what_is_no_plain_compiler_is_not_run(tmp_path: Path, command: str, words: str) -> None:
    said = rank(
        tmp_path,
        f"""
        helper.allow(True)
        (own / "gcc").write_text("#!/bin/sh")
        (own / "gcc").chmod(0o755)
        (own / "link").symlink_to("/usr/bin")
        (own / "red.ptx").write_text("multimem.red.relaxed.sys.global.add.f32 [%0], %1;")
        attempt("said", lambda: subprocess.run({command}).returncode)
        """,
    )
    assert said["said"].startswith("PermissionError")
    assert words in said["said"]


def test_a_compiler_writes_nowhere_else(tmp_path: Path) -> None:
    said = rank(
        tmp_path,
        f"""
        helper.allow(True)
        attempt("code", lambda: subprocess.run(
            [GCC, str(own / "answer.c"), "-shared", "-o", {str(tmp_path / "elsewhere.so")!r}]
        ).returncode)
        """,
    )
    if said["level"] == PROCESS_HYGIENE:
        pytest.skip("this machine offers no sandbox")
    assert said["code"] != 0
    assert not (tmp_path / "elsewhere.so").exists()


def test_a_helper_that_is_gone_is_said(tmp_path: Path) -> None:
    said = rank(
        tmp_path,
        """
        helper._channel.shutdown()
        helper.allow(True)
        attempt("code", compiled)
        """,
    )
    assert said["code"].startswith("OSError: the compiler helper is gone")
