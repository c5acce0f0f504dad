"""Passes scalars and findings of a watched training to experiment trackers.

    telens.watch(model, logger=SummaryWriter("runs"))

Names begin with ``telens/``. The run file keeps all statistics; the tracker receives the numbers of
the whole training: loss, learning rate, gradient norm, lost updates, and findings.
"""

from __future__ import annotations

import abc
import warnings
from collections.abc import Mapping
from typing import Any

from telens.debug import arguments

__all__ = ["Tracker", "Trackers", "trackers_of"]

_PREFIX = "telens/"


class Tracker(abc.ABC):
    """Receives the numbers of each iteration, and findings."""

    @abc.abstractmethod
    def log(self, values: Mapping[str, float], iteration: int) -> None:
        """Logs the numbers of an iteration."""

    @abc.abstractmethod
    def alert(self, title: str, text: str, iteration: int) -> None:
        """Reports a finding."""


class _TensorBoard(Tracker):
    """A ``SummaryWriter`` of torch or tensorboardX."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, values: Mapping[str, float], iteration: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, iteration)

    def alert(self, title: str, text: str, iteration: int) -> None:
        self._writer.add_text(_PREFIX + "findings", f"**{title}**\n\n{text}", iteration)


def _tracker_of(logger: Any) -> Tracker:
    if hasattr(logger, "add_scalar"):
        return _TensorBoard(logger)
    raise arguments.refusal("telens.watch", "logger", "a SummaryWriter", logger)


class Trackers:
    """All trackers of a watch. One that raises an error is dropped with a warning."""

    def __init__(self, trackers: list[Tracker]) -> None:
        self._trackers = trackers
        self._values: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._trackers)

    def note(self, name: str, value: float) -> None:
        """Keeps a number of the running iteration."""
        if self._trackers:
            self._values[_PREFIX + name] = value

    def log(self, iteration: int) -> None:
        """Passes on the numbers of an iteration that ends."""
        values, self._values = self._values, {}
        if values:
            self._each(lambda tracker: tracker.log(values, iteration))

    def alert(self, finding: Mapping[str, Any]) -> None:
        """Passes on a finding of the feature Diagnosis."""
        title = f"TELens: {finding.get('cause')}"
        place = " ".join(str(finding[key]) for key in ("layer", "tensor") if finding.get(key))
        summary = str(finding.get("summary") or "")
        text = ": ".join(filter(None, [place, summary])) or title
        iteration = int(finding.get("first_iteration") or 0)
        self._each(lambda tracker: tracker.alert(title, text, iteration))

    def _each(self, use: Any) -> None:
        for tracker in list(self._trackers):
            try:
                use(tracker)
            except Exception as error:
                self._trackers.remove(tracker)
                warnings.warn(
                    f"telens.watch: logger: {type(tracker).__name__.strip('_')} is not used any "
                    f"more after an error: {error}",
                    stacklevel=2,
                )


def trackers_of(logger: Any) -> Trackers:
    """Returns the trackers of the argument ``logger``: one, a list, or None."""
    if logger is None:
        return Trackers([])
    loggers = logger if isinstance(logger, (list, tuple)) else [logger]
    return Trackers([_tracker_of(each) for each in loggers])
