"""Recipes: which format and scaling the tensors of a layer get, and how scales come about.

Names, arguments and defaults are Transformer Engine's; arguments of ours stand behind them and are
passed by name. ``fp8_dpa``, ``fp8_mha`` and ``backward_override`` are accepted where Transformer
Engine has them, with their defaults alone.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any, Literal, NamedTuple

import torch

from telens import _C
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


class _LargestValues(NamedTuple):
    """Largest finite values of a format's forward and backward tensors."""

    max_fwd: float
    max_bwd: float


class Format(enum.Enum):
    """Low-precision formats of a recipe.

    E2M1: all tensors of NVFP4; E4M3: all tensors; E5M2: all tensors (no GEMM takes two of them, so
    no recipe takes it); HYBRID: E4M3 in the forward pass, E5M2 for gradients.
    """

    E2M1 = _LargestValues(max_fwd=6, max_bwd=6)
    E4M3 = _LargestValues(max_fwd=448, max_bwd=448)
    E5M2 = _LargestValues(max_fwd=57344, max_bwd=57344)
    HYBRID = _LargestValues(max_fwd=E4M3.max_fwd, max_bwd=E5M2.max_bwd)


_REASONS_AGAINST = {
    Format.E2M1: "E2M1 is no FP8 format; NVFP4BlockScaling has it",
    Format.E5M2: "no GEMM multiplies E5M2 by E5M2; use Format.HYBRID",
}


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
        return isinstance(self, MXFP8BlockScaling)

    def nvfp4(self) -> bool:
        """Whether the recipe is NVFP4."""
        return isinstance(self, NVFP4BlockScaling)

    def float8_block_scaling(self) -> bool:
        """Whether the recipe scales blocks of 128 elements."""
        return isinstance(self, Float8BlockScaling)

    def custom(self) -> bool:
        """Whether the recipe is a function from tensors to quantizers."""
        return isinstance(self, CustomRecipe)

    def _native(self) -> _C.Recipe:
        """The C++ recipe; the same object as long as no field changes."""
        values = tuple((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return _make_native(type(self), values)

    def _check(self) -> None:
        """Throws UsageError where a field has a value that is not supported."""
        check_unsupported(self)
        if not isinstance(self.fp8_format, Format):
            raise _C.UsageError(
                f"{type(self).__name__}: fp8_format must be a Format, not {self.fp8_format!r}"
                + self._hint_at_order()
            )
        if self.fp8_format in (Format.E2M1, Format.E5M2):
            raise _C.UsageError(
                f"{type(self).__name__}: fp8_format {self.fp8_format.name} is not supported: "
                + _REASONS_AGAINST[self.fp8_format]
            )

    def _hint_at_order(self) -> str:
        return ""


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


@dataclass(frozen=True)
class QuantizerRole:
    """Whose quantizer a ``CustomRecipe`` is asked for."""

    module_type: str = ""  # "linear": every layer with GEMMs
    tensor_type: str = ""  # "input", "weight", "output", "grad_output" or "grad_input"
    name: str = ""  # the layer's, as in debug configurations; empty if it has none


class IdentityQuantizer:
    """What a ``qfactory`` returns for a tensor whose GEMMs are to run in high precision."""


@dataclass
class CustomRecipe(Recipe):
    """Quantizers made by a function.

    A GEMM runs in high precision if the function leaves one of its tensors so. Otherwise both must
    come in the same scaling mode (1x128 and 128x128 blocks go together).

    Parameters
    ----------
    qfactory
        a function from a ``QuantizerRole`` to a quantizer of ``telens.pytorch`` or to an
        ``IdentityQuantizer``; called for every tensor of a layer when the layer meets the recipe
        (so make the recipe once). The layer works with a copy of the quantizer, which shares the
        scale and amax tensors of a ``Float8Quantizer``
    fp8_format
        without effect: the quantizers have their own
    quantization_alignment
        without effect: nothing is padded; at least 1
    override_linear_precision
        whether fprop, dgrad and wgrad run in high precision all the same
    """

    qfactory: Callable[[QuantizerRole], Any]
    fp8_format: Format = Format.HYBRID
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    quantization_alignment: int = 128
    _: KW_ONLY
    override_linear_precision: tuple[bool, bool, bool] = (False, False, False)

    def __post_init__(self) -> None:
        self._check()

    def _check(self) -> None:
        check_unsupported(self)
        if not callable(self.qfactory):
            raise _C.UsageError(
                "CustomRecipe: qfactory must be a function from a QuantizerRole to a quantizer, "
                f"not {type(self.qfactory).__name__}"
            )
        if self.quantization_alignment < 1:
            raise _C.UsageError(
                "CustomRecipe: quantization_alignment must be at least 1, not "
                f"{self.quantization_alignment}"
            )

    # Kept in the recipe alone: a cache for all recipes would keep factories, and what they refer
    # to, alive, and would ask them to be hashable.
    def _native(self) -> _C.Recipe:
        made_of = (self.qfactory, self.fp8_format, tuple(self.override_linear_precision))
        kept, native = vars(self).get("_kept", (None, None))
        if kept is None or kept[0] is not made_of[0] or kept[1:] != made_of[1:]:
            self._check()
            native = self._make_native()
            self._kept = (made_of, native)
        return native

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_kept"}

    def _make_native(self) -> _C.Recipe:
        return _C.make_custom_recipe(
            # Not a method of this recipe, which would then keep itself alive.
            qfactory=functools.partial(_make_quantizer, self.qfactory),
            fp8_format=_C.Fp8Format.__members__[self.fp8_format.name],
            override_linear_precision=tuple(self.override_linear_precision),
        )


def _make_quantizer(
    qfactory: Callable[[QuantizerRole], Any], tensor_type: str, module_type: str, name: str
) -> _C.Quantizer | None:
    role = QuantizerRole(module_type, tensor_type, name)
    quantizer = qfactory(role)
    if isinstance(quantizer, IdentityQuantizer):
        return None
    if not isinstance(quantizer, _C.Quantizer):
        raise _C.UsageError(
            f"CustomRecipe: qfactory returned {type(quantizer).__name__} for {role}; expected "
            "a quantizer of telens.pytorch, or IdentityQuantizer() for high precision"
        )
    return quantizer


# A layer makes its quantizers anew when it meets another recipe object, so equal recipes share one.
@functools.lru_cache(maxsize=64)
def _make_native(recipe_class: type[Recipe], values: tuple[tuple[str, Any], ...]) -> _C.Recipe:
    recipe = object.__new__(recipe_class)
    vars(recipe).update(values)
    recipe._check()
    return recipe._make_native()
