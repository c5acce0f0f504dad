"""Passes the numbers and findings of a watched training to experiment trackers.

    telens.watch(model, logger=SummaryWriter("runs"))
    telens.watch(model, logger=wandb.init(project="p"))
    telens.watch(model, logger=trackio)  # after trackio.init()
    telens.watch(model, logger=mlflow)

Names begin with ``telens/``. The run file keeps all statistics; the tracker receives the numbers of
the whole training: loss, learning rate, gradient norm, lost updates, and findings.
"""

from __future__ import annotations

import abc
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from telens.debug import arguments

__all__ = ["PREFIX", "Tracker", "Trackers", "tracker_of", "trackers_of"]

PREFIX = "telens/"  # begins every name


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
        self._writer.add_text(PREFIX + "findings", f"**{title}**\n\n{text}", iteration)


class _MLflow(Tracker):
    """The module mlflow with an active run, or another object with ``log_metrics``."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def log(self, values: Mapping[str, float], iteration: int) -> None:
        # MLflow rejects names with a percent sign. Its module sends metrics on a thread of its own.
        options = {"synchronous": False} if isinstance(self._target, ModuleType) else {}
        self._target.log_metrics(
            {name.replace("%", "_percent"): value for name, value in values.items()},
            step=iteration,
            **options,
        )

    def alert(self, title: str, text: str, iteration: int) -> None:
        if hasattr(self._target, "set_tag"):
            self._target.set_tag("telens.finding", f"{title} (iteration {iteration})")
        if hasattr(self._target, "log_text"):
            cause = title.rpartition(" ")[2]  # two findings of an iteration are two files
            file = f"telens/finding_{iteration}_{cause}.txt"
            self._target.log_text(f"{title}\n\n{text}\n", file)


class _Trackio(Tracker):
    """The module trackio after ``trackio.init``, or another object with ``log(values, step=)``."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def log(self, values: Mapping[str, float], iteration: int) -> None:
        self._target.log(dict(values), step=iteration)

    def alert(self, title: str, text: str, iteration: int) -> None:
        if hasattr(self._target, "alert"):
            self._target.alert(title=title, text=text)


class _WandB(Tracker):
    """A run of Weights & Biases, or the module wandb after ``wandb.init``.

    The step of a run only grows, and the program's calls of ``log`` advance it. The numbers are
    added to the program's next row. If the program logs nothing, they are a separate row.
    """

    def __init__(self, target: Any) -> None:
        self._run = target.run if hasattr(target, "init") else target
        self._step = -1
        self._run.define_metric(PREFIX + "iteration", hidden=True)
        self._run.define_metric(PREFIX + "*", step_metric=PREFIX + "iteration")

    def log(self, values: Mapping[str, float], iteration: int) -> None:
        row = {**values, PREFIX + "iteration": iteration}
        program_logs = self._step >= 0 and self._run.step > self._step
        self._run.log(row, commit=not program_logs)
        self._step = self._run.step

    def alert(self, title: str, text: str, iteration: int) -> None:
        self._run.alert(title=title, text=f"{text} (iteration {iteration})")


def tracker_of(logger: Any) -> Tracker:
    """Returns the tracker for an object of an experiment tracker."""
    name = getattr(logger, "__name__", type(logger).__module__).partition(".")[0]
    if hasattr(logger, "add_scalar"):
        return _TensorBoard(logger)
    if hasattr(logger, "log_metrics"):
        return _MLflow(logger)
    if name == "wandb" and getattr(logger, "run", logger) is not None:
        return _WandB(logger)
    if name != "wandb" and hasattr(logger, "log"):
        return _Trackio(logger)
    expected = "a SummaryWriter, a run of wandb, or the module trackio or mlflow with an active run"
    raise arguments.refusal("telens.watch", "logger", expected, logger)


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
            self._values[PREFIX + name] = value

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
    return Trackers([tracker_of(each) for each in loggers])
