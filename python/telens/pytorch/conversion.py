"""Puts our modules in the place of torch's and Hugging Face's in any model."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable

import torch

from telens._names import refusal
from telens.pytorch.conversion_notes import ConversionReport, keep_report, parameters_by_owner
from telens.pytorch.module import Module
from telens.pytorch.modules import LayerNorm, Linear, RMSNorm
from telens.pytorch.rms_norm_formula import formula_of
from telens.pytorch.stored_histories import states_in

__all__ = ["convert"]

Filter = Callable[[torch.nn.Module, str], bool]


def convert(model: torch.nn.Module, filter: Filter | None = None) -> torch.nn.Module:
    """Replaces linear layers and norms by ours, prints what became of them, returns the model.

    It takes ``nn.Linear``, ``nn.LayerNorm`` and ``nn.RMSNorm``, and of Hugging Face's transformers
    ``Conv1D`` and every norm whose own forward computes RMSNorm with ``weight`` or ``1 + weight``.
    ``conversion_report(model)`` names each module that was converted, and each that was left, with
    the reason.

    The parameters stay the same objects, so optimizers, tied weights and checkpoints go on working;
    pruned modules stay pruned. Subclasses of the classes above are left alone, since they may
    compute something else (the projections inside ``nn.MultiheadAttention`` are of that kind).

    ``nn.TransformerEncoderLayer`` has a fused kernel for evaluation that reads its children's
    weights without calling them; it is switched off where a child was replaced, so that evaluation
    runs the modules that training runs.

    Parameters
    ----------
    model
        any module; if it is itself one of those, its replacement is returned
    filter
        ``filter(module, name)`` tells whether a module is to be replaced. Without one all are, but
        for output heads: a linear layer that ``get_output_embeddings()`` names, or whose weight
        another module has too. Their GEMM makes the logits, which usually stay in high precision
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"convert: model must be a torch.nn.Module, not {type(model).__name__}")
    if filter is not None and not callable(filter):
        raise refusal("convert", "filter", "a function of (module, name)", filter)
    conversion = _Conversion(model, filter)
    converted = conversion.run()
    keep_report(converted, conversion.report)
    _warn_of_states_left_behind(converted)
    return converted


def _warn_of_states_left_behind(model: torch.nn.Module) -> None:
    """Of what from_pretrained has read as plain modules of torch, from what ours had written."""
    folder = getattr(getattr(model, "config", None), "_name_or_path", None)
    if not isinstance(folder, str) or not os.path.isdir(folder):
        return
    try:
        count = sum(1 for _ in states_in(folder))
    except Exception:  # no checkpoint, or none that can be read: nothing is known to be lost
        return
    if count:
        warnings.warn(
            f"convert: the checkpoint {folder} has amax histories and scales of {count} layers, "
            "which from_pretrained has left out; telens.pytorch.load_fp8_state(model, "
            f"{folder!r}) restores them, without it they start anew",
            UserWarning,
            stacklevel=3,
        )


class _Conversion:
    def __init__(self, model: torch.nn.Module, filter: Filter | None) -> None:
        self._model = model
        self._filter = filter or self._is_no_head
        self._filter_is_ours = filter is None
        self._heads = _output_heads(model)
        self._owners = parameters_by_owner(model)
        self._done: dict[int, torch.nn.Module] = {}  # a module that stands in two places stays one
        self.report = ConversionReport()

    def run(self) -> torch.nn.Module:
        for parent_name, parent in list(self._model.named_modules()):
            if isinstance(parent, Module):
                continue  # its children are ours already, or the user's own choice
            for name, child in list(parent._modules.items()):
                if child is None:
                    continue
                made = self._replacement(child, f"{parent_name}.{name}".lstrip("."))
                setattr(parent, name, made)
                if made is not child and isinstance(parent, torch.nn.TransformerEncoderLayer):
                    # The condition on which torch's fast path hangs.
                    parent.activation_relu_or_gelu = 0
        for module in self._model.modules():
            if isinstance(module, torch.nn.TransformerEncoder) and any(
                isinstance(child, Module) for child in module.layers.modules()
            ):
                module.use_nested_tensor = False  # only the fast path takes nested tensors
        return self._replacement(self._model, "")

    def _replacement(self, module: torch.nn.Module, name: str) -> torch.nn.Module:
        if id(module) not in self._done:
            self._done[id(module)] = self._made(module, name) or module
        return self._done[id(module)]

    def _made(self, module: torch.nn.Module, name: str) -> Module | None:
        make = _maker_of(module)
        if make is None:
            self.report.note_left(module, name, self._owners)
            return None
        if not self._filter(module, name):
            self.report.leave(module, name, self._why_filtered(module, name))
            return None
        if "forward" in module.__dict__:
            self.report.leave(module, name, "its forward was replaced on the object")
            return None
        made, reason = make(module)
        if made is None:
            self.report.leave(module, name, reason)
            return None
        for hooks in _HOOKS:
            getattr(made, hooks).update(getattr(module, hooks))
        made._is_full_backward_hook = module._is_full_backward_hook
        made.train(module.training)
        self.report.convert(module, name, made)
        return made

    def _is_no_head(self, module: torch.nn.Module, name: str) -> bool:
        return not _is_linear(module) or not (
            id(module) in self._heads or self._sharers_of_weight(module)
        )

    def _why_filtered(self, module: torch.nn.Module, name: str) -> str:
        if not self._filter_is_ours:
            return "filter"
        others = self._sharers_of_weight(module)
        what = f"its weight is that of {others[0]} too" if others else "it makes the logits"
        return f"an output head, {what}; a filter= that returns True converts it"

    def _sharers_of_weight(self, module: torch.nn.Module) -> list[str]:
        owners = self._owners.get(id(module._parameters.get("weight")), [])
        return [name for owner, name in owners if owner is not module]


