"""What the layers that take the place of transformers' share: masks, activations, weights."""

from __future__ import annotations

from typing import Any

import torch

from telens import _C

__all__: list[str] = []

GATED = {"silu": "swiglu", "gelu_pytorch_tanh": "geglu", "gelu_new": "geglu", "relu": "reglu"}
# "gelu" is the exact one there, and ours the tanh approximation: 5e-4 apart at most.
PLAIN = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu", "gelu_new": "gelu", "relu": "relu"}


def arbitrary(mask: torch.Tensor) -> dict[str, Any]:
    """The arguments of our attention for a mask as eager attention gets it."""
    # True where it is seen, or numbers that are added to the scores; ours: True where not.
    hides = ~mask if mask.dtype == torch.bool else mask < 0
    return {"attn_mask_type": "arbitrary", "attention_mask": hides}


def refuse_caches(*given: Any) -> None:
    """Raises UsageError if any of these arguments of a layer was given."""
    if any(each is not None for each in given):
        raise _C.UsageError(
            "use_transformer_layers: layers keep no keys and values, and only T5's look at an "
            "encoder; set model.config.use_cache = False"
        )


def activation_of(name: str, known: dict[str, str]) -> str:
    """Our name of an activation of transformers; ``known``: GATED or PLAIN."""
    refuse(name not in known, f"the activation {name!r}")
    return known[name]


def refuse(condition: Any, what: str) -> None:
    """Raises UsageError if the condition holds: ``what`` is not there."""
    if condition:
        raise _C.UsageError(
            f"use_transformer_layers: {what} are not there yet; te.convert(model) replaces its "
            "linear layers and norms one by one"
        )


def load(made: torch.nn.Module, names: dict[str, tuple[str, ...]], layer: torch.nn.Module) -> None:
    """Gives our module, made on "meta", the weights of theirs."""
    theirs = dict(layer.named_parameters())
    state = {name: torch.cat([theirs[each].detach() for each in names[name]]) for name in names}
    made.load_state_dict(state, assign=True)
