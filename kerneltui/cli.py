"""The command line. Every error is one line: what, where, what to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from kerneltui.config import DEFAULT_CANDIDATES, config_folder, parse_budget
from kerneltui.headless.output import Exit

__all__ = ["main"]

_PATH = click.Path(path_type=Path)


class _Budget(click.ParamType):
    """A time such as 90s, 10m or 1.5h."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Turns the text into nanoseconds."""
        if isinstance(value, int):
            return value
        try:
            return parse_budget(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _example(text: str) -> str:
    return f"\b\nExample:\n  {text}"


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_example("kerneltui open workloads/gemm_allgather"),
)
@click.version_option(package_name="kerneltui", prog_name="kerneltui")
def cli() -> None:
    """Tune kernels together with two agents; the judge is honest and the record is git."""


def _agents(wanted: str | None) -> str:
    """The agents that were asked for, or else those that this environment can have."""
    from kerneltui.agents.choosing import choose_agents

    try:
        return choose_agents(wanted, os.environ, config_folder())
    except ValueError as error:
        raise click.UsageError(f"--agents {error}, or take --agents offline") from error


def _refuse_for_begun(session: Path, *, attaching: bool) -> None:
    """Refuses options that a session which has begun would not follow."""
    given = click.get_current_context().get_parameter_source
    reasons = {
        "seed": "a session keeps its seed; take --new for another session",
        "budget": "the session has begun; /budget 10m on its steer line changes that",
    }
    if attaching:
        reasons["agents"] = "its engine is running; quit that one first"
    for name, reason in reasons.items():
        if given(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{_short(session)}: --{name} is of no effect: {reason}")


@cli.command(
    "open",
    short_help="Attach to a session, resume one, or start one.",
    epilog=_example("kerneltui open workloads/gemm_allgather --target cpu"),
)
@click.argument("what", metavar="WORKLOAD|SESSION|BUNDLE", type=_PATH)
@click.option("--new", is_flag=True, help="Start a new session even if one is unfinished.")
@click.option("--session", type=_PATH, help="Folder of the session.")
@click.option("--target", help="Where kernels run (cpu, cuda).")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the search.")
@click.option("--budget", type=_Budget(), help="Time for the search, such as 10m.")
@click.option(
    "--agents",
    type=click.Choice(["off", "offline", "claude"]),
    help="Who proposes; claude if there is a key, else the offline search.",
)
@click.option("--readonly", is_flag=True, help="Look on; decide nothing.")
def open_command(
    what: Path,
    *,
    new: bool,
    session: Path | None,
    target: str | None,
    seed: int,
    budget: int | None,
    agents: str | None,
    readonly: bool,
) -> int:
    """Attach to the running engine, resume the unfinished session, or start one."""
    from kerneltui.engine.errors import OpeningFailed

    _need_terminal("open", "use 'kerneltui tune' for a run without one")
    if what.is_file():
        return _replay_screen(what, None)
    from kerneltui.engine.launcher import Launch, launch_engine, running
    from kerneltui.engine.place import default_target, find_place
    from kerneltui.tui import run

    place = find_place(what, session=session, new=new, target=target)
    if place.workload is None and not place.exists:
        raise OpeningFailed(f"{what}: no workload was found")
    if place.exists:
        _refuse_for_begun(place.session, attaching=running(place))
    chosen = target or default_target(place)
    mode = "" if place.exists and agents is None else _agents(agents)
    launch = Launch(chosen, mode, seed, "none", None, budget)
    quit_ = run(
        connect=lambda report: str(launch_engine(place, launch, report)),
        readonly=readonly,
        replay=False,
        step=None,
        session=place.session,
    )
    if quit_.message:
        click.echo(quit_.message, err=True)
    click.echo(f"come back with: kerneltui open {_short(place.session)}", err=True)
    return quit_.exit_code


@cli.command(
    epilog=_example("kerneltui tune workloads/gemm_allgather --candidates 40 --accept auto")
)
@click.argument("workload", type=_PATH)
@click.option("--session", type=_PATH, help="Folder of the session.")
@click.option("--new", is_flag=True, help="Start a new session even if one is unfinished.")
@click.option("--target", help="Where kernels run (cpu, cuda).")
@click.option(
    "--candidates",
    type=click.IntRange(min=1),
    help=f"At most so many; {DEFAULT_CANDIDATES} if no time is given either.",
)
@click.option("--budget", type=_Budget(), help="Time for the search, such as 10m.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the search.")
@click.option(
    "--accept",
    type=click.Choice(["auto", "none"]),
    default="auto",
    show_default=True,
    help="By rule what is FASTER and confirmed, or nothing.",
)
@click.option(
    "--agents",
    type=click.Choice(["offline", "claude"]),
    help="Who proposes; claude if there is a key, else the offline search.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON lines on standard output.")
def tune(
    workload: Path,
    *,
    session: Path | None,
    new: bool,
    target: str | None,
    candidates: int | None,
    budget: int | None,
    seed: int,
    accept: str,
    agents: str | None,
    as_json: bool,
) -> int:
    """Tune without a terminal; Ctrl-C stops and keeps the best."""
    from kerneltui.engine.opening import Start
    from kerneltui.engine.place import default_target, find_place
    from kerneltui.headless.tune import tune as run_tune
    from kerneltui.model.event import AcceptRule

    place = find_place(workload, session=session, new=new, target=target)
    start = Start(
        target=target or default_target(place),
        agents=_agents(agents),
        seed=seed,
        rule=AcceptRule(accept),
        candidates=DEFAULT_CANDIDATES if candidates is None and budget is None else candidates,
        time_ns=budget,
    )
    return run_tune(place, start, as_json=as_json)


@cli.command(
    short_help="Print what an agent's model would be told.",
    epilog=_example("kerneltui context workloads/gemm_allgather --agent slow"),
)
@click.argument("workload", type=_PATH)
@click.option("--session", type=_PATH, help="As the agent would be asked in this session now.")
@click.option("--target", help="Where kernels run (cpu, cuda).")
@click.option(
    "--agent",
    type=click.Choice(["fast", "slow"]),
    default="fast",
    show_default=True,
    help="Which of the two.",
)
def context(workload: Path, *, session: Path | None, target: str | None, agent: str) -> int:
    """Print exactly what an agent's language model would be told, with token counts."""
    from kerneltui.headless.context import context as run_context

    return run_context(workload, session=session, target=target, agent=agent)


@cli.command(
    short_help="Time kernels and baselines side by side.",
    epilog=_example("kerneltui bench workloads/gemm_allgather --session sessions/… --json"),
)
@click.argument("workload", type=_PATH)
@click.argument("kernels", nargs=-1, metavar="[KERNEL…]", type=_PATH)
@click.option(
    "--session", type=_PATH, help="Whose accepted kernel; the newest session's if left out."
)
@click.option("--target", help="Where kernels run (cpu, cuda).")
@click.option(
    "--shapes",
    type=click.Choice(["tune", "bench", "all"]),
    help="Which shapes; those tagged bench if there are any, else tune.",
)
@click.option(
    "--mode",
    type=click.Choice(["offline", "server", "both"]),
    default="offline",
    show_default=True,
    help="Back to back, single calls after pauses, or both.",
)
@click.option(
    "--rounds", type=click.IntRange(min=3), default=22, show_default=True, help="At most."
)
@click.option(
    "--gap-ms",
    type=click.FloatRange(min=0.01, max=1000.0),
    default=2.0,
    show_default=True,
    help="Mean pause of the server mode.",
)
@click.option(
    "--arrivals", type=click.IntRange(min=16), default=200, show_default=True, help="Its calls."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of its pauses.")
@click.option("--sustained", type=_Budget(), help="Calls without a pause for so long, such as 2s.")
@click.option(
    "--sustained-shapes",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="For so many shapes, evenly spread over the work.",
)
@click.option("--budget", type=_Budget(), help="No further shape is begun after so long.")
@click.option("--output", type=_PATH, help="Everything as one JSON file, with all samples.")
@click.option("--resume", is_flag=True, help="Go on with that file: only shapes it lacks.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines on standard output.")
def bench(
    workload: Path,
    kernels: tuple[Path, ...],
    *,
    session: Path | None,
    target: str | None,
    sustained: int | None,
    budget: int | None,
    gap_ms: float,
    **wishes: Any,
) -> int:
    """Measure baselines, kernels and the accepted kernel side by side, interleaved in one run."""
    from kerneltui.headless.bench import BenchWishes
    from kerneltui.headless.bench import bench as run_bench

    wanted = BenchWishes(
        gap_ns=round(gap_ms * 1e6),
        sustained_s=(sustained or 0) / 1e9,
        budget_s=None if budget is None else budget / 1e9,
        **wishes,
    )
    return run_bench(workload, kernels, session=session, target=target, wishes=wanted)


@cli.command(
    short_help="Test a workload, and kernels against it.",
    epilog=_example("kerneltui verify workloads/gemm_allgather kernels/gemm_allgather/window.cpp"),
)
@click.argument("workload", type=_PATH)
@click.argument("kernel", required=False, type=_PATH)
@click.option("--target", help="Where kernels run (cpu, cuda).")
def verify(workload: Path, kernel: Path | None, *, target: str | None) -> int:
    """Test the workload itself, and a kernel (or all of its library) against it."""
    from kerneltui.headless.verify import verify as run_verify

    return run_verify(workload, kernel, target=target)


@cli.command(short_help="Say what this machine has and lacks.", epilog=_example("kerneltui doctor"))
def doctor() -> int:
    """Say what this machine has, what is missing, and what to do about it."""
    from kerneltui.headless.doctor import doctor as run_doctor

    return run_doctor()


@cli.command(
    epilog=_example("kerneltui replay sessions/gemm_allgather-cpu.bundle --step 12 --json")
)
@click.argument("source", metavar="SESSION|BUNDLE", type=_PATH)
@click.option("--step", type=click.IntRange(min=1), help="The state after this step.")
@click.option("--json", "as_json", is_flag=True, help="The canonical state as JSON.")
def replay(source: Path, *, step: int | None, as_json: bool) -> int:
    """Show a recorded session step by step."""
    if as_json or not sys.stdout.isatty():
        from kerneltui.headless.replay import replay as run_replay

        return run_replay(source, step=step, as_json=as_json)
    return _replay_screen(source, step)


@cli.command(epilog=_example("kerneltui bundle sessions/gemm_allgather-cpu-1a2b run.bundle"))
@click.argument("session", type=_PATH)
@click.argument("file", type=_PATH)
def bundle(session: Path, file: Path) -> int:
    """Write a whole session into one file."""
    from kerneltui.headless.bundle import bundle as run_bundle

    return run_bundle(session, file)


def _replay_screen(source: Path, step: int | None) -> int:
    from kerneltui.engine.errors import OpeningFailed
    from kerneltui.engine.launcher import launch_reader
    from kerneltui.tui import run

    if not source.exists():
        raise OpeningFailed(f"{source}: no such session or bundle; see the folder sessions/")
    readers: list[Any] = []

    def connect(report: Callable[[str], None]) -> str:
        path, process = launch_reader(source, report)
        readers.append(process)
        return str(path)

    try:
        quit_ = run(connect=connect, readonly=True, replay=True, step=step)
    finally:
        for process in readers:
            process.stdin.close()
            process.wait(5)
    if quit_.message:
        click.echo(quit_.message, err=True)
    return quit_.exit_code


def _need_terminal(command: str, remedy: str) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(f"'{command}' needs a terminal; {remedy}")
    if os.environ.get("TERM") in (None, "dumb"):
        raise click.UsageError(f"TERM={os.environ.get('TERM')} cannot show a screen; {remedy}")


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def main() -> None:
    """Runs a command and turns every expected error into one line and an exit code."""
    from kerneltui.model.errors import UserError

    try:
        code = cli.main(prog_name="kerneltui", standalone_mode=False)
    except click.exceptions.Exit as error:
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = Exit.INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else error.format_message(), err=True)
        code = Exit.USAGE
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "kerneltui"
        click.echo(
            f"kerneltui: {error.format_message().rstrip('.')} (see '{command} --help')", err=True
        )
        code = Exit.USAGE
    except (UserError, OSError) as error:
        click.echo(f"kerneltui: {error}", err=True)
        code = Exit.REFUSED if getattr(error, "unfit", False) else Exit.USAGE
    sys.exit(int(code or 0))
