"""Scripts of the loopback server: what each request has to look like, and how it is answered.

A script is TOML, a list of `[[step]]`. A request takes the first step that is not used up and whose
expectations it meets, so questions of two agents may come in any order.

    [[step]]
    name = "diff of c0001"
    expect = ["improve c0001", "^tool patch$"]   # regular expressions on the flat text of the request
    refuse = ["steering"]                        # and those that must not match
    times = 1                                    # how often the step can be taken; 0 is for ever
    status = 200                                 # anything else sends `error` with `headers`
    headers = { retry-after = "0" }
    error = { type = "overloaded_error", message = "Overloaded" }
    delay_ms = 0                                 # before the answer begins
    pace_ms = 0                                  # between two events
    pieces = 24                                  # characters in a delta
    usage = { input = 100, output = 20, cache_read = 0, cache_write = 0 }
    stop_reason = "tool_use"                     # by default what fits
    refusal = { category = "cyber", explanation = "…" }
    cut = "close"                                # or reset, clean (a good end, but too early), before, error
    cut_after = 3                                # events that are sent before the cut
    raw = "event: …"                             # the body as it is, instead of all that follows

    [[step.say]]                                 # in this order; one of thinking, text, tool
    thinking = "…"
    [[step.say]]
    text = "…"
    [[step.say]]
    tool = "patch"
    input = { reason = "…" }                     # or json = '{"half', as it is; or input_file = "x.json"
"""

from __future__ import annotations

import json
import re
import threading
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

CUTS = ("", "close", "reset", "clean", "before", "error")


@dataclass(frozen=True, slots=True)
class Say:
    """A block of an answer: `kind` is thinking, text or tool; a tool's `text` is its input as JSON."""

    kind: str
    text: str
    tool: str = ""


@dataclass(slots=True)
class Step:
    """See the module's text.

    In Python, `say` may be made from the flat text of the request, and the answer may wait for `until`.
    """

    name: str = ""
    expect: Sequence[str] = ()
    refuse: Sequence[str] = ()
    times: int = 1
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    error: Mapping[str, str] = field(default_factory=dict)
    delay_ms: int = 0
    pace_ms: int = 0
    pieces: int = 24
    usage: Mapping[str, int] = field(default_factory=dict)
    stop_reason: str = ""
    refusal: Mapping[str, str] = field(default_factory=dict)
    cut: str = ""
    cut_after: int = 0
    raw: str = ""
    say: Sequence[Say] | Callable[[str], Sequence[Say]] = ()
    until: threading.Event | None = None
    taken: int = 0

    def fits(self, text: str) -> bool:
        return all(re.search(one, text, re.MULTILINE) for one in self.expect) and not any(
            re.search(one, text, re.MULTILINE) for one in self.refuse
        )

    @property
    def open(self) -> bool:
        return self.times == 0 or self.taken < self.times

    @property
    def done(self) -> bool:
        return self.times == 0 or self.taken >= self.times

    def events(self, model: str, text: str = "") -> list[tuple[str, dict[str, Any]]]:
        """The stream of the answer to a request with that flat text."""
        said = self.say(text) if callable(self.say) else self.say
        usage = {
            "input_tokens": self.usage.get("input", 100),
            "cache_creation_input_tokens": self.usage.get("cache_write", 0),
            "cache_read_input_tokens": self.usage.get("cache_read", 0),
        }
        begin = {
            "id": "msg_loopback",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**usage, "output_tokens": 1},
        }
        made: list[tuple[str, dict[str, Any]]] = [("message_start", {"message": begin})]
        for index, say in enumerate(said):
            made += _block(index, say, self.pieces)
        tools = any(say.kind == "tool" for say in said)
        delta: dict[str, Any] = {
            "stop_reason": self.stop_reason or ("tool_use" if tools else "end_turn"),
            "stop_sequence": None,
        }
        if self.refusal:
            delta["stop_details"] = {"type": "refusal", **self.refusal}
        counts = {**usage, "output_tokens": self.usage.get("output", 20)}
        made.append(("message_delta", {"delta": delta, "usage": counts}))
        made.append(("message_stop", {}))
        made.insert(1, ("ping", {}))
        return [(name, {"type": name, **body}) for name, body in made]


def _block(index: int, say: Say, pieces: int) -> list[tuple[str, dict[str, Any]]]:
    block: dict[str, Any] = {"type": "text", "text": ""}
    kind, key = "text_delta", "text"
    if say.kind == "thinking":
        block = {"type": "thinking", "thinking": "", "signature": ""}
        kind, key = "thinking_delta", "thinking"
    elif say.kind == "tool":
        block = {"type": "tool_use", "id": f"toolu_{index}", "name": say.tool, "input": {}}
        kind, key = "input_json_delta", "partial_json"
    parts = [say.text[at : at + pieces] for at in range(0, len(say.text), pieces)]
    deltas = [
        ("content_block_delta", {"index": index, "delta": {"type": kind, key: part}})
        for part in parts
    ]
    if say.kind == "thinking":
        signed = {"type": "signature_delta", "signature": "c2lnbmVk"}
        deltas.append(("content_block_delta", {"index": index, "delta": signed}))
    return [
        ("content_block_start", {"index": index, "content_block": block}),
        *deltas,
        ("content_block_stop", {"index": index}),
    ]


def flat(body: Mapping[str, Any]) -> str:
    """A request as lines for regular expressions: model, settings, tools, then who says what."""
    lines = [f"model {body.get('model', '')}", f"max_tokens {body.get('max_tokens', '')}"]
    lines += [f"tool {tool['name']}" for tool in body.get("tools", ())]
    for message in [{"role": "system", "content": body.get("system", ())}, *body["messages"]]:
        content = message["content"]
        texts = [content] if isinstance(content, str) else [part["text"] for part in content]
        lines += [f"{message['role']}: {text}" for text in texts]
    return "\n".join(lines)


def read_script(path: Path) -> list[Step]:
    """Reads a script; a wrong key is an error, not a step that never fits."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    extra = set(table) - {"step"}
    if extra:
        raise ValueError(f"{path}: unknown {sorted(extra)}")
    return [_step(part, path) for part in table["step"]]


def _step(table: Mapping[str, Any], path: Path) -> Step:
    known = {item.name for item in fields(Step)} - {"taken", "until"}
    extra = set(table) - known
    if extra:
        raise ValueError(f"{path}: step {table.get('name', '?')}: unknown {sorted(extra)}")
    step = Step(**{**table, "say": tuple(_say(part, path) for part in table.get("say", ()))})
    if step.cut not in CUTS:
        raise ValueError(f"{path}: step {step.name}: cut {step.cut!r} is not one of {CUTS}")
    for pattern in (*step.expect, *step.refuse):
        re.compile(pattern)
    return step


def _say(table: Mapping[str, Any], path: Path) -> Say:
    def text_of(key: str) -> str | None:
        if f"{key}_file" in table:
            return (path.parent / table[f"{key}_file"]).read_text(encoding="utf-8")
        return table.get(key)

    for kind in ("thinking", "text"):
        text = text_of(kind)
        if text is not None:
            return Say(kind, text)
    if "tool" not in table:
        raise ValueError(f"{path}: a say has none of thinking, text and tool: {table}")
    if "json" in table:
        return Say("tool", table["json"], table["tool"])
    from_file = (path.parent / table["input_file"]).read_text() if "input_file" in table else None
    given = json.loads(from_file) if from_file is not None else table.get("input", {})
    return Say("tool", json.dumps(given, ensure_ascii=False), table["tool"])
