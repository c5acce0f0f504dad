"""Recipes of autocast regions, and the Python recipe from which a layer's C++ recipe was built."""

from __future__ import annotations

import threading
from collections.abc import Callable
from weakref import WeakKeyDictionary, ref

import torch

from telens import _C
from telens.common.recipe import Recipe

__all__ = ["recipe_of", "remember", "running"]


class _Running(threading.local):
    """The autocast regions of a thread, the innermost last."""

    def __init__(self) -> None:
        self.regions: list[tuple[Recipe, torch.distributed.ProcessGroup | None, bool]] = []


running = _Running()

# Equal recipes share one C++ recipe; the newest stands for all. A custom recipe owns its C++
# recipe: a strong reference would keep both for ever.
_python_recipes: WeakKeyDictionary[_C.Recipe, Callable[[], Recipe | None]] = WeakKeyDictionary()


def remember(recipe: Recipe, native: _C.Recipe) -> None:
    """Stores that the C++ recipe was built from this one."""
    _python_recipes[native] = ref(recipe) if recipe.custom() else lambda: recipe


def recipe_of(native: _C.Recipe | None) -> Recipe | None:
    """Returns the recipe that an autocast was given; None if it no longer exists."""
    known = None if native is None else _python_recipes.get(native)
    return None if known is None else known()
