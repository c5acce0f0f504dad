"""Codes and scales of torchao's low-precision layers, read from the casts that compute them.

torchao casts inside autograd functions, so hooks do not see the quantized tensors. While a model
with such layers is watched, torchao's cast functions are replaced by functions that call the
original and keep its result.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from telens import _C
from telens.attach.attention import calling_module
from telens.attach.layers import Layer
from telens.attach.stored_codes import wrap

__all__ = ["TorchaoCasts"]

_FORMATS = {
    torch.float8_e4m3fn: _C.DType.kFloat8E4M3,
    torch.float8_e5m2: _C.DType.kFloat8E5M2,
}
_ROW_BLOCK = 128  # length of a block of ScalingMode.block_1d
_MX_BLOCK = 32
_NVFP4_BLOCK = 16
_LARGEST_NVFP4 = 448 * 6  # the largest block scale (E4M3) times the largest code (E2M1)
# A swizzled tile of scales has 128 rows and 4 columns, stored as [32, 4, 4]
# (https://docs.nvidia.com/cuda/cublas/index.html#d-block-scaling-factors-layout).
_TILE_ROWS, _TILE_COLUMNS, _TILE_GROUP = 128, 4, 32


@dataclass(frozen=True)
class _Cast:
    """A call of one of torchao's cast functions."""

    frame: FrameType  # the function that casts
    values: torch.Tensor  # in high precision
    options: dict[str, Any]  # keyword arguments
    result: Any

    @property
    def in_forward(self) -> bool:
        return self.frame.f_code.co_name == "forward"


def _is_traced(values: torch.Tensor) -> bool:
    """Returns True inside of a traced function that is_compiling() does not know of.

    Such functions are marked with ``allow_in_graph``.
    """
    return (
        isinstance(values, torch._subclasses.FakeTensor)
        or torch._guards.TracingContext.try_get() is not None
    )


def _quantized(
    codes: torch.Tensor,
    scale_inv: torch.Tensor,
    mode: _C.ScalingMode,
    dtype: torch.dtype,
    columnwise: bool = False,
) -> Any:
    """Returns TELens's tensor for FP8 codes [rows, columns]; None for other formats."""
    if codes.dtype not in _FORMATS:
        return None
    data = codes.contiguous().view(torch.uint8), scale_inv.contiguous()
    sizes = list(codes.shape)
    parts = (None, None, *data) if columnwise else (*data, None, None)
    if columnwise:
        sizes.reverse()
    return wrap(_C.QuantizedStorage(*parts, _FORMATS[codes.dtype], mode, dtype, sizes))


