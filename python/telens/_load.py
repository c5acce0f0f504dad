"""Loads the compiled extension after checking that it matches the installed torch."""

import importlib

import torch

from telens import _build


def minor_version(version: str) -> str:
    """Returns "2.11" for "2.11.0+cu130": LibTorch's ABI changes with the minor version."""
    return ".".join(version.split("+")[0].split(".")[:2])


def check_torch_version(built_with: str, found: str) -> None:
    """Raises ImportError naming both versions of torch unless their minor versions agree."""
    if minor_version(built_with) != minor_version(found):
        raise ImportError(
            f"telens was built with torch {built_with}, but torch {found} is installed here. "
            f"Install torch {minor_version(built_with)}.*, or rebuild telens with torch {found}: "
            "pip install --no-build-isolation ."
        )


def load_extension() -> None:
    """Imports telens._C. Raises ImportError if it is not built or was built with another torch."""
    check_torch_version(_build.TORCH_VERSION, torch.__version__)
    try:
        importlib.import_module("telens._C")
    except ModuleNotFoundError as error:
        if error.name != "telens._C":
            raise
        raise ModuleNotFoundError(
            "telens: the compiled module telens._C is not built (`make demo` skips it). In the "
            "source tree run cmake --build build --target telens_python",
            name=error.name,
        ) from None
