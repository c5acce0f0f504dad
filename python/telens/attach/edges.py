"""The autograd edges that carry one module's gradients of its inputs and parameters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

__all__ = [
    "Edge",
    "computed_first",
    "find_edges",
    "input_edges",
    "newest_node",
    "on_gradient",
    "source_of",
]

# An edge of the autograd graph: (node, number of the node's input whose gradient it computes).
Edge = tuple[Any, int]

# Largest number of visited nodes: more than the graph of a transformer layer has.
_MOST_NODES = 4096
# The limit if the nodes that are older than the module are unknown. A Linear under autocast with a
# 3-D input has five nodes: view, addmm, view of the input, and two casts.
_MOST_NODES_WITHOUT_FLOOR = 32


def source_of(tensor: torch.Tensor) -> Edge | None:
    """Returns the node that receives the tensor's gradient and its output number there."""
    if not tensor.requires_grad:
        return None
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def newest_node(tensors: Iterable[torch.Tensor]) -> int | None:
    """Returns the largest sequence number of the nodes that computed the tensors."""
    numbers = [each.grad_fn._sequence_nr() for each in tensors if each.grad_fn is not None]
    return max(numbers, default=None)


def _walk(first: Any, target: Edge, floor: int | None) -> list[Edge]:
    edges = []
    waiting = deque([first])
    seen = {first}
    most = _MOST_NODES_WITHOUT_FLOOR if floor is None else _MOST_NODES
    while waiting and most > 0:
        most -= 1
        node = waiting.popleft()
        for index, (following, number) in enumerate(node.next_functions):
            if following is None:
                continue
            if following is target[0] and number == target[1]:
                edges.append((node, index))
            elif following not in seen and (floor is None or following._sequence_nr() > floor):
                seen.add(following)
                waiting.append(following)
    return edges


def find_edges(output: torch.Tensor, target: Edge | None, floor: int | None) -> list[Edge]:
    """Finds the edges over which one module's backward sends the gradient of an input or parameter.

    A hook of the input itself would see the sum over all users of the input. These edges carry only
    the module's part. If autocast casts the input, they are the edges of the input before the cast.

    Parameters
    ----------
    output
        a result of the module
    target
        ``source_of`` the input or parameter
    floor
        ``newest_node`` of the module's inputs: the walk stops at nodes that are not newer

    Returns
    -------
    an empty list if the output does not depend on the target, or needs no gradient
    """
    if target is None or output.grad_fn is None or output.grad_fn is target[0]:
        return []
    edges = _walk(output.grad_fn, target, floor)
    # Sequence numbers of two threads are not comparable, as after a recomputation on a GPU.
    return edges if edges or floor is None else _walk(output.grad_fn, target, None)


def computed_first(result: torch.Tensor, floor: int | None) -> torch.Tensor:
    """Returns the tensor whose hooks see the gradient of a module's result.

    The result itself, or the tensor that it is a view of. If the program changes a view in place,
    autograd replaces the node of the view, and hooks of the view are not called.
    """
    base = result._base if result._is_view() else None
    if base is None or base.grad_fn is None or base.numel() != result.numel():
        return result
    belongs_to_module = floor is None or base.grad_fn._sequence_nr() > floor
    return base if belongs_to_module else result


def input_edges(output: torch.Tensor, inputs: list[torch.Tensor]) -> list[list[Edge]]:
    """Finds the edges of each input, also if some of the inputs are the same tensor.

    Edges of equal tensors can only be assigned if ``output`` is the result of one node that has the
    inputs in this order, as a fused attention. Otherwise they have no edges.
    """
    sources = [source_of(each) for each in inputs]
    floor = newest_node(inputs)
    found = []
    for index, source in enumerate(sources):
        if source is None or sources.count(source) == 1:
            found.append(find_edges(output, source, floor))
            continue
        node = output.grad_fn
        following = () if node is None else node.next_functions
        fused = len(following) > index and following[index] == source
        found.append([(node, index)] if fused else [])
    return found


class _Sum:
    """Adds the gradients of several edges and passes on the sum after the last one."""

    def __init__(self, edges: int, take: Callable[[torch.Tensor], None]) -> None:
        self.edges = edges
        self.take = take
        self.parts: list[torch.Tensor | None] = []

    def add(self, gradient: torch.Tensor | None) -> None:
        self.parts.append(gradient)
        if len(self.parts) < self.edges:
            return
        present = [each for each in self.parts if each is not None]
        self.parts = []
        if present:
            with torch.no_grad():
                self.take(sum(present[1:], present[0]))


def on_gradient(edges: list[Edge], take: Callable[[torch.Tensor], None]) -> None:
    """Calls ``take(gradient)`` with the sum over the edges when the backward has computed it."""
    total = _Sum(len(edges), take)
    for node, index in edges:
        # The hook must not refer to its node: such a cycle would keep the graph alive.
        def hook(grad_inputs: Any, grad_outputs: Any, index: int = index) -> None:
            total.add(grad_inputs[index])

        node.register_hook(hook)
