"""Observation inside the graphs that torch.compile builds.

Forward hooks are traced into the graph. There they call a custom operator, which shows a tensor
when the graph runs. The operator decides at run time if a feature asks for the tensor, so a
schedule that changes compiles nothing again. Identity functions in front of and after a module call
the same operator on gradients.

A hook finds its layer by tensors that are attributes of the module. They are inputs of the graph,
so blocks of equal structure share one graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = [
    "ATTRIBUTE",
    "add_marks",
    "after_compiled_forward",
    "before_compiled_forward",
    "remove_marks",
]

ATTRIBUTE = "_telens_marks"  # of a watched module

# By number of the module: show(index of the tensor, tensor), while a model is watched.
_shown: dict[int, Callable[[int, torch.Tensor], None]] = {}
_next = 0

# Indices of tensors in the operator's calls.
ACTIVATION, WEIGHT, OUTPUT, GRADIENT, DGRAD = range(5)


@torch.library.custom_op("telens_attach::observe", mutates_args=("mark",))
def observe(tensor: torch.Tensor, mark: torch.Tensor, index: int) -> None:
    """Shows a tensor. The mark identifies the module. It is declared as mutated, which keeps the
    call in the graph and preserves the order of a module's calls."""
    show = _shown.get(int(mark))
    if show is not None:
        show(index, tensor)


@observe.register_fake
def _(tensor: torch.Tensor, mark: torch.Tensor, index: int) -> None:
    return None


class _ShowGradient(torch.autograd.Function):
    """The identity, which shows the gradient in the backward.

    Its result is a copy: a view could not be changed in place. Inductor removes the copy.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, mark: torch.Tensor, index: int) -> torch.Tensor:
        ctx.mark = mark
        ctx.index = index
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        observe(gradient, ctx.mark, ctx.index)
        return gradient, None, None


def add_marks(module: torch.nn.Module, show: Callable[[int, torch.Tensor], None]) -> None:
    """Lets compiled forwards of the module call ``show(index, tensor)``."""
    global _next
    _next += 1
    _shown[_next] = show
    # One for the forward and one for the backward, which the forward must not mutate.
    module.__dict__[ATTRIBUTE] = [torch.tensor(_next), torch.tensor(_next)]


def remove_marks(module: torch.nn.Module) -> None:
    """Undoes ``add_marks``. Compiled graphs still call the operator, which then does nothing."""
    marks = module.__dict__.pop(ATTRIBUTE, None)
    if marks is not None:
        _shown.pop(int(marks[0]), None)


def _marks_of(module: torch.nn.Module) -> list[torch.Tensor] | None:
    """Returns None in torch.export: the exported program must not need this package."""
    # torch.compile traces torch.compiler.is_exporting() as True.
    exports = getattr(torch.compiler, "_is_exporting_flag", False)
    return None if exports else module.__dict__.get(ATTRIBUTE)


def before_compiled_forward(module: torch.nn.Module, args: tuple) -> tuple | None:
    """Shows the input. Traced by torch.compile."""
    marks = _marks_of(module)
    if marks is None or not args or not isinstance(args[0], torch.Tensor):
        return None
    first = args[0]
    if not first.is_floating_point():
        return None
    observe(first.detach(), marks[0], ACTIVATION)
    if not first.requires_grad or not torch.is_grad_enabled():
        return None
    return (_ShowGradient.apply(first, marks[1], DGRAD), *args[1:])


def after_compiled_forward(module: torch.nn.Module, output: Any) -> torch.Tensor | None:
    """Shows weight and output. Traced by torch.compile."""
    marks = _marks_of(module)
    if marks is None or not isinstance(output, torch.Tensor) or not output.is_floating_point():
        return None
    weight = getattr(module, "weight", None)
    if isinstance(weight, torch.Tensor):
        observe(weight.detach(), marks[0], WEIGHT)
    observe(output.detach(), marks[0], OUTPUT)
    if not output.requires_grad or not torch.is_grad_enabled():
        return None
    return _ShowGradient.apply(output, marks[1], GRADIENT)
