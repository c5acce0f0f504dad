"""Loggers of statistics and messages."""

from __future__ import annotations

import abc
import logging
from typing import Any, ClassVar

from telens import _C
from telens._names import rejects_bools
from telens.debug import arguments
from telens.debug.ranks import rank

# The names of nvdlfw_inspect.logging that its scripts import. Its other names are below, too.
__all__ = ["BaseLogger", "MetricLogger", "get_logger", "wrap_tensorboard_writer"]


class BaseLogger(abc.ABC):
    """The interface that ``initialize(statistics_logger=...)`` and ``MetricLogger.add_logger``
    accept."""

    @abc.abstractmethod
    def log_scalar(self, name: str, value: bool | float, iteration: int, **kwargs: Any) -> None:
        """Called in ``step()`` and ``end_debug()`` with ``<layer>_<tensor>_<statistic>``."""


class TensorboardLogger(BaseLogger):
    """Passes statistics to a TensorBoard ``SummaryWriter``; without one (None) to nothing."""

    def __init__(self, tb_writer: Any) -> None:
        super().__init__()
        arguments.has_method(
            "TensorboardLogger", "tb_writer", tb_writer, "add_scalar", "a SummaryWriter"
        )
        self.tb_writer = tb_writer

    def log_scalar(self, name: str, value: bool | float, iteration: int, **kwargs: Any) -> None:
        if self.tb_writer is not None:
            self.tb_writer.add_scalar(name, value, iteration)


def wrap_tensorboard_writer(tb_writer: Any) -> TensorboardLogger:
    """Returns a logger that writes to a TensorBoard ``SummaryWriter``."""
    return TensorboardLogger(tb_writer)


class MetricLogger:
    """The loggers of the session, and where feature classes log their own values."""

    # Loggers of initialize() and add_logger(). Ending the session clears the list.
    enabled_loggers: ClassVar[list[BaseLogger]] = []

    @staticmethod
    @rejects_bools
    def log_scalar(name: str, value: bool | float, iteration: int, **kwargs: Any) -> None:
        """Logs a value to every logger of the session and the run file.

        A name ``<layer>_<tensor>_<statistic>`` of a tensor of the contract is recorded as that.
        Without a session the value goes to the loggers that were added.
        """
        call = "MetricLogger.log_scalar"
        name = arguments.text(call, "name", name)
        value = arguments.number(call, "value", value)
        if MetricLogger.enabled_loggers and not _C.debug.is_initialized():
            for logger in list(MetricLogger.enabled_loggers):
                logger.log_scalar(name, value, iteration, **kwargs)
            return
        _C.log_scalar(name, value, iteration)

    @staticmethod
    def add_logger(_logger: BaseLogger) -> None:
        """Adds a logger, which gets every statistic from the next ``step()`` on.

        One that is added before ``initialize`` replaces the text file of statistics, as
        ``statistics_logger`` does.
        """
        call = "MetricLogger.add_logger"
        if _logger is None:
            raise arguments.refusal(call, "_logger", "a BaseLogger", _logger)
        arguments.has_method(call, "_logger", _logger, "log_scalar", "a BaseLogger")
        MetricLogger.enabled_loggers.append(_logger)
        attach_new_loggers()


# The loggers of enabled_loggers that the running session calls.
_attached: list[BaseLogger] = []


def first_logger(statistics_logger: Any, tb_writer: Any) -> Any:
    """Returns the ``statistics_logger`` of a session with these arguments."""
    if statistics_logger is None and tb_writer is None and MetricLogger.enabled_loggers:
        return MetricLogger.enabled_loggers[0]
    return statistics_logger


def note_beginning(statistics_logger: Any, tb_writer: Any) -> None:
    """Called when a session has begun with the logger of ``first_logger``."""
    enabled = MetricLogger.enabled_loggers
    if statistics_logger is not None:
        enabled.insert(0, statistics_logger)
    elif tb_writer is not None:
        enabled.insert(0, TensorboardLogger(tb_writer))
    _attached[:] = enabled[:1]
    attach_new_loggers()


def attach_new_loggers() -> None:
    """Adds the loggers that were added since the last call to the running session."""
    enabled = MetricLogger.enabled_loggers
    if len(enabled) == len(_attached) or not _C.debug.is_initialized():
        return
    for logger in enabled:
        if all(logger is not each for each in _attached):
            _attached.append(logger)
            _C.debug.add_logger(logger)


def note_end() -> None:
    """Called when the session has ended and released its loggers."""
    MetricLogger.enabled_loggers.clear()
    _attached.clear()


class FileLogger(BaseLogger):
    """The text logs of the session, as ``get_logger()`` returns them.

    The session opens them in ``log_dir``; user code does not create this class.
    """

    logged_api_executed: ClassVar[set[str]] = set()
    logged_api_encountered: ClassVar[set[str]] = set()

    def __init__(self, name: str, root_log_dir: str) -> None:
        raise _C.UsageError(
            f"FileLogger: a session writes its own text logs; call debug.initialize(log_dir="
            f"{root_log_dir!r}, default_logging_enabled=True), and get_logger() for messages"
        )

    def initialize(self, log_dir: str, overwrite: bool = True, add_timestamp: bool = False) -> None:
        """Raises UsageError: ``debug.initialize`` opens the log."""
        initialize_logger(log_dir)

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
    def log_scalar(name: str, value: bool | float, iteration: int, **kwargs: Any) -> None:
        """Logs a value; see ``MetricLogger``."""
        MetricLogger.log_scalar(name, value, iteration, **kwargs)


class _SessionLog(FileLogger):
    def __init__(self) -> None:
        pass


def get_logger() -> FileLogger:
    """The message log of the session."""
    return _SessionLog()


def initialize_logger(log_dir: str) -> None:
    """Raises UsageError: ``debug.initialize`` opens the log."""
    raise _C.UsageError(
        f"initialize_logger: debug.initialize(log_dir={log_dir!r}) opens the message log"
    )


def make_default_statistics_logger() -> FileLogger:
    """Raises UsageError: ``debug.initialize`` opens the text file of statistics."""
    raise _C.UsageError(
        "make_default_statistics_logger: debug.initialize(default_logging_enabled=True) opens the "
        "text file of statistics"
    )


def custom_assert(condition: Any, message: str, level: int | str = logging.ERROR) -> None:
    """Raises AssertionError if the condition is false, and logs the message before."""
    if condition:
        return
    if _C.debug.is_initialized():
        get_logger().log_message(message, level=level)
    raise AssertionError(message)


def print_n(*args: Any) -> None:
    """Prints the arguments on one line, each followed by a space."""
    print(*args, "")


def print_rank_0(*message: Any) -> None:
    """Prints on rank 0 only."""
    if rank() == 0:
        print_n(*message)


def enable_logging_at_current_step(
    cur_step: int,
    freq: int,
    start_step: int,
    end_step: int,
    start_end_list: list[tuple[int, int]] | None,
) -> bool:
    """Returns whether a schedule contains the step. -1 means an open end.

    ``end_step`` is the last step; the second number of a pair of ``start_end_list`` is the first
    step after it.
    """
    if cur_step % freq:
        return False
    if start_end_list:
        return any(
            first <= cur_step and (end == -1 or cur_step < end) for first, end in start_end_list
        )
    return start_step <= cur_step and (end_step == -1 or cur_step <= end_step)


def __getattr__(name: str) -> Any:
    if name == "LOGGER":  # None outside of a session
        return get_logger() if _C.debug.is_initialized() else None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def printable(text: str) -> str:
    """Returns the text on one line with control and bidirectional characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
