"""What the news of an evaluation become in a session: events, notes and logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kerneltui.engine.recorder import Recorder, now_ns
from kerneltui.evaluation.outcome import Built, CalibrationResult, Outcome, Verified
from kerneltui.model.candidate import Failure
from kerneltui.model.event import (
    Calibrated,
    CandidateBuilt,
    CandidateFailed,
    CandidateMeasured,
    CandidateVerified,
    EvaluationInterrupted,
)
from kerneltui.model.measurement import FailureKind, Stage

__all__ = ["record_calibration", "record_fault", "record_outcome", "record_stage"]


def record_stage(recorder: Recorder, candidate: str, update: Built | Verified) -> None:
    """Records that a running evaluation has passed a stage."""
    match update:
        case Built():
            recorder.record(
                CandidateBuilt(
                    at=now_ns(),
                    id=candidate,
                    build_ns=update.build_ns,
                    cached=update.cached,
                    diagnostics=update.diagnostics,
                )
            )
        case Verified():
            recorder.record(CandidateVerified(at=now_ns(), id=candidate, note=update.note))


def record_calibration(
    recorder: Recorder, found: CalibrationResult, environment: Mapping[str, str]
) -> None:
    """Records what verdicts of this session are measured with, and on what machine."""
    recorder.record(
        Calibrated(
            at=now_ns(),
            delta=found.delta,
            aa_half_width=found.aa_half_width,
            shapes=found.shapes,
            mutants=found.mutants,
            environment=environment,
        )
    )


def record_outcome(recorder: Recorder, candidate: str, outcome: Outcome | None) -> bool:
    """Records how an evaluation ended: the note first, then the event.

    Args:
        recorder: Writes.
        candidate: Which was evaluated.
        outcome: What came of it; None if it was interrupted.

    Returns:
        Whether it was measured.
    """
    if outcome is None:
        recorder.record(EvaluationInterrupted(at=now_ns(), id=candidate))
        return False
    found = {"measurement": outcome.measurement, "failure": outcome.failure}
    record = {**outcome.record, **{key: value for key, value in found.items() if value}}
    blobs = recorder.note(candidate, record, outcome.raw)
    if outcome.failure is not None:
        failure = outcome.failure
        if outcome.log:
            name = f"{candidate}-{recorder.state.candidates[candidate].attempt}.log"
            digest = recorder.session.write_log(name, outcome.log.encode())
            failure = replace(failure, log=f"{name}@{digest}")
        recorder.record(CandidateFailed(at=now_ns(), id=candidate, failure=failure), blobs)
        return False
    assert outcome.measurement is not None
    measured = CandidateMeasured(at=now_ns(), id=candidate, measurement=outcome.measurement)
    recorder.record(measured, blobs)
    return True


def record_fault(recorder: Recorder, candidate: str, error: Exception) -> None:
    """Records that the harness failed in an evaluation, which says nothing about the candidate."""
    failure = Failure(Stage.VERIFY, FailureKind.HARNESS_FAULT, f"{error}")
    recorder.record(CandidateFailed(at=now_ns(), id=candidate, failure=failure))
