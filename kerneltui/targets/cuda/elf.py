"""Names in the symbol tables of an ELF file: what an object or a library asks for and offers."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from kerneltui.targets.errors import TargetError

__all__ = ["Symbols", "read_symbols"]

_SYMTAB, _DYNSYM = 2, 11
_UNDEFINED = 0


@dataclass(frozen=True, slots=True)
class Symbols:
    """Names of symbols.

    Attributes:
        undefined: Those that other files must have.
        defined: Those that this file has.
    """

    undefined: frozenset[str]
    defined: frozenset[str]


def read_symbols(file: Path) -> Symbols:
    """Reads the static and the dynamic symbol table of a 64-bit little-endian ELF file.

    Raises:
        TargetError: It is no such file, or it is damaged.
    """
    data = file.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise TargetError(f"{file.name} is no 64-bit ELF file")
    undefined: set[str] = set()
    defined: set[str] = set()
    try:
        sections = _sections(data)
        for kind, offset, size, link in sections:
            if kind not in (_SYMTAB, _DYNSYM):
                continue
            _, names, names_size, _ = sections[link]
            texts = data[names : names + names_size]
            for name, _, _, section, _, _ in struct.iter_unpack(
                "<IBBHQQ", data[offset : offset + size]
            ):
                text = texts[name : texts.index(b"\0", name)].decode("utf-8", "replace")
                if text:
                    (undefined if section == _UNDEFINED else defined).add(text)
    except (struct.error, IndexError, ValueError) as error:
        raise TargetError(f"{file.name} is a damaged ELF file: {error}") from error
    return Symbols(frozenset(undefined), frozenset(defined))


def _sections(data: bytes) -> list[tuple[int, int, int, int]]:
    """Type, offset, size and link of every section."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    found: list[tuple[int, int, int, int]] = []
    for index in range(count):
        header = struct.unpack_from("<IIQQQQIIQQ", data, table + index * size)
        found.append((header[1], header[4], header[5], header[6]))
    return found
