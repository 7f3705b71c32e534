"""The command line as a user meets it: exit codes, one-line errors, and what replay prints."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import engine_fakes
import pytest
from engine_fakes import FakeEvaluator
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.cli import cli, main
from kerneltui.config import parse_budget
from kerneltui.engine.opening import Start, read_events
from kerneltui.engine.place import Place
from kerneltui.engine.run import EngineSetup, run_engine
from kerneltui.engine.tuner import Options
from kerneltui.model.event import AcceptRule
from kerneltui.model.state import fold
from kerneltui.session.bundle import write_bundle
from kerneltui.session.repository import Session

WORKLOAD = Path(__file__).parents[2] / "workloads" / "gemm_allgather"
TEXT = (WORKLOAD / "workload.toml").read_text(encoding="utf-8")
COMMANDS = ["open", "tune", "bench", "verify", "doctor", "replay", "bundle", "context"]


@dataclass(frozen=True, slots=True)
class Run:
    """What a command left behind."""

    code: int
    out: bytes
    err: str

    @property
    def error(self) -> str:
        """The error, which must be the last line and the only one of its kind."""
        lines = self.err.splitlines()
        assert lines, "nothing was said"
        assert len([line for line in lines if line.startswith("kerneltui: ")]) == 1, self.err
        return lines[-1].removeprefix("kerneltui: ")


Kerneltui = Callable[..., Run]


@pytest.fixture
def kerneltui(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Kerneltui:
    """Runs a command in this process."""

    def run(*arguments: object) -> Run:
        monkeypatch.setattr(sys, "argv", ["kerneltui", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        assert isinstance(caught.value.code, int)
        said = capfdbinary.readouterr()
        return Run(caught.value.code, said.out, said.err.decode())

    return run


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small session of a real engine; its evaluation is a fake that answers at once."""
    path = tmp_path_factory.mktemp("cli") / "gemm_allgather-cpu-0001"
    setup = EngineSetup(
        Place(path, WORKLOAD, exists=False),
        Start("cpu", "offline", 1, AcceptRule.AUTO, 1, None),
        Options(undecided=None, leave_when_done=True),
        lambda workload, spec: FakeEvaluator(),
        take_signals=False,
    )
    with pytest.MonkeyPatch.context() as patch:
        # whatever has choices is faster than the seed, so that the rule has something to accept
        patch.setattr(engine_fakes, "cost", lambda kernel: 0.9 if kernel.tunables else 1.0)
        state, _, failure = run_engine(setup)
    assert failure is None
    assert state.incumbent == "c0001"
    return path


