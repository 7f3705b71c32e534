"""Kernel files of a workload as baselines, in a fixed configuration if the name says so.

`lsa_chunked(BACKEND=copy_engine)` is the file `lsa_chunked.cu` with that value of its tunable: a baseline
stays what it is when the defaults of the file change.
"""

from __future__ import annotations

import re
from pathlib import Path

from kerneltui.model.errors import DefinitionError
from kerneltui.model.expression import Value
from kerneltui.model.kernel import Kernel, parse_kernel

__all__ = ["baseline_kernel"]

_NAME = re.compile(r"(?P<stem>\w+)(?:\((?P<settings>[^()]*)\))?")


def baseline_kernel(folder: Path, name: str) -> Kernel | None:
    """The kernel of a baseline, or None for one that is built in.

    Args:
        folder: Of the workload's kernel files.
        name: A file without its suffix, then values of tunables in brackets, if any.

    Raises:
        DefinitionError: The name cannot be read, the file has no such tunable, or no such value of it.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise DefinitionError(name, "baselines", "expected kernel or kernel(TUNABLE=value, …)")
    files = sorted(file for kind in ("c*", "py") for file in folder.glob(f"{found['stem']}.{kind}"))
    if not files:
        if found["settings"] is not None:
            raise DefinitionError(name, "baselines", f"{folder} has no such kernel")
        return None
    file = files[0]
    kernel = parse_kernel(file.read_text(encoding="utf-8"), str(file))
    if not found["settings"]:
        return kernel
    return parse_kernel(kernel.render(_settings(kernel, found["settings"], name)), str(file))


def _settings(kernel: Kernel, text: str, name: str) -> dict[str, Value]:
    legal = {tunable.name: {str(v): v for v in tunable.values} for tunable in kernel.tunables}
    settings: dict[str, Value] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise DefinitionError(name, "baselines", f"'{part.strip()}' is not TUNABLE=value")
        # What is not legal is refused by name when it is put into the text.
        settings[key] = legal.get(key, {}).get(value, value)
    return settings
