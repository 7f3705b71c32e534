"""The table of actions: unique, complete, documented, and none of the keys to avoid."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fakes import Desk, drive

from kerneltui.model import command
from kerneltui.tui.keymap import ACTIONS, Scope, bindings, hints, keys_document
from kerneltui.tui.screens.replay import ReplayScreen
from kerneltui.tui.screens.tuning import TuningScreen
from kerneltui.tui.theme import STYLE_NAMES, resolve

AVOID = {"ctrl+b", "ctrl+a", "ctrl+space", "ctrl+i", "ctrl+m", "ctrl+h", "ctrl+q", "ctrl+s"}


def test_ids_are_unique() -> None:
    assert [i for i, n in Counter(entry.id for entry in ACTIONS).items() if n > 1] == []


@pytest.mark.parametrize(
    "scopes",
    [
        (Scope.GLOBAL, Scope.MOVE, Scope.TUNING),
        (Scope.DECISION,),
        (Scope.STEER,),
        (Scope.REPLAY,),
    ],
)
def test_a_key_means_one_thing_in_a_place(scopes: tuple[Scope, ...]) -> None:
    keys = Counter(key for e in ACTIONS if e.scope in scopes for key in e.keys)
    assert [key for key, count in keys.items() if count > 1] == []


def test_decision_keys_do_not_hide_keys_of_the_screen() -> None:
    decision = {key for e in ACTIONS if e.scope is Scope.DECISION for key in e.keys}
    screen = {
        key
        for e in ACTIONS
        if e.scope in (Scope.GLOBAL, Scope.MOVE, Scope.TUNING)
        for key in e.keys
    }
    assert decision & screen == set()


def test_no_key_that_tmux_takes_or_cannot_send() -> None:
    assert {key for entry in ACTIONS for key in entry.keys} & AVOID == set()


def test_only_ctrl_c_has_priority() -> None:
    priority = {b.key for b in bindings(*Scope) if b.priority}
    assert priority == {"ctrl+c"}


def test_commands_named_in_the_table_exist() -> None:
    for entry in ACTIONS:
        for name in filter(None, entry.command.split(", ")):
            assert hasattr(command, name), entry.id


def test_the_footer_begins_with_decisions_and_ends_with_help() -> None:
    shown = hints((Scope.DECISION, Scope.TUNING, Scope.GLOBAL))
    assert shown[0] == ("a", "accept")
    assert shown[-2:] == [("^p", "palette"), ("?", "help")]


def test_the_document_is_current() -> None:
    path = Path(__file__).parents[2] / "docs" / "keys.md"
    assert path.read_text() == keys_document(), "write keymap.keys_document() into docs/keys.md"


def test_every_style_resolves_in_both_palettes() -> None:
    for name in STYLE_NAMES:
        resolve(name, False)
        resolve(name, True)


@drive()
async def test_every_action_of_the_tuning_screen_has_a_handler(desk: Desk, pilot: Any) -> None:
    screen = desk.app.base
    assert isinstance(screen, TuningScreen)
    wanted = {entry.id for entry in ACTIONS if entry.scope is not Scope.REPLAY}
    assert wanted == set(screen.handlers())


@drive(replay=True)
async def test_every_action_of_the_replay_screen_has_a_handler(desk: Desk, pilot: Any) -> None:
    screen = desk.app.base
    assert isinstance(screen, ReplayScreen)
    wanted = {entry.id for entry in ACTIONS if entry.scope is Scope.REPLAY}
    assert wanted <= set(screen.handlers())
