"""The base class of layers that own a C++ core module."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import paddle
import torch
from paddle.nn.initializer import Constant

from telens import _C
from telens._names import among, refusal
from telens.debug.layer_names import TREES, LayerTree
from telens.paddle.core_module import TENSORS, CoreModule

__all__ = ["BACKENDS", "FP8_STATE", "Layer", "check_backend", "default_dtype"]

BACKENDS = ["transformer_engine", "paddle"]
# The key of amax histories and scales in a state_dict, as in Transformer Engine.
FP8_STATE = "fp8_state"
_PYTORCH_ADVICE = re.compile(r"(?:[:;]|, or) load [^:;]*$")


def check_backend(owner: str, backend: str) -> str:
    """Returns the backend if it is one of ``BACKENDS``. Raises UsageError otherwise."""
    return among(owner, "backend", backend, BACKENDS)


@contextlib.contextmanager
def default_dtype(owner: str, dtype: paddle.dtype | str | None) -> Iterator[None]:
    """Parameters created inside have this dtype; None keeps Paddle's default.

    Raises UsageError, which names the owner's ``params_dtype``, if Paddle does not support
    parameters of it.
    """
    if dtype is None:
        yield
        return
    former = paddle.get_default_dtype()
    try:
        paddle.set_default_dtype(dtype)
    except TypeError:
        expected = "None or one of paddle's float16, bfloat16, float32 and float64"
        raise refusal(owner, "params_dtype", expected, dtype) from None
    try:
        yield
    finally:
        paddle.set_default_dtype(former)


class Layer(paddle.nn.Layer):
    """A layer with Paddle's parameters and the C++ core's forward.

    ``backend='paddle'`` runs Paddle's operators instead, in high precision and not observed by
    debug features. In FP8 the state of scaling (amax histories and scales) is in ``state_dict()``
    under ``fp8_state``: a list with one tensor of bytes (uint8), since its size changes.
    """

    fuse_wgrad_accumulation = False

    def __init__(self, backend: str) -> None:
        super().__init__()
        self._dtype = self._helper.get_default_dtype()
        self.backend = check_backend(type(self).__name__, backend)
        self._core: CoreModule | None = None
        self._order: tuple[str, ...] = ()
        self.name: str | None = None

    # ------------------------------------------------------------------ construction

    def _make_core(self, kind: str, names: dict[str, str], **options: Any) -> None:
        """Creates the core module. ``names``: Paddle's names of parameters that are named
        differently."""
        if self.backend == "paddle":
            return
        self._core = CoreModule(kind, options)
        self._order = tuple(names.get(each, each) for each in self._core.parameter_names)

    def _make_weight(self, name: str, out_features: int, in_features: int, attr: Any) -> None:
        """Creates a GEMM's weight, [out, in]; [in, out] for ``backend='paddle'``, as in Paddle."""
        shape = [out_features, in_features]
        if self.backend == "paddle":
            shape.reverse()
        setattr(self, name, self.create_parameter(shape, attr=attr, dtype=self._dtype))

    def _make_bias(self, name: str, size: int, attr: Any) -> None:
        """Creates a GEMM's bias, zeros unless ``attr`` sets an initializer; False for no bias."""
        if attr is False:
            setattr(self, name, None)
            return
        self._make_constant(name, size, None if attr is True else attr, 0.0, is_bias=True)

    def _make_constant(
        self, name: str, size: int, attr: Any, value: float, *, is_bias: bool
    ) -> None:
        parameter = self.create_parameter(
            [size],
            attr=attr,
            dtype=self._dtype,
            is_bias=is_bias,
            default_initializer=Constant(value),
        )
        setattr(self, name, parameter)

    def _make_norm(self, size: int, normalization: str, zero_centered_gamma: bool) -> None:
        """Creates ``ln_weight`` and, except for RMSNorm, ``ln_bias``."""
        among(type(self).__name__, "normalization", normalization, ["LayerNorm", "RMSNorm"])
        first = 0.0 if zero_centered_gamma else 1.0
        self._make_constant("ln_weight", size, None, first, is_bias=False)
        self.ln_bias = None
        if normalization == "LayerNorm":
            self._make_constant("ln_bias", size, None, 0.0, is_bias=True)

    # ------------------------------------------------------------------ the call

    def _call_core(self, inp: paddle.Tensor, **options: Any) -> Any:
        """Runs the C++ forward with the layer's present parameters."""
        parameters = self._core_parameters()
        return self._core(
            (inp,),
            parameters,
            training=self.training,
            options=options,
            main_grads=self._main_grads(1, parameters),
        )

    def _core_parameters(self) -> list[paddle.Tensor | None]:
        """The core module's parameters in its order."""
        # Reads attributes, because utilities of paddle.nn.utils store parameters under other names
        # and set the attribute.
        own = self._parameters
        return [own[name] if name in own else getattr(self, name) for name in self._order]

    def _main_grads(self, inputs: int, parameters: list) -> Callable[[], tuple] | None:
        """The buffers for ``fuse_wgrad_accumulation``, read in the backward."""
        if not self.fuse_wgrad_accumulation:
            return None
        weights = [each for each in parameters if each is not None]
        return lambda: (
            *([None] * inputs),
            *(getattr(each, "main_grad", None) for each in weights),
        )

    # ------------------------------------------------------------------ debugging

    def set_debug_name(self, name: str) -> None:
        """Names the layer for debug configurations."""
        self.name = name
        if self._core is not None:
            self._core.set_debug_name(name)

    # ------------------------------------------------------------------ state_dict

    def _state_dict_impl(
        self,
        destination=None,
        include_sublayers=True,
        structured_name_prefix="",
        include_non_persistable_buffer=False,
        use_hook=True,
        keep_vars=True,
    ):
        destination = super()._state_dict_impl(
            destination,
            include_sublayers,
            structured_name_prefix,
            include_non_persistable_buffer,
            use_hook,
            keep_vars,
        )
        if self._core is not None:
            # Paddle's state_dict() calls this with hooks. set_state_dict() calls it without hooks
            # for the names to set, and compares shapes, or lengths for lists.
            slot = _StateSlot(self, structured_name_prefix + FP8_STATE)
            destination[slot.name] = slot.value() if use_hook else slot
        return destination