def _of_float8(cast: Any, transposed: bool = False, columnwise: bool = False) -> Any:
    """Converts a Float8TrainingTensor with one scale for the tensor or one for each row.

    The scale of a row is stored once for each block of 128 elements. ``columnwise``: the scales
    belong to columns, and the codes are returned as the transposed matrix.
    """
    if hasattr(cast, "to_local"):
        cast = cast.to_local()
    codes, scale = cast._data, cast._scale
    codes = codes.reshape(-1, codes.shape[-1])
    if scale.numel() == 1:
        if transposed:
            codes = codes.t()
        scale_inv = scale.float().reciprocal().reshape(1)
        return _quantized(codes, scale_inv, _C.ScalingMode.tensor, cast._orig_dtype)
    if transposed or columnwise:
        codes = codes.t()
    if scale.numel() != codes.size(0):
        return None
    blocks = -(-codes.size(1) // _ROW_BLOCK)
    scale_inv = scale.float().reciprocal().reshape(-1, 1).expand(-1, blocks)
    return _quantized(codes, scale_inv, _C.ScalingMode.block_1d, cast._orig_dtype, columnwise)


def _of_mx(cast: Any) -> Any:
    """Converts an MXTensor with blocks of 32 E4M3 or E5M2 elements along rows."""
    if hasattr(cast, "to_local"):
        cast = cast.to_local()
    if cast.block_size != _MX_BLOCK or cast.is_swizzled_scales:
        return None
    codes = cast.qdata.reshape(-1, cast.qdata.shape[-1])
    scale = cast.scale.view(torch.uint8).reshape(codes.size(0), -1)
    return _quantized(codes, scale, _C.ScalingMode.mxfp8, cast.orig_dtype)


def _unswizzled(scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Returns swizzled scales as a matrix [rows, columns]."""
    down, across = -(-rows // _TILE_ROWS), -(-columns // _TILE_COLUMNS)
    groups = _TILE_ROWS // _TILE_GROUP
    tiles = scale.reshape(down, across, _TILE_GROUP, groups, _TILE_COLUMNS)
    matrix = tiles.permute(0, 3, 2, 1, 4).reshape(down * _TILE_ROWS, across * _TILE_COLUMNS)
    return matrix[:rows, :columns]


def _of_nvfp4(
    codes: torch.Tensor,
    scale: torch.Tensor,
    tensor_scale: torch.Tensor | None,
    dtype: torch.dtype,
    swizzled: bool,
) -> Any:
    """Converts packed E2M1 codes [rows, columns / 2] with E4M3 scales for 16 elements of a row."""
    codes = codes.view(torch.uint8).reshape(-1, codes.shape[-1])
    rows, columns = codes.size(0), 2 * codes.size(1)
    scale, blocks = scale.view(torch.uint8), columns // _NVFP4_BLOCK
    scale = _unswizzled(scale, rows, blocks) if swizzled else scale.reshape(rows, blocks)
    if tensor_scale is None:
        tensor_scale = torch.ones(1, device=codes.device)
    return wrap(
        _C.QuantizedStorage(
            codes.contiguous(),
            scale.contiguous(),
            None,
            None,
            _C.DType.kFloat4E2M1,
            _C.ScalingMode.nvfp4,
            dtype,
            [rows, columns],
            rowwise_tensor_scale=tensor_scale.float().reshape(1),
        )
    )


def _of_nvfp4_tensor(cast: Any) -> Any:
    return _of_nvfp4(
        cast.qdata, cast.scale, cast.per_tensor_scale, cast.orig_dtype, cast.is_swizzled_scales
    )


class TorchaoCasts:
    """Takes the results of torchao's casts.

    Casts of the forward are given to the layer, which shows them with the input and the weight.
    Casts of the gradient are shown at once.

    Parameters
    ----------
    layer_of
        returns the layer of a module, None for other modules
    guard
        wraps each hook
    """

    def __init__(
        self,
        layer_of: Callable[[torch.nn.Module], Layer | None],
        guard: Callable[[Callable], Callable],
    ) -> None:
        self._layer_of = layer_of
        self._guard = guard
        self._originals: list[tuple[Any, str, Any]] = []
        self._files: set[str] = set()  # torchao's modules whose casts are read
        self._warned = False

    def add(self, module: torch.nn.Module) -> None:
        """Replaces the cast functions of the module's class, if it is one of torchao's.

        Warns once if this version of torchao does not have them.
        """
        kind = type(module)
        if not kind.__module__.startswith("torchao."):
            return
        try:
            self._replace_casts(kind)
        except (AttributeError, KeyError) as error:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"telens.watch: casts of this version of torchao are not recorded: {error}",
                    stacklevel=4,
                )

    def _replace_casts(self, kind: type) -> None:
        file = sys.modules[kind.__module__]
        self._files.add(file.__name__)
        if kind.__name__ == "Float8Linear":
            self._replace(file, "hp_tensor_to_float8_dynamic", self._take_float8)
        elif kind.__name__ in ("MXFP8Linear", "MXFakeQuantizedLinear"):
            self._replace(file.MXTensor, "to_mx", self._take_mx)
        elif kind.__name__ == "NVFP4FakeQuantizedLinear":
            self._replace(file.NVFP4Tensor, "to_nvfp4", self._take_nvfp4_tensor)
        elif kind.__name__ == "NVFP4Linear":
            file = sys.modules[file.nvfp4_linear.__module__]
            self._files.add(file.__name__)
            self._replace(file, "triton_rht_quantize_row_col", self._take_nvfp4_operand)
            self._replace(file, "_triton_weight_quantize_2d", self._take_nvfp4_weight)

    def remove(self) -> None:
        for owner, name, original in self._originals:
            setattr(owner, name, original)
        self._originals.clear()

    def _replace(self, owner: Any, name: str, take: Callable[[Layer, Any, _Cast], None]) -> None:
        if any(each[:2] == (owner, name) for each in self._originals):
            return
        kept = owner.__dict__[name]
        original = getattr(owner, name)

        def take_cast(cast: _Cast) -> None:
            layer, context = self._layer_in(cast)
            if layer is not None:
                take(layer, context, cast)

        take_cast = self._guard(take_cast)

        def replacement(values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            result = original(values, *args, **kwargs)
            if not torch.compiler.is_compiling() and not _is_traced(values):
                take_cast(_Cast(sys._getframe(1), values, kwargs, result))
            return result

        self._originals.append((owner, name, kept))
        is_static = isinstance(kept, staticmethod)
        setattr(owner, name, staticmethod(replacement) if is_static else replacement)

    def _layer_in(self, cast: _Cast) -> tuple[Layer | None, Any]:
        """Returns the layer and the context of the autograd function that casts."""
        context = cast.frame.f_locals.get("ctx")
        if context is None or cast.frame.f_globals["__name__"] not in self._files:
            return None, None
        if cast.in_forward and not hasattr(context, "telens_layer"):
            module = calling_module(lambda each: self._layer_of(each) is not None)
            context.telens_layer = None if module is None else self._layer_of(module)
        return getattr(context, "telens_layer", None), context

    def _take_float8(self, layer: Layer, context: Any, cast: _Cast) -> None:
        result = cast.result
        role = cast.options["gemm_input_role"].value
        if cast.in_forward:
            config = context.config
            casts = (config.cast_config_grad_output, config.cast_config_grad_output_for_grad_weight)
            context.telens_gradients = [each.scaling_type.value != "disabled" for each in casts]
            context.telens_casts = []
            layer.casts_gradient = any(context.telens_gradients)
            if role == "input":
                layer.casts["activation"] = lambda: _of_float8(result)
            elif role == "weight":
                layer.casts["weight"] = lambda: _of_float8(result, transposed=True)
            return
        if role != "grad_output":
            return
        context.telens_casts.append(result)
        rowwise_enabled, columnwise_enabled = context.telens_gradients
        if len(context.telens_casts) < rowwise_enabled + columnwise_enabled:
            return
        casts, context.telens_casts = context.telens_casts, []
        if layer.asks_for("gradient"):
            rowwise = _of_float8(casts[0]) if rowwise_enabled else None
            columnwise = _of_float8(casts[-1], columnwise=True) if columnwise_enabled else None
            layer.show("gradient", cast.values, rowwise, columnwise)

    def _take_mx(self, layer: Layer, context: Any, cast: _Cast) -> None:
        result = cast.result  # a function that kept `cast` would keep its frame
        if not cast.in_forward:
            self._show_gradient(layer, context, cast.values, lambda: _of_mx(result))
            return
        # The fake-quantized layer has a backward in high precision.
        layer.casts_gradient = cast.frame.f_globals["__name__"].endswith("mxfp8_linear")
        self._keep_operand(layer, lambda: _of_mx(result))

    def _take_nvfp4_tensor(self, layer: Layer, context: Any, cast: _Cast) -> None:
        result = cast.result
        if cast.in_forward:
            self._keep_operand(layer, lambda: _of_nvfp4_tensor(result))

    def _take_nvfp4_operand(self, layer: Layer, context: Any, cast: _Cast) -> None:
        _, _, codes, scale = cast.result
        amax, dtype = cast.options["row_global_amax"], cast.values.dtype

        def convert() -> Any:
            tensor_scale = amax.float() / _LARGEST_NVFP4
            return _of_nvfp4(codes, scale, tensor_scale, dtype, swizzled=True)

        if cast.in_forward:
            layer.casts_gradient = True
            layer.casts["activation"] = convert
        else:
            self._show_gradient(layer, context, cast.values, convert)

    def _take_nvfp4_weight(self, layer: Layer, context: Any, cast: _Cast) -> None:
        codes, scale, tensor_scale = cast.result[:3]
        dtype = cast.values.dtype
        layer.casts["weight"] = lambda: _of_nvfp4(codes, scale, tensor_scale, dtype, swizzled=True)

    @staticmethod
    def _keep_operand(layer: Layer, convert: Callable[[], Any]) -> None:
        """Keeps a cast of a forward that casts its input first and its weight second."""
        name = "weight" if "activation" in layer.casts else "activation"
        layer.casts[name] = convert

    @staticmethod
    def _show_gradient(
        layer: Layer, context: Any, values: torch.Tensor, convert: Callable[[], Any]
    ) -> None:
        """Shows the first cast of a backward, which is the gradient's."""
        if getattr(context, "telens_gradient_shown", False):
            return
        context.telens_gradient_shown = True
        if layer.asks_for("gradient"):
            layer.show("gradient", values, convert())
