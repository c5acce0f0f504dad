"""The formats and parameters, and the base class of recipes, which creates the C++ recipe.

Parameters have the names of Transformer Engine. Parameters without an implementation here accept
only their defaults.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import os
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from telens import _C
from telens._names import names_fields, refusal
from telens.common.field_types import check_fields

__all__: list[str] = []


@names_fields
@dataclass(frozen=True)
class QParams:
    """How a kind of tensor is quantized. A recipe rejects parameters that it does not support."""

    power_2_scale: bool = False  # rounds FP32 scales down to a power of two
    amax_epsilon: float = 0.0  # lower bound of the amax
    random_hadamard_transform: bool = False  # FP4: rotates the operands of wgrad
    stochastic_rounding: bool = False  # FP4
    fp4_2d_quantization: bool = False  # one scale for 16x16 elements

    def __post_init__(self) -> None:
        check_fields(self)
        if not (math.isfinite(self.amax_epsilon) and self.amax_epsilon >= 0):
            raise refusal("QParams", "amax_epsilon", "a number from 0 on", self.amax_epsilon)


@names_fields
@dataclass(frozen=True)
class MMParams:
    """How a kind of GEMM is computed.

    Parameters
    ----------
    use_split_accumulator
        False allows a GPU to accumulate FP8 products in fewer bits than FP32 if that is faster.
        Hopper does so under per-tensor scaling, with an error up to (K/32) x 33 x 2^-13 x sum
        |a||b| in place of 4 x 33 x 2^-13 x sum |a||b| (measurements:
        docs/internals/performance.md). Products of block formats, other GPUs and the CPU behave
        as if it were True
    """

    use_split_accumulator: bool = True

    def __post_init__(self) -> None:
        check_fields(self)


# A recipe for attention that differs from the autocast's
# (core/modules/attention/attention_quantization.h).
ATTENTION_RECIPE = "NVTE_DPA_FP8_RECIPE"
ANY_ACCUMULATOR = MMParams(use_split_accumulator=False)
SPLIT_ACCUMULATOR = MMParams(use_split_accumulator=True)


def quantization_of(recipe: Any, attribute: str, *heeded: str) -> tuple[Any, ...]:
    """Returns the supported values of the QParams-like object in this attribute of a recipe.

    Raises UsageError if it sets anything that the recipe does not support.
    """
    name = f"{type(recipe).__name__}.{attribute}"
    params = getattr(recipe, attribute)
    for field in dataclasses.fields(QParams):
        if not hasattr(params, field.name):
            raise _C.UsageError(
                f"{name} must be a QParams, not {type(params).__name__}, which has no {field.name}"
            )
        value = getattr(params, field.name)
        if field.name not in heeded and value != field.default:
            raise _C.UsageError(
                f"{name}: {field.name}={value!r} is not supported; leave it {field.default!r} "
                f"(here it takes {' and '.join(heeded)})"
            )
    return tuple(getattr(params, field) for field in heeded)


def scaling_of(recipe: Any, attribute: str) -> tuple[bool, float]:
    """How FP32 scales are computed: rounding to a power of two, and the smallest amax."""
    return quantization_of(recipe, attribute, "power_2_scale", "amax_epsilon")


def check_gemm_parameters(recipe: Any, *, needs_split_accumulator: bool) -> None:
    """Raises UsageError unless fp8_gemm_fprop, fp8_gemm_dgrad and fp8_gemm_wgrad are
    MMParams-like."""
    for attribute in ("fp8_gemm_fprop", "fp8_gemm_dgrad", "fp8_gemm_wgrad"):
        params = getattr(recipe, attribute)
        name = f"{type(recipe).__name__}: {attribute}"
        if not hasattr(params, "use_split_accumulator"):
            raise _C.UsageError(f"{name} must be an MMParams, not {type(params).__name__}")
        if needs_split_accumulator and not params.use_split_accumulator:
            raise _C.UsageError(f"{name} must have use_split_accumulator=True")


def split_accumulators(recipe: Any) -> tuple[bool, bool, bool]:
    """For fprop, dgrad and wgrad."""
    gemms = (recipe.fp8_gemm_fprop, recipe.fp8_gemm_dgrad, recipe.fp8_gemm_wgrad)
    fprop, dgrad, wgrad = (bool(gemm.use_split_accumulator) for gemm in gemms)
    return fprop, dgrad, wgrad


def fill_quantization(recipe: Any, default: QParams) -> None:
    """Sets the default for activations, weights and gradients if the caller passed no value."""
    for attribute in ("fp8_quant_fwd_inp", "fp8_quant_fwd_weight", "fp8_quant_bwd_grad"):
        if not getattr(recipe, attribute):
            setattr(recipe, attribute, default)


def fp8_arguments(recipe: Any) -> dict[str, Any]:
    """Returns the common constructor arguments of the core's recipes with FP32 scales."""
    return {
        "fp8_format": _C.Fp8Format.__members__[recipe.fp8_format.name],
        "input": scaling_of(recipe, "fp8_quant_fwd_inp"),
        "weight": scaling_of(recipe, "fp8_quant_fwd_weight"),
        "gradient": scaling_of(recipe, "fp8_quant_bwd_grad"),
        "split_accumulators": split_accumulators(recipe),
        "override_linear_precision": linear_precision(recipe),
    }


