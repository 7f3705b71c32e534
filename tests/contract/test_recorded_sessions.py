"""The recorded sessions replay anywhere: no GPU, no compiler, every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerneltui.engine.reader import opened_recording
from kerneltui.model.candidate import CandidateState
from kerneltui.model.kernel import parse_kernel
from kerneltui.model.state import State, fold

BUNDLES = sorted((Path(__file__).parents[2] / "sessions").glob("*.bundle"))
MOST_BYTES = 5 << 20


def test_there_are_recorded_sessions_of_both_targets() -> None:
    names = [bundle.name for bundle in BUNDLES]
    assert "gemm_allgather-cpu.bundle" in names
    assert any("h200" in name for name in names)


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda path: path.stem)
def test_every_step_folds_and_every_kernel_can_be_read(bundle: Path) -> None:
    assert bundle.stat().st_size < MOST_BYTES
    with opened_recording(bundle) as recording:
        events = recording.events
        state = State()
        for event in events:
            state = fold([event], state)
        assert state.canonical() == fold(events).canonical()
        assert State.from_canonical(state.canonical()).canonical() == state.canonical()
        assert state.state_of(state.incumbent) in (CandidateState.BEST, CandidateState.BASE)
        assert state.incumbent != state.base, "something was accepted"
        file = Path(recording.recorder.kernel_path).name
        for candidate in state.candidates:
            parse_kernel(recording.recorder.source(candidate), file)
