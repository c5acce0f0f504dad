"""The arguments of ``initialize``, checked, under the core's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from telens import _C
from telens.debug import arguments
from telens.debug.configuration import source_of
from telens.debug.feature_folders import folders_of

__all__ = ["check_loggers", "options_of"]


def options_of(
    config_file: Any,
    feature_dirs: Any,
    log_dir: Any,
    init_training_step: Any,
    recording: dict[str, Any] | None,
) -> dict[str, Any]:
    """Checks the arguments of ``initialize`` and maps them to the core's names."""
    call = "debug.initialize"
    path, text = source_of(call, "" if config_file is None else config_file)
    folders = folders_of(feature_dirs)
    block_when_full, max_size = _recording_options({} if recording is None else recording)
    return {
        "config_file": path,
        "config_text": text,
        "feature_dirs": [str(folder) for folder in folders],
        "log_dir": arguments.path(call, "log_dir", log_dir),
        "init_training_step": arguments.index(call, "init_training_step", init_training_step),
        "block_when_full": block_when_full,
        "max_size": max_size,
    }


def _recording_options(recording: dict[str, Any]) -> tuple[bool, int]:
    if not isinstance(recording, Mapping):
        expected = "a dict of on_full ('drop' or 'block') and max_size (bytes)"
        raise arguments.refusal("debug.initialize", "recording", expected, recording)
    unknown = set(recording) - {"on_full", "max_size"}
    on_full = recording.get("on_full", "drop")
    if unknown or on_full not in ("drop", "block"):
        raise _C.UsageError(
            "debug.initialize: recording takes on_full ('drop' or 'block') and max_size (bytes), "
            f"not {recording}"
        )
    max_size = arguments.integer(
        "debug.initialize",
        "recording['max_size']",
        recording.get("max_size", 0),
        "a number of bytes, such as 10 * 2**30, or 0 for no limit",
    )
    return on_full == "block", max_size


def check_loggers(statistics_logger: Any, tb_writer: Any) -> None:
    """Raises UsageError unless both loggers, if given, have the logging methods."""
    call = "debug.initialize"
    logger = "a BaseLogger"
    arguments.has_method(call, "statistics_logger", statistics_logger, "log_scalar", logger)
    arguments.has_method(call, "tb_writer", tb_writer, "add_scalar", "a SummaryWriter")