# Valid values of backward_override.
HIGH_PRECISION = "high_precision"
DEQUANTIZED = "dequantized"

# {value: why delayed scaling rejects it, as Transformer Engine does, and the alternative}
_WITHOUT_DELAYED_SCALING = {
    HIGH_PRECISION: ", whose scales of gradients would come from nothing; use "
    "override_linear_precision=(False, True, True)",
    DEQUANTIZED: ", whose codes a scale of earlier iterations may have clipped; use a recipe that "
    "takes the scale from the tensor, such as Float8CurrentScaling, or "
    "override_linear_precision=(False, True, True), which multiplies the tensors as they were",
}


def check_unsupported(recipe: Any) -> None:
    """Raises UsageError for values that this recipe does not support."""
    check_attention(recipe)
    _check_backward_override(recipe)


def attention_in_fp8(recipe: Any) -> tuple[bool, bool]:
    """Returns whether attention casts its tensors, and whether the projections reuse its codes.

    As in Transformer Engine, ``fp8_mha`` implies ``fp8_dpa``.
    """
    mha = bool(getattr(recipe, "fp8_mha", False))
    return mha or bool(getattr(recipe, "fp8_dpa", False)), mha


def check_attention(recipe: Any) -> None:
    """Raises UsageError if the recipe requests FP8 attention that it does not support."""
    for name in ("fp8_dpa", "fp8_mha"):
        value = getattr(recipe, name, False)
        taken = recipe._attention_arguments
        # Rejects values of other types.
        if value in (True,) and name not in taken and ATTENTION_RECIPE not in os.environ:
            instead = (
                "give fp8_dpa=True (a projection cannot reuse its block casts)"
                if "fp8_dpa" in taken
                else "leave it False (attention runs in high precision)"
            )
            raise _C.UsageError(
                f"{type(recipe).__name__}: {name}={value!r} is not supported; {instead}, use "
                "DelayedScaling or Float8CurrentScaling, whose tensors have one scale, or set "
                f"{ATTENTION_RECIPE} to the recipe of attention"
            )


def _check_backward_override(recipe: Any) -> None:
    value = getattr(recipe, "backward_override", None)
    if value is None:
        return
    name = f"{type(recipe).__name__}: backward_override"
    if value not in (HIGH_PRECISION, DEQUANTIZED):
        raise _C.UsageError(
            f"{name}={value!r} is not supported; it may be None, {HIGH_PRECISION!r} (dgrad and "
            f"wgrad multiply the tensors as they were before their casts) or {DEQUANTIZED!r} "
            f"(they reuse fprop's operands)"
        )
    if recipe.delayed():
        raise _C.UsageError(
            f"{name}={value!r} does not go with delayed scaling{_WITHOUT_DELAYED_SCALING[value]}"
        )


def linear_precision(recipe: Any) -> tuple[bool, bool, bool]:
    """Returns whether fprop, dgrad and wgrad run in high precision."""
    fprop, dgrad, wgrad = recipe.override_linear_precision
    backward = getattr(recipe, "backward_override", None) is not None
    return fprop, dgrad or backward, wgrad or backward


class _LargestValues(NamedTuple):
    """Largest finite values of a format's forward and backward tensors."""

    max_fwd: float
    max_bwd: float


