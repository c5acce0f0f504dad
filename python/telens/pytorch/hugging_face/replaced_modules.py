"""Modules of transformers that ``convert`` replaces: Conv1D, and RMSNorm by its formula."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import transformers.pytorch_utils

from telens.pytorch.checkpoints.extra_state import WithExtraState
from telens.pytorch.module import Module, mark_graph_break
from telens.pytorch.modules import Linear

__all__: list[str] = []


class Formula(NamedTuple):
    """y = x / sqrt(mean(x^2) + eps) * (weight, or 1 + weight if zero_centered)."""

    eps: float
    zero_centered: bool


# Both sides are FP32; they may differ in how a mean, a root and two products are rounded.
_RELATIVE_ERROR = 1e-5


def formula_of(module: torch.nn.Module) -> Formula | None:
    """Returns the formula of a norm with one parameter, ``weight`` [n]; None if it computes
    something else.

    Dozens of classes compute the same under different names, and some of these names are used for
    different formulas. So the class is tested: a copy of the module with random weights computes a
    few rows, some of which are as small as eps. No hook runs, and torch's random state is
    unchanged.
    """
    if module.weight.dim() != 1:
        return None
    generator = torch.Generator().manual_seed(0)
    size = module.weight.numel()
    weight = torch.randn(size, generator=generator)
    candidates = sorted({value for value in vars(module).values() if type(value) is float})
    x = torch.randn(1, 8, size, generator=generator)
    # Rows whose mean square is 1, and eps and a thousandth of it for each eps that may be meant.
    scales = [1.0, *(s * eps**0.5 for eps in candidates for s in (1.0, 0.03) if eps > 0)]
    rows = torch.cat([x * scale for scale in scales])
    result = _forward_with(module, weight, rows)
    if result is None:
        return None
    for eps in candidates:
        normalized = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)
        for zero_centered in (False, True):
            expected = normalized * (1 + weight if zero_centered else weight)
            # Relative to a row's largest element: a weight near -1 leaves little of 1 + weight.
            bound = _RELATIVE_ERROR * expected.abs().amax(-1, keepdim=True)
            if bool(((result - expected).abs() <= bound).all()):
                return Formula(eps, zero_centered)
    return None


def _forward_with(
    module: torch.nn.Module, weight: torch.Tensor, x: torch.Tensor
) -> torch.Tensor | None:
    probe = object.__new__(type(module))
    probe.__dict__.update(module.__dict__)
    probe.__dict__["_parameters"] = OrderedDict(weight=torch.nn.Parameter(weight))
    try:
        with torch.no_grad():
            result = probe.forward(x)
    except Exception:  # it takes more than x, or anything else: not a norm that we know
        return None
    is_like_x = isinstance(result, torch.Tensor) and result.shape == x.shape
    return result.float() if is_like_x else None


class Conv1D(WithExtraState, Module, transformers.pytorch_utils.Conv1D):
    """y = x W + b with the weight as in GPT-2's checkpoints, [in_features, out_features].

    Otherwise it is a ``Linear``: its GEMMs run in FP8 and can be watched. In debug sessions the
    weight and wgrad have Linear's shape, [out_features, in_features].
    """

    _type = Linear._type

    def __init__(self, nf: int, nx: int, **options: Any) -> None:
        super().__init__(nx, nf, **options)
        self.nf, self.nx = nf, nx
        self.weight = torch.nn.Parameter(self.weight.detach().t().contiguous())

    @mark_graph_break
    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        parameters = dict(self._parameters)
        parameters["weight"] = self.weight.t()
        if "bias" not in parameters:
            parameters["bias"] = self.bias
        owner = SimpleNamespace(
            _parameters=parameters, _buffers=self._buffers, _modules={}, training=self.training
        )
        return self._telens_call(owner, (x, *args), kwargs)

    def reset_parameters(self) -> None:
        """Fills the parameters as Hugging Face's Conv1D does."""
        with torch.no_grad():
            torch.nn.init.normal_(self.weight, std=0.02)
            torch.nn.init.zeros_(self.bias)
