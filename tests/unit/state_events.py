"""Events of a short session, for tests of the fold."""

from __future__ import annotations

from dataclasses import replace

from model_strategies import sample_of

from kerneltui.model.candidate import AgentName, Origin
from kerneltui.model.event import (
    CandidateMeasured,
    CandidateProposed,
    Decided,
    Decision,
    Event,
    SessionOpened,
)
from kerneltui.model.measurement import Measurement
from kerneltui.model.state import State, fold

BASE = "c0000"
OPENED = replace(
    sample_of(SessionOpened), base=BASE, base_sha="sha-c0000", seed_file="host.cpp", seed=1, at=1
)
MEASUREMENT: Measurement = replace(sample_of(Measurement), quarantine="")


def proposed(identifier: str, parents: tuple[str, ...] = (BASE,)) -> CandidateProposed:
    return CandidateProposed(
        at=2,
        id=identifier,
        sha=f"sha-{identifier}",
        parents=parents,
        agent=AgentName.SLOW,
        origin=Origin.TUNABLES,
        reason="because",
        directive=None,
        generation=1,
        seed_file="window.cpp",
        configuration={"MR": "4"},
    )


def measured(identifier: str, against: str = BASE, quarantine: str = "") -> CandidateMeasured:
    measurement = replace(MEASUREMENT, against=against, quarantine=quarantine)
    return CandidateMeasured(at=3, id=identifier, measurement=measurement)


def decided(
    action: Decision, identifier: str, main: str, of: Decision | None = None, note: str = ""
) -> Decided:
    sha = f"sha-{identifier}"
    return Decided(
        at=4, action=action, candidate=identifier, sha=sha, by="human", main=main, note=note, of=of
    )


def opened(*events: Event) -> State:
    return fold([OPENED, *events])
