"""The actions of the tuning screen that send commands, and why they are refused.

Every decision carries the id and the commit that are on the screen. Nothing here changes what is
shown: that comes back as events.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from kerneltui.model.candidate import CandidateState
from kerneltui.model.command import (
    Accept,
    CarryOver,
    Command,
    Edit,
    Profile,
    Rebench,
    Redo,
    Reject,
    SetPaused,
    SetRule,
    Steer,
    TakeOver,
    Undo,
    WriteNotes,
)
from kerneltui.model.event import AcceptRule
from kerneltui.tui import decide
from kerneltui.tui.decide import Displayed
from kerneltui.tui.editor import EditorError, edit_text
from kerneltui.tui.layout import Panel
from kerneltui.tui.replaying import replay_session
from kerneltui.tui.screens.dialogs import Choice, ChoiceDialog, NoteDialog
from kerneltui.tui.screens.panels import Handler
from kerneltui.tui.screens.reporting import has_gpus
from kerneltui.tui.sources import Loaded
from kerneltui.tui.steering import SteerError, parse_steer

if TYPE_CHECKING:
    from kerneltui.tui.screens.tuning import TuningScreen

__all__ = ["Deciding"]

_SENDING = frozenset(
    {"search.pause", "mode", "steer.mode", "decision.undo", "decision.redo", "notes.edit"}
)


class Deciding:
    """Commands of one tuning screen."""

    def __init__(self, screen: TuningScreen) -> None:
        self._screen = screen

    def refusal(self, id_: str) -> str:
        """Returns why an action cannot be done now, or nothing."""
        screen = self._screen
        snapshot = screen.snapshot
        now = screen.owner.monotonic()
        match id_:
            case "candidate.accept" | "candidate.accept_rule":
                refusal = decide.accept_refusal(snapshot, screen.displayed, now)
                part = screen.displayed is not None and screen.displayed.partial is not None
                if not refusal and part and id_ == "candidate.accept_rule":
                    return "select all hunks first; a part is measured again before that"
                return refusal
            case "candidate.reject" | "candidate.reject_note":
                return decide.reject_refusal(snapshot, screen.displayed, now)
            case "candidate.profile":
                return screen.may_send() or self._profile_refusal()
            case "candidate.rebench" | "candidate.edit" | "decision.undo" | "decision.redo":
                return screen.may_send() or self._nothing_to_do(id_)
            case "engine.take_over":
                return self._take_over_refusal()
            case "engine.reconnect":
                return "" if snapshot.link.status == "gone" else "the engine is connected"
            case "timeline":
                return "" if screen.owner.session else "it is not known where the session lies"
            case _:
                return screen.may_send() if id_ in _SENDING else ""

    def _nothing_to_do(self, id_: str) -> str:
        screen, state = self._screen, self._screen.snapshot.state
        if id_ == "candidate.edit":
            return "" if screen.loaded else "the kernel is not loaded yet"
        if id_ == "decision.undo":
            return "" if state.decisions else "there is no decision to undo"
        if id_ == "decision.redo":
            return "" if state.undone else "there is no undone decision"
        return self._rebench_refusal()

    def _profile_refusal(self) -> str:
        candidate = self._screen.candidate
        if not has_gpus(self._screen.snapshot.state):
            return "counters are those of a GPU; this target has none"
        if candidate is None:
            return "no candidate is on screen"
        base = self._screen.snapshot.state.base
        if not candidate.verify_note and candidate.id != base:
            return f"{candidate.id} was not verified, and a profile runs without the sandbox"
        return ""

    def _rebench_refusal(self) -> str:
        candidate = self._screen.candidate
        if candidate is None:
            return "no candidate is on screen"
        word = self._screen.snapshot.state.state_of(candidate.id)
        if word is CandidateState.FAIL:
            return f"{candidate.id} failed; edit it, there is nothing to measure"
        if word in (
            CandidateState.PROP,
            CandidateState.BUILD,
            CandidateState.CHECK,
            CandidateState.BENCH,
        ):
            return f"{candidate.id} is being evaluated now"
        return ""

    def _take_over_refusal(self) -> str:
        link = self._screen.snapshot.link
        if link.status != "live":
            return "there is no live session"
        return "this terminal decides already" if link.writer else ""

    def handlers(self) -> Mapping[str, Handler]:
        """Returns what each action does."""
        screen = self._screen
        return {
            "candidate.accept": self.accept,
            "candidate.accept_rule": self.accept_by_rule,
            "candidate.reject": self.reject,
            "candidate.reject_note": self.reject_with_note,
            "candidate.edit": self.edit,
            "candidate.rebench": self.rebench,
            "candidate.carry": self.carry,
            "candidate.profile": self.profile,
            "notes.edit": lambda: screen.session_tabs.with_notes(self.edit_notes),
            "decision.undo": self.undo,
            "decision.redo": self.redo,
            "search.pause": self.pause,
            "mode": self.mode,
            "steer": lambda: screen.focus_panel(Panel.STEER),
            "steer.send": self.steer,
            "steer.newline": lambda: screen.steer.input.insert_text_at_cursor("↵"),
            "steer.editor": self.steer_in_editor,
            "steer.older": lambda: screen.steer.recall(-1),
            "steer.newer": lambda: screen.steer.recall(1),
            "steer.mode": self.mode,
            "steer.leave": lambda: screen.focus_panel(screen.body_panel),
            "timeline": self.timeline,
            "engine.take_over": lambda: self.send(TakeOver(), "take over"),
            "engine.reconnect": screen.owner.reconnect,
        }

    def send(
        self,
        command: Command,
        what: str,
        *,
        done: str = "done",
        refused: Callable[[], None] | None = None,
    ) -> None:
        """Sends a command without waiting; a refusal by the engine is shown when it comes."""

        async def ask() -> None:
            reply = await self._screen.owner.feed.ask(command)
            if reply.error:
                if refused is not None:
                    refused()
                self._screen.say(f"{what}: {reply.error}")
            else:
                self._screen.say(str(reply.data.get("text") or f"{what}: {done}"))

        self._screen.say(f"{what}: sent")
        self._screen.owner.run_worker(ask(), group="command")

    def accept(self) -> None:
        """Accepts what is displayed; without proof that it is faster this needs a note."""
        displayed = self._screen.displayed
        if displayed is None or displayed.diff is None:
            return
        why = decide.needs_note(self._screen.snapshot, displayed)
        if not why:
            self._accept(displayed, "")
            return

        def noted(note: str | None) -> None:
            if note:
                self._accept(displayed, note)

        text = (
            f"{displayed.candidate} can be accepted by you alone, since {why}. Why do you take it?"
        )
        self._screen.app.push_screen(
            NoteDialog(f"Accept {displayed.candidate}", text, required=True), noted
        )

    def _accept(self, displayed: Displayed, note: str) -> None:
        if displayed.diff is None:
            return
        partial = displayed.partial
        what = f"accept {displayed.candidate}"
        if partial is not None:
            total = len(displayed.diff.hunks)
            what += f" ({len(partial)} of {total} hunks, as a new candidate)"
        self.send(Accept(displayed.candidate, displayed.diff.sha, partial, note), what)

    def accept_by_rule(self) -> None:
        """Shows the rule; on yes it is switched on and the candidate is accepted."""
        displayed = self._screen.displayed
        if displayed is None:
            return
        choices = (Choice("y", f"accept {displayed.candidate}, and by rule from now on", "yes"),)

        def chosen(answer: str | None) -> None:
            if answer:
                self.send(SetRule(AcceptRule.AUTO), "mode AUTO")
                self.accept()

        self._screen.app.push_screen(
            ChoiceDialog("Accept by rule", decide.RULE_TEXT, choices), chosen
        )

    def reject(self) -> None:
        """Rejects what is displayed."""
        displayed = self._screen.displayed
        if displayed and displayed.diff:
            command = Reject(displayed.candidate, displayed.diff.sha)
            self.send(command, f"reject {displayed.candidate}")

    def reject_with_note(self) -> None:
        """Rejects with a note; an empty one is a plain reject."""
        displayed = self._screen.displayed
        if displayed is None or displayed.diff is None:
            return
        sha = displayed.diff.sha

        def noted(note: str | None) -> None:
            if note is not None:
                command = Reject(displayed.candidate, sha, note)
                self.send(command, f"reject {displayed.candidate}")

        text = "What should the agent learn from this? An empty note is a plain reject."
        self._screen.app.push_screen(NoteDialog(f"Reject {displayed.candidate}", text), noted)

    def rebench(self) -> None:
        """Asks for another measurement."""
        candidate = self._screen.candidate
        if candidate:
            self.send(Rebench(candidate.id), f"measure {candidate.id} again")

    def carry(self) -> None:
        """Asks for the candidate's change on top of the incumbent."""
        candidate = self._screen.candidate
        if candidate:
            self.send(CarryOver(candidate.id), f"carry {candidate.id} over")

    def profile(self) -> None:
        """Asks for counters, and shows them in their tab when they are there."""
        screen, candidate = self._screen, self._screen.candidate
        if candidate is None:
            return
        what = f"profile {candidate.id}"

        async def ask() -> None:
            reply = await screen.owner.feed.ask(Profile(candidate.id))
            screen.say(f"{what}: {reply.error or 'done, see Counters'}")
            if not reply.error:
                screen.reporting.forget(candidate.id)

        screen.say(f"{what}: sent; this takes a minute or two")
        screen.owner.run_worker(ask(), group="command")

    def undo(self) -> None:
        """Takes the last decision back, and says which one that was."""
        last = self._screen.snapshot.state.decisions[-1]
        self.send(Undo(), f"undo {last.action} of {last.candidate}")

    def redo(self) -> None:
        """Makes the decision again that was undone last."""
        last = self._screen.snapshot.state.undone[-1]
        self.send(Redo(), f"redo {last.action} of {last.candidate}")

    def pause(self) -> None:
        """Pauses the search, or lets it go on."""
        paused = not self._screen.snapshot.state.paused
        self.send(SetPaused(paused), "pause after this evaluation" if paused else "go on")

    def mode(self) -> None:
        """Changes who accepts."""
        current = self._screen.snapshot.state.rule
        rule = AcceptRule.NONE if current is AcceptRule.AUTO else AcceptRule.AUTO
        self.send(SetRule(rule), self._screen.mode_text(rule))

    def edit(self) -> None:
        """Hands the kernel to the editor; a changed text becomes a new candidate of the human."""
        loaded = self._screen.loaded
        if loaded is None:
            return
        name = PurePosixPath(loaded.diff.file).name or "kernel.cpp"
        edited = self._in_editor(loaded.source, name)
        if edited is not None:
            self.propose(loaded, edited)

    def propose(self, loaded: Loaded, source: str) -> None:
        """Proposes the human's own version of a candidate."""
        self.send(Edit(loaded.candidate, source), f"your version of {loaded.candidate}")

    def edit_notes(self, notes: str) -> None:
        """Hands the lab notes to the editor; a changed text becomes an event of the session."""
        edited = self._in_editor(notes, "notes.md")
        if edited is not None:
            self.write_notes(edited)

    def write_notes(self, text: str) -> None:
        """Replaces the lab notes."""
        self.send(WriteNotes(text), "lab notes", done="saved")

    def timeline(self) -> None:
        """Hands the terminal to a replay of the session as it is recorded up to now."""
        session = self._screen.owner.session
        if session is None:
            return
        problem = self._handed_over(lambda: replay_session(session))
        if problem:
            self._screen.say(problem)

    def _in_editor(self, text: str, name: str) -> str | None:
        return self._handed_over(lambda: self._edited(text, name))

    def _handed_over(self, use: Callable[[], str | None]) -> str | None:
        """What a program gives that has the terminal meanwhile."""
        try:
            with self._screen.app.suspend():
                return use()
        except SuspendNotSupported:
            self._screen.say("this terminal cannot be handed to another program")
            return None

    def _edited(self, text: str, name: str) -> str | None:
        try:
            edited = edit_text(text, name, os.environ)
        except EditorError as error:
            self._screen.say(str(error))
            return None
        if edited is None:
            self._screen.say("nothing was changed")
        return edited

    def steer(self) -> None:
        """Sends the steer line; what cannot be sent stays, with the reason."""
        steer = self._screen.steer
        refusal = self._screen.may_send()
        if refusal:
            self._screen.say(f"not sent: {refusal}")
            return
        try:
            line = parse_steer(steer.input.value, steer.to, self._screen.snapshot.state)
        except SteerError as error:
            self._screen.say(str(error))
            return
        text = steer.input.value
        typed = " ".join(text.split())
        steer.take()
        steer.address(line.to)
        self._screen.focus_panel(self._screen.body_panel)  # single keys mean something again
        self.send(
            line.command,
            typed if typed.startswith("/") else f"message to {line.to}",
            done="queued for the next proposal" if isinstance(line.command, Steer) else "done",
            refused=lambda: steer.give_back(text),
        )

    def steer_in_editor(self) -> None:
        """Writes the steer line in the editor."""
        steer = self._screen.steer.input
        edited = self._in_editor(steer.value.replace("↵", "\n"), "steer.md")
        if edited is not None:
            steer.value = edited.strip().replace("\n", "↵")
            steer.cursor_position = len(steer.value)
