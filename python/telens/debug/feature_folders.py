"""The folders in feature_dirs of ``initialize`` and their feature classes."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys
from collections.abc import Iterable
from typing import Any

from telens import _C
from telens.debug import arguments
from telens.debug.logging import printable
from telens.debug.ranks import rank

__all__ = ["folders_of", "run_feature_files"]

# Transformer Engine's feature folder, which its scripts pass; the built-in features replace it.
_PEER_FEATURES = ("transformer_engine", "debug", "features")

_IMPORT_RULE = "here transformer_engine.X is telens.X, and nvdlfw_inspect.X is telens.debug.X"


def folders_of(feature_dirs: Any) -> list[pathlib.Path]:
    """Returns the folders in ``feature_dirs`` of ``initialize``.

    Raises ``telens.UsageError`` for anything that is not an existing folder.
    """
    if feature_dirs is None:
        return []
    one = isinstance(feature_dirs, str | os.PathLike)
    if not one and not isinstance(feature_dirs, Iterable):
        raise arguments.refusal(
            "debug.initialize", "feature_dirs", "a folder or several", feature_dirs
        )
    # "" means no folder, as for config_file; Path would turn it into the current folder.
    named = [each for each in ([feature_dirs] if one else feature_dirs) if each != ""]
    kept = []
    for each in named:
        folder = pathlib.Path(arguments.path("debug.initialize", "feature_dirs", each))
        if folder.parts[-3:] == _PEER_FEATURES:
            skipped = printable(str(folder))
            if rank() == 0:
                print(f"telens: skipped feature folder {skipped}: built-in ones are always there")
        elif not folder.is_dir():
            raise _C.UsageError(f"debug.initialize: feature_dirs: no such folder: {folder}")
        else:
            kept.append(folder)
    return kept


def _is_about_the_peer(error: Exception) -> bool:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return (missing or "").partition(".")[0] in ("transformer_engine", "nvdlfw_inspect")


def run_feature_files(folder: pathlib.Path) -> None:
    """Imports every .py file below a folder; their classes register themselves.

    Raises ``telens.UsageError`` if a file raises, or registers with the installed nvdlfw_inspect.
    """
    for path in sorted(folder.rglob("*.py")):
        run_feature_file(path, "debug.initialize: feature_dirs")


def run_feature_file(path: pathlib.Path, call: str) -> None:
    """Imports a file of feature classes. Raises like ``run_feature_files``, with ``call`` in the
    message."""
    # The path makes the name unique: files of the same name in two folders both run.
    name = "telens_features." + "_".join(path.resolve().with_suffix("").parts[1:])
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        raise _C.UsageError(
            f"{call}: {path} raised {type(error).__name__}: {error}"
            + (f"; {_IMPORT_RULE}" if _is_about_the_peer(error) else "")
        ) from error
    if getattr(vars(module).get("Registry"), "__module__", "").startswith("nvdlfw_inspect"):
        del sys.modules[name]
        raise _C.UsageError(
            f"{call}: {path} registers its classes with nvdlfw_inspect, not with telens; "
            f"{_IMPORT_RULE}"
        )
