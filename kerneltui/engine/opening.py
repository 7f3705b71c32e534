"""Makes a session, or opens one and brings state, refs and main to what the journal says."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kerneltui.engine.errors import OpeningFailed, WorkloadUnfit
from kerneltui.engine.recorder import NOTES_FILE, Recorder, now_ns, unheard
from kerneltui.model.errors import RecordError
from kerneltui.model.event import (
    SCHEMA,
    AcceptRule,
    BudgetSet,
    Event,
    SessionOpened,
    SessionResumed,
    ShapeInfo,
    decode_event,
)
from kerneltui.model.kernel import Kernel, Language, parse_kernel
from kerneltui.model.state import State
from kerneltui.model.workload import TargetSpec, Workload
from kerneltui.model.workload_file import load_workload
from kerneltui.session import snapshot
from kerneltui.session.repository import Session

__all__ = [
    "SNAPSHOT_EVERY",
    "Start",
    "create_session",
    "kernel_path",
    "library_kernels",
    "load_state",
    "read_events",
    "read_kernel",
    "resume_session",
    "save_snapshot",
    "target_spec",
    "workload_hash",
    "workload_on",
]

BASE = "c0000"
SNAPSHOT_EVERY = 2000


def _nothing() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Start:
    """What a new session is told."""

    target: str
    agents: str
    seed: int
    rule: AcceptRule
    candidates: int | None
    time_ns: int | None
    environment: Mapping[str, str] = field(default_factory=_nothing)
    micro_usd: int | None = None


def target_spec(workload: Workload, target: str | None) -> TargetSpec:
    """Returns what a workload is on a target.

    Raises:
        WorkloadUnfit: It is not defined for it.
    """
    name = target or next(iter(workload.targets))
    spec = workload.targets.get(name)
    if spec is None:
        known = ", ".join(workload.targets)
        raise WorkloadUnfit(f"{workload.name} is not defined for target '{name}'; it has {known}")
    return spec


def workload_on(folder: Path, target: str | None) -> tuple[Workload, TargetSpec]:
    """Reads a workload with the dtypes and shapes of a target, or of its first.

    Raises:
        DefinitionError: The definition is wrong.
        WorkloadUnfit: It has no such target.
    """
    spec = target_spec(load_workload(folder), target)
    return load_workload(folder, spec.name), spec


def read_kernel(workload: Workload, file: str) -> Kernel:
    """Reads and parses a library kernel of a workload.

    Raises:
        WorkloadUnfit: The file is missing.
        DefinitionError: Its declarations are wrong.
    """
    path = workload.kernels / file
    try:
        return parse_kernel(path.read_text(encoding="utf-8"), file)
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadUnfit(f"{path}: the kernel cannot be read ({error})") from error


def library_kernels(workload: Workload, spec: TargetSpec) -> list[Kernel]:
    """Returns the library kernels that the fast path may take, in order.

    Raises:
        WorkloadUnfit: One is missing, or not of the seed's language.
        DefinitionError: The declarations of one are wrong.
    """
    for file in spec.library:
        if Language.of(file) is not Language.of(spec.seed):
            raise WorkloadUnfit(
                f"{file}: kernels of a session are of one language, and its seed is {spec.seed}; "
                f"name it under baselines, or tune it by itself with a seed of its own"
            )
    return [read_kernel(workload, file) for file in spec.library]


def kernel_path(workload: str, file: str) -> str:
    """Returns where the kernel stands in a candidate's tree: `kernels/<workload>/kernel.<ext>`."""
    return f"kernels/{workload}/kernel{Path(file).suffix}"


