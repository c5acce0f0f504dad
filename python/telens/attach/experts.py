"""Routers of mixtures of experts: tokens of each expert, entropy, dropped tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from telens import _C

__all__ = ["Router", "is_router", "record_routing"]

# Routers that return a mask [..., experts] of tokens that an expert takes, within its capacity.
_MASKS = ("SwitchTransformersTop1Router", "NllbMoeTop2Router")


def is_router(module: torch.nn.Module) -> bool:
    """Returns True for classes that are named like the routers of transformers."""
    return type(module).__name__.endswith("Router")


@dataclass
class _Routing:
    """Where the tokens of one forward went."""

    logits: torch.Tensor  # [tokens, experts]
    chosen: torch.Tensor  # int64 [tokens, experts of a token]; one that does not exist is dropped


def _routing_of(module: torch.nn.Module, output: Any) -> _Routing | None:
    """Returns the routing in a router's results, None if they have an unknown form.

    Most routers return (logits [..., experts], weights, indices [..., experts of a token]).
    """
    values = output if isinstance(output, tuple) else (output,)
    tensors = [each.detach() for each in values if isinstance(each, torch.Tensor) and each.dim()]
    scores = [each for each in tensors if each.is_floating_point()]
    if type(module).__name__ in _MASKS:
        logits = scores[-1].reshape(-1, scores[-1].size(-1))
        taken = tensors[0].reshape(logits.shape) != 0
        chosen = torch.where(taken.any(-1), taken.int().argmax(-1), logits.size(-1))
        return _Routing(logits, chosen[:, None])
    indices = [e for e in tensors if not e.is_floating_point() and e.dtype != torch.bool]
    if not scores or not indices or indices[0].size(-1) > scores[0].size(-1):
        return None
    logits = scores[0].reshape(-1, scores[0].size(-1))
    return _Routing(logits, indices[0].reshape(logits.size(0), -1).long())


class Router:
    """Counts the tokens of a router's experts over the forwards of an iteration."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.experts = 0  # known after the first forward
        self._sums: torch.Tensor | None = None

    @torch.no_grad()
    def add(self, module: torch.nn.Module, output: Any) -> None:
        """Adds the results of one forward."""
        routing = _routing_of(module, output)
        if routing is None or routing.logits.numel() == 0:
            return
        self.experts = routing.logits.size(-1)
        chosen = routing.chosen
        exists = (chosen >= 0) & (chosen < self.experts)
        slots = torch.where(exists, chosen, self.experts)
        counts = torch.bincount(slots.reshape(-1), minlength=self.experts + 1).double()
        dropped = (~exists).any(-1).sum().double()
        entropy = _entropy(routing.logits).sum()
        tokens = torch.full_like(entropy, routing.logits.size(0))
        sums = torch.cat([counts[: self.experts], torch.stack([dropped, entropy, tokens])])
        self._sums = sums if self._sums is None else self._sums + sums

    def take(self) -> torch.Tensor | None:
        """Returns [tokens of each expert, dropped tokens, sum of entropies, tokens]."""
        sums, self._sums = self._sums, None
        return sums


def _entropy(logits: torch.Tensor) -> torch.Tensor:
    """Returns each token's entropy in nats, FP64. ``logits`` may be probabilities already."""
    values = logits.double()
    sums = values.sum(-1, keepdim=True)
    are_probabilities = (values >= 0).all() & ((sums - 1).abs() < 1e-2).all()
    weights = torch.where(are_probabilities, values / sums, values.softmax(-1))
    return -torch.special.xlogy(weights, weights).sum(-1)


def record_routing(routers: list[Router], note: Callable[[str, float], None]) -> None:
    """Records the statistics of the running iteration.

    For each router ``router_entropy`` (mean over tokens, in nats), ``router_entropy%`` (of the
    largest possible), ``dropped_tokens%`` (tokens that an expert did not take, for lack of
    capacity), and ``expert_imbalance`` (tokens of the busiest expert over the mean); for each
    expert ``tokens``. ``note`` also receives the numbers of the routers.
    """
    taken = [(router, sums) for router in routers if (sums := router.take()) is not None]
    if not taken:
        return
    device = taken[0][1].device
    numbers = torch.cat([sums.to(device) for _, sums in taken]).tolist()
    now = _C.debug.iteration()
    for router, _ in taken:
        size = router.experts + 3
        mine, numbers = numbers[:size], numbers[size:]
        counts, (dropped, entropy, tokens) = mine[:-3], mine[-3:]
        largest = math.log(router.experts)
        values = {
            "router_entropy": entropy / tokens,
            "router_entropy%": 100 * entropy / tokens / largest if largest > 0 else 0.0,
            "dropped_tokens%": 100 * dropped / tokens,
        }
        if sum(counts) > 0:
            values["expert_imbalance"] = max(counts) * len(counts) / sum(counts)
        for statistic, value in values.items():
            _C.log_scalar(f"{router.name}_output_{statistic}", value, now)
            note(f"{router.name}/{statistic}", value)
        for expert, count in enumerate(counts):
            _C.log_scalar(f"{router.name}.expert_{expert}_activation_tokens", count, now)
