"""The directive: the typed optimisation choice behind a candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kerneltui.model.errors import RecordError

__all__ = ["FIELDS", "Backend", "Directive", "Issuer", "Placement", "Sync"]


class Backend(StrEnum):
    """Who moves the data. CPU windows and torch symmetric memory are LSA."""

    HOST = "host"
    LSA = "lsa"
    GIN = "gin"
    COPY_ENGINE = "copy_engine"


class Placement(StrEnum):
    """Where communication stands relative to the computation."""

    SEQUENTIAL = "sequential"
    STREAM_OVERLAP = "stream_overlap"
    SPLIT_PUT_WAIT = "split_put_wait"
    FUSED = "fused"
    PERSISTENT = "persistent"


class Sync(StrEnum):
    """What tells a rank that its peers' data has arrived."""

    WORLD = "world"
    FLAG_PER_CHUNK = "flag_per_chunk"
    COUNTER = "counter"
    NONE = "none"


class Issuer(StrEnum):
    """Who issues the communication inside the kernel."""

    THREAD = "thread"
    WARP = "warp"
    CTA = "cta"
    DEDICATED = "dedicated"


def _no_extra() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Directive:
    """One point of the directive space, with optional further fields as text.

    `chunk_bytes` is the size of one transfer in bytes; 0 stands for the whole shard.
    """

    backend: Backend
    placement: Placement
    sync: Sync
    issuer: Issuer
    chunk_bytes: int
    extra: Mapping[str, str] = field(default_factory=_no_extra)

    def __post_init__(self) -> None:
        if self.chunk_bytes < 0:
            raise RecordError(f"chunk_bytes is {self.chunk_bytes}, expected 0 or more")
        clash = self.extra.keys() & set(FIELDS)
        if clash:
            raise RecordError(f"directive field '{min(clash)}' given twice")

    def items(self) -> dict[str, str]:
        """Returns all fields as text, core fields first."""
        core: dict[str, str] = {name: str(getattr(self, name)) for name in FIELDS}
        return core | dict(sorted(self.extra.items()))

    def summary(self) -> str:
        """Returns the one-line form: `lsa thread fused flag_per_chunk 65536 B`."""
        chunk = f"{self.chunk_bytes} B" if self.chunk_bytes else "whole shard"
        return f"{self.backend} {self.issuer} {self.placement} {self.sync} {chunk}"

    @classmethod
    def from_items(cls, items: Mapping[str, str]) -> Directive:
        """Builds a directive from text fields, such as trailers.

        Raises:
            RecordError: A core field is missing or has a value that it must not have.
        """
        try:
            return cls(
                backend=Backend(items["backend"]),
                placement=Placement(items["placement"]),
                sync=Sync(items["sync"]),
                issuer=Issuer(items["issuer"]),
                chunk_bytes=int(items["chunk_bytes"]),
                extra={key: value for key, value in items.items() if key not in FIELDS},
            )
        except KeyError as error:
            raise RecordError(f"directive field {error} is missing") from error
        except ValueError as error:
            raise RecordError(f"directive: {error}") from error


FIELDS = ("backend", "placement", "sync", "issuer", "chunk_bytes")
