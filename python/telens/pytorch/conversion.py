"""Puts our modules in the place of torch's in any model."""

from __future__ import annotations

from collections.abc import Callable

import torch

from telens.pytorch.module import Module
from telens.pytorch.modules import LayerNorm, Linear, RMSNorm

__all__ = ["convert"]

Filter = Callable[[torch.nn.Module, str], bool]


def convert(model: torch.nn.Module, filter: Filter | None = None) -> torch.nn.Module:
    """Replaces ``nn.Linear``, ``nn.LayerNorm`` and ``nn.RMSNorm`` by ours, and returns the model.

    The parameters stay the same objects, so an optimizer and tied weights go on working; pruned
    modules stay pruned. Subclasses of the three are left alone, since they may compute something
    else (the projections inside ``nn.MultiheadAttention`` are of that kind).

    ``nn.TransformerEncoderLayer`` has a fused kernel for evaluation that reads its children's
    weights without calling them; it is switched off where a child was replaced, so that evaluation
    runs the modules that training runs.

    Parameters
    ----------
    model
        any module; if it is itself one of the three, its replacement is returned
    filter
        ``filter(module, name)`` tells whether a module is to be replaced; default: all of them
    """
    replaced: dict[int, Module] = {}  # a module that stands in two places stays one

    def replacement(module: torch.nn.Module, name: str) -> torch.nn.Module:
        if id(module) in replaced:
            return replaced[id(module)]
        make = _makers.get(type(module))
        made = make(module) if make and (filter is None or filter(module, name)) else None
        if made is None:
            return module
        for hooks in _HOOKS:
            getattr(made, hooks).update(getattr(module, hooks))
        made._is_full_backward_hook = module._is_full_backward_hook
        made.train(module.training)
        replaced[id(module)] = made
        return made

    for parent_name, parent in list(model.named_modules()):
        if isinstance(parent, Module):
            continue  # its children are ours already, or the user's own choice
        for name, child in list(parent._modules.items()):
            if child is None:
                continue
            made = replacement(child, f"{parent_name}.{name}".lstrip("."))
            setattr(parent, name, made)
            if made is not child and isinstance(parent, torch.nn.TransformerEncoderLayer):
                parent.activation_relu_or_gelu = 0  # the condition on which torch's fast path hangs
    for module in model.modules():
        if isinstance(module, torch.nn.TransformerEncoder) and any(
            isinstance(child, Module) for child in module.layers.modules()
        ):
            module.use_nested_tensor = False  # only the fast path takes nested tensors
    return replacement(model, "")


_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
)


def _linear(module: torch.nn.Linear) -> Module:
    made = Linear(
        module.in_features,
        module.out_features,
        bias=module.bias is not None,
        params_dtype=module.weight.dtype,
        device="meta",
    )
    return _with_tensors_of(module, made)


def _layer_norm(module: torch.nn.LayerNorm) -> Module | None:
    if not module.elementwise_affine or module.bias is None:
        return None  # ours always has both parameters
    made = LayerNorm(
        list(module.normalized_shape),
        eps=module.eps,
        params_dtype=module.weight.dtype,
        device="meta",
    )
    return _with_tensors_of(module, made)


def _rms_norm(module: torch.nn.RMSNorm) -> Module | None:
    if not module.elementwise_affine:
        return None
    # torch's default is the epsilon of the input's dtype; the parameter's is the nearest to it.
    eps = torch.finfo(module.weight.dtype).eps if module.eps is None else module.eps
    made = RMSNorm(
        list(module.normalized_shape), eps=eps, params_dtype=module.weight.dtype, device="meta"
    )
    return _with_tensors_of(module, made)


def _with_tensors_of(module: torch.nn.Module, made: Module) -> Module:
    """Hands over all of a module's tensors.

    Of a pruned module ``weight_orig`` is a parameter, ``weight_mask`` a buffer, and ``weight`` an
    attribute that a hook computes from them.
    """
    made._parameters.clear()
    made._parameters.update(module._parameters)
    made._buffers.update(module._buffers)
    made._non_persistent_buffers_set.update(module._non_persistent_buffers_set)
    computed = {"weight", "bias"} & module.__dict__.keys()
    made.__dict__.update({name: module.__dict__[name] for name in computed})
    return made


_makers = {
    torch.nn.Linear: _linear,
    torch.nn.LayerNorm: _layer_norm,
    torch.nn.RMSNorm: _rms_norm,
}
