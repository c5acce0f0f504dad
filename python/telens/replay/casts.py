"""Recomputes the casts of a dumped GEMM, under its recipe or another, with the core's CPU
quantizers."""

from __future__ import annotations

import pathlib

import torch

import telens.pytorch  # noqa: F401 (defines the tensor class that the quantizers return)
from telens import _C, UsageError
from telens.replay.dumps import LARGEST_SCALE, ROW_SCALED, SQUARED_ERROR, Dump, Operand
from telens.replay.found import TENSORS
from telens.replay.gemm_error import Cast, Gemm

# Block height and length by _C.ScalingMode, in its order (core/formats/scheme.h).
_BLOCKS = ((1, 0), (1, 32), (1, 128), (128, 128), (1, 16), (1, 32), (1, 32))
_DTYPES = {
    "E4M3": _C.DType.kFloat8E4M3,
    "E5M2": _C.DType.kFloat8E5M2,
    "E2M1": _C.DType.kFloat4E2M1,
    "E3M2": _C.DType.kFloat6E3M2,
    "E2M3": _C.DType.kFloat6E2M3,
}
_FORMATS = {dtype: name for name, dtype in _DTYPES.items()}
_CASTABLE = (torch.bfloat16, torch.float16, torch.float32)


def _storage(cast: Cast, options: dict[str, float], dtype: torch.dtype) -> _C.QuantizedStorage:
    """Returns the codes in the core's layout, rounded to nearest."""
    rows, columns = cast.codes.shape
    data = (cast.codes, cast.scales)
    ways = (None, None, *data) if cast.transposed else (*data, None, None)
    tensor_scales = (None, cast.tensor_scale) if cast.transposed else (cast.tensor_scale, None)
    storage = _C.QuantizedStorage(
        *ways,
        _DTYPES[cast.format],
        _C.ScalingMode(_BLOCKS.index(cast.block)),
        dtype,
        [columns, rows] if cast.transposed else [rows, columns],
        *tensor_scales,
    )
    storage.blocks = (
        bool(options["two_dimensional"]),
        int(options["scale_rounding"]),
        bool(options["power_of_2_scales"]),
        options["amax_epsilon"],
        cast.hadamard_signs,
        False,
        False,
        _four_over_six(options),
        bool(options.get(ROW_SCALED, 0)),
    )
    return storage


def _four_over_six(options: dict[str, float]) -> tuple[bool, float] | None:
    """Options of scaling FP4 blocks to 4 or to 6: (squared error, largest scale)."""
    if LARGEST_SCALE not in options:
        return None
    return bool(options[SQUARED_ERROR]), options[LARGEST_SCALE]


def _quantizers_like(
    cast: Cast, options: dict[str, float] | None, dtype: torch.dtype
) -> list[_C.Quantizer]:
    """Returns the quantizers that may have made the cast, with per-tensor scales from the current
    amax.

    The dump contains the options of block scaling. It does not record whether a per-tensor scale
    was rounded to a power of two.
    """
    if cast.block[1]:
        return [_C.quantizer_like(_storage(cast, options, dtype))]
    return [
        _C.Float8CurrentScalingQuantizer(_DTYPES[cast.format], force_pow_2_scales=rounded)
        for rounded in (False, True)
    ]


def _cast(quantizer: _C.Quantizer, original: torch.Tensor, transposed: bool) -> Cast:
    """Casts original [rows, K] in the orientation that its GEMM uses."""
    quantizer.set_usage(rowwise=not transposed, columnwise=transposed)
    tensor = original.T.contiguous() if transposed else original.contiguous()
    storage = quantizer.quantize(tensor)._storage
    if transposed:
        codes, scales = storage.columnwise_data, storage.columnwise_scale_inv
        tensor_scale = storage.columnwise_tensor_scale
    else:
        codes, scales = storage.rowwise_data, storage.rowwise_scale_inv
        tensor_scale = storage.rowwise_tensor_scale
    format = _FORMATS[storage.fp8_dtype]
    byte_scales = "E4M3" if format == "E2M1" else "E8M0"
    return Cast(
        codes=codes.contiguous(),
        format=format,
        scales=scales.contiguous(),
        scale_format=byte_scales if scales.dtype == torch.uint8 else "FP32",
        tensor_scale=tensor_scale,
        block=_BLOCKS[int(storage.mode)],
        hadamard_signs=storage.blocks[4] if transposed else None,
        transposed=transposed,
    )


def _same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a.reshape(-1), b.reshape(-1))


def _own_scale(operand: Operand, notes: list[str]) -> Cast | None:
    """Returns the cast with a scale from the operand's current amax, or None if it already uses
    that."""
    cast, original = operand.cast, operand.original
    if cast.scales is None or original is None or original.numel() == 0:
        return None
    if cast.block not in _BLOCKS or original.dtype not in _CASTABLE:
        return None
    if operand.options is None and cast.block[1]:
        notes.append(
            f"the dump does not record how the block scales of the {operand.name} were chosen, "
            "which counts as quantizing; `operands: True` dumps it"
        )
        return None
    if not bool(original.isfinite().all()):
        notes.append(
            f"the {operand.name} has values that are not finite, whose amax gives no scale: the "
            "choice of its scale counts as quantizing"
        )
        return None
    quantizers = _quantizers_like(cast, operand.options, original.dtype)
    own = [_cast(each, original, cast.transposed) for each in quantizers]
    if any(
        _same(each.scales, cast.scales) and _same(each.tensor_scale, cast.tensor_scale)
        for each in own
    ):
        return None
    if operand.options is not None and operand.options["stochastic_rounding"]:
        notes.append(
            f"the {operand.name} was rounded by chance, which counts as the choice of its scale"
        )
    return own[0]


