"""The one table of actions: it feeds bindings, footer, help, palette and docs/keys.md.

An action has a stable id, so that a user's keymap can name it. Keys live in scopes: decision keys are
bound on the candidate list and the diff only, and nothing but the steer line's own keys is live while
text is typed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from textual.binding import Binding

__all__ = [
    "ACTIONS",
    "LIVE_WHILE_TYPING",
    "Action",
    "Scope",
    "action",
    "bindings",
    "hints",
    "keys_document",
    "short_key",
]


class Scope(StrEnum):
    """Where an action's keys are live."""

    GLOBAL = "Everywhere"
    MOVE = "Moving"
    TUNING = "Tuning screen"
    DECISION = "Candidates and diff"
    REPLAY = "Replay"
    STEER = "Steer line"


@dataclass(frozen=True, slots=True)
class Action:
    """Something a key does.

    Attributes:
        id: Stable name.
        keys: Keys as written for the user: `a`, `ctrl+p`, `[`.
        text: One or two words for the footer and the palette.
        help: One line for help and documentation.
        scope: Where the keys are live.
        command: What is sent to the engine, if anything.
        hint: Place in the footer, 0 for none; smaller comes first.
    """

    id: str
    keys: tuple[str, ...]
    text: str
    help: str
    scope: Scope
    command: str = ""
    hint: int = 0


_G, _M, _T, _D, _R, _S = (
    Scope.GLOBAL,
    Scope.MOVE,
    Scope.TUNING,
    Scope.DECISION,
    Scope.REPLAY,
    Scope.STEER,
)

