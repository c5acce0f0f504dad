"""Recipes: the formats and scaling of a layer's tensors, and how scales are computed.

Names, arguments and defaults follow Transformer Engine. Additional arguments come last and are
keyword-only. DelayedScaling and Float8CurrentScaling support ``fp8_dpa`` and ``fp8_mha``,
MXFP8BlockScaling supports ``fp8_dpa``; other recipes accept only the defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Literal

import torch

from telens import _C
from telens._names import names_fields, refusal
from telens.common.block_recipes import (
    Float8BlockScaling,
    MXFP6BlockScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)
from telens.common.custom_recipe import CustomRecipe, IdentityQuantizer, QuantizerRole

# The last name is for old pickles, which refer to it here.
from telens.common.recipe_base import (  # noqa: F401
    ANY_ACCUMULATOR,
    SPLIT_ACCUMULATOR,
    Format,
    MMParams,
    QParams,
    Recipe,
    _LargestValues,
    check_gemm_parameters,
    fill_quantization,
    fp8_arguments,
    split_accumulators,
)

__all__ = [
    "CustomRecipe",
    "DelayedScaling",
    "Float8BlockScaling",
    "Float8CurrentScaling",
    "Format",
    "IdentityQuantizer",
    "MMParams",
    "MXFP6BlockScaling",
    "MXFP8BlockScaling",
    "NVFP4BlockScaling",
    "QParams",
    "QuantizerRole",
    "Recipe",
]


# Also part of this module: pickles refer to them here.
for _recipe in (Float8BlockScaling, MXFP6BlockScaling, MXFP8BlockScaling, NVFP4BlockScaling):
    _recipe.__module__ = __name__


# E4M3 covers 2^-10, below which values round to zero, to 448: a ratio of 2^18.8.
_LARGEST_MARGIN = 18

AmaxFunction = Callable[[torch.Tensor], torch.Tensor]
ScaleFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, "DelayedScaling"], torch.Tensor]


@names_fields
@dataclass
class DelayedScaling(Recipe):
    """Per-tensor scales from the amax history of earlier iterations.

    scale = (largest value of the format / amax) / 2^margin, with the amax of a history window. An
    amax of zero, or one that is not finite, keeps the scale.

    Parameters
    ----------
    margin
        the scale is divided by 2^margin; from -18 to 18
    fp8_format
        ``Format.E4M3`` or ``Format.HYBRID``
    amax_history_len
        iterations in the window
    amax_compute_algo
        ``"max"`` of the window, ``"most_recent"``, or a function
        (amax_history [length, slots]) -> amax [slots], both FP32. Row 0 is the newest iteration,
        row 1 the one before it. (Transformer Engine also passes the newest in row 0, but then the
        oldest in row 1.)
    scaling_factor_compute_algo
        a function (amax [slots], old scale [slots], largest values [slots], recipe) -> scale
        [slots] that replaces the formula. Another shape is an error; a scale that is not finite or
        not above 0 is warned about
    reduce_amax
        amaxes are reduced over the group of the autocast
    fp8_dpa
        DotProductAttention casts query, key, value, softmax and output to FP8, and their gradients
    fp8_mha
        in addition MultiheadAttention's projections reuse the attention's codes without another
        cast; implies ``fp8_dpa``
    override_linear_precision
        whether fprop, dgrad and wgrad run in high precision anyway
    power_of_2_scale
        scale = 2^(floor(log2(largest value / amax)) - margin), Transformer Engine's first formula
    fp8_gemm_fprop, fp8_gemm_dgrad, fp8_gemm_wgrad
        ``MMParams`` of the three GEMMs; Transformer Engine supports only the defaults
    params_dtype, device
        no effect; Megatron-LM passes them with the arguments of its modules
    interval
        scales are computed in every interval-th iteration; the history records all iterations. The
        first scales are computed after interval iterations. Formerly Transformer Engine's second
        argument; accepted by name only
    """

    _kind = "delayed"
    _attention_arguments = ("fp8_dpa", "fp8_mha")

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
    fp8_gemm_fprop: MMParams = ANY_ACCUMULATOR
    fp8_gemm_dgrad: MMParams = SPLIT_ACCUMULATOR
    fp8_gemm_wgrad: MMParams = SPLIT_ACCUMULATOR
    interval: int = 1
    params_dtype: InitVar[torch.dtype | None] = None
    device: InitVar[torch.device | str | int | None] = None

    def __post_init__(
        self,
        params_dtype: torch.dtype | None,
        device: torch.device | str | int | None,
    ) -> None:
        self._check()

    def _hint_at_order(self) -> str:
        return "; interval, once the second argument, is given by name: interval=1"

    def _check(self) -> None:
        super()._check()
        check_gemm_parameters(self, needs_split_accumulator=False)
        if not callable(self.amax_compute_algo) and (
            self.amax_compute_algo not in _C.AmaxAlgorithm.__members__
        ):
            raise _C.UsageError(
                "DelayedScaling: amax_compute_algo must be 'max', 'most_recent' or a function, not "
                f"{self.amax_compute_algo!r}"
            )
        compute_scale = self.scaling_factor_compute_algo
        if compute_scale is not None and not callable(compute_scale):
            expected = "a function, or None for the formula"
            raise refusal("DelayedScaling", "scaling_factor_compute_algo", expected, compute_scale)
        if abs(self.margin) > _LARGEST_MARGIN:
            raise _C.UsageError(
                f"DelayedScaling: margin must be between -{_LARGEST_MARGIN} and "
                f"{_LARGEST_MARGIN}, not {self.margin}: the scale is divided by 2^margin, and "
                "beyond that every value of E4M3 becomes 0 or 448"
            )
        if self.amax_history_len < 1:
            raise _C.UsageError(
                f"DelayedScaling: amax_history_len must be at least 1, not {self.amax_history_len}"
            )
        if self.interval < 1:
            expected = "a number of iterations, 1 or more"
            raise refusal("DelayedScaling", "interval", expected, self.interval)

    def _make_native(self) -> _C.Recipe:
        algorithm = self.amax_compute_algo
        compute_scale = self.scaling_factor_compute_algo
        return _C.make_delayed_scaling(
            fp8_format=_C.Fp8Format.__members__[self.fp8_format.name],
            margin=self.margin,
            amax_history_len=self.amax_history_len,
            interval=self.interval,
            algorithm=_C.AmaxAlgorithm.__members__.get(str(algorithm), _C.AmaxAlgorithm.max),
            amax_function=(
                _returning_tensor("amax_compute_algo", algorithm) if callable(algorithm) else None
            ),
            scale_function=(
                None
                if compute_scale is None
                else _returning_tensor(
                    "scaling_factor_compute_algo",
                    lambda amax, scale, largest: compute_scale(amax, scale, largest, self),
                )
            ),
            reduce_amax=self.reduce_amax,
            power_of_2_scale=self.power_of_2_scale,
            split_accumulators=split_accumulators(self),
            override_linear_precision=tuple(self.override_linear_precision),
        )


def _returning_tensor(
    name: str, function: Callable[..., torch.Tensor]
) -> Callable[..., torch.Tensor]:
    def call(*args: torch.Tensor) -> torch.Tensor:
        result = function(*args)
        if not isinstance(result, torch.Tensor):
            raise refusal("DelayedScaling", name, "a function that returns a tensor", result)
        return result

    return call


@names_fields
@dataclass
class Float8CurrentScaling(Recipe):
    """Per-tensor scales from the tensor's current amax, which requires reading the tensor twice.

    Parameters
    ----------
    use_power_2_scales
        sets the default of ``power_2_scale`` in the three ``QParams`` below
    fp8_format
        ``Format.E4M3`` or ``Format.HYBRID``
    fp8_gemm_fprop, fp8_gemm_dgrad, fp8_gemm_wgrad
        ``MMParams`` of the three GEMMs: how accurately a GPU adds their products
    fp8_quant_fwd_inp, fp8_quant_fwd_weight, fp8_quant_bwd_grad
        ``QParams`` of activations, weights and gradients
    fp8_dpa
        DotProductAttention casts query, key, value, softmax and output to FP8, and their gradients
    fp8_mha
        in addition MultiheadAttention's projections reuse the attention's codes without another
        cast; implies ``fp8_dpa``
    override_linear_precision
        whether fprop, dgrad and wgrad run in high precision anyway
    backward_override
        None; ``"high_precision"``: dgrad and wgrad multiply the tensors before their casts;
        ``"dequantized"``: they multiply the dequantized operands of fprop
    """

    _kind = "current"
    _attention_arguments = ("fp8_dpa", "fp8_mha")

    use_power_2_scales: bool = False
    fp8_format: Format = Format.HYBRID
    fp8_gemm_fprop: MMParams = ANY_ACCUMULATOR
    fp8_gemm_dgrad: MMParams = SPLIT_ACCUMULATOR
    fp8_gemm_wgrad: MMParams = SPLIT_ACCUMULATOR
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
        fill_quantization(self, QParams(power_2_scale=self.use_power_2_scales))

    def _check(self) -> None:
        super()._check()
        check_gemm_parameters(self, needs_split_accumulator=False)

    def _make_native(self) -> _C.Recipe:
        return _C.make_current_scaling(**fp8_arguments(self))
