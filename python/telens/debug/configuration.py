"""The arguments of ``initialize`` and ``plan``: the configuration and the options of a session."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

from telens import _C
from telens.debug import arguments
from telens.debug.arguments import refusal
from telens.debug.feature_folders import folders_of

__all__ = ["check_loggers", "options_of"]

# A valid configuration has at most about ten levels.
_MOST_LEVELS = 100


def source_of(function: str, config: Any) -> tuple[str, str | None]:
    """Returns the path of a configuration ("" if none), and its text if it is a dict.

    NumPy and torch scalars become numbers, arrays and sets become (sorted) lists, paths become
    strings. Raises UsageError that names the key of any other value.
    """
    if isinstance(config, Mapping):
        return "", _text(function, "", config)
    if not isinstance(config, str | os.PathLike):
        raise refusal(function, "the configuration", "a path, a dict, or '' for none", config)
    return os.fspath(config), None


def _text(function: str, place: str, value: Any, level: int = 0) -> str:
    """Returns the value as JSON with YAML numbers: YAML reads 1e-05 as a string."""
    if level > _MOST_LEVELS:
        start = place if len(place) <= 60 else place[:60] + "..."
        raise _C.UsageError(
            f"{function}: the configuration has more than {_MOST_LEVELS} levels at '{start}'; "
            "does it contain itself?"
        )
    if isinstance(value, Mapping):
        inside = f"{place}." if place else ""
        items = (
            f"{_string(str(key))}: {_text(function, f'{inside}{key}', each, level + 1)}"
            for key, each in value.items()
        )
        return "{" + ", ".join(items) + "}"
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, list | tuple):
        items = (_text(function, f"{place}[{i}]", each, level + 1) for i, each in enumerate(value))
        return "[" + ", ".join(items) + "]"
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if value is None or isinstance(value, str | bool):
        return _string(value) if isinstance(value, str) else json.dumps(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _number(float(value))
    if hasattr(value, "item") and hasattr(value, "tolist"):
        return _text(function, place, value.tolist(), level + 1)
    raise _C.UsageError(
        f"{function}: the configuration's key '{place}' has a {type(value).__name__}; a "
        "configuration has strings, numbers, booleans, None, lists and dicts"
    )


def _string(value: str) -> str:
    """Quotes a string. YAML escapes a character beyond 16 bits as one number, JSON as two."""
    characters = (
        json.dumps(each)[1:-1] if ord(each) <= 0xFFFF else f"\\U{ord(each):08x}" for each in value
    )
    return '"' + "".join(characters) + '"'


def _number(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    digits = repr(value)
    # A YAML number with an exponent needs a point and the exponent's sign, as Python writes it.
    return digits.replace("e", ".0e") if "e" in digits and "." not in digits else digits


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
