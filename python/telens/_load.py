"""Loads the compiled part of the package: the core if it fits the installed torch, or the observer.

telens._C         the core, of the package telens-core or a source build: the FP8 modules and all of
                  the observer. It fits the torch minor version that it was built with.
telens._observer  the observer, of the package telens: sessions, features that observe, and the
                  reader of runs. It fits torch 2.10 and newer, because it uses only LibTorch's
                  stable ABI. ``_observer.pyi`` lists its names.

Other modules import either of them as ``telens._C``.
"""

import importlib
import importlib.util
import sys

import torch

from telens import _build

CORE = "telens._C"
OBSERVER = "telens._observer"
OLDEST_TORCH = (2, 10)  # target version of the observer's stable ABI

_WITHOUT_CORE = "telens.watch, telens.debug, telens.open_run and `telens run` work without it"

# Why the core is not loaded; "" if it is.
_reason = ""


def minor_version(version: str) -> str:
    """Returns "2.11" for "2.11.0+cu130": LibTorch's ABI changes with the minor version."""
    return ".".join(version.split("+")[0].split(".")[:2])


def torch_of_core() -> str:
    """Returns the version of torch that the core was built with."""
    try:
        facts = importlib.import_module("telens._core_build")  # of the package telens-core
    except ModuleNotFoundError:
        facts = _build  # a source build has one torch
    return facts.TORCH_VERSION


def check_torch_version(built_with: str, found: str) -> None:
    """Raises ImportError naming both versions of torch unless their minor versions agree."""
    if minor_version(built_with) != minor_version(found):
        raise ImportError(
            f"telens was built with torch {built_with}, but torch {found} is installed here. "
            f"Install torch {minor_version(built_with)}.*, or rebuild telens with torch {found}: "
            "pip install --no-build-isolation ."
        )


def _check_observer(found: str) -> None:
    """Raises ImportError if torch is older than the stable ABI that the observer uses."""
    if tuple(map(int, minor_version(found).split("."))) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise ImportError(
            f"telens requires torch {oldest} or newer, but torch {found} is installed here"
        )


def _import_core() -> None:
    """Imports the core. Raises ImportError if it is absent or was built with another torch."""
    if importlib.util.find_spec(CORE) is None:
        raise ModuleNotFoundError(
            "telens: the compiled module telens._C is not built (`make demo` skips it). In the "
            "source tree run cmake --build build --target telens_python",
            name=CORE,
        )
    check_torch_version(torch_of_core(), torch.__version__)
    importlib.import_module(CORE)


def load_extension() -> None:
    """Imports the core or, if it is absent or was built with another torch, the observer.

    Raises ImportError if neither fits the installed torch.
    """
    global _reason
    if importlib.util.find_spec(OBSERVER) is None:
        _import_core()
        return
    if importlib.util.find_spec(CORE) is None:
        _reason = "it is not installed"
    elif minor_version(torch_of_core()) != minor_version(torch.__version__):
        _reason = f"it was built with torch {torch_of_core()}"
    else:
        _import_core()
        return
    _check_observer(torch.__version__)
    observer = importlib.import_module(OBSERVER)
    sys.modules[CORE] = observer
    sys.modules["telens"]._C = observer


def has_core() -> bool:
    """Returns whether ``telens._C`` is the core, not the observer."""
    return not _reason


def require_core(what: str) -> None:
    """Raises ImportError that says what to install if ``telens._C`` is the observer.

    ``what`` is the module or function that needs the core.
    """
    if has_core():
        return
    torch_here = minor_version(torch.__version__)
    raise ImportError(
        f"{what} needs the FP8 modules of telens-core for torch {torch_here}, but {_reason}. "
        f"Install telens-core for torch {torch_here}, or build telens from source: "
        f"pip install --no-build-isolation . ({_WITHOUT_CORE})"
    )
