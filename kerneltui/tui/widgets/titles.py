"""Titles in borders, set only when they change: setting one draws the whole panel again."""

from __future__ import annotations

from textual.content import Content
from textual.widget import Widget

__all__ = ["set_subtitle", "set_title"]


def set_title(widget: Widget, title: Content) -> None:
    """Sets the title in the upper border."""
    if widget.border_title != title.markup:
        widget.border_title = title  # pyright: ignore[reportAttributeAccessIssue]


def set_subtitle(widget: Widget, title: Content) -> None:
    """Sets the title in the lower border."""
    if widget.border_subtitle != title.markup:
        widget.border_subtitle = title  # pyright: ignore[reportAttributeAccessIssue]
