"""Shared parts of the replacements for transformers layers: masks, activations, weights."""

from __future__ import annotations

import sys
from typing import Any

import torch

from telens import _C
from telens.pytorch.checkpointing import checkpoint

__all__: list[str] = []

GATED = {"silu": "swiglu", "gelu_pytorch_tanh": "geglu", "gelu_new": "geglu", "relu": "reglu"}
# "gelu" is the exact function in transformers and the tanh approximation here. They differ by at
# most 5e-4.
PLAIN = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu", "gelu_new": "gelu", "relu": "relu"}


# Outputs that transformers collects from layers of its classes, and the arguments that request
# them.
_OUTPUTS = {
    "hidden_states": "output_hidden_states",
    "attentions": "output_attentions",
    "cross_attentions": "output_attentions",
}


class Replacement(torch.nn.Module):
    """A module that replaces a layer of transformers; ``_replace`` is its forward. Supports
    gradient_checkpointing_enable, with the recipe, scales and routing of the first forward."""

    gradient_checkpointing = False  # set by transformers, with the function below
    _gradient_checkpointing_func: Any = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Has the arguments and results of the replaced layer."""
        _refuse_outputs(kwargs)
        if not (self.gradient_checkpointing and self.training and torch.is_grad_enabled()):
            return self._replace(*args, **kwargs)
        options = getattr(self._gradient_checkpointing_func, "keywords", {})
        return checkpoint(self._replace, *args, **options, **kwargs)

    def _replace(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def _refuse_outputs(given: dict[str, Any]) -> None:
    """Raises UsageError if the model should return outputs that only its original layers provide.

    They are requested by arguments, or by the model's configuration, which is visible only in the
    outputs that it collects.
    """
    asked = {name for name in _OUTPUTS.values() if given.get(name)}
    capturing = sys.modules.get("transformers.utils.output_capturing")
    collector = getattr(capturing, "_active_collector", None)
    collected = (collector.get() if collector is not None else None) or {}
    asked |= {name for output, name in _OUTPUTS.items() if output in collected}
    if asked:
        raise _C.UsageError(
            f"use_transformer_layers: {min(asked)} is not there: our layers hand out neither "
            "attentions nor hidden states; leave it out, or take those by forward hooks"
        )


def arbitrary(mask: torch.Tensor) -> dict[str, Any]:
    """Returns the arguments of our attention for a mask as passed to eager attention."""
    # Masks of transformers: True if visible, or numbers that are added to the scores. Our mask:
    # True if hidden.
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
    """Returns our name of a transformers activation; ``known``: GATED or PLAIN."""
    refuse(name not in known, f"the activation {name!r}")
    return known[name]


def refuse(condition: Any, what: str) -> None:
    """Raises UsageError if the condition holds: ``what`` is not supported."""
    if condition:
        raise _C.UsageError(
            f"use_transformer_layers: {what} are not supported; te.convert(model) replaces its "
            "linear layers and norms one by one"
        )


def load(made: torch.nn.Module, names: dict[str, tuple[str, ...]], layer: torch.nn.Module) -> None:
    """Copies a layer's weights into our module, created on "meta"; frozen weights stay frozen."""
    theirs = dict(layer.named_parameters())
    state = {name: torch.cat([theirs[each].detach() for each in names[name]]) for name in names}
    made.load_state_dict(state, assign=True)
    for name, sources in names.items():
        trained = {theirs[each].requires_grad for each in sources}
        refuse(len(trained) > 1, f"{' and '.join(sources)}, one frozen and one not, as one weight,")
        made.get_parameter(name).requires_grad_(trained.pop())
