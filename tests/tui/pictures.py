"""Exports the pictures of the README and the documentation: `python tests/tui/pictures.py FOLDER`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

from fakes import Desk, until  # noqa: E402

PICTURES: dict[str, tuple[bool, tuple[int, int], Sequence[str]]] = {
    "tuning-80x24": (False, (80, 24), ()),
    "tuning-120x40": (False, (120, 40), ()),
    "tuning-200x50": (False, (200, 50), ()),
    "bench-120x40": (False, (120, 40), ("right_square_bracket",) * 4),
    "replay-80x24": (True, (80, 24), ("left", "left")),
    "replay-120x40": (True, (120, 40), ("left", "left")),
}


async def export(folder: Path, names: Sequence[str], keys: Sequence[str] = ()) -> None:
    """Draws each picture and writes it as SVG."""
    for name in names:
        replay, size, presses = PICTURES[name]
        desk = Desk(replay=replay)
        async with desk.app.run_test(size=size) as pilot:
            await until(pilot, lambda desk=desk: desk.app.base is not None, "the screen")
            screen = desk.app.base

            def loaded(screen: object = screen) -> bool:
                return getattr(screen, "loaded", None) is not None

            await until(pilot, loaded, "the first diff")
            await pilot.press(*presses, *keys)
            await until(pilot, loaded, "the last diff")
            svg = desk.app.export_screenshot(title="kerneltui")
            (folder / f"{name}.svg").write_text(svg, encoding="utf-8")


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(export(folder, sys.argv[2:] or list(PICTURES)))


if __name__ == "__main__":
    main()
