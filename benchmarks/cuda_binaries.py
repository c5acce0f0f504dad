"""Where the program is that lists what a compiled CUDA library contains."""

import importlib.util
import shutil
from pathlib import Path


def find_cuobjdump() -> str | None:
    """The toolkit's, or the one that the triton wheel carries."""
    found = shutil.which("cuobjdump")
    spec = importlib.util.find_spec("triton")
    if found or spec is None:
        return found
    carried = Path(spec.submodule_search_locations[0]) / "backends/nvidia/bin/cuobjdump"
    return str(carried) if carried.exists() else None
