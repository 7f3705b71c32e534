"""The bench that several modules of this folder use: target, judge and a workload for one GPU or two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from smoke import Bench


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One for each module, started."""
    from gpus import ranks_here  # not where all modules skip
    from smoke import Bench

    made = Bench(tmp_path_factory.mktemp("project"), ranks_here())
    made.stand.start()
    made.stand.ready()
    yield made
    made.stand.close()
