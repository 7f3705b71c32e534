"""What the human banned or forced, held against a kernel."""

from __future__ import annotations

import pytest

from kerneltui.model.directive import Backend, Directive, Issuer, Placement, Sync
from kerneltui.model.event import ConstraintKind
from kerneltui.model.steering import Constraint
from kerneltui.search.constraints import directive_problem, violation

DIRECTIVE = Directive(Backend.LSA, Placement.FUSED, Sync.WORLD, Issuer.CTA, 4096)
TUNABLES = {"TILE": 64, "SYNC": "SYNC_world"}


@pytest.mark.parametrize(
    ("kind", "field", "value", "broken"),
    [
        ("ban", "backend", "gin", ""),
        ("ban", "backend", "lsa", "backend=lsa is banned"),
        ("force", "chunk_bytes", "4096", ""),
        ("force", "chunk_bytes", "0", "chunk_bytes=0 is forced, and this has 4096"),
        ("force", "TILE", "64", ""),
        ("force", "TILE", "32", "TILE=32 is forced, and this has 64"),
        ("ban", "TILE", "64", "TILE=64 is banned"),
        ("ban", "ELSEWHERE", "1", ""),
        ("force", "PLACEMENT", "fused", ""),
        ("ban", "PLACEMENT", "PLACEMENT_fused", "placement=fused is banned"),
        ("force", "SYNC", "SYNC_world", ""),
        ("pin", "", "c0001", ""),
    ],
)
def test_a_kernel_keeps_to_what_is_asked(kind: str, field: str, value: str, broken: str):
    asked = [Constraint(ConstraintKind(kind), field, value)]
    assert violation(asked, DIRECTIVE, TUNABLES) == broken


@pytest.mark.parametrize(
    ("field", "value", "fits"),
    [
        ("backend", "lsa", True),
        ("backend", "fused", False),
        ("issuer", "cta", True),
        ("chunk_bytes", "0", True),
        ("chunk_bytes", "65536", True),
        ("chunk_bytes", "-1", False),
        ("chunk_bytes", "064", False),
        ("chunk_bytes", "", False),
        ("chunk_bytes", "²", False),
    ],
)
def test_fields_of_the_directive_have_values_of_their_own(field: str, value: str, fits: bool):
    assert (not directive_problem(field, value)) is fits
