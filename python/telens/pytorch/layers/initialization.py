"""Initial values of a module's parameters, filled in place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from telens import _C
from telens.pytorch.tensor import QuantizedTensor, quantized_parameter

if TYPE_CHECKING:
    from telens.pytorch.module import Module

__all__: list[str] = []

# Standard deviation of the default initialization N(0, std^2) of GEMM weights, as in Transformer
# Engine and in the C++ core.
DEFAULT_WEIGHT_STD = 0.023

Fill = Callable[[torch.Tensor], Any]

# The attribute of a copied module with its functions. Its C++ module has none: the constructor
# would call them on tensors without values.
FUNCTIONS = "_telens_functions"


def functions_of(module: Module) -> dict[str, Any]:
    """Returns the options of a module that are functions, such as init_method, by name."""
    options = module._telens_adapter.options().items()
    own = {name: value for name, value in options if callable(value)}
    return module.__dict__.get(FUNCTIONS, {}) | own


def reset_own_parameters(module: Module) -> None:
    """Fills the parameters that the module itself holds, in the order its constructor draws them.

    A parameter on "meta" becomes one on the default device. DTensors keep mesh and placements.
    """
    with torch.no_grad():
        for names, fill in _fills(module):
            held = [name for name in names if module._parameters.get(name) is not None]
            if not held:
                continue
            if len(held) == 1:
                _reset(module, held[0], fill)
            else:
                _reset_parts(module, held, fill)


def _fills(module: Module) -> Iterator[tuple[list[str], Fill]]:
    """Yields (names of a weight's parts, its fill function) for all parameters."""
    adapter = module._telens_adapter
    options = adapter.options()
    functions = functions_of(module)
    ones = torch.nn.init.zeros_ if options.get("zero_centered_gamma") else torch.nn.init.ones_
    parts = list(options.get("parameters_split") or ())
    for name in module._parameters:
        if adapter.is_gemm_weight(name):
            which = "output_layer_init_method" if name == "fc2_weight" else "init_method"
            fill = functions.get(which) or _fill_with_default
            if options.get("single_grouped_weight"):
                fill = _of_each_map(fill)
            if not parts:
                yield [name], fill
            elif name == f"{parts[0]}_weight":
                yield [f"{part}_weight" for part in parts], fill
        elif name == "layer_norm_weight" or (name == "weight" and "normalized_shape" in options):
            yield [name], ones
        else:
            yield [name], torch.nn.init.zeros_


def _fill_with_default(weight: torch.Tensor) -> None:
    weight.normal_(0, DEFAULT_WEIGHT_STD)


def _of_each_map(fill: Fill) -> Fill:
    def fill_all(weights: torch.Tensor) -> None:
        for weight in weights:
            fill(weight)

    return fill_all


def _reset(module: Module, name: str, fill: Fill) -> None:
    parameter = module._parameters[name]
    if _is_plain(parameter):
        fill(parameter)
    else:
        _take(module, name, _filled(parameter, parameter.shape, fill))


def _reset_parts(module: Module, names: list[str], fill: Fill) -> None:
    """Fills a weight as a whole and splits it, since a method may depend on the weight's shape."""
    parameters = [module._parameters[name] for name in names]
    rows = [parameter.shape[0] for parameter in parameters]
    whole = _filled(parameters[0], (sum(rows), *parameters[0].shape[1:]), fill)
    for name, part in zip(names, whole.split(rows), strict=True):
        _take(module, name, part.clone())  # a part of the whole would keep all of it alive


def _is_plain(parameter: torch.Tensor) -> bool:
    is_wrapped = isinstance(parameter, QuantizedTensor) or _is_sharded(parameter)
    return not is_wrapped and parameter.device.type != "meta"


def _is_sharded(parameter: torch.Tensor) -> bool:
    # Whoever made a DTensor has imported its module, which takes a second.
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(parameter, tensors.DTensor)


def _filled(parameter: torch.Tensor, shape: Any, fill: Fill) -> torch.Tensor:
    whole = torch.empty(shape, dtype=parameter.dtype, device=_device_for(parameter))
    fill(whole)
    return whole


def _device_for(parameter: torch.Tensor) -> torch.device:
    if _is_sharded(parameter) and parameter.device.type == "meta":
        kind = parameter.device_mesh.device_type
        return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else kind
    if parameter.device.type != "meta":
        return parameter.device
    default = torch.get_default_device()
    if default.type in ("meta", "cpu"):
        default = torch.device(_C.default_device(torch.cuda.is_available()))
    return default


def _take(module: Module, name: str, values: torch.Tensor) -> None:
    """Fills a parameter from values of its whole shape."""
    parameter = module._parameters[name]
    own = parameter.to_local() if _is_sharded(parameter) else parameter
    preserve = hasattr(own, "_high_precision_init_val")
    if parameter.device.type != "meta":
        parameter.copy_(_sharded_like(parameter, values))
        if preserve:
            own._high_precision_init_val = values.detach().cpu()
        return
    made = values
    if isinstance(own, QuantizedTensor):
        # Quantized as a whole: all shards then have its scale.
        made = quantized_parameter(values, own._get_quantizer(), preserve)
    if _is_sharded(parameter):
        made = _sharded_like(parameter, made.detach())
    if not isinstance(made, torch.nn.Parameter):
        made = torch.nn.Parameter(made.contiguous(), requires_grad=False)
    for attribute, value in vars(parameter).items():
        if not (attribute.startswith("_") or callable(value)):
            setattr(made, attribute, value)
    module._parameters[name] = made.requires_grad_(parameter.requires_grad)


def _sharded_like(parameter: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Returns this rank's shard of the values; the values themselves if the parameter is not
    sharded."""
    if not _is_sharded(parameter):
        return values
    from torch.distributed.tensor import DTensor, Replicate

    mesh = parameter.device_mesh
    whole = DTensor.from_local(values, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return whole.redistribute(placements=parameter.placements)
