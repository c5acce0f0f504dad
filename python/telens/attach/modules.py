"""Which modules are watched, their names, and the autograd edges that carry their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["GradientEdge", "find_edge", "own_tensors", "watched_modules"]

_CONVOLUTIONS = (
    torch.nn.Conv1d,
    torch.nn.Conv2d,
    torch.nn.Conv3d,
    torch.nn.ConvTranspose1d,
    torch.nn.ConvTranspose2d,
    torch.nn.ConvTranspose3d,
)
_NORMS = (
    torch.nn.LayerNorm,
    torch.nn.RMSNorm,
    torch.nn.GroupNorm,
    torch.nn.BatchNorm1d,
    torch.nn.BatchNorm2d,
    torch.nn.BatchNorm3d,
    torch.nn.SyncBatchNorm,
)
_KINDS = (torch.nn.Linear, torch.nn.Embedding, torch.nn.EmbeddingBag, *_CONVOLUTIONS, *_NORMS)

# Names that wrappers add to the path of a module: DDP, torch.compile, FSDP1, checkpoint_wrapper.
_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")

# A walk from a module's output to its input passes this many autograd nodes at most. A Linear under
# autocast with a 3-D input has five: view, addmm, view of the input, and two casts.
_LONGEST_WALK = 32


def _is_watched(module: torch.nn.Module) -> bool:
    """Returns True for torch's own kinds, Conv1D of transformers, and norms by their class name.

    Model libraries define their own RMSNorm and LayerNorm classes. They have one weight per channel
    and no children.
    """
    if isinstance(module, _KINDS):
        return True
    name = type(module).__name__
    if name == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils":
        return True
    weight = getattr(module, "weight", None)
    is_norm = name.endswith(("RMSNorm", "LayerNorm"))
    return is_norm and isinstance(weight, torch.Tensor) and not any(True for _ in module.children())


def _name_of(path: str, root: torch.nn.Module) -> str:
    """Returns the path of ``named_modules()`` without the names that wrappers add.

    Names do not depend on whether the model is wrapped. A root that is a layer itself has the name
    of its class.
    """
    parts = path.split(".")
    while parts and parts[0] in _WRAPPERS:
        parts.pop(0)
    parts = [part for part in parts if part not in _WRAPPERS[1:]]
    return ".".join(parts) or type(root).__name__


def watched_modules(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yields (name, module) for each Linear, Embedding, convolution and norm below ``root``."""
    for path, module in root.named_modules():
        if _is_watched(module):
            yield _name_of(path, root), module


def own_tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yields the floating-point tensors in the arguments or results of a forward."""
    if isinstance(values, torch.Tensor):
        if values.is_floating_point():
            yield values
    elif isinstance(values, (tuple, list)):
        for each in values:
            yield from own_tensors(each)
    elif isinstance(values, dict):
        for each in values.values():
            yield from own_tensors(each)


class GradientEdge:
    """An edge of the autograd graph: the gradient that ``node`` computes for input ``index``."""

    def __init__(self, node: torch.autograd.graph.Node, index: int) -> None:
        self.node = node
        self.index = index

    def register(self, take: Any) -> None:
        """Calls ``take(gradient)`` when the backward has computed it; never for None."""

        def hook(grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> None:
            gradient = grad_inputs[self.index]
            if gradient is not None:
                take(gradient)

        self.node.register_hook(hook)


def _source_of(tensor: torch.Tensor) -> tuple[Any, int] | None:
    """Returns the node that receives the tensor's gradient and its input number there."""
    if not tensor.requires_grad:
        return None
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def find_edge(output: torch.Tensor, source: torch.Tensor) -> GradientEdge | None:
    """Finds the edge over which one module's backward sends the gradient of one of its inputs.

    A hook on the input itself would see the sum over all of its users. This edge has the module's
    part only. For a weight that autocast casts, the edge is before the cast.

    Parameters
    ----------
    output
        a result of the module
    source
        an input or a parameter of the module

    Returns
    -------
    None if the output does not depend on ``source``, or ``source`` needs no gradient
    """
    target = _source_of(source)
    if target is None or output.grad_fn is None:
        return None
    waiting = [output.grad_fn]
    seen = set()
    while waiting and len(seen) < _LONGEST_WALK:
        node = waiting.pop(0)
        if node in seen or node is target[0]:
            continue
        seen.add(node)
        for index, (following, number) in enumerate(node.next_functions):
            if following is None:
                continue
            if following is target[0] and number == target[1]:
                return GradientEdge(node, index)
            waiting.append(following)
    return None
