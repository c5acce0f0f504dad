"""Faults in attention: changes of queries and keys, not of a weight."""

from __future__ import annotations

import torch
from faults import Fault, Truth, module_of
from training import Training

CORES = ("layers.0.self_attention.core_attention", "layers.1.self_attention.core_attention")
QUERY, KEY = 0, 1


def change_queries_and_keys(training: Training, layer: str, at: int, change) -> None:
    """Replaces query and key, [seq, batch, heads, size], by the result of change(query, key)."""

    def hook(module, inputs):
        if training.step < at:
            return None
        return (*change(inputs[QUERY], inputs[KEY]), *inputs[2:])

    module_of(training, layer).register_forward_pre_hook(hook)


def logits_explode(training: Training, layer: str, at: int) -> Truth:
    change_queries_and_keys(training, layer, at, lambda query, key: (500 * query, key))
    return Truth(("attention_logits",), layer, "scores", at)


def attention_collapses(training: Training, layer: str, at: int) -> Truth:
    """Every query attends only to its own position: its logit is 0 there and negative before it."""

    def change(query: torch.Tensor, key: torch.Tensor):
        query, key = query.clone(), key.clone()
        query[..., 0] = query.size(-1) ** 0.5  # the attention divides by it
        seq = key.size(0)
        key[..., 0] = 8.0 * torch.arange(1 - seq, 1).view(seq, 1, 1)
        return query, key

    change_queries_and_keys(training, layer, at, change)
    return Truth(("attention_collapse",), layer, "scores", at)


ATTENTION_FAULTS = (
    Fault("logits_explode", logits_explode, layers=CORES),
    Fault("attention_collapses", attention_collapses, layers=CORES),
)
