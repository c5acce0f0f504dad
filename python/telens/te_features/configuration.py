"""Translates a config of nvdlfw_inspect into the config of the TELens session that it describes."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from telens import _C

__all__ = ["FEATURES", "PRECISION", "PREFIX", "reads_codes", "session_config"]

PREFIX = "TELens"
PRECISION = "GemmPrecision"
_CONFIG = "Config"


@dataclass(frozen=True)
class _Mirrored:
    """What a class passes to TELens. ``namespace``: None if it is not a feature of TELens."""

    namespace: str | None
    reads_codes: bool
    doc: str


def _documented(namespace: str, name: str, reads_codes: bool = False) -> _Mirrored:
    doc = f"The feature {namespace}.{name} of TELens, with its parameters; see docs/features.md."
    return _Mirrored(namespace, reads_codes, doc)


FEATURES = {
    "LogTensorStats": _documented("transformer_engine", "LogTensorStats"),
    "LogFp8TensorStats": _documented("transformer_engine", "LogFp8TensorStats", True),
    "LogFp8Stats": _documented("transformer_engine", "LogFp8Stats", True),
    "LogNvfp4TensorStats": _documented("transformer_engine", "LogNvfp4TensorStats", True),
    "DumpTensors": _documented("transformer_engine", "DumpTensors", True),
    "ScaleHealth": _documented("telens", "ScaleHealth", True),
    "BlockTelemetry": _documented("telens", "BlockTelemetry", True),
    "ValueHistogram": _documented("telens", "ValueHistogram"),
    "Trigger": _documented("telens", "Trigger", True),
    "Diagnosis": _documented("telens", "Diagnosis"),
    PRECISION: _Mirrored(
        None,
        False,
        "Records the bits of an element of each GEMM operand, as the statistics bits_in_fprop, "
        "bits_in_dgrad and bits_in_wgrad of the operand, every `freq` iterations. Warns of an "
        "operand in high precision although the recipe quantizes it.",
    ),
    _CONFIG: _Mirrored(
        None,
        True,
        "Adds the sections of the TELens config in the file `config_file`. They are limited to "
        "the layers that this section selects.",
    ),
}


def session_config(source: Any) -> dict[str, Any]:
    """Returns the config of the TELens session: enabled sections, with TELens' features only.

    ``source``: the ``config_file`` of nvdlfw_inspect, a path or a dict.

    Raises ``telens.UsageError`` if two sections have the same name.
    """
    sections: dict[str, Any] = {}
    for name, section in _enabled_sections(source):
        features = _features_of(section)
        made: dict[str, Any] = {}
        for feature, options in features.items():
            namespace = FEATURES[feature].namespace
            if namespace is not None:
                made.setdefault(namespace, {})[feature] = options
        added = {name: {"enabled": True, "layers": section["layers"], **made}} if made else {}
        if features.get(_CONFIG, {}).get("enabled"):
            added |= _of_file(name, features[_CONFIG])
        for each in sections.keys() & added.keys():
            raise _C.UsageError(
                f"telens.te_features: two sections are named {each!r}; rename one of them"
            )
        sections |= added
    return sections


def reads_codes(source: Any) -> bool:
    """Returns True if a feature of the config may read quantized copies of tensors."""
    return any(
        FEATURES[feature].reads_codes
        for _, section in _enabled_sections(source)
        for feature in _features_of(section)
    )


def _enabled_sections(source: Any) -> list[tuple[str, Mapping]]:
    sections = _loaded(source)
    return [(name, each) for name, each in sections.items() if each.get("enabled")]


def _features_of(section: Mapping) -> dict[str, Mapping]:
    named = section.get("transformer_engine") or {}
    own = {
        name.removeprefix(PREFIX): options
        for name, options in named.items()
        if name.startswith(PREFIX)
    }
    return {name: options for name, options in own.items() if name in FEATURES}


def _of_file(section: str, options: Mapping) -> Mapping:
    file = options.get("config_file")
    if not isinstance(file, str | os.PathLike) or not pathlib.Path(file).is_file():
        raise _C.UsageError(
            f"telens.te_features: {PREFIX}{_CONFIG} of section {section!r}: config_file is "
            f"{file!r}, expected the path of a TELens config"
        )
    return _loaded(file)


def _loaded(source: Any) -> Mapping:
    if isinstance(source, Mapping):
        return source
    # nvdlfw_inspect runs without a config if the file does not exist.
    if not source or not pathlib.Path(source).is_file():
        return {}
    import yaml

    return yaml.safe_load(pathlib.Path(source).read_text()) or {}
