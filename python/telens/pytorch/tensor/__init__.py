"""Tensors in low precision, and weights that are stored so."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch
from torch.utils._pytree import tree_map

from telens import _C
from telens._C import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    MXFP6Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    Quantizer,
)
from telens._names import refusal
from telens.common.field_types import is_boolean
from telens.common.recipe import DelayedScaling, IdentityQuantizer, Recipe
from telens.pytorch.tensor.data import (
    HIGH_PRECISION,
    BlockData,
    OneScaleData,
    WithSettableData,
    can_move,
    copy_storage,
    storage_like,
)
from telens.pytorch.tensor.quantizer_arguments import take_what_transformer_engine_takes
from telens.pytorch.tensor.sharded_blocks import WithShardedBlocks, answer_of_blocks
from telens.pytorch.tensor.sharded_codes import WithShardedCodes, answer, answer_checkpoint

__all__ = [
    "Float8BlockQuantizer",
    "Float8BlockwiseQTensor",
    "Float8BlockwiseQTensorStorage",
    "Float8CurrentScalingQuantizer",
    "Float8Quantizer",
    "Float8Tensor",
    "Float8TensorStorage",
    "IdentityQuantizer",
    "MXFP6Quantizer",
    "MXFP6Tensor",
    "MXFP8Quantizer",
    "MXFP8Tensor",
    "MXFP8TensorStorage",
    "NVFP4Quantizer",
    "NVFP4Tensor",
    "NVFP4TensorStorage",
    "QuantizedTensor",
    "QuantizedTensorStorage",
    "Quantizer",
    "fp8_model_init",
    "quantized_model_init",
]

aten = torch.ops.aten

take_what_transformer_engine_takes()


class QuantizedTensor(WithSettableData, torch.Tensor):
    """A tensor whose values are codes and scales, and whose dtype is the high-precision one.

    Operations on it see its dequantized values; an in-place operation quantizes its result into the
    same codes, with the quantizer that created it if it is known (weights of ``fp8_model_init``),
    else with a scale computed from the result's amax.
    """

    _storage: _C.QuantizedStorage
    _quantizer: Quantizer | None

    @staticmethod
    def __new__(
        cls,
        storage: _C.QuantizedStorage,
        requires_grad: bool = False,
        quantizer: Quantizer | None = None,
    ) -> QuantizedTensor:
        codes = (
            storage.rowwise_data if storage.rowwise_data is not None else storage.columnwise_data
        )
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            storage.sizes,
            dtype=storage.dtype,
            device=codes.device,
            requires_grad=requires_grad,
        )
        made._storage = storage
        made._quantizer = quantizer
        _C.stand_for_codes(made, storage)
        return made

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns the values in high precision, rounded once to ``dtype`` (default: its dtype).

        The result is differentiable if the tensor is a layer's output (``fp8_output``).
        """
        dtype = dtype or self.dtype
        rounded_to = dtype if dtype in HIGH_PRECISION else torch.float32
        if self.grad_fn is not None and torch.is_grad_enabled():
            return _C.values_of_codes(self, rounded_to).to(dtype)
        return self._storage.dequantize(rounded_to).to(dtype)

    def quantize_(self, tensor: torch.Tensor) -> QuantizedTensor:
        """Quantizes a high-precision tensor into this one, with new scales. Returns ``self``."""
        with torch.no_grad():
            self._get_quantizer().update_quantized(tensor.detach().to(self.dtype), self)
        return self

    def update_usage(
        self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
    ) -> None:
        """Keeps only the orientations that will be used; None leaves one unchanged."""
        storage = self._storage
        storage.update_usage(
            storage.rowwise_data is not None if rowwise_usage is None else rowwise_usage,
            storage.columnwise_data is not None if columnwise_usage is None else columnwise_usage,
        )

    def float(self) -> torch.Tensor:
        return self.dequantize(torch.float32)

    def bfloat16(self) -> torch.Tensor:
        return self.dequantize(torch.bfloat16)

    def half(self) -> torch.Tensor:
        return self.dequantize(torch.float16)

    def _get_quantizer(self) -> Quantizer:
        """Returns the quantizer that created the tensor, or one for the same kind of tensor."""
        return self._quantizer or _C.quantizer_like(self._storage)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        format_name = self._storage.fp8_dtype.name
        return f"{type(self).__name__}({format_name}, {self.dequantize()})"

    def __reduce_ex__(self, protocol: int) -> tuple:
        storage = self._storage
        state = (
            storage.rowwise_data,
            storage.rowwise_scale_inv,
            storage.columnwise_data,
            storage.columnwise_scale_inv,
            storage.fp8_dtype.name,
            storage.mode.name,
            storage.dtype,
            tuple(storage.sizes),
            storage.rowwise_tensor_scale,
            storage.columnwise_tensor_scale,
            storage.blocks,
        )
        return (_rebuild, (state, self.requires_grad, getattr(self, "_is_param", False)))

    def __deepcopy__(self, memo: dict) -> QuantizedTensor:
        if id(self) not in memo:
            copy = self.detach().clone().requires_grad_(self.requires_grad)
            copy._is_param = getattr(self, "_is_param", False)
            memo[id(self)] = copy
        return memo[id(self)]

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (aten.detach.default, aten.alias.default):
            return wrap(args[0]._storage, quantizer=args[0]._quantizer)
        if func is aten.clone.default:
            return _copied(args[0])
        device = kwargs.get("device")
        if func is aten._to_copy.default and can_move(args[0], device, kwargs.get("dtype")):
            return _copied(args[0], device, kwargs.get("non_blocking", False))
        if func in _RESHAPES and isinstance(args[0], QuantizedTensor):
            viewed = _viewed(args[0], args[1])
            if viewed is not None:
                return viewed
        if func is aten.copy_.default and isinstance(args[0], QuantizedTensor):
            return args[0].quantize_(_plain(args[1]))
        piece = answer_checkpoint(func, args)
        if piece is not None:
            return piece
        plain_args, plain_kwargs = tree_map(_plain, args), tree_map(_plain, kwargs)
        results = func(*plain_args, **plain_kwargs)
        written = _written(func, (args, kwargs), (plain_args, plain_kwargs))
        for target, values in written:
            target.quantize_(values)
        targets = {id(values): target for target, values in written}
        return tree_map(lambda result: targets.get(id(result), result), results)

    # torch.nn.Parameter checks that subclasses keep their type; plain functions are not overridden.
    __torch_function__ = torch._C._disabled_torch_function_impl