def create_session(path: Path, workload: Workload, start: Start) -> Session:
    """Makes a session with the seed kernel on main and its first events.

    Raises:
        SessionError: The folder is taken or there is no room.
        WorkloadUnfit: The workload has no such target or no seed.
    """
    spec = target_spec(workload, start.target)
    seed = read_kernel(workload, spec.seed)
    at = now_ns()
    session = Session.create(
        path,
        files={
            kernel_path(workload.name, spec.seed): seed.source.encode(),
            "session.toml": _session_toml(workload, start).encode(),
            NOTES_FILE: b"# Notes\n\nWhat was learned in this session.\n",
        },
        message=f"{BASE}: the seed {spec.seed} of {workload.name}",
        trailers={"Kerneltui-Candidate": BASE, "Kerneltui-Derived-From": spec.seed},
        at_ns=at,
    )
    shapes = tuple(
        ShapeInfo(shape.name, shape.values, workload.limit.flops.number(shape.values))
        for shape in workload.shapes_for("tune")
    )
    recorder = Recorder(session, State(), kernel_path(workload.name, spec.seed), unheard)
    opened = SessionOpened(
        at=at,
        session=path.name,
        workload=workload.name,
        title=workload.title,
        target=start.target,
        ranks=spec.ranks,
        seed=start.seed,
        agents=start.agents,
        rule=start.rule,
        base=BASE,
        base_sha=session.main,
        seed_file=spec.seed,
        shapes=shapes,
        workload_hash=workload_hash(workload),
        environment=start.environment,
    )
    recorder.record(opened)
    recorder.record(BudgetSet(at=now_ns(), candidates=start.candidates, time_ns=start.time_ns))
    return session


def read_events(session: Session, start: int = 0) -> Iterator[Event]:
    """Decodes the events of the journal after a position.

    Raises:
        NewerSchema: The session was written by a newer kerneltui.
        RecordError: An event is malformed.
    """
    for entry in session.journal.read(start):
        try:
            yield decode_event(entry.body)
        except RecordError as error:
            raise type(error)(f"{session.path}: event {entry.position}: {error}") from error


def load_state(session: Session) -> State:
    """Folds the journal: from the snapshot if it fits, else from the beginning."""
    state = State()
    cached = snapshot.load(session, version=SCHEMA)
    if cached is not None:
        try:
            state = State.from_canonical(cached.payload)
        except RecordError:
            # A snapshot is a cache: one that cannot be read is as good as none.
            state = State()
    for event in read_events(session, state.position):
        state.apply(event)
    return state


def save_snapshot(session: Session, state: State) -> None:
    """Caches the fold, so that opening need not read the whole journal."""
    snapshot.save(session, state.canonical(), position=state.position, version=SCHEMA)


def resume_session(recorder: Recorder, environment: Mapping[str, str]) -> list[str]:
    """Mends what a crash has left and notes that the session goes on; returns lines for the user.

    Candidates that no event names are dropped, and main goes back to what the journal says.

    Raises:
        OpeningFailed: The journal is empty.
    """
    session, state = recorder.session, recorder.state
    if not state.position:
        raise OpeningFailed(f"{session.path}: the journal is empty, there is no session to resume")
    notices = list(session.notices)
    dropped = session.drop_unnamed(list(state.candidates))
    if dropped:
        notices.append(f"dropped {', '.join(dropped)}: written, but not yet in the journal")
    if session.reset_main(state.main):
        notices.append("main was ahead of the journal and is back where the journal says")
    recorder.record(SessionResumed(at=now_ns(), environment=environment))
    return notices


def workload_hash(workload: Workload) -> str:
    """Returns the hash of what decides right and wrong: `workload.toml` and `reference.py`."""
    digest = hashlib.sha256(workload.text.encode())
    reference = workload.folder / "reference.py"
    if reference.is_file():
        digest.update(reference.read_bytes())
    return digest.hexdigest()


def _session_toml(workload: Workload, start: Start) -> str:
    lines = [
        "# What this tuning session is about; written once.",
        "schema = 1",
        f'workload = "{workload.name}"',
        f'target = "{start.target}"',
        f'agents = "{start.agents}"',
        f"seed = {start.seed}",
    ]
    return "\n".join(lines) + "\n"
