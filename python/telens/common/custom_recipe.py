"""A recipe that calls a function for each tensor's quantizer."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from telens import _C
from telens._names import names_fields
from telens.common.field_types import check_fields
from telens.common.recipe_base import Format, Recipe, check_unsupported, linear_precision

__all__: list[str] = []


@names_fields
@dataclass(frozen=True)
class QuantizerRole:
    """Describes the tensor for which a ``CustomRecipe`` must return a quantizer."""

    module_type: str = ""  # "linear"; "grouped_linear": a GEMM of GroupedLinear
    tensor_type: str = ""  # "input", "weight", "output", "grad_output" or "grad_input"
    name: str = ""  # the layer's name, as in debug configurations; empty for an unnamed layer


class IdentityQuantizer:
    """A ``qfactory`` result that keeps the GEMMs of a tensor in high precision."""


class QuantizerRequest(abc.ABC):
    """A ``qfactory`` result for a quantizer whose state is kept in the layer.

    ``DelayedScalingRequest`` of ``telens.pytorch`` is the only one.
    """

    @abc.abstractmethod
    def _recipe(self) -> Recipe:
        """Returns the recipe with which the layer keeps the state."""


@names_fields
@dataclass
class CustomRecipe(Recipe):
    """A recipe whose quantizers come from a function.

    A GEMM runs in high precision if the function keeps one of its tensors in high precision.
    Otherwise its two tensors must have the same scaling mode (1x128 and 128x128 blocks can be
    combined), or come from quantizers with a ``qgemm``.

    Parameters
    ----------
    qfactory
        a function from a ``QuantizerRole`` to a quantizer of ``telens.pytorch``, to one of a
        subclass that overrides ``quantize(self, tensor)``, to a ``DelayedScalingRequest``, or to an
        ``IdentityQuantizer``; called for every tensor of a layer in its first forward under the
        recipe (so construct the recipe once). The layer uses a copy of the quantizer, which shares
        the scale and amax tensors of a ``Float8Quantizer``. A subclass's object is not copied: one
        thread at a time calls its ``quantize``, without gradients, with ``rowwise_usage`` and
        ``columnwise_usage`` set to the orientations that it must return, in the format and scaling
        of the class that it extends. A subclass with a method ``qgemm`` multiplies its tensors
        itself (``telens.pytorch.custom_recipes.gemm``)
    fp8_format
        no effect: the quantizers have formats
    quantization_alignment
        no effect: nothing is padded; at least 1
    override_linear_precision
        whether fprop, dgrad and wgrad run in high precision anyway
    backward_override
        None; ``"high_precision"``: dgrad and wgrad multiply the tensors before their casts;
        ``"dequantized"``: they multiply the dequantized operands of fprop
    """

    _kind = "custom"

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
        check_fields(self)
        if self.quantization_alignment < 1:
            raise _C.UsageError(
                "CustomRecipe: quantization_alignment must be at least 1, not "
                f"{self.quantization_alignment}"
            )

    # Cached per recipe: a global cache would keep factories and their references alive and require
    # hashable factories.
    def _native(self) -> _C.Recipe:
        precision = (tuple(self.override_linear_precision), self.backward_override)
        made_of = (self.qfactory, self.fp8_format, *precision)
        kept, native = vars(self).get("_kept", (None, None))
        if kept is None or kept[0] is not made_of[0] or kept[1:] != made_of[1:]:
            self._check()
            native = self._new_native()
            self._kept = (made_of, native)
        return native

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_kept"}

    def _make_native(self) -> _C.Recipe:
        return _C.make_custom_recipe(
            # Not a method, because a bound method would keep the recipe alive.
            qfactory=_Asking(self.qfactory),
            fp8_format=_C.Fp8Format.__members__[self.fp8_format.name],
            override_linear_precision=linear_precision(self),
        )


class _Asking:
    """The C++ recipe calls it once per tensor and layer."""

    def __init__(self, qfactory: Callable[[QuantizerRole], Any]) -> None:
        self._qfactory = qfactory
        self._history_len: int | None = None

    def __call__(
        self, tensor_type: str, module_type: str, name: str
    ) -> _C.Quantizer | _C.Recipe | None:
        role = QuantizerRole(module_type, tensor_type, name)
        quantizer = self._qfactory(role)
        if isinstance(quantizer, IdentityQuantizer):
            return None
        if isinstance(quantizer, QuantizerRequest):
            return self._requested(quantizer._recipe(), role)
        if not isinstance(quantizer, _C.Quantizer):
            raise _C.UsageError(
                f"CustomRecipe: qfactory returned {type(quantizer).__name__} for {role}; expected "
                "a quantizer of telens.pytorch, a DelayedScalingRequest, or IdentityQuantizer() "
                "for high precision"
            )
        return _C.PythonQuantizer(quantizer) if _is_python(quantizer) else quantizer

    def _requested(self, recipe: Any, role: QuantizerRole) -> _C.Recipe:
        # The layers of a module share one tensor of histories.
        length, known = recipe.amax_history_len, self._history_len
        if known is not None and length != known:
            raise _C.UsageError(
                f"CustomRecipe: qfactory requested an amax_history_len of {length} for {role}, "
                f"and of {known} before; all DelayedScalingRequests of a recipe must have the "
                "same"
            )
        self._history_len = length
        return recipe._native()


def _is_python(quantizer: _C.Quantizer) -> bool:
    """Returns true if the class overrides the cast or the GEMM."""
    if hasattr(quantizer, "qgemm"):
        return True
    defined_in = next(each for each in type(quantizer).__mro__ if "quantize" in vars(each))
    return defined_in is not _C.Quantizer
