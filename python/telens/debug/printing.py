"""Names of layers and texts of files, made safe to print."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    """The text in one line, with escapes for what moves, hides or turns around other text."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
