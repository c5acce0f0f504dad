"""TELens finds where low-precision training goes wrong.

``telens.watch`` records the tensors of an ordinary torch model.
``telens.pytorch`` has the FP8 modules and ``telens.paddle`` those for PaddlePaddle,
``telens.common.recipe`` the recipes, ``telens.debug`` the sessions that observe and record GEMMs,
and ``telens.open_run`` reads a recorded run.
"""

import importlib

from telens import _aliases
from telens._load import load_extension

_aliases.install()
load_extension()

from telens._build import VERSION as __version__  # noqa: E402
from telens._C import (  # noqa: E402
    ConfigError,
    Error,
    RecordError,
    RunStopped,
    ShapeError,
    UsageError,
)
from telens.run import Run, open_run  # noqa: E402


def __getattr__(name: str) -> object:
    # Like transformer_engine.pytorch, telens.pytorch works after `import telens`. It is imported on
    # first use.
    if name in ("attach", "common", "debug", "paddle", "pytorch", "te_features"):
        return importlib.import_module(f"telens.{name}")
    if name in ("step", "watch"):
        return getattr(importlib.import_module("telens.attach"), name)
    if name == "summary":
        return importlib.import_module("telens.pytorch.model_summary").summary
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ConfigError",
    "Error",
    "RecordError",
    "Run",
    "RunStopped",
    "ShapeError",
    "UsageError",
    "__version__",
    "open_run",
]
