"""The style sheet: borders, dialogs, palette. Where panels lie is in `layout`."""

from __future__ import annotations

__all__ = ["CSS"]

CSS = """
Screen { background: $background; color: $foreground; }
LineView { background: $background; color: $foreground; }
.panel {
    border: round $border-blurred;
    border-title-color: $title-dim;
    border-subtitle-color: $title-dim;
    background: $background;
}
.panel:focus, .panel:focus-within {
    border: heavy $border;
    border-title-color: $foreground;
    border-title-style: bold;
    border-subtitle-color: $foreground;
}
#candidate-list { height: 1fr; }
#details { height: 6; }
#main LineView { height: 1fr; width: 1fr; }
#filter { height: 1; width: 1fr; }
#steer-input { width: 1fr; height: 1; background: $background; }
#steer-to { height: 1; width: 8; }
Input { background: $background; color: $foreground; }
Input.-textual-compact, Input.-textual-compact:focus { background: $background; }
ModalScreen { align: center middle; background: $background 60%; }
ModalScreen:ansi { background: transparent; }
.dialog {
    width: 74;
    max-width: 94%;
    height: auto;
    max-height: 90%;
    border: heavy $border;
    border-title-style: bold;
    border-subtitle-color: $title-dim;
    background: $background;
    padding: 1 1;
}
.dialog.triage { width: 96; padding: 0 1; }
#rule, #count { height: 1; }
.dialog.triage #preview { margin: 1 0 0 0; }
.dialog.wide { width: 90; height: 90%; padding: 0; }
.dialog LineView { height: auto; }
#help { height: 1fr; }
CommandPalette { background: $background 60%; }
CommandPalette > Vertical { max-width: 92; }
"""
