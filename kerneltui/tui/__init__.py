"""The terminal: a client of the engine that draws its state and sends commands."""

from __future__ import annotations

from kerneltui.tui.launch import Quit, run

__all__ = ["Quit", "run"]