@pytest.fixture(scope="module")
def bundle(session: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("bundles") / "run.bundle"
    write_bundle(session, file)
    return file


# -- help


def test_these_are_the_commands():
    assert sorted(cli.commands) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_that_can_be_typed(kerneltui: Kerneltui, command: str):
    result = kerneltui(command, "--help")
    assert result.code == 0
    lines = [line.strip() for line in result.out.decode().splitlines()]
    assert "Example:" in lines
    example = shlex.split(lines[lines.index("Example:") + 1])
    assert example[:2] == ["kerneltui", command]
    # every option of the example exists and has a value that it takes
    cli.commands[command].make_context(command, example[2:])


def test_help_of_the_whole(kerneltui: Kerneltui):
    for flag in ("-h", "--help"):
        result = kerneltui(flag)
        assert result.code == 0
        text = result.out.decode()
        assert "  Example:\n    kerneltui open " in text
        assert "..." not in text.split("Commands:")[1]
        assert all(f"  {command} " in text for command in COMMANDS)


def test_without_a_command_there_is_the_help(kerneltui: Kerneltui):
    result = kerneltui()
    assert result.code == 2
    assert result.err == kerneltui("--help").out.decode()


def test_every_option_says_what_it_is():
    for name, command in cli.commands.items():
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, f"{name} {option.name}"


def test_version(kerneltui: Kerneltui):
    result = kerneltui("--version")
    assert (result.code, result.out.decode().split()[0]) == (0, "kerneltui,")


# -- wrong use: one line, exit code 2


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["tune", "nowhere"], "nowhere: is neither a workload"),
        (["replay", "nowhere", "--json"], "nowhere: no such session or bundle"),
        (["bundle", "nowhere", "out.bundle"], "nowhere"),
        (["tune", "nowhere", "--budget", "10"], "'10' is not a time; write 90s, 10m or 1.5h"),
        (["tune", "nowhere", "--budget", "-5m"], "'-5m' is not a time"),
        (["tune", "nowhere", "--candidates", "0"], "--candidates"),
        (["tune", "nowhere", "--candidates", "many"], "--candidates"),
        (["tune", "nowhere", "--accept", "always"], "auto"),
        (["tune", "nowhere", "--fast"], "--fast"),
        (["tune"], "WORKLOAD"),
        (["replay", "nowhere", "--step", "0"], "--step"),
        (["open", str(WORKLOAD)], "'open' needs a terminal; use 'kerneltui tune'"),
        (["improve"], "No such command 'improve' (see 'kerneltui --help')"),
        (["verify", str(WORKLOAD), "no.cpp"], "no.cpp: kernel: cannot be read (No such file"),
        (["bench", str(WORKLOAD), "no.cpp"], "no.cpp: kernel: cannot be read (No such file"),
        (["bench", "nowhere"], "nowhere: workload.toml: there is none"),
        (["context", "nowhere"], "nowhere: workload.toml: there is none"),
    ],
)
def test_wrong_use_is_one_line(kerneltui: Kerneltui, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                               arguments: list[str], what: str):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    result = kerneltui(*arguments)
    assert result.code == 2
    assert what in result.error
    assert result.out == b""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('seed = "host.cpp"\n', "", "target.cpu.seed: is missing, expected a text"),
        ("schema = 1\n", "", "schema: is missing"),
        ("factor = 8.0", 'factor = "8"', "tolerance.factor: expected a number, found '8'"),
        ('tags = ["tune"]', 'tags = ["tuned"]', "shape[0].tags: 'tuned' is not one of"),
        ('title = "', 'titel = "', "title: is missing"),
        ("schema = 1", "schema = ", "TOML: "),
    ],
)
def test_a_wrong_workload_names_file_and_key(kerneltui: Kerneltui, tmp_path: Path, old: str,
                                             new: str, key: str):  # fmt: skip
    assert old in TEXT
    folder = tmp_path / "workloads" / "mine"
    folder.mkdir(parents=True)
    (folder / "workload.toml").write_text(TEXT.replace(old, new, 1), encoding="utf-8")
    result = kerneltui("tune", folder, "--session", tmp_path / "session")
    assert result.code == 2
    assert result.error.startswith(f"{folder / 'workload.toml'}: {key}")
    assert not (tmp_path / "session").exists()


def test_a_workload_without_the_target_is_refused(kerneltui: Kerneltui, tmp_path: Path):
    path = tmp_path / "session"
    result = kerneltui("tune", WORKLOAD, "--target", "abacus", "--session", path)
    assert result.code == 3
    assert result.error == "gemm_allgather is not defined for target 'abacus'; it has cpu, cuda"
    assert not path.exists()


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
def test_a_target_that_cannot_run_here_leaves_no_session(kerneltui: Kerneltui, tmp_path: Path):
    path = tmp_path / "session"
    result = kerneltui("tune", WORKLOAD, "--target", "cuda", "--session", path)
    assert result.code == 3
    assert "target 'cuda' cannot run here" in result.error
    assert "kerneltui doctor" in result.error
    assert not path.exists()


def test_a_kernel_that_is_missing_is_named(kerneltui: Kerneltui, tmp_path: Path):
    folder = tmp_path / "workloads" / "mine"
    folder.mkdir(parents=True)
    (tmp_path / "kernels").mkdir()
    (folder / "workload.toml").write_text(TEXT, encoding="utf-8")
    result = kerneltui("tune", folder, "--session", tmp_path / "session")
    assert result.code == 3
    assert str(tmp_path / "kernels" / "mine" / "host.cpp") in result.error
    assert not (tmp_path / "session").exists()