class _StateSlot:
    """A parameter-like object that ``set_state_dict`` fills."""

    shape = (1,)

    def __init__(self, layer: Layer, name: str) -> None:
        self._layer = layer
        self.name = name

    def __len__(self) -> int:
        return 1

    def value(self) -> list[paddle.Tensor]:
        return [TENSORS.wrap(self._layer._core.state())]

    def set_value(self, value: Any) -> None:
        owner = f"{type(self._layer).__name__}.set_state_dict"
        if not isinstance(value, list) or len(value) != 1:
            raise refusal(
                owner, self.name, "a list with one tensor, as returned by state_dict()", value
            )
        try:
            found = np.array(value[0], dtype=np.uint8)
        except (TypeError, ValueError):
            found = np.zeros(())
        if found.ndim != 1:
            expected = "a list with one tensor of bytes (uint8, 1-D), as returned by state_dict()"
            got = value[0] if found.ndim == 0 else found
            raise refusal(owner, self.name, expected, got)
        try:
            self._layer._core.set_state(torch.from_numpy(found))
        except _C.UsageError as error:
            # The core names PyTorch's key and how to load a checkpoint without it.
            reason = _PYTORCH_ADVICE.sub("", str(error)).replace("_extra_state", "the state")
            raise _C.UsageError(
                f"{owner}: {self.name} cannot be set: {reason}; to begin with fresh scales remove "
                "it from the state_dict"
            ) from None


# Lets telens.debug name these layers. Paddle's own layers pass their attribute `name` to operators.
TREES.append(
    LayerTree(
        layer=paddle.nn.Layer,
        layer_name="paddle.nn.Layer",
        layer_list=paddle.nn.LayerList,
        own_layer=Layer,
        name_attribute="_telens_name",
        is_linear=lambda layer: isinstance(layer, paddle.nn.Linear),
    )
)