class Float8Tensor(WithShardedCodes, OneScaleData, QuantizedTensor):
    """FP8 with one scale."""

    @classmethod
    def make_like(
        cls, tensor: Float8Tensor, *, data: torch.Tensor | None = None, requires_grad: bool = False
    ) -> Float8Tensor:
        """Returns a tensor with the scale and format of another, and with ``data`` as its codes.

        If ``data`` is None, both share the codes.
        """
        storage = tensor._storage
        if data is not None:
            storage = _C.QuantizedStorage(
                data,
                tensor._scale_inv,
                None,
                None,
                storage.fp8_dtype,
                storage.mode,
                storage.dtype,
                list(data.shape),
            )
            storage.blocks = tensor._storage.blocks
        return cls(storage, requires_grad, tensor._quantizer)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        answered = answer(func, args, kwargs or {})
        return (
            super().__torch_dispatch__(func, types, args, kwargs) if answered is None else answered
        )


class _BlockTensor(WithShardedBlocks, BlockData, QuantizedTensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        answered = answer_of_blocks(func, args, kwargs or {})
        return (
            super().__torch_dispatch__(func, types, args, kwargs) if answered is None else answered
        )


class Float8BlockwiseQTensor(_BlockTensor):
    """FP8 with an FP32 scale for 1x128 or 128x128 elements."""


class MXFP8Tensor(_BlockTensor):
    """FP8 with a power of two as scale for every 32 elements."""


class MXFP6Tensor(_BlockTensor):
    """E3M2 or E2M3 with a power of two as scale for every 32 elements, one code per byte."""


class NVFP4Tensor(BlockData, QuantizedTensor):
    """E2M1 with an E4M3 scale for every 16 elements under one FP32 scale, or one for each row."""

    @property
    def _row_scaled_nvfp4(self) -> bool:
        return self._storage.blocks[8]


# Transformer Engine's classes of codes and scales without autograd: here each is a tensor too.
Float8TensorStorage = Float8Tensor
Float8BlockwiseQTensorStorage = Float8BlockwiseQTensor
MXFP8TensorStorage = MXFP8Tensor
NVFP4TensorStorage = NVFP4Tensor
QuantizedTensorStorage = QuantizedTensor

_CLASSES = {
    _C.ScalingMode.tensor: Float8Tensor,
    _C.ScalingMode.mxfp8: MXFP8Tensor,
    _C.ScalingMode.block_1d: Float8BlockwiseQTensor,
    _C.ScalingMode.block_2d: Float8BlockwiseQTensor,
    _C.ScalingMode.nvfp4: NVFP4Tensor,
    _C.ScalingMode.mxfp6_e3m2: MXFP6Tensor,
    _C.ScalingMode.mxfp6_e2m3: MXFP6Tensor,
}


def wrap(
    storage: _C.QuantizedStorage,
    requires_grad: bool = False,
    quantizer: Quantizer | None = None,
) -> QuantizedTensor:
    """Returns the Python tensor for codes and scales."""
    return _CLASSES[storage.mode](storage, requires_grad, quantizer)


def _plain(value: Any) -> Any:
    return value.dequantize() if isinstance(value, QuantizedTensor) else value


def _copied(
    tensor: QuantizedTensor, device: Any = None, non_blocking: bool = False
) -> QuantizedTensor:
    """Returns a copy of codes and scales. A shard with its own scale stays a shard."""
    storage = copy_storage(tensor._storage, device, non_blocking)
    copy = wrap(storage, quantizer=tensor._quantizer)
    if not tensor._shares_scale():
        copy._become_part_as(tensor)
    return copy


_RESHAPES = (aten.view.default, aten._reshape_alias.default, aten._unsafe_view.default)


def _viewed(tensor: QuantizedTensor, shape: list[int]) -> QuantizedTensor | None:
    """Returns the same codes in another shape, or None if the last dimension changes."""
    sizes = torch.empty(tensor.shape, device="meta").view(shape).shape
    if not sizes or not tensor.shape or sizes[-1] != tensor.shape[-1]:
        return None
    storage = storage_like(tensor._storage, lambda data: data, list(sizes))
    return wrap(storage, quantizer=tensor._quantizer)


def _written(
    func: Any, given: tuple[tuple, dict], plain: tuple[tuple, dict]
) -> list[tuple[QuantizedTensor, torch.Tensor]]:
    """The quantized tensors that an operation writes to, each with its dequantized copy.

    Lists of tensors (``torch._foreach_*``, fused optimizers) count as their elements.
    """
    written = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        values = [
            args[index] if index < len(args) else kwargs.get(argument.name)
            for args, kwargs in (given, plain)
        ]
        pairs = zip(*values, strict=True) if isinstance(values[0], list | tuple) else [values]
        written += [pair for pair in pairs if isinstance(pair[0], QuantizedTensor)]
    return written


def _rebuild(state: tuple, requires_grad: bool, is_parameter: bool) -> QuantizedTensor:
    *tensors, format_name, mode, dtype, sizes, row_scale, column_scale, blocks = state
    storage = _C.QuantizedStorage(
        *tensors,
        _C.DType.__members__[format_name],
        _C.ScalingMode.__members__[mode],
        dtype,
        list(sizes),
        row_scale,
        column_scale,
    )
    storage.blocks = blocks
    made = wrap(storage, requires_grad)
    if is_parameter:
        made._is_param = True
    return made


# So that torch.load with weights_only=True reads a state_dict with quantized weights.
torch.serialization.add_safe_globals([_rebuild, QuantizedTensor, *_CLASSES.values()])
_C.set_quantized_tensor_class(QuantizedTensor, wrap)


class _ModelInit(threading.local):
    recipe: Recipe | None = None  # None outside of fp8_model_init
    preserve = False


model_init = _ModelInit()


@contextlib.contextmanager
def fp8_model_init(
    enabled: bool = True,
    recipe: Recipe | None = None,
    preserve_high_precision_init_val: bool = False,
) -> Iterator[None]:
    """Modules that are constructed inside store their GEMM weights in low precision only.

    The optimizer updates a high-precision master copy and writes it back with
    ``parameter.quantize_(master)``.

    Parameters
    ----------
    enabled
        False: no effect
    recipe
        decides format and scaling of the weights. Default: delayed scaling, whose stored weights
        are E4M3 with a scale computed from their current amax, as they have no history
    preserve_high_precision_init_val
        True: keeps the initial values on the CPU as ``parameter._high_precision_init_val``, with
        ``parameter.get_high_precision_init_val()`` and
        ``parameter.clear_high_precision_init_val()``

    Raises UsageError for arguments of other types.
    """
    for name, value in (
        ("enabled", enabled),
        ("preserve_high_precision_init_val", preserve_high_precision_init_val),
    ):
        if not is_boolean(value):
            raise refusal("fp8_model_init", name, "a boolean", value)
    if recipe is not None and not isinstance(recipe, Recipe):
        raise refusal("fp8_model_init", "recipe", "one of telens.common.recipe", recipe)
    before = model_init.recipe, model_init.preserve
    model_init.recipe = (recipe or DelayedScaling()) if enabled else None
    model_init.preserve = preserve_high_precision_init_val
    try:
        yield
    finally:
        model_init.recipe, model_init.preserve = before


quantized_model_init = fp8_model_init


def initial_parameter(tensor: torch.Tensor, is_gemm_weight: bool) -> torch.nn.Parameter:
    """Returns the parameter of a new module: quantized for the weights of GEMMs inside
    fp8_model_init."""
    if model_init.recipe is None or not is_gemm_weight:
        return torch.nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)
    quantizer = model_init.recipe._native().make_weight_quantizer()
    if quantizer is None:  # a custom recipe that does not quantize weights
        return torch.nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)
    made = quantized_parameter(tensor.detach(), quantizer, model_init.preserve)
    return made.requires_grad_(tensor.requires_grad)