ACTIONS: tuple[Action, ...] = (
    # Candidates and diff
    Action(
        "candidate.accept",
        ("a",),
        "accept",
        "accept the displayed candidate with the selected hunks; fewer than all hunks make a new "
        "candidate that is checked and measured again",
        _D,
        "Accept",
        1,
    ),
    Action(
        "candidate.accept_rule",
        ("A",),
        "accept by rule",
        "accept, and let the rule accept from now on; the dialog states the rule",
        _D,
        "SetRule, Accept",
    ),
    Action("candidate.reject", ("r",), "reject", "reject the displayed candidate", _D, "Reject", 2),
    Action(
        "candidate.reject_note",
        ("R",),
        "reject with note",
        "reject with a note to the agent; an empty note is a plain reject",
        _D,
        "Reject",
    ),
    Action(
        "hunk.toggle",
        ("space",),
        "hunk",
        "select or leave out the hunk under the cursor",
        _D,
        "",
        3,
    ),
    Action("hunk.previous", ("h", "left"), "previous hunk", "go to the previous hunk", _D),
    Action("hunk.next", ("l", "right"), "next hunk", "go to the next hunk", _D),
    Action(
        "candidate.edit",
        ("e",),
        "edit",
        "edit the kernel in $EDITOR: the result is a new candidate of yours",
        _D,
        "Edit",
        4,
    ),
    Action(
        "candidate.rebench",
        ("b",),
        "rebench",
        "measure the candidate again, against the incumbent of now",
        _D,
        "Rebench",
        11,
    ),
    Action(
        "candidate.carry",
        ("C",),
        "carry over",
        "carry the candidate over to the kernel on main by a three-way merge: a new candidate",
        _D,
        "CarryOver",
    ),
    Action(
        "candidate.profile",
        ("P",),
        "profile",
        "count the candidate with the profiler of the GPU, while no evaluation runs",
        _D,
        "Profile",
    ),
    Action(
        "candidate.mark",
        ("c",),
        "mark",
        "mark the row for triage, or take its mark away; on to the next row",
        _D,
    ),
    Action("context.less", ("{",), "less context", "show less context around changes", _D),
    Action("context.more", ("}",), "more context", "show more context around changes", _D),
    # Tuning screen
    Action("steer", ("s", "i"), "steer", "write to the agents", _T, "Steer", 5),
    Action("decision.undo", ("z",), "undo", "undo the last decision", _T, "Undo", 6),
    Action("decision.redo", ("Z",), "redo", "make the undone decision again", _T, "Redo"),
    Action(
        "search.pause",
        ("p",),
        "pause",
        "pause after the current evaluation, or go on",
        _T,
        "SetPaused",
        7,
    ),
    Action(
        "mode",
        ("m",),
        "mode",
        "who accepts: you alone (MANUAL), or the rule as well (AUTO)",
        _T,
        "SetRule",
        10,
    ),
    Action("pending.next", ("n",), "next pending", "go to the next pending candidate", _T),
    Action("pending.previous", ("N",), "previous pending", "go to the previous pending one", _T),
    Action("list.sort", ("o",), "sort", "sort the list: pending, ratio, newest", _T),
    Action(
        "triage",
        (),
        "triage",
        "decide many by a rule that you state, over the marked rows or those in the list",
        _T,
        "Accept, Reject",
    ),
    Action("unmark", (), "unmark", "take all marks away", _T),
    Action("notes.edit", ("E",), "notes", "edit the lab notes in $EDITOR", _T, "WriteNotes"),
    Action("timeline", ("T",), "timeline", "replay the session up to now, step by step", _T),
    Action("engine.take_over", (), "take over", "make this terminal decide", _T, "TakeOver"),
    Action("engine.reconnect", (), "reconnect", "connect to the engine again", _T),
    # Replay
    Action("replay.play", ("space",), "play", "play or pause", _R, "", 1),
    Action("replay.back", (",",), "step back", "one step back", _R),
    Action("replay.forward", (".",), "step", "one step forward", _R, "", 2),
    Action("replay.previous", ("left",), "previous decision", "go to the previous decision", _R),
    Action("replay.next", ("right",), "decision", "go to the next decision", _R, "", 3),
    Action("replay.slower", ("-",), "slower", "play slower", _R),
    Action("replay.faster", ("=",), "faster", "play faster", _R, "", 4),
    Action("replay.goto", ("g",), "goto", "go to a step by its number", _R, "", 5),
    Action("replay.first", ("home", "<"), "first", "go to the first step", _R),
    Action("replay.last", ("end", ">"), "last", "go to the last step", _R),
    Action("replay.mark", ("m",), "mark", "set a mark here, or go back to it", _R, "", 6),
    # Everywhere
    Action("filter", ("/",), "filter", "filter the list", _G),
    Action("copy", ("y",), "copy", "copy sha, patch, code or row", _G, "", 9),
    Action("tab.previous", ("[",), "previous tab", "previous tab of the main panel", _G),
    Action("tab.next", ("]",), "tab", "next tab of the main panel", _G, "", 12),
    Action(
        "zoom.full", ("f",), "full", "give the focused panel the whole screen, or back", _G, "", 8
    ),
    Action("zoom.more", ("+",), "larger", "make the focused panel larger", _G),
    Action("zoom.less", ("_",), "smaller", "make the focused panel smaller", _G),
    Action("focus.0", ("0",), "main", "focus the main panel", _G),
    Action("focus.1", ("1",), "candidates", "focus the candidates, or the events of a replay", _G),
    Action("focus.2", ("2",), "main", "focus the main panel", _G),
    Action("focus.3", ("3",), "bench", "focus the chart", _G),
    Action("focus.4", ("4",), "agents", "focus the agents", _G),
    Action("focus.5", ("5",), "machine", "focus the machine", _G),
    Action("focus.next", ("tab",), "next panel", "focus the next panel", _G),
    Action("focus.previous", ("shift+tab",), "previous panel", "focus the previous panel", _G),
    Action(
        "escape", ("escape",), "back", "close, clear the filter, leave the input; nothing else", _G
    ),
    Action(
        "interrupt",
        ("ctrl+c",),
        "interrupt",
        "end a thought that a message waits for, or else the evaluation; twice: quit",
        _G,
        "Interrupt",
    ),
    Action("suspend", ("ctrl+z",), "to the shell", "put the terminal into the background", _G),
    Action(
        "quit", ("q",), "quit", "quit; asks whether the engine stops or goes on", _G, "StopEngine"
    ),
    Action(
        "palette", ("ctrl+p", ":"), "palette", "every action, and why it cannot be used", _G, "", 90
    ),
    Action("help", ("?", "f1"), "help", "the keys of this screen", _G, "", 91),
    Action(
        "code.machine",
        ("M",),
        "machine code",
        "compare the machine code with that of the parent, in the codegen tab",
        _G,
        "ReadMachineCode",
    ),
    Action(
        "screenshot", (), "screenshot", "save this screen as an SVG in the folder you came from", _G
    ),
    Action("grid.rows", ("u",), "grid rows", "the next field down the side of the grid", _G),
    Action("grid.columns", ("U",), "grid columns", "the next field across the grid", _G),
    # Moving
    Action("move.down", ("j", "down"), "down", "one row down", _M),
    Action("move.up", ("k", "up"), "up", "one row up", _M),
    Action("move.first", ("<", "home"), "first", "to the first row", _M),
    Action("move.last", (">", "end"), "last", "to the last row", _M),
    Action("move.page_up", (",", "pageup", "ctrl+u"), "page up", "one page up", _M),
    Action("move.page_down", (".", "pagedown", "ctrl+d"), "page down", "one page down", _M),
    Action("main.down", ("J",), "scroll main", "scroll the main panel down, focus stays", _M),
    Action("main.up", ("K",), "scroll main", "scroll the main panel up, focus stays", _M),
    Action("main.left", ("H",), "scroll main", "scroll the main panel left, focus stays", _M),
    Action("main.right", ("L",), "scroll main", "scroll the main panel right, focus stays", _M),
    # Steer line
    Action(
        "steer.send",
        ("enter",),
        "send",
        "send the line",
        _S,
        "Steer, Constrain, SetBudget, SetPaused, ChooseModel",
        1,
    ),
    Action("steer.newline", ("ctrl+j",), "newline", "a new line, shown as ↵", _S, "", 2),
    Action("steer.editor", ("ctrl+g",), "editor", "write it in $EDITOR", _S, "", 3),
    Action("steer.older", ("up",), "older", "the line sent before", _S),
    Action("steer.newer", ("down",), "newer", "the line sent after", _S),
    Action("steer.mode", ("shift+tab",), "mode", "who accepts: MANUAL or AUTO", _S, "SetRule"),
    Action(
        "steer.leave",
        ("escape",),
        "back to the panes",
        "leave the line; the draft stays",
        _S,
        "",
        9,
    ),
)

