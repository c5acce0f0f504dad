"""A single-line progress bar on stderr."""

from __future__ import annotations

import sys
import time

__all__ = ["Progress"]

_WIDTH = 30  # characters of the bar
_PAUSE = 0.1  # seconds between two pictures


class Progress:
    """How much of `total` is done, at the most. Shows nothing outside of its `with`."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._shown_at: float | None = None

    def __enter__(self) -> Progress:
        self._show()
        return self

    def __exit__(self, kind: type | None, *_error: object) -> None:
        if kind is None:
            self._total = self._done  # less than was expected, where rows were left out
        self._show()
        sys.stderr.write("\n")
        self._shown_at = None

    def advance(self, count: int) -> None:
        self._done += count
        if self._shown_at is not None and time.monotonic() - self._shown_at >= _PAUSE:
            self._show()

    def _show(self) -> None:
        part = min(1.0, self._done / self._total) if self._total else 1.0
        bar = "#" * int(_WIDTH * part)
        sys.stderr.write(
            f"\r{self._what} [{bar:<{_WIDTH}}] {part:4.0%}  {self._done:,} of {self._total:,} rows"
        )
        sys.stderr.flush()
        self._shown_at = time.monotonic()