def quantized_parameter(
    values: torch.Tensor, quantizer: Quantizer, preserve: bool
) -> torch.nn.Parameter:
    """Returns a weight that is stored quantized. ``preserve``: keeps its high-precision values on
    the CPU."""
    quantizer.set_usage(rowwise=True, columnwise=torch.is_grad_enabled())
    made = quantizer(values)
    quantizer.set_usage(rowwise=True, columnwise=True)
    made._quantizer = quantizer
    parameter = torch.nn.Parameter(made, requires_grad=False)
    if preserve:
        keep_high_precision_init_val(parameter, values if values.is_meta else values.cpu())
    return parameter


def keep_high_precision_init_val(parameter: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Adds Transformer Engine's attribute and its two methods to a parameter.

    An optimizer creates its master copy from ``value``, which is on the CPU. Clearing releases it.
    """
    parameter._high_precision_init_val = value
    parameter.get_high_precision_init_val = MethodType(_get_initial_value, parameter)
    parameter.clear_high_precision_init_val = MethodType(_clear_initial_value, parameter)


def _get_initial_value(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    """The values before quantization, on the CPU; None once they were cleared."""
    return getattr(parameter, "_high_precision_init_val", None)


def _clear_initial_value(parameter: torch.nn.Parameter) -> None:
    """Frees the values before quantization."""
    if hasattr(parameter, "_high_precision_init_val"):
        del parameter._high_precision_init_val
