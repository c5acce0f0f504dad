"""Reads Transformer Engine's quantized tensors and quantizers, by the names of their attributes.

No import of transformer_engine: a tensor is recognized by the attributes that hold its codes, so
tensor classes and storage classes of every version are supported. The layouts in Transformer Engine
2.4 to 2.20 (transformer_engine/pytorch/tensor):

==================  =====================================  =====================================
class               rowwise codes; scales                  columnwise codes; scales
==================  =====================================  =====================================
Float8Tensor        [m, k]; FP32, 1 element                [k, m]; the same scale
MXFP8Tensor         [m, k]; [m, k / 32] E8M0               [m, k]; [m / 32, k]
Float8Blockwise 1D  [m, k]; [k / 128, m] FP32              [k, m]; [m / 128, k]
Float8Blockwise 2D  [m, k]; [m / 128, k / 128] FP32        [k, m]; [k / 128, m / 128]
NVFP4Tensor         [m, k / 2]; [m, k / 16] E4M3, amax     [k, m / 2]; [k, m / 16], amax
==================  =====================================  =====================================

Scales of blocks are padded. ``m`` is the product of all dimensions but the last one.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from telens import _C
from telens.pytorch.tensor import QuantizedTensor, wrap

__all__ = ["operand_of", "precision_of", "quantizer_of"]

_FORMATS = {
    "kFloat8E4M3": _C.DType.kFloat8E4M3,
    "kFloat8E5M2": _C.DType.kFloat8E5M2,
    "kFloat4E2M1": _C.DType.kFloat4E2M1,
}
_ELEMENTS = {"kFloat8E4M3": ("E4M3", 8), "kFloat8E5M2": ("E5M2", 8), "kFloat4E2M1": ("E2M1", 4)}
_PLAIN = {
    torch.bfloat16: ("BF16", 16),
    torch.float16: ("FP16", 16),
    torch.float32: ("FP32", 32),
    torch.float64: ("FP64", 64),
}
_PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter)
_MXFP8_BLOCK = 32
_FP8_BLOCK = 128
_NVFP4_BLOCK = 16
_LARGEST_E2M1 = 6.0
_LARGEST_E4M3 = 448.0


def operand_of(tensor: Any, columnwise: bool) -> torch.Tensor | QuantizedTensor | None:
    """Returns a GEMM operand as TELens reads it, with the codes and scales of ``tensor``.

    ``columnwise``: the operand of the tensor's second GEMM, which reads the columnwise copy. The
    other copy is used if that one does not exist. None if ``tensor`` is None or not readable:
    another class, or scales in the order of a GEMM kernel.
    """
    if tensor is None:
        return None
    if type(tensor) in _PLAIN_CLASSES:
        return tensor.detach()
    kind = _kind(tensor)
    if kind is None:
        return None
    read = _READERS[kind]
    copy = read(tensor, columnwise)
    if copy is None:
        columnwise = not columnwise
        copy = read(tensor, columnwise)
    if copy is None:
        return None
    codes, scales, tensor_scale, sizes = copy
    row, column = (codes, scales, tensor_scale), (None, None, None)
    if columnwise:
        row, column = column, row
    storage = _C.QuantizedStorage(
        row[0],
        row[1],
        column[0],
        column[1],
        _FORMATS[_format(tensor)],
        _mode(tensor, kind),
        _dtype(tensor),
        sizes,
        row[2],
        column[2],
    )
    storage.blocks = _block_state(tensor, kind)
    return wrap(storage)


def quantizer_of(quantizer: Any) -> _C.Quantizer | None:
    """Returns TELens' quantizer with the scale or options of Transformer Engine's.

    None if ``quantizer`` is None or of an unknown class.
    """
    name = getattr(getattr(quantizer, "dtype", None), "name", None)
    if name not in _FORMATS:
        return None
    element = _FORMATS[name]
    kind = type(quantizer).__name__
    if kind == "Float8Quantizer":
        return _C.Float8Quantizer(quantizer.scale, quantizer.amax, element)
    if kind == "Float8CurrentScalingQuantizer":
        reduces = bool(getattr(quantizer, "with_amax_reduction", False))
        return _C.Float8CurrentScalingQuantizer(
            element,
            with_amax_reduction=reduces,
            amax_reduction_group=quantizer.amax_reduction_group if reduces else None,
            force_pow_2_scales=bool(getattr(quantizer, "force_pow_2_scales", False)),
            amax_epsilon=float(getattr(quantizer, "amax_epsilon", 0.0)),
        )
    if kind == "MXFP8Quantizer":
        return _C.MXFP8Quantizer(element)
    if kind == "Float8BlockQuantizer":
        return _C.Float8BlockQuantizer(
            element, block_scaling_dim=int(getattr(quantizer, "block_scaling_dim", 2))
        )
    return _C.NVFP4Quantizer() if kind == "NVFP4Quantizer" else None


def precision_of(tensor: Any) -> tuple[str, int] | None:
    """Returns the precision of a GEMM operand in words, and the bits of an element.

    None if ``tensor`` is None or its class is unknown.
    """
    if tensor is None:
        return None
    kind = _kind(tensor)
    if kind is None:
        return _PLAIN.get(tensor.dtype) if type(tensor) in _PLAIN_CLASSES else None
    element, bits = _ELEMENTS[_format(tensor)]
    blocks = {"mxfp8": "MXFP8 ", "nvfp4": "NVFP4 ", "block": "128-block "}
    return f"{blocks.get(kind, '')}{element}", bits


def _kind(tensor: Any) -> str | None:
    if _format(tensor) not in _FORMATS:
        return None
    if hasattr(tensor, "_fp4_dtype"):
        return "nvfp4"
    if hasattr(tensor, "_is_2D_scaled"):
        return "block"
    if hasattr(tensor, "_rowwise_data"):
        return "mxfp8"
    return "tensor" if hasattr(tensor, "_data") else None


def _format(tensor: Any) -> str | None:
    element = getattr(tensor, "_fp4_dtype", None)
    element = getattr(tensor, "_fp8_dtype", None) if element is None else element
    return getattr(element, "name", None)


def _mode(tensor: Any, kind: str) -> _C.ScalingMode:
    if kind == "block":
        return _C.ScalingMode.block_2d if tensor._is_2D_scaled else _C.ScalingMode.block_1d
    return getattr(_C.ScalingMode, kind)


def _dtype(tensor: Any) -> torch.dtype:
    dtype = getattr(tensor, "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else tensor._dtype


def _block_state(tensor: Any, kind: str) -> tuple:
    """Returns the options of block quantization in the order of ``QuantizedStorage.blocks``."""
    quantizer = getattr(tensor, "_quantizer", None)
    transformed = kind == "nvfp4" and getattr(quantizer, "with_rht", False)
    signs = int(getattr(quantizer, "rht_matrix_random_sign_mask_t", 0)) if transformed else None
    four_over_six = None
    if getattr(tensor, "_nvfp4_use_4over6", False):
        squared = getattr(quantizer, "nvfp4_4over6_err_mode", "MAE") == "MSE"
        four_over_six = (squared, float(tensor._nvfp4_e4m3_max))
    return (
        bool(getattr(quantizer, "with_2d_quantization", False)),
        int(_C.ScaleRounding.up),
        bool(getattr(quantizer, "force_pow_2_scales", False)),
        float(getattr(quantizer, "amax_epsilon", 0.0)),
        signs,
        bool(getattr(quantizer, "stochastic_rounding", False)),
        False,
        four_over_six,
        bool(getattr(tensor, "_row_scaled_nvfp4", False)),
    )


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype == torch.uint8 else tensor.view(torch.uint8)


def _rows(shape: list[int]) -> int:
    return math.prod(shape[:-1])


def _logical(shape: list[int], packed: int = 1) -> list[int]:
    """Returns the shape of the tensor whose rowwise codes have this shape."""
    return [*shape[:-1], shape[-1] * packed]


def _of_transposed(shape: list[int], packed: int = 1) -> list[int]:
    """Returns the shape of the tensor whose transposed codes have this shape."""
    return [*shape[1:-1], shape[-1] * packed, shape[0]]


def _read_tensor(tensor: Any, columnwise: bool) -> tuple | None:
    if not columnwise:
        codes = tensor._data
        if codes is None:
            return None
        shape = list(codes.shape)
        return _bytes(codes).reshape(-1, shape[-1]), tensor._scale_inv, None, shape
    codes = getattr(tensor, "_transpose", None)
    if codes is None or getattr(tensor, "_transpose_invalid", False):
        return None
    shape = list(codes.shape)
    return _bytes(codes).reshape(shape[0], -1), tensor._scale_inv, None, _of_transposed(shape)


def _read_mxfp8(tensor: Any, columnwise: bool) -> tuple | None:
    codes = tensor._columnwise_data if columnwise else tensor._rowwise_data
    if codes is None or getattr(tensor, "_with_gemm_swizzled_scales", False):
        return None
    shape = list(codes.shape)
    rows, columns = _rows(shape), shape[-1]
    codes = _bytes(codes).reshape(rows, columns)
    if not columnwise:
        scales = _bytes(tensor._rowwise_scale_inv)[:rows, : -(-columns // _MXFP8_BLOCK)]
        return codes, scales.contiguous(), None, shape
    scales = _bytes(tensor._columnwise_scale_inv)[: -(-rows // _MXFP8_BLOCK), :columns]
    return codes.t().contiguous(), scales.t().contiguous(), None, shape


def _read_block(tensor: Any, columnwise: bool) -> tuple | None:
    codes = tensor._columnwise_data if columnwise else tensor._rowwise_data
    # Versions before 2.10 have a second layout, for collectives only.
    if codes is None or str(getattr(tensor, "_data_format", "")).endswith("COMPACT"):
        return None
    shape = list(codes.shape)
    codes = _bytes(codes).reshape(shape[0], -1) if columnwise else _bytes(codes)
    codes = codes.reshape(-1, codes.shape[-1])
    rows, blocks = codes.shape[0], -(-codes.shape[1] // _FP8_BLOCK)
    scales = tensor._columnwise_scale_inv if columnwise else tensor._rowwise_scale_inv
    if tensor._is_2D_scaled:
        scales = scales[: -(-rows // _FP8_BLOCK), :blocks]
    else:
        scales = scales[:blocks, :rows].t()
    sizes = _of_transposed(shape) if columnwise else shape
    return codes, scales.contiguous(), None, sizes


def _read_nvfp4(tensor: Any, columnwise: bool) -> tuple | None:
    codes = tensor._columnwise_data if columnwise else tensor._rowwise_data
    if codes is None or getattr(tensor, "_with_gemm_swizzled_scales", False):
        return None
    shape = list(codes.shape)
    codes = _bytes(codes).reshape(shape[0] if columnwise else _rows(shape), -1)
    scales = tensor._columnwise_scale_inv if columnwise else tensor._rowwise_scale_inv
    amax = tensor._amax_columnwise if columnwise else tensor._amax_rowwise
    blocks = -(-2 * codes.shape[1] // _NVFP4_BLOCK)
    scales = _bytes(scales)[: codes.shape[0], :blocks].contiguous()
    # The factor of Transformer Engine's dequantization, common/util/nvfp4.
    largest = _LARGEST_E2M1 * float(getattr(tensor, "_nvfp4_e4m3_max", _LARGEST_E4M3))
    sizes = _of_transposed(shape, 2) if columnwise else _logical(shape, 2)
    return codes, scales, amax.float().reshape(-1) * (1.0 / largest), sizes


_READERS = {
    "tensor": _read_tensor,
    "mxfp8": _read_mxfp8,
    "block": _read_block,
    "nvfp4": _read_nvfp4,
}
