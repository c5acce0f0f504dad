"""Recipes: which format and scaling the tensors of a layer get, and how scales come about.

Names, arguments and defaults are Transformer Engine's; arguments of ours stand behind them and are
passed by name. ``fp8_dpa``, ``fp8_mha`` and ``backward_override`` are accepted where Transformer
Engine has them, with their defaults alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any, Literal

import torch

from telens import _C
from telens.common.custom_recipe import CustomRecipe, IdentityQuantizer, QuantizerRole

# The last one for what was pickled when it stood here.
from telens.common.recipe_base import Format, Recipe, _LargestValues  # noqa: F401
from telens.common.recipe_parameters import (
    MMParams,
    QParams,
    check_gemm_parameters,
    check_unsupported,
    quantization_of,
)

__all__ = [
    "CustomRecipe",
    "DelayedScaling",
    "Float8BlockScaling",
    "Float8CurrentScaling",
    "Format",
    "IdentityQuantizer",
    "MMParams",
    "MXFP8BlockScaling",
    "NVFP4BlockScaling",
    "QParams",
    "QuantizerRole",
    "Recipe",
]


_ANY_ACCUMULATOR = MMParams(use_split_accumulator=False)
_SPLIT_ACCUMULATOR = MMParams(use_split_accumulator=True)


def _scaling(recipe: Recipe, attribute: str) -> tuple[bool, float]:
    return quantization_of(recipe, attribute, "power_2_scale", "amax_epsilon")


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
    interval
        without effect, and to be left out: scales are updated in every iteration. Once Transformer
        Engine's second argument, now taken by name
    """

    _kind = "delayed"

    margin: int = 0
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: Literal["max", "most_recent"] | AmaxFunction = "max"
    scaling_factor_compute_algo: ScaleFunction | None = None
    reduce_amax: bool = True
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    _: KW_ONLY
    override_linear_precision: tuple[bool, bool, bool] = (False, False, False)
    power_of_2_scale: bool = False
    interval: InitVar[int] = 1

    def __post_init__(self, interval: int) -> None:
        if interval != 1:
            warnings.warn(
                f"DelayedScaling: interval={interval!r} is without effect: scales are updated in "
                "every iteration; leave it out",
                UserWarning,
                stacklevel=3,
            )
        self._check()

    def _hint_at_order(self) -> str:
        return "; interval, once the second argument, is given by name: interval=1"

    def _check(self) -> None:
        super()._check()
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
    fp8_gemm_fprop, fp8_gemm_dgrad, fp8_gemm_wgrad
        without effect: sums are always FP32's
    fp8_quant_fwd_inp, fp8_quant_fwd_weight, fp8_quant_bwd_grad
        ``QParams`` of activations, weights and gradients
    override_linear_precision
        whether fprop, dgrad and wgrad run in high precision all the same
    """

    _kind = "current"

    use_power_2_scales: bool = False
    fp8_format: Format = Format.HYBRID
    fp8_gemm_fprop: MMParams = _ANY_ACCUMULATOR
    fp8_gemm_dgrad: MMParams = _SPLIT_ACCUMULATOR
    fp8_gemm_wgrad: MMParams = _SPLIT_ACCUMULATOR
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    _: KW_ONLY
    fp8_quant_fwd_inp: QParams | None = None
    fp8_quant_fwd_weight: QParams | None = None
    fp8_quant_bwd_grad: QParams | None = None
    override_linear_precision: tuple[bool, bool, bool] = (False, False, False)

    def __post_init__(self) -> None:
        self._check()
        default = QParams(power_2_scale=self.use_power_2_scales)
        self.fp8_quant_fwd_inp = self.fp8_quant_fwd_inp or default
        self.fp8_quant_fwd_weight = self.fp8_quant_fwd_weight or default
        self.fp8_quant_bwd_grad = self.fp8_quant_bwd_grad or default

    def _check(self) -> None:
        super()._check()
        check_gemm_parameters(self, needs_split_accumulator=False)

    def _make_native(self) -> _C.Recipe:
        return _C.make_current_scaling(
            fp8_format=_C.Fp8Format.__members__[self.fp8_format.name],
            input=_scaling(self, "fp8_quant_fwd_inp"),
            weight=_scaling(self, "fp8_quant_fwd_weight"),
            gradient=_scaling(self, "fp8_quant_bwd_grad"),
            override_linear_precision=tuple(self.override_linear_precision),
        )


@dataclass
class MXFP8BlockScaling(Recipe):
    """Every 32 elements along a row share a power of two as scale (OCP Microscaling Formats 1.0).

    Rows and columns are quantized separately from the high-precision tensor. All dimensions of a
    GEMM must be divisible by 32.

    Parameters
    ----------
    margin
        without effect, as in Transformer Engine
    fp8_format
        ``Format.E4M3`` or ``Format.HYBRID``
    enable_2d_quantization
        weights get one scale for 32x32 elements, the same in both orientations
    override_linear_precision
        whether fprop, dgrad and wgrad run in high precision all the same
    """

    _kind = "mxfp8"

    margin: int = 0
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    enable_2d_quantization: bool = False
    _: KW_ONLY
    override_linear_precision: tuple[bool, bool, bool] = (False, False, False)

    def __post_init__(self) -> None:
        self._check()

    def _make_native(self) -> _C.Recipe:
        return _C.make_mxfp8_block_scaling(
            fp8_format=_C.Fp8Format.__members__[self.fp8_format.name],
            margin=self.margin,
            enable_2d_quantization=self.enable_2d_quantization,
            override_linear_precision=tuple(self.override_linear_precision),
        )


@dataclass
class Float8BlockScaling(Recipe):
    """Every 1x128 elements, and every 128x128 of weights, share a scale.

    Parameters
    ----------
    use_f32_scales
        scales need not be powers of two; the default of ``power_2_scale`` in the three below
    fp8_format
        ``Format.E4M3`` or ``Format.HYBRID``
    x_block_scaling_dim, w_block_scaling_dim, grad_block_scaling_dim
        1 (1x128) or 2 (128x128) of activations, weights and gradients; at most one may be 2
    fp8_gemm_fprop, fp8_gemm_dgrad, fp8_gemm_wgrad
        ``MMParams`` with ``use_split_accumulator=True``
    fp8_quant_fwd_inp, fp8_quant_fwd_weight, fp8_quant_bwd_grad
        ``QParams`` of activations, weights and gradients
    override_linear_precision
        whether fprop, dgrad and wgrad run in high precision all the same
    """

    _kind = "float8_block"

    use_f32_scales: bool = False
    fp8_format: Format = Format.E4M3
    x_block_scaling_dim: int = 1
    w_block_scaling_dim: int = 2
    grad_block_scaling_dim: int = 1
    fp8_gemm_fprop: MMParams = _SPLIT_ACCUMULATOR
    fp8_gemm_dgrad: MMParams = _SPLIT_ACCUMULATOR
    fp8_gemm_wgrad: MMParams = _SPLIT_ACCUMULATOR
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    _: KW_ONLY
    fp8_quant_fwd_inp: QParams | None = None
    fp8_quant_fwd_weight: QParams | None = None
    fp8_quant_bwd_grad: QParams | None = None
    override_linear_precision: tuple[bool, bool, bool] = (False, False, False)

    def __post_init__(self) -> None:
        self._check()
        default = QParams(power_2_scale=not self.use_f32_scales)
        self.fp8_quant_fwd_inp = self.fp8_quant_fwd_inp or default
        self.fp8_quant_fwd_weight = self.fp8_quant_fwd_weight or default
        self.fp8_quant_bwd_grad = self.fp8_quant_bwd_grad or default

    def _check(self) -> None:
        super()._check()
        check_gemm_parameters(self, needs_split_accumulator=True)
        dimensions = self._dimensions()
        if any(dimension not in (1, 2) for dimension in dimensions) or dimensions.count(2) > 1:
            raise _C.UsageError(
                "Float8BlockScaling: x_block_scaling_dim, w_block_scaling_dim and "
                f"grad_block_scaling_dim are {dimensions}; each must be 1 or 2, and at most one 2, "
                "since no GEMM multiplies 128x128 blocks by 128x128 blocks"
            )

    def _dimensions(self) -> tuple[int, int, int]:
        return self.x_block_scaling_dim, self.w_block_scaling_dim, self.grad_block_scaling_dim

    def _make_native(self) -> _C.Recipe:
        return _C.make_float8_block_scaling(
            fp8_format=_C.Fp8Format.__members__[self.fp8_format.name],
            input=_scaling(self, "fp8_quant_fwd_inp"),
            weight=_scaling(self, "fp8_quant_fwd_weight"),
            gradient=_scaling(self, "fp8_quant_bwd_grad"),
            dimensions=self._dimensions(),
            override_linear_precision=tuple(self.override_linear_precision),
        )


@dataclass
class NVFP4BlockScaling(Recipe):
    """E2M1; every 16 elements share an E4M3 scale, all of them one FP32 scale.

    By default the training recipe of "Pretraining Large Language Models with NVFP4"
    (arXiv:2509.25149). All dimensions of a GEMM must be divisible by 16.

    Parameters
    ----------
    disable_rht
        no random Hadamard transform of the activations and gradients that feed wgrad
    disable_stochastic_rounding
        gradients are rounded to nearest, not by chance; switched off it draws no random number
    disable_2d_quantization
        weights get one scale for 16 elements instead of 16x16
    fp4_format
        ``Format.E2M1``, of the elements
    fp8_format
        ``Format.E4M3``, of the scales
    row_scaled_activation, nvfp4_4over6
        accepted with their defaults alone
    nvfp4_4over6_e4m3_use_256, nvfp4_4over6_err_mode
        without effect, as in Transformer Engine where ``nvfp4_4over6`` is ``"none"``
    override_linear_precision
        whether fprop, dgrad and wgrad run in high precision all the same

    Attributes
    ----------
    fp4_quant_fwd_inp, fp4_quant_fwd_weight, fp4_quant_bwd_grad
        ``QParams`` of activations, weights and gradients: what the switches say, until another is
        assigned
    """

    _kind = "nvfp4"

    disable_rht: bool = False
    disable_stochastic_rounding: bool = False
    disable_2d_quantization: bool = False
    row_scaled_activation: bool = False
    nvfp4_4over6: str = "none"
    nvfp4_4over6_e4m3_use_256: str = "all"
    nvfp4_4over6_err_mode: str = "MAE"
    fp4_format: Format = Format.E2M1
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    _: KW_ONLY
    override_linear_precision: tuple[bool, bool, bool] = (False, False, False)
    fp4_quant_fwd_inp: QParams = field(init=False)
    fp4_quant_fwd_weight: QParams = field(init=False)
    fp4_quant_bwd_grad: QParams = field(init=False)

    def __post_init__(self) -> None:
        self._check()
        self._follow_the_switches()

    def _check(self) -> None:
        check_unsupported(self)
        if (self.fp4_format, self.fp8_format) != (Format.E2M1, Format.E4M3):
            raise _C.UsageError(
                "NVFP4BlockScaling: fp4_format must be Format.E2M1 and fp8_format Format.E4M3, not "
                f"{self.fp4_format} and {self.fp8_format}"
            )

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name.startswith("disable_") and "fp4_quant_bwd_grad" in vars(self):
            self._follow_the_switches()

    def _follow_the_switches(self) -> None:
        rotated = not self.disable_rht
        self.fp4_quant_fwd_inp = QParams(random_hadamard_transform=rotated)
        self.fp4_quant_fwd_weight = QParams(fp4_2d_quantization=not self.disable_2d_quantization)
        self.fp4_quant_bwd_grad = QParams(
            random_hadamard_transform=rotated,
            stochastic_rounding=not self.disable_stochastic_rounding,
        )

    def _make_native(self) -> _C.Recipe:
        (rotates_inputs,) = quantization_of(self, "fp4_quant_fwd_inp", "random_hadamard_transform")
        (square_weights,) = quantization_of(self, "fp4_quant_fwd_weight", "fp4_2d_quantization")
        rotates_gradients, rounds_by_chance = quantization_of(
            self, "fp4_quant_bwd_grad", "random_hadamard_transform", "stochastic_rounding"
        )
        if rotates_inputs != rotates_gradients:
            raise _C.UsageError(
                "NVFP4BlockScaling: random_hadamard_transform is "
                f"{rotates_inputs} in fp4_quant_fwd_inp and {rotates_gradients} in "
                "fp4_quant_bwd_grad; it must be the same in both, since wgrad multiplies them"
            )
        return _C.make_nvfp4_block_scaling(
            disable_rht=not rotates_inputs,
            disable_stochastic_rounding=not rounds_by_chance,
            disable_2d_quantization=not square_weights,
            override_linear_precision=tuple(self.override_linear_precision),
        )
