"""What the feature Diagnosis has found to be wrong with the run, while it goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, TypeVar

from telens import _C
from telens.debug import arguments

__all__ = ["checkpoint_allowed", "findings", "on_finding"]

Finding = dict[str, Any]
Listener = TypeVar("Listener", bound=Callable[[Finding], Any])

# Threads wait for no longer than that, which nothing takes.
_LONGEST_WAIT = 1e6  # seconds


def findings() -> list[Finding]:
    """The findings of this session so far, in the order in which they were made.

    Each is a dict, an entry of ``findings`` as ``telens diagnose --format json`` prints it
    (docs/diagnosis.md).
    """
    return [json.loads(each) for each in _C.debug.findings()]


def on_finding(function: Listener) -> Listener:
    """Has the function called with each finding from here on, as a dict; also a decorator.

    It runs on a thread of its own, so that it may take its time, as to write to a chat. Where it
    raises, that is told once, and it is called no more in this session; what is no ``Exception``
    (KeyboardInterrupt, SystemExit) is raised by the next ``debug.step()`` instead.
    """
    if not callable(function):
        raise arguments.refusal("debug.on_finding", "function", "a function", function)
    _C.debug.on_finding(lambda text: function(json.loads(text)))
    return function


def checkpoint_allowed(wait: float = 10.0) -> bool:
    """Whether nothing was found that a checkpoint of now would keep; True without a session.

    The actions ``veto`` and ``stop`` of the feature Diagnosis say which findings forbid it. All
    iterations that have ended are looked at first, which takes ``wait`` seconds at the most; with 0
    the answer is what is known. On several ranks it comes at once, and is the same on all: what
    they have agreed on in ``debug.step()``.
    """
    seconds = arguments.number("debug.checkpoint_allowed", "wait", wait)
    if math.isnan(seconds) or seconds < 0:
        raise arguments.refusal("debug.checkpoint_allowed", "wait", "seconds from 0 on", wait)
    return _C.debug.checkpoint_allowed(min(seconds, _LONGEST_WAIT))