def test_claude_without_a_key_is_refused_before_anything_runs(
    kerneltui: Kerneltui, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", " ")
    path = tmp_path / "session"
    result = kerneltui("tune", WORKLOAD, "--agents", "claude", "--session", path)
    assert result.code == 2
    assert result.error.startswith("--agents claude needs a key: set ANTHROPIC_API_KEY")
    assert not path.exists()


def test_claude_at_a_server_of_ones_own_needs_no_key(
    kerneltui: Kerneltui, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    settings = tmp_path / "kerneltui" / "agents.toml"
    settings.parent.mkdir()
    settings.write_text('base_url = "http://localhost:4000"\n', encoding="utf-8")
    began = ["tune", WORKLOAD, "--agents", "claude", "--target", "abacus"]
    assert "is not defined for target" in kerneltui(*began, "--session", tmp_path / "own").error
    settings.write_text("", encoding="utf-8")
    assert "needs a key" in kerneltui(*began, "--session", tmp_path / "vendor").error


@pytest.mark.parametrize("named", ["as the session", "with --session"])
def test_a_session_does_not_change_its_target(kerneltui: Kerneltui, session: Path, named: str):
    arguments = [session] if named == "as the session" else [WORKLOAD, "--session", session]
    result = kerneltui("tune", *arguments, "--target", "cuda")
    assert result.code == 2
    assert result.error == (
        f"{session}: this session tunes on cpu, which cannot be changed; "
        "leave out --target, or begin another session for cuda"
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("--seed 7", "a session keeps its seed; take --new for another session"),
        ("--budget 10m", "/budget 10m on its steer line changes that"),
        ("--agents offline", "its engine is running; quit that one first"),
    ],
)
def test_options_that_a_begun_session_would_not_follow_are_refused(
    kerneltui: Kerneltui,
    session: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: str,
    says: str,
):
    monkeypatch.setattr("kerneltui.cli._need_terminal", lambda *_: None)
    monkeypatch.setattr("kerneltui.engine.launcher.running", lambda _: True)
    option, value = given.split()
    result = kerneltui("open", session, option, value)
    assert result.code == 2
    assert f"{option} is of no effect: " in result.error
    assert says in result.error


# -- replay and bundle


def test_replay_gives_the_fold_at_every_step(kerneltui: Kerneltui, session: Path, bundle: Path):
    with Session.open(session, writable=False) as opened:
        events = list(read_events(opened))
    assert len(events) > 6
    for step in range(1, len(events) + 1):
        result = kerneltui("replay", session, "--json", "--step", step)
        assert result.code == 0
        assert result.out == fold(events[:step]).canonical() + b"\n"
    for step in (1, len(events)):
        result = kerneltui("replay", bundle, "--json", "--step", step)
        assert (result.code, result.out) == (0, fold(events[:step]).canonical() + b"\n")
    for source in (bundle, session):
        result = kerneltui("replay", source, "--json")
        assert (result.code, result.out) == (0, fold(events).canonical() + b"\n")


def test_replay_as_text_is_the_story(kerneltui: Kerneltui, bundle: Path):
    result = kerneltui("replay", bundle, "--step", 4)
    lines = result.out.decode().splitlines()
    assert (result.code, len(lines)) == (0, 5)
    assert lines[1].split()[:3] == ["1", "opened", "gemm_allgather-cpu-0001:"]
    assert lines[2].split()[1:4] == ["budget", "set", "to"]
    assert lines[3].split()[1:] == ["calibrated", "5", "shapes:", "a", "verdict", "needs", "1.0%"]
    whole = kerneltui("replay", bundle).out.decode()
    assert "rule: accept c0001" in whole


def test_a_step_that_does_not_exist(kerneltui: Kerneltui, bundle: Path):
    result = kerneltui("replay", bundle, "--json", "--step", 9999)
    assert result.code == 2
    assert result.error.startswith("there is no step 9999; the session has ")


def test_bundle_writes_what_replay_reads(kerneltui: Kerneltui, session: Path, tmp_path: Path):
    file = tmp_path / "out.bundle"
    result = kerneltui("bundle", session, file)
    assert result.code == 0
    assert f"kerneltui replay {file}" in result.err
    assert kerneltui("replay", file, "--json").out == kerneltui("replay", session, "--json").out


@pytest.mark.parametrize("damage", ["garbage", "cut", "empty"])
def test_a_damaged_bundle_is_one_line(
    kerneltui: Kerneltui, bundle: Path, tmp_path: Path, damage: str
):
    data = bundle.read_bytes()
    file = tmp_path / "bad.bundle"
    file.write_bytes({"garbage": b"\0garbage", "cut": data[: len(data) // 2], "empty": b""}[damage])
    result = kerneltui("replay", file, "--json")
    assert result.code == 2
    assert str(file) in result.error
    assert result.out == b""


def test_a_folder_that_is_no_session(kerneltui: Kerneltui, tmp_path: Path):
    result = kerneltui("bundle", tmp_path, tmp_path / "out.bundle")
    assert result.code == 2
    assert str(tmp_path) in result.error
    assert list(tmp_path.iterdir()) == []


# -- budgets


@given(st.integers(1, 10**6), st.sampled_from("smh"))
def test_budgets_are_times(count: int, unit: str):
    seconds = {"s": 1, "m": 60, "h": 3600}[unit]
    assert parse_budget(f" {count}{unit}") == count * seconds * 10**9
    assert parse_budget(f"{count}.5{unit}") == round((count + 0.5) * seconds * 10**9)


@pytest.mark.parametrize(
    "text", ["", "0s", "0.0h", "10", "m", "1e3s", "-1m", "5d", "5 m", "inf", "1,5h"]
)
def test_what_is_no_time_is_refused_with_examples(text: str):
    with pytest.raises(ValueError, match=r"write 90s, 10m or 1\.5h"):
        parse_budget(text)
