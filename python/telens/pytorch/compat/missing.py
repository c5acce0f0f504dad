"""Names that can be imported, annotated and subclassed, and that raise when they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from telens import _C

__all__ = ["missing_class", "missing_function"]


def _refuse(path: str, advice: str) -> NoReturn:
    raise _C.UsageError(f"telens has no {path}: its name can only be imported; {advice}")


def missing_function(path: str, advice: str) -> Callable[..., NoReturn]:
    """Returns a function that raises UsageError with the path, as scripts import it, and advice."""

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        _refuse(path, advice)

    missing.__name__ = missing.__qualname__ = path.rpartition(".")[2]
    missing.__doc__ = f"Missing: {advice}."
    return missing


def missing_class(path: str, advice: str, base: type = object) -> type:
    """Returns a subclass of ``base`` whose constructor raises UsageError, also of subclasses."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(path, advice)

    name = path.rpartition(".")[2]
    return type(name, (base,), {"__init__": refuse, "__doc__": f"Missing: {advice}."})