def _original(dump: Dump, operand: Operand, notes: list[str]) -> torch.Tensor:
    if operand.original is not None:
        return operand.original
    if operand.name != "weight" or operand.cast.scales is None:
        raise UsageError(
            f"{dump.path}: it lacks the {operand.name} in high precision, against which the cast "
            "is measured; dump it with `high_precision_tensor: True`, or the GEMM with "
            "`operands: True`"
        )
    notes.append("the weight is stored in low precision; its stored values count as exact")
    return operand.cast.values()


def _title(dump: Dump, what: str) -> str:
    (rows, depth), columns = dump.operands[0].cast.codes.shape, dump.operands[1].cast.codes.shape[0]
    depth *= 2 if dump.operands[0].cast.format == "E2M1" else 1
    mode = ", evaluation" if dump.evaluation else ""
    name = f", {pathlib.Path(dump.path).name}" if dump.copy else ""  # distinguishes equal names
    return (
        f"{dump.layer} {dump.gemm}, iteration {dump.iteration}, rank {dump.rank}{mode}{name}: "
        f"[{rows}, {depth}] x [{columns}, {depth}]^T, {what}"
    )


def _describe_kernel(dump: Dump) -> str:
    """Returns the kernel for display: dumps name the arithmetic of the emulation."""
    emulated = " GEMM of decoded operands"
    if emulated not in dump.kernel:
        return dump.kernel
    formats = {operand.cast.format for operand in dump.operands}
    return ("FP4" if "E2M1" in formats else "FP8") + ", emulated on this CPU"


def recorded(dump: Dump) -> Gemm:
    """Returns the GEMM as it ran. Raises UsageError if the dump lacks the tensors that the error
    requires."""
    notes: list[str] = []
    quantized = dump.operands[0].cast.scales is not None
    originals = tuple(_original(dump, operand, notes) for operand in dump.operands)
    for operand in dump.operands:
        values = operand.cast.codes
        if not quantized and values.element_size() >= dump.result.element_size():
            operand.cast.codes = values.to(dump.result.dtype)  # like a GEMM in high precision
    if (first := dump.operands[0].first_row) is not None:
        notes.append(
            f"the GEMM used rows of every rank; these are its rows {first} to "
            f"{first + len(dump.result) - 1}, which this rank has in high precision"
        )
    if not dump.kernel:
        notes.append(
            "tensor files do not record the kernel, and a feature may have modified the result; "
            "`operands: True` dumps a GEMM as it ran"
        )
    kernel = f", {_describe_kernel(dump)}" if dump.kernel else ""
    reason = f" ({dump.kernel_reason})" if dump.kernel_reason else ""
    return Gemm(
        title=_title(dump, f"{dump.recipe}{kernel}{reason}"),
        names=TENSORS[dump.gemm][:2],
        originals=originals,
        casts=tuple(operand.cast for operand in dump.operands),
        own_scales=tuple(_own_scale(operand, notes) for operand in dump.operands),
        bias=dump.bias,
        result=dump.result,
        result_dtype=dump.result.dtype,
        notes=notes,
    )


def check_recipe(name: str, where: str) -> None:
    """Raises UsageError for an unknown recipe name."""
    if name not in _C.recipe_names():
        raise UsageError(f"{where}: expected --recipe with one of {', '.join(_C.recipe_names())}")


def under(dump: Dump, recipe: str, format: str | None) -> Gemm:
    """Returns the GEMM under the casts of another recipe with exact sums.

    recipe: a name of _C.recipe_names(), or "" for the dump's; format: E4M3, E5M2, HYBRID, or None
    for the recipe's own. Raises UsageError if the operands cannot be cast like this.
    """
    notes: list[str] = []
    name = recipe or dump.recipe
    check_recipe(name, f"--recipe {recipe}" if recipe else f"{dump.path} ran under '{name}'")
    casts = []
    originals = tuple(_original(dump, operand, notes) for operand in dump.operands)
    for operand, original in zip(dump.operands, originals, strict=True):
        if operand.original is None:
            raise UsageError(
                f"{dump.path}: no other cast of the {operand.name}, which is stored in low "
                f"precision: its original values are unknown"
            )
        if original.dtype not in _CASTABLE:
            raise UsageError(
                f"{dump.path}: no other cast of the {operand.name}, which is "
                f"{str(original.dtype).removeprefix('torch.')}; expected BF16, FP16 or FP32"
            )
        fp8_format = None if format is None else getattr(_C.Fp8Format, format)
        quantizer = _C.default_quantizer(name, operand.name, fp8_format)
        transposed = (dump.gemm, operand.name) not in (
            ("fprop", "activation"),
            ("fprop", "weight"),
            ("dgrad", "gradient"),
        )
        casts.append(_cast(quantizer, original, transposed))
    formats = [cast.format for cast in casts]
    if format is not None and "E2M1" in formats:
        raise UsageError(f"--format {format}: {name} supports only E2M1")
    if formats == ["E5M2", "E5M2"]:
        notes.append("no hardware multiplies E5M2 by E5M2")
    if "delayed" in name:
        notes.append("delayed scaling uses scales from the tensors' current amaxes here")
    return Gemm(
        title=_title(dump, f"hypothetical: {name}, {' x '.join(formats)}"),
        names=TENSORS[dump.gemm][:2],
        originals=originals,
        casts=tuple(casts),
        own_scales=(None, None),
        bias=dump.bias,
        result=None,
        result_dtype=dump.result.dtype,
        notes=notes,
    )
