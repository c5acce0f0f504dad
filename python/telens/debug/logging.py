"""Loggers of statistics and messages."""

from __future__ import annotations

import abc
import logging
from typing import Any

from telens import _C
from telens.debug import arguments

__all__ = ["BaseLogger", "MetricLogger", "get_logger"]


class BaseLogger(abc.ABC):
    """What ``initialize(statistics_logger=...)`` takes."""

    @abc.abstractmethod
    def log_scalar(self, name: str, value: float, iteration: int, **kwargs: Any) -> None:
        """Called in ``step()`` and ``end_debug()`` with ``<layer>_<tensor>_<statistic>``."""


class MetricLogger:
    """Where feature classes put their own values."""

    @staticmethod
    def log_scalar(name: str, value: float, iteration: int, **kwargs: Any) -> None:
        """Logs a value to every logger of the session and the run file.

        A name ``<layer>_<tensor>_<statistic>`` of a tensor of the contract is recorded as that.
        """
        call = "MetricLogger.log_scalar"
        name = arguments.text(call, "name", name)
        _C.log_scalar(name, arguments.number(call, "value", value), iteration)


class _MessageLogger:
    """What ``get_logger()`` returns: the session's message log."""

    @staticmethod
    def log_message(
        message: str,
        layer_name: str | None = None,
        level: int | str = logging.INFO,
        extra_cachable_args: Any = None,
    ) -> None:
        """Logs a message once per text, layer and extra arguments; the level also by name."""
        call = "debug.log_message"
        message = arguments.text(call, "msg", message, empty=True)
        layer_name = arguments.text(call, "layer_name", layer_name or "", empty=True)
        once_per = "" if extra_cachable_args is None else repr(extra_cachable_args)
        _C.debug.log_message(message, layer_name, arguments.level(call, level), once_per)

    @staticmethod
    def log_scalar(name: str, value: float, iteration: int, **kwargs: Any) -> None:
        """Logs a value; see ``MetricLogger``."""
        MetricLogger.log_scalar(name, value, iteration, **kwargs)


def get_logger() -> _MessageLogger:
    """The message log of the session."""
    return _MessageLogger()
