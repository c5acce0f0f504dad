"""Loads the compiled part, after checking that it fits the torch beside it."""

import importlib

import torch

from telens import _build


def minor_version(version: str) -> str:
    """ "2.11.0+cu130" -> "2.11": what has to agree, since LibTorch's ABI changes with it."""
    return ".".join(version.split("+")[0].split(".")[:2])


def check_torch_version(built_with: str, found: str) -> None:
    """Raises ImportError naming both versions of torch unless their minor versions agree."""
    if minor_version(built_with) != minor_version(found):
        raise ImportError(
            f"telens was built with torch {built_with}, but torch {found} is installed here. "
            f"Install torch {minor_version(built_with)}.*, or build telens again beside torch "
            f"{found}: pip install --no-build-isolation ."
        )


def load_extension() -> None:
    """Imports telens._C. Raises ImportError if it is not built, or was built with another torch."""
    check_torch_version(_build.TORCH_VERSION, torch.__version__)
    try:
        importlib.import_module("telens._C")
    except ModuleNotFoundError as error:
        if error.name != "telens._C":
            raise
        raise ModuleNotFoundError(
            "telens: its compiled module telens._C is not built (`make demo` leaves it out); in "
            "the source tree run cmake --build build --target telens_python",
            name=error.name,
        ) from None
