"""TELens finds where low-precision training goes wrong.

``telens.pytorch`` has the FP8 modules, ``telens.common.recipe`` the recipes, ``telens.debug`` the
sessions that watch the GEMMs inside, and ``telens.open_run`` reads what was recorded.
"""

from telens._load import load_extension

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