LIVE_WHILE_TYPING = frozenset({"interrupt", "suspend", "escape"})
"""Actions of the screen that stay live while text is typed."""

_BY_ID = {entry.id: entry for entry in ACTIONS}
_NAMES = {",": "comma", "escape": "escape"}


def action(id_: str) -> Action:
    """Returns the action with an id.

    Raises:
        KeyError: There is none.
    """
    return _BY_ID[id_]


def bindings(*scopes: Scope, without: Iterable[str] = ()) -> list[Binding]:
    """Returns the bindings of scopes; each calls the screen's action `act` with the id.

    Args:
        scopes: The scopes whose keys are wanted.
        without: Keys that another scope of the same screen uses.
    """
    taken = set(without)
    return [
        Binding(
            _NAMES.get(key, key),
            f"screen.act('{entry.id}')",
            entry.text,
            show=False,
            id=f"{entry.id}:{key}",
            priority=entry.id == "interrupt",
        )
        for entry in ACTIONS
        if entry.scope in scopes
        for key in entry.keys
        if key not in taken
    ]


def hints(scopes: Sequence[Scope]) -> list[tuple[str, str]]:
    """Returns the footer's hints for scopes, in their order: `("a", "accept")`."""
    shown = sorted((e for e in ACTIONS if e.scope in scopes and e.hint), key=lambda e: e.hint)
    return [(short_key(entry.keys[0]), entry.text) for entry in shown]


def short_key(key: str) -> str:
    """Returns a key as the footer writes it: `^p` for `ctrl+p`."""
    return "^" + key[5:] if key.startswith("ctrl+") else key.capitalize() if key == "enter" else key


def keys_document() -> str:
    """Returns docs/keys.md."""
    lines = [
        "# Keys",
        "",
        "Made from the table of actions in `kerneltui/tui/keymap.py`; a test checks that it is current",
        "and says how to make it again. The id is the name of an action in the code.",
    ]
    for scope in (_D, _T, _G, _M, _S, _R):
        lines += [
            "",
            f"## {scope}",
            "",
            "| Key | Action | Sends | Id |",
            "| --- | --- | --- | --- |",
        ]
        for entry in ACTIONS:
            if entry.scope is scope:
                keys = " ".join(f"`{key}`" for key in entry.keys) or "palette only"
                lines.append(f"| {keys} | {entry.help} | {entry.command} | {entry.id} |")
    return "\n".join(lines) + "\n"