class Format(enum.Enum):
    """Low-precision formats of a recipe.

    E2M1: all tensors of NVFP4; E3M2, E2M3: all tensors of MXFP6; E4M3: all tensors; E5M2: all
    tensors (a GEMM cannot have two E5M2 operands, so recipes reject it); HYBRID: E4M3 in the
    forward pass, E5M2 for gradients.
    """

    E2M1 = _LargestValues(max_fwd=6, max_bwd=6)
    E3M2 = _LargestValues(max_fwd=28, max_bwd=28)
    E2M3 = _LargestValues(max_fwd=7.5, max_bwd=7.5)
    E4M3 = _LargestValues(max_fwd=448, max_bwd=448)
    E5M2 = _LargestValues(max_fwd=57344, max_bwd=57344)
    HYBRID = _LargestValues(max_fwd=E4M3.max_fwd, max_bwd=E5M2.max_bwd)

    # Pickled by name: pickling by value would tie a checkpoint to the module path of
    # _LargestValues.
    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:
        return getattr, (type(self), self.name)


_REASONS_AGAINST = {
    Format.E2M1: "E2M1 is not an FP8 format; NVFP4BlockScaling has it",
    Format.E3M2: "E3M2 is not an FP8 format; MXFP6BlockScaling has it",
    Format.E2M3: "E2M3 is not an FP8 format; MXFP6BlockScaling has it",
    Format.E5M2: "no GEMM multiplies E5M2 by E5M2; use Format.HYBRID",
}


class Recipe:
    """Base class of the recipes."""

    _kind: ClassVar[str] = ""
    # The number of rows must be a multiple of this on a GPU; Transformer Engine pads to it.
    _row_multiple: ClassVar[int] = 16
    # The FP8 attention arguments that may be True.
    _attention_arguments: ClassVar[tuple[str, ...]] = ()

    def delayed(self) -> bool:
        """Returns whether scales come from the amax history."""
        return self._kind == "delayed"

    def float8_current_scaling(self) -> bool:
        """Returns whether a tensor's scale comes from its current amax."""
        return self._kind == "current"

    def float8_per_tensor_scaling(self) -> bool:
        """Returns whether scaling is per tensor."""
        return self.delayed() or self.float8_current_scaling()

    def mxfp8(self) -> bool:
        """Returns whether the recipe is MXFP8."""
        return self._kind == "mxfp8"

    def mxfp6(self) -> bool:
        """Returns whether the recipe is MXFP6."""
        return self._kind == "mxfp6"

    def nvfp4(self) -> bool:
        """Returns whether the recipe is NVFP4."""
        return self._kind == "nvfp4"

    def float8_block_scaling(self) -> bool:
        """Returns whether the recipe scales blocks of 128 elements."""
        return self._kind == "float8_block"

    def custom(self) -> bool:
        """Returns whether the recipe is a ``CustomRecipe``."""
        return self._kind == "custom"

    def _native(self) -> _C.Recipe:
        """Returns the C++ recipe, the same object until a field changes."""
        values = tuple((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        native = _make_native(type(self), values)
        if native.fp8_dpa:
            check_attention(self)  # it is also set by an environment variable
        return native

    def _new_native(self) -> _C.Recipe:
        """Creates a C++ recipe with every field; _make_native sets the fields of its class."""
        native = self._make_native()
        native.dequantized_backward = getattr(self, "backward_override", None) == DEQUANTIZED
        native.fp8_dpa, native.fp8_mha = attention_in_fp8(self)
        return native

    def _check(self) -> None:
        """Raises UsageError if a field has an unsupported value."""
        check_unsupported(self)
        if not isinstance(self.fp8_format, Format):
            raise _C.UsageError(
                f"{type(self).__name__}: fp8_format must be a Format, not {self.fp8_format!r}"
                + self._hint_at_order()
            )
        if self.fp8_format in _REASONS_AGAINST:
            raise _C.UsageError(
                f"{type(self).__name__}: fp8_format {self.fp8_format.name} is not supported: "
                + _REASONS_AGAINST[self.fp8_format]
            )
        check_fields(self)

    def _hint_at_order(self) -> str:
        return ""


# Equal recipes share one C++ object, because a layer recreates its quantizers when the object
# changes.
@functools.lru_cache(maxsize=64)
def _make_native(recipe_class: type[Recipe], values: tuple[tuple[str, Any], ...]) -> _C.Recipe:
    recipe = object.__new__(recipe_class)
    vars(recipe).update(values)
    recipe._check()
    return recipe._new_native()