_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
)

# A replacement, or None and why there is none.
_Made = tuple[Module | None, str]


def _is_linear(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Linear) or _is_conv1d(module)


def _is_of_transformers(module: torch.nn.Module) -> bool:
    # Also classes that came with a checkpoint (transformers_modules).
    return type(module).__module__.partition(".")[0] in ("transformers", "transformers_modules")


def _is_conv1d(module: torch.nn.Module) -> bool:
    # By name: a program without transformers need not import it.
    return (type(module).__module__, type(module).__name__) == (
        "transformers.pytorch_utils",
        "Conv1D",
    )


def _output_heads(model: torch.nn.Module) -> set[int]:
    heads = set()
    for module in model.modules():
        if not callable(getattr(module, "get_output_embeddings", None)):
            continue
        with contextlib.suppress(NotImplementedError, AttributeError):  # a model without one
            heads.add(id(module.get_output_embeddings()))
    return heads


def _maker_of(module: torch.nn.Module) -> Callable[[torch.nn.Module], _Made] | None:
    if type(module) in _MAKERS:
        return _MAKERS[type(module)]
    if _is_conv1d(module):
        return _conv1d
    if _is_of_transformers(module) and "Norm" in type(module).__name__:
        is_one = set(module._parameters) == {"weight"} and not module._buffers
        return _rms_norm_of_transformers if is_one and not module._modules else None
    return None


def _linear(module: torch.nn.Linear) -> _Made:
    made = Linear(
        module.in_features,
        module.out_features,
        bias=module.bias is not None,
        params_dtype=module.weight.dtype,
        device="meta",
    )
    return _with_tensors_of(module, made), ""


def _conv1d(module: torch.nn.Module) -> _Made:
    from telens.pytorch.transformers_conv1d import Conv1D

    made = Conv1D(module.nf, module.nx, params_dtype=module.weight.dtype, device="meta")
    return _with_tensors_of(module, made), ""


def _layer_norm(module: torch.nn.LayerNorm) -> _Made:
    if not module.elementwise_affine or module.bias is None:
        return None, "it has no weight and bias, and ours always has both"
    made = LayerNorm(
        list(module.normalized_shape),
        eps=module.eps,
        params_dtype=module.weight.dtype,
        device="meta",
    )
    return _with_tensors_of(module, made), ""


def _rms_norm(module: torch.nn.RMSNorm) -> _Made:
    if not module.elementwise_affine:
        return None, "it has no weight, and ours always has one"
    # torch's default is the epsilon of the input's dtype; the parameter's is the nearest to it.
    eps = torch.finfo(module.weight.dtype).eps if module.eps is None else module.eps
    made = RMSNorm(
        list(module.normalized_shape), eps=eps, params_dtype=module.weight.dtype, device="meta"
    )
    return _with_tensors_of(module, made), ""


def _rms_norm_of_transformers(module: torch.nn.Module) -> _Made:
    formula = formula_of(module)
    if formula is None:
        return None, "its forward is not RMSNorm with weight or 1 + weight"
    made = RMSNorm(
        list(module.weight.shape),
        eps=formula.eps,
        zero_centered_gamma=formula.zero_centered,
        params_dtype=module.weight.dtype,
        device="meta",
    )
    return _with_tensors_of(module, made), ""


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


_MAKERS: dict[type, Callable[[torch.nn.Module], _Made]] = {
    torch.nn.Linear: _linear,
    torch.nn.LayerNorm: _layer_norm,
    torch.nn.RMSNorm: _rms_norm,
}
