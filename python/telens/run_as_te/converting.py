"""Converts the models of a script without FP8 support and runs them under a recipe."""

from __future__ import annotations

import contextlib
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from telens import _C
from telens._names import nearest
from telens.common import recipe as recipes
from telens.debug import layer_names
from telens.pytorch import checkpointing
from telens.pytorch.conversion import convert
from telens.pytorch.module import Module
from telens.pytorch.quantization import autocast, running

__all__ = ["RECIPES", "converting", "recipe_named"]

# Names of --recipe.
RECIPES: dict[str, Callable[[], recipes.Recipe]] = {
    "delayed": recipes.DelayedScaling,
    "current": recipes.Float8CurrentScaling,
    "mxfp8": recipes.MXFP8BlockScaling,
    "block": recipes.Float8BlockScaling,
    "nvfp4": recipes.NVFP4BlockScaling,
}


def recipe_named(name: str) -> recipes.Recipe:
    """Returns the named recipe. Raises UsageError with the nearest name."""
    if name not in RECIPES:
        raise _C.UsageError(
            f"--recipe: unknown recipe {name!r}{nearest(name, RECIPES)}; it is one of "
            f"{', '.join(RECIPES)}"
        )
    return RECIPES[name]()


@contextlib.contextmanager
def converting(recipe: recipes.Recipe | None, *, converts: bool) -> Iterator[None]:
    """Runs the block with hooks on all forwards.

    With ``converts`` the first forward of a model converts it, as ``telens.pytorch.convert`` does;
    an optimizer that was built before keeps its parameters. With a recipe every outermost forward
    runs inside of ``autocast(recipe=recipe)``, unless the script has entered a region itself, also
    one with ``enabled=False``. ``torch.utils.checkpoint.checkpoint`` restores recipe and scales
    when it recomputes a forward, as ``telens.pytorch.checkpoint`` does.
    """
    forwards = _Forwards(recipe, converts)
    with contextlib.ExitStack() as hooks:
        hooks.callback(layer_names.forget_left)
        for owner, name in _holders(torch.utils.checkpoint.checkpoint):
            hooks.enter_context(mock.patch.object(owner, name, _checkpoint))
        hooks.callback(register_module_forward_pre_hook(forwards.begin).remove)
        hooks.callback(register_module_forward_hook(forwards.end, always_call=True).remove)
        yield


def _checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None, **kwargs: Any
) -> Any:
    """Replaces ``torch.utils.checkpoint.checkpoint``, whose default is reentrant."""
    reentrant = True if use_reentrant is None else use_reentrant
    return checkpointing.checkpoint(function, *args, use_reentrant=reentrant, **kwargs)


def _holders(function: Callable[..., Any]) -> list[tuple[Any, str]]:
    """Returns (module, name) for each module that has imported the function, except TELens's."""
    return [
        (module, name)
        for module in list(sys.modules.values())
        if module is not checkpointing and isinstance(module, types.ModuleType)
        for name, value in list(vars(module).items())
        if value is function
    ]


class _Outermost(threading.local):
    """The outermost forward that runs on this thread."""

    module: torch.nn.Module | None = None
    depth = 0  # nesting depth of this module's forward
    region: contextlib.AbstractContextManager | None = None


class _Forwards:
    def __init__(self, recipe: recipes.Recipe | None, converts: bool) -> None:
        self._recipe = recipe
        self._converts = converts
        self._seen: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._outermost = _Outermost()
        self._lock = threading.Lock()

    def begin(self, module: torch.nn.Module, args: Any) -> None:
        outermost = self._outermost
        if outermost.module is not None:
            outermost.depth += module is outermost.module
            return
        if self._converts:
            with self._lock:
                if module not in self._seen:
                    self._convert(module)
        # A forward inside a backward is a recomputation; its original ran in its own region.
        if torch._C._current_graph_task_id() != -1:
            return
        outermost.module, outermost.depth = module, 1
        if self._recipe is not None and not running.regions:
            outermost.region = autocast(recipe=self._recipe)
            outermost.region.__enter__()

    def end(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        outermost = self._outermost
        if module is not outermost.module:
            return
        outermost.depth -= 1
        if outermost.depth > 0:
            return
        outermost.module = None
        if outermost.region is not None:
            region, outermost.region = outermost.region, None
            region.__exit__(None, None, None)

    def _convert(self, model: torch.nn.Module) -> None:
        if any(type(each).__name__ == "FullyShardedDataParallel" for each in model.modules()):
            self._refuse("FullyShardedDataParallel has taken its parameters")
        elif not isinstance(model, Module) and any(True for _ in model.children()):
            convert(model, recipe=self._recipe)
        elif isinstance(model, torch.nn.Linear) and not isinstance(model, Module):
            self._refuse("the script calls the layer itself, whose place is not known")
        self._seen.update(model.modules())

    @staticmethod
    def _refuse(reason: str) -> None:
        layer_names.note_left(f"a model: {reason}")
        print(
            f"telens.run_as_te: --convert: a model is not converted: {reason}; call "
            "telens.pytorch.convert(model) in the script, right after it builds the model",
            file=sys.stderr,
        )
