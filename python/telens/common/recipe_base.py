"""The formats, and the base class of recipes, which creates the C++ recipe."""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any, ClassVar, NamedTuple

from telens import _C
from telens.common.field_types import check_fields
from telens.common.recipe_parameters import (
    DEQUANTIZED,
    attention_in_fp8,
    check_attention,
    check_unsupported,
)

__all__: list[str] = []


class _LargestValues(NamedTuple):
    """Largest finite values of a format's forward and backward tensors."""

    max_fwd: float
    max_bwd: float


class Format(enum.Enum):
    """Low-precision formats of a recipe.

    E2M1: all tensors of NVFP4; E4M3: all tensors; E5M2: all tensors (a GEMM cannot have two E5M2
    operands, so recipes reject it); HYBRID: E4M3 in the forward pass, E5M2 for gradients.
    """

    E2M1 = _LargestValues(max_fwd=6, max_bwd=6)
    E4M3 = _LargestValues(max_fwd=448, max_bwd=448)
    E5M2 = _LargestValues(max_fwd=57344, max_bwd=57344)
    HYBRID = _LargestValues(max_fwd=E4M3.max_fwd, max_bwd=E5M2.max_bwd)

    # Pickled by name: pickling by value would tie a checkpoint to the module path of
    # _LargestValues.
    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:
        return getattr, (type(self), self.name)


_REASONS_AGAINST = {
    Format.E2M1: "E2M1 is not an FP8 format; NVFP4BlockScaling has it",
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
        if self.fp8_format in (Format.E2M1, Format.E5M2):
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
