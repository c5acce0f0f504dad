"""Findings of the feature Diagnosis during a run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, TypeVar

from telens import _C
from telens._names import rejects_bools
from telens.debug import arguments

__all__ = ["checkpoint_allowed", "findings", "on_finding"]

Finding = dict[str, Any]
Listener = TypeVar("Listener", bound=Callable[[Finding], Any])

# Upper limit of a wait in seconds, longer than any diagnosis.
_LONGEST_WAIT = 1e6  # seconds


def findings() -> list[Finding]:
    """Returns the findings of this session so far, in order of detection.

    Each is a dict like the entries of ``findings`` in ``telens diagnose --format json``
    (docs/diagnosis.md).
    """
    return [json.loads(each) for each in _C.debug.findings()]


def on_finding(function: Listener) -> Listener:
    """Registers a function that is called with each later finding (a dict). Also a decorator.

    It runs on a separate thread and may be slow, for example to post to a chat. If it raises, the
    error is logged once and the function is not called again in this session. KeyboardInterrupt and
    SystemExit are raised by the next ``debug.step()`` instead.
    """
    if not callable(function):
        raise arguments.refusal("debug.on_finding", "function", "a function", function)
    _C.debug.on_finding(lambda text: function(json.loads(text)))
    return function


@rejects_bools
def checkpoint_allowed(wait: float = 10.0) -> bool:
    """Returns whether a checkpoint saved now would be free of known problems; True without a
    session.

    The actions ``veto`` and ``stop`` of the feature Diagnosis select the findings that forbid it.
    First waits up to ``wait`` seconds until the ended iterations are diagnosed; 0 returns the
    present state. With several ranks the answer is immediate and equal on every rank: the state
    agreed on in ``debug.step()``.
    """
    seconds = arguments.number("debug.checkpoint_allowed", "wait", wait)
    if math.isnan(seconds) or seconds < 0:
        raise arguments.refusal("debug.checkpoint_allowed", "wait", "seconds from 0 on", wait)
    return _C.debug.checkpoint_allowed(min(seconds, _LONGEST_WAIT))
