"""Reads the names of telens._observer from its stub, and simulates the module with the core.

python tests/python/observer_names.py PROGRAM ARGUMENT...: runs a Python program in which
telens._C is an observer: the built one or, if it is not built, the core without other names.
"""

from __future__ import annotations

import ast
import importlib.util
import runpy
import sys
import types
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "python/telens"


def observer_names() -> tuple[set[str], set[str]]:
    """Returns the names of the module and of its submodule debug."""
    body = ast.parse((PACKAGE / "_observer.pyi").read_text()).body
    named = (ast.ClassDef, ast.FunctionDef)
    (debug,) = (each for each in body if isinstance(each, ast.ClassDef) and each.name == "debug")
    return (
        {each.name for each in body if isinstance(each, named)},
        {each.name for each in debug.body if isinstance(each, named)},
    )


def built(name: str) -> Path | None:
    """Returns the path of a compiled module of the package; None if it is not built."""
    for folder in sys.path:
        for path in Path(folder or ".", "telens").glob(f"{name}.*.so"):
            return path
    return None


def hide_core() -> str:
    """Makes ``import telens`` load the observer. Returns "built" or "simulated".

    The simulated observer contains the core's objects that the stub lists.
    """
    import torch  # noqa: F401 (its libraries are loaded before the core's)

    if built("_observer") is not None:
        sys.modules["telens._C"] = None
        return "built"
    spec = importlib.util.spec_from_file_location("telens._C", built("_C"))
    core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    names, debug_names = observer_names()
    observer = types.ModuleType("telens._observer")
    for name in names - {"debug"}:
        setattr(observer, name, getattr(core, name))
    observer.debug = types.ModuleType("telens._observer.debug")
    for name in debug_names:
        setattr(observer.debug, name, getattr(core.debug, name))
    observer.__spec__ = importlib.util.spec_from_loader("telens._observer", None)
    sys.modules["telens._observer"] = observer
    sys.modules["telens._C"] = None
    return "simulated"


if __name__ == "__main__":
    hide_core()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
