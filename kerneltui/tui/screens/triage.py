"""The dialog of triage: a rule, a preview of what it decides, one confirmation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Input

from kerneltui.model.candidate import Candidate
from kerneltui.model.command import Accept, Reject
from kerneltui.model.state import State
from kerneltui.tui.format import difference, ratio, state_style, verdict_style
from kerneltui.tui.screens.dialogs import Choice, ChoiceDialog
from kerneltui.tui.text import Line, clean, cut
from kerneltui.tui.triage import RULES, Rule, RuleError, chosen, commands, parse_rule
from kerneltui.tui.widgets.lineview import LineView

if TYPE_CHECKING:
    from kerneltui.tui.screens.tuning import TuningScreen

__all__ = ["Triage", "TriageDialog", "preview_lines"]

_PREVIEWED = 200
_HEIGHT = 80  # percent of the screen that the box may take
_ROWS_AROUND = 5  # of the preview: border, rule, count, an empty row


def preview_lines(state: State, candidates: Sequence[Candidate], width: int) -> Sequence[Line]:
    """Returns a line for each candidate that would be decided."""
    lines: list[Line] = []
    for candidate in candidates[:_PREVIEWED]:
        word, measured = state.state_of(candidate.id), candidate.measurement
        if measured is None:
            continue
        change = difference(measured.geomean, measured.verdict)
        row: Line = (
            (f" {candidate.id:<6}", "strong"),
            (f"{word:<6}", state_style(word)),
            (f"{ratio(measured.ratio):>7}  ", "ink"),
            (f"{change:<32}", verdict_style(measured.verdict)),
            (f" {clean(candidate.reason)}", "dim"),
        )
        lines.append(cut(row, width))
    if len(candidates) > _PREVIEWED:
        lines.append(((f" and {len(candidates) - _PREVIEWED} more", "dim"),))
    return lines


class TriageDialog(ModalScreen[Rule], inherit_bindings=False):
    """Asks for a rule and shows at once what it would decide; enter takes it, if it decides anything."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss_dialog", show=False),
        Binding("up", "other(-1)", show=False),
        Binding("down", "other(1)", show=False),
        Binding("pageup", "scroll(-8)", show=False),
        Binding("pagedown", "scroll(8)", show=False),
    ]

    def __init__(self, state: State, among: Sequence[str], where: str) -> None:
        super().__init__()
        self._state = state
        self._among = among
        self._where = where
        self._at = 0

    def compose(self) -> ComposeResult:
        """Yields the box."""
        with Vertical(classes="dialog triage") as box:
            box.border_title = Content(f"Triage: {self._where}")
            box.border_subtitle = Content(
                "up down rules   pgup pgdn list   enter decide   esc back"
            )
            yield Input(RULES[0], id="rule", compact=True)
            yield LineView(id="count", focusable=False)
            yield LineView(id="preview", focusable=False)

    def on_mount(self) -> None:
        """Previews the first rule."""
        field = self.query_one(Input)
        field.cursor_blink = False
        self.set_focus(field)
        self._preview()

    def on_resize(self, event: Resize) -> None:
        """Makes room for all that could be decided: a box that grew while one types would jump."""
        room = event.size.height * _HEIGHT // 100 - _ROWS_AROUND
        waiting = {candidate.id for candidate in self._state.pending()}
        wanted = min(len(waiting.intersection(self._among)), _PREVIEWED + 1)
        self.query_one("#preview", LineView).styles.height = max(1, min(wanted, room))

    def _found(self) -> tuple[Rule, Sequence[Candidate]]:
        rule = parse_rule(self.query_one(Input).value)
        return rule, chosen(self._state, rule, self._among)

    def _preview(self) -> None:
        try:
            rule, found = self._found()
        except RuleError as error:
            text, style, found = str(error), "warn", ()
        else:
            verb = "accepts" if rule.accepts else "rejects"
            text = f"{verb} {len(found)} of {len(self._among)}" if found else "decides nothing here"
            style = "ink" if found else "dim"
        state = self._state
        self.query_one("#count", LineView).show(lambda _w, _h: [((f" {text}", style),)])
        self.query_one("#preview", LineView).show(
            lambda w, _h: preview_lines(state, found, w), home=True
        )

    def on_input_changed(self, event: Input.Changed) -> None:
        """Previews while the rule is written."""
        event.stop()
        self._preview()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Takes a rule that decides something."""
        event.stop()
        try:
            rule, found = self._found()
        except RuleError:
            return
        if found:
            self.dismiss(rule)

    def action_other(self, direction: int) -> None:
        """Puts another rule into the line."""
        self._at = (self._at + direction) % len(RULES)
        field = self.query_one(Input)
        field.value = RULES[self._at]
        field.cursor_position = len(field.value)

    def action_scroll(self, rows: int) -> None:
        """Scrolls the preview."""
        self.query_one("#preview", LineView).shift(rows=rows)

    def action_dismiss_dialog(self) -> None:
        """Closes without a rule."""
        self.dismiss(None)


class Triage:
    """Decides by rule over the marked rows, or else over those that the list shows."""

    def __init__(self, screen: TuningScreen) -> None:
        self._screen = screen

    def refusal(self) -> str:
        """Returns why nothing can be decided, or nothing."""
        screen = self._screen
        waiting = screen.snapshot.state.pending()
        return screen.may_send() or ("" if any(waiting) else "no candidate waits for a decision")

    def open(self) -> None:
        """Asks for the rule, then once whether it is meant."""
        screen = self._screen
        state, panel = screen.snapshot.state, screen.candidates
        among = [id_ for id_ in panel.shown if id_ in panel.marked] or list(panel.shown)
        where = f"{len(among)} marked" if panel.marked else f"{len(among)} shown"
        if panel.needle and not panel.marked:
            where += f" by the filter /{panel.needle}"

        def stated(rule: Rule | None) -> None:
            if rule is not None:
                self._confirm(rule, commands(rule, chosen(state, rule, among)))

        screen.app.push_screen(TriageDialog(state, among, f"{where} candidates"), stated)

    def _confirm(self, rule: Rule, decisions: Sequence[Accept | Reject]) -> None:
        verb = "accept" if rule.accepts else "reject"
        names = ", ".join(command.candidate for command in decisions)
        what = f"{verb} {len(decisions)} candidate{'' if len(decisions) == 1 else 's'}"
        text = (
            f"{names}\nEach is a decision of yours with the note 'triage: {rule.text}'; z undoes "
            "them one by one, the last one first."
        )

        def meant(answer: str | None) -> None:
            if answer:
                self._screen.owner.run_worker(self._send(rule, decisions), group="command")

        choices = (Choice("y", what, "yes"),)
        self._screen.app.push_screen(ChoiceDialog(f"Triage: {rule.text}", text, choices), meant)

    async def _send(self, rule: Rule, decisions: Sequence[Accept | Reject]) -> None:
        """Sends one decision after the other; what the engine refuses stays as it is."""
        screen = self._screen
        refused: list[str] = []
        for number, command in enumerate(decisions, 1):
            screen.say(f"triage: {number} of {len(decisions)}, {command.candidate}")
            reply = await screen.owner.feed.ask(command)
            if reply.error:
                refused.append(f"{command.candidate}: {reply.error}")
        screen.candidates.unmark()
        done = len(decisions) - len(refused)
        tail = f"; {len(refused)} refused, {refused[0]}" if refused else ""
        screen.say(f"triage '{rule.text}': {done} decided{tail}")
