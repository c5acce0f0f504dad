"""Recipes: which format and scaling the tensors of a layer get, and how scales come about.

Names, arguments and defaults are Transformer Engine's.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch

from telens import _C

__all__ = ["DelayedScaling", "Float8CurrentScaling", "Format", "QParams", "Recipe"]


class _LargestValues(NamedTuple):
    """Largest finite values of a format's forward and backward tensors."""

    max_fwd: float
    max_bwd: float


class Format(enum.Enum):
    """FP8 formats of a recipe.

    E4M3: all tensors; E5M2: all tensors (no GEMM takes two of them, so no recipe takes it);
    HYBRID: E4M3 in the forward pass, E5M2 for gradients.
    """

    E4M3 = _LargestValues(max_fwd=448, max_bwd=448)
    E5M2 = _LargestValues(max_fwd=57344, max_bwd=57344)
    HYBRID = _LargestValues(max_fwd=E4M3.max_fwd, max_bwd=E5M2.max_bwd)


@dataclass(frozen=True)
class QParams:
    """How current scaling makes a tensor's scale of its amax."""

    power_2_scale: bool = False  # rounds the scale down to a power of two
    amax_epsilon: float = 0.0  # amaxes below it count as this one


class Recipe:
    """Base of all recipes."""

    def delayed(self) -> bool:
        """Whether scales come from the amaxes of earlier iterations."""
        return isinstance(self, DelayedScaling)

    def float8_current_scaling(self) -> bool:
        """Whether a tensor's scale comes from its own amax."""
        return isinstance(self, Float8CurrentScaling)

    def float8_per_tensor_scaling(self) -> bool:
        """Whether a tensor has one scale."""
        return isinstance(self, DelayedScaling | Float8CurrentScaling)

    def mxfp8(self) -> bool:
        """Whether the recipe is MXFP8."""
        return False

    def nvfp4(self) -> bool:
        """Whether the recipe is NVFP4."""
        return False

    def float8_block_scaling(self) -> bool:
        """Whether the recipe scales blocks of 128 elements."""
        return False

    def _native(self) -> _C.Recipe:
        """The C++ recipe; the same object as long as no field changes."""
        values = tuple((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return _make_native(type(self), values)


def _check_format(recipe: Recipe) -> None:
    if recipe.fp8_format is Format.E5M2:
        raise _C.UsageError(
            f"{type(recipe).__name__}: fp8_format E5M2 is not supported, since no GEMM multiplies "
            "E5M2 by E5M2; use Format.HYBRID"
        )


AmaxFunction = Callable[[torch.Tensor], torch.Tensor]
ScaleFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, "DelayedScaling"], torch.Tensor]


@dataclass
class DelayedScaling(Recipe):
    """Per-tensor scales from the amaxes of earlier iterations.

    scale = (largest value of the format / amax) / 2^margin, with the amax of a history window. An
    amax of zero, or one that is not finite, keeps the scale.

    Parameters
    ----------
    margin
        the scale is divided by 2^margin
    fp8_format
        ``Format.E4M3`` or ``Format.HYBRID``
    amax_history_len
        iterations in the window
    amax_compute_algo
        ``"max"`` of the window, ``"most_recent"``, or a function
        (amax_history [length, slots]) -> amax [slots], both FP32
    scaling_factor_compute_algo
        a function (amax [slots], old scale [slots], largest values [slots], recipe) -> scale
        [slots] in place of the formula
    reduce_amax
        amaxes are reduced over the group of the autocast
    override_linear_precision
        whether fprop, dgrad and wgrad run in high precision all the same
    power_of_2_scale
        scale = 2^(floor(log2(largest value / amax)) - margin), as Transformer Engine had it first
    """

    margin: int = 0
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: Literal["max", "most_recent"] | AmaxFunction = "max"
    scaling_factor_compute_algo: ScaleFunction | None = None
    reduce_amax: bool = True
    override_linear_precision: tuple[bool, bool, bool] = (False, False, False)
    power_of_2_scale: bool = False

    def __post_init__(self) -> None:
        _check_format(self)
        if not callable(self.amax_compute_algo) and not hasattr(
            _C.AmaxAlgorithm, self.amax_compute_algo
        ):
            raise _C.UsageError(
                "DelayedScaling: amax_compute_algo must be 'max', 'most_recent' or a function, not "
                f"{self.amax_compute_algo!r}"
            )
        if self.amax_history_len < 1:
            raise _C.UsageError(
                f"DelayedScaling: amax_history_len must be at least 1, not {self.amax_history_len}"
            )

    def _make_native(self) -> _C.Recipe:
        algorithm = self.amax_compute_algo
        compute_scale = self.scaling_factor_compute_algo
        return _C.make_delayed_scaling(
            fp8_format=_C.Fp8Format.__members__[self.fp8_format.name],
            margin=self.margin,
            amax_history_len=self.amax_history_len,
            algorithm=_C.AmaxAlgorithm.__members__.get(str(algorithm), _C.AmaxAlgorithm.max),
            amax_function=algorithm if callable(algorithm) else None,
            scale_function=(
                None
                if compute_scale is None
                else lambda amax, scale, largest: compute_scale(amax, scale, largest, self)
            ),
            reduce_amax=self.reduce_amax,
            power_of_2_scale=self.power_of_2_scale,
            override_linear_precision=tuple(self.override_linear_precision),
        )


@dataclass
class Float8CurrentScaling(Recipe):
    """Per-tensor scales from a tensor's own amax, at the price of reading it twice.

    Parameters
    ----------
    use_power_2_scales
        the default of ``power_2_scale`` in the three below
    fp8_format
        ``Format.E4M3`` or ``Format.HYBRID``
    fp8_quant_fwd_inp, fp8_quant_fwd_weight, fp8_quant_bwd_grad
        ``QParams`` of activations, weights and gradients
    override_linear_precision
        whether fprop, dgrad and wgrad run in high precision all the same
    """

    use_power_2_scales: bool = False
    fp8_format: Format = Format.HYBRID
    fp8_quant_fwd_inp: QParams | None = None
    fp8_quant_fwd_weight: QParams | None = None
    fp8_quant_bwd_grad: QParams | None = None
    override_linear_precision: tuple[bool, bool, bool] = field(default=(False, False, False))

    def __post_init__(self) -> None:
        _check_format(self)
        default = QParams(power_2_scale=self.use_power_2_scales)
        self.fp8_quant_fwd_inp = self.fp8_quant_fwd_inp or default
        self.fp8_quant_fwd_weight = self.fp8_quant_fwd_weight or default
        self.fp8_quant_bwd_grad = self.fp8_quant_bwd_grad or default

    def _make_native(self) -> _C.Recipe:
        return _C.make_current_scaling(
            fp8_format=_C.Fp8Format.__members__[self.fp8_format.name],
            input=dataclasses.astuple(self.fp8_quant_fwd_inp),
            weight=dataclasses.astuple(self.fp8_quant_fwd_weight),
            gradient=dataclasses.astuple(self.fp8_quant_bwd_grad),
            override_linear_precision=tuple(self.override_linear_precision),
        )


# A layer makes its quantizers anew when it meets another recipe object, so equal recipes share one.
@functools.lru_cache(maxsize=64)
def _make_native(recipe_class: type[Recipe], values: tuple[tuple[str, Any], ...]) -> _C.Recipe:
    return recipe_class(**dict(values))._make_native()
