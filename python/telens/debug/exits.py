"""Ends a session when its script ends, and finds the exception that ended it."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterator

__all__: list[str] = []

_exit_handler_set = False
_exception_at_exit: BaseException | None = None

# The exception that is handled around the session, as in `except ImportError: train()`.
_handled_around: BaseException | None = None


def note_beginning() -> None:
    """Called when a session begins: an exception that is being handled now does not end it."""
    global _handled_around
    _handled_around = sys.exc_info()[1]


def note_step() -> None:
    """Releases an exception, and the tensors in its frames, after its handler was left."""
    global _handled_around
    if _handled_around is not None and all(each is not _handled_around for each in _handled()):
        _handled_around = None


def note_end() -> None:
    """The session has ended."""
    global _handled_around
    _handled_around = None


def leaving_exception() -> str:
    """Returns "ValueError: message" for the exception that is being handled or that ended the
    script."""
    exception = sys.exc_info()[1]
    if exception is None or exception is _handled_around:
        exception = _exception_at_exit
    # Exceptions that generators, iterators and sys.exit() raise without an error.
    regular = isinstance(exception, (StopIteration, StopAsyncIteration, GeneratorExit))
    finished = isinstance(exception, SystemExit) and not exception.code
    return "" if exception is None or regular or finished else _described(exception)


def end_at_exit(end: Callable[[], None]) -> None:
    """Calls ``end`` at the script's end, before the interpreter exits.

    Python loggers and features need the interpreter.
    """
    global _exit_handler_set
    if not _exit_handler_set:
        atexit.register(_end_of_script, end)
        _exit_handler_set = True


def note_exit() -> None:
    """Records the exception that ended the script. Call it from an atexit handler."""
    global _exception_at_exit
    # In an interactive session the exception may be old.
    if not hasattr(sys, "ps1") and not sys.flags.interactive:
        _exception_at_exit = getattr(sys, "last_value", None)


def _end_of_script(end: Callable[[], None]) -> None:
    note_exit()
    end()


def _handled() -> Iterator[BaseException]:
    """Yields the exceptions that are being handled, innermost first."""
    exception = sys.exc_info()[1]
    seen: set[int] = set()
    while (
        exception is not None and id(exception) not in seen
    ):  # scripts may create cycles of contexts
        seen.add(id(exception))
        yield exception
        exception = exception.__context__


def _described(exception: BaseException) -> str:
    """Returns one line of UTF-8 for any message, because the run must still be flushed."""
    name = type(exception).__name__
    try:
        text = str(exception).strip()
    except Exception:
        return name
    line = f"{name}: {text.splitlines()[0]}" if text else name
    return line.encode(errors="backslashreplace").decode()
