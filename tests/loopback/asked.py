"""Answers that fit whatever kernel a question is about: which one that is depends on what was measured."""

from __future__ import annotations

import re
from typing import Any

from kerneltui.model.kernel import Kernel, parse_kernel

_OWN = re.compile(r"^## c\d+, (\S+)\n\n(`{3,})\w*\n(.*?)\n\2$", re.MULTILINE | re.DOTALL)
_OTHER = re.compile(
    r"^## The other kernel, c\d+\n.*?^(`{3,})\n(.*?)\n\1$", re.MULTILINE | re.DOTALL
)
_FIELDS = ("backend", "issuer", "placement", "sync", "chunk_bytes")
_SHAPE = {"M": 512, "N": 512, "K": 512, "RANKS": 2}


def parent_in(question: str) -> Kernel:
    """The kernel that is to be changed."""
    found = _OWN.search(question)
    assert found, f"no kernel in the question:\n{question[-2000:]}"
    return parse_kernel(found[3] + "\n", found[1])


def other_in(question: str) -> Kernel:
    """The other parent of a crossover."""
    found = _OTHER.search(question)
    assert found, f"no other kernel in the question:\n{question[-2000:]}"
    return parse_kernel(found[2] + "\n")


def stated_of(kernel: Kernel) -> dict[str, Any]:
    """The directive that a kernel's comments declare, as an answer states it."""
    found = kernel.directive(_SHAPE)
    return {name: getattr(found, name) for name in _FIELDS}


def region_of(kernel: Kernel, name: str) -> str:
    """The text between the marks of a region."""
    region = next(one for one in kernel.regions if one.name == name)
    return "\n".join(kernel.source.split("\n")[region.first - 1 : region.last]) + "\n"


def added_line(kernel: Kernel, line: str) -> dict[str, str]:
    """An edit that puts a line at the head of the last region where that line of the text is unique."""
    for region in reversed(kernel.regions):
        text = region_of(kernel, region.name).splitlines()
        head = next((one for one in text if one.strip()), "")
        if head and kernel.source.count(head) == 1:
            return {"search": head, "replace": f"{line}\n{head}"}
    raise AssertionError(f"no region of {kernel.file} begins with a line of its own")


def crossed(question: str, name: str) -> str:
    """A region of the other kernel, if all around it is the same there, or else the parent's own."""
    parent, other = parent_in(question), other_in(question)
    same = parent.frozen_text() == other.frozen_text()
    return region_of(other if same else parent, name)
