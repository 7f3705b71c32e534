"""The bench that several modules of this folder use: target, judge and a workload for two GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from smoke import Bench


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One for each module, started."""
    from smoke import Bench  # not where all modules skip

    made = Bench(tmp_path_factory.mktemp("project"))
    made.stand.start()
    made.stand.ready()
    yield made
    made.stand.close()
