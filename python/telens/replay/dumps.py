"""Reads and checks GEMMs in files of DumpTensors (docs/run_file.md)."""

from __future__ import annotations

import dataclasses
import pathlib

import h5py
import torch

from telens import RecordError, UsageError
from telens.replay.checked_hdf5 import PLAIN, attribute, opened, read_matrix, read_tensor
from telens.replay.found import TENSORS, Found
from telens.replay.gemm_error import HADAMARD_SIZE, Cast

_CODES = ("E4M3", "E5M2", "E2M1", "E3M2", "E2M3")
_LARGEST_FP32 = torch.finfo(torch.float32).max
_OPTIONS = (
    "two_dimensional",
    "scale_rounding",
    "power_of_2_scales",
    "amax_epsilon",
    "stochastic_rounding",
)
# Options that are present only if FP4 blocks were scaled to 4 or to 6.
SQUARED_ERROR = "four_over_six_squared_error"
LARGEST_SCALE = "four_over_six_largest_scale"
# ... and this one only if FP4 rows have separate scales.
ROW_SCALED = "row_scaled"


@dataclasses.dataclass
class Operand:
    """One operand of a dumped GEMM; matrices [rows, K]."""

    name: str
    cast: Cast
    original: torch.Tensor | None  # None if the dump has only the codes
    options: dict[str, float] | None  # the quantizer's; None if the dump does not record it
    # If the GEMM uses rows of every rank: the first row of `original` among them.
    first_row: int | None = None


@dataclasses.dataclass
class Dump:
    """A dumped GEMM."""

    path: str
    copy: int  # Found.copy
    layer: str
    gemm: str
    iteration: int
    rank: int
    evaluation: bool
    recipe: str
    kernel: str  # "" if the dump does not record it
    kernel_reason: str
    operands: tuple[Operand, Operand]
    bias: torch.Tensor | None
    result: torch.Tensor


def _quantized(file: h5py.File, group: h5py.Group) -> Cast:
    path = group.name
    codes, format = read_tensor(file, f"{path}/codes", _CODES)
    scales, scale_format = read_tensor(file, f"{path}/scale_inv", ("FP32", "E8M0", "E4M3"))
    block = attribute(group, "block_height", int), attribute(group, "block_length", int)
    cast = Cast(
        codes=codes,
        format=format,
        scales=scales,
        scale_format=scale_format,
        block=block,
        hadamard_signs=attribute(group, "hadamard_signs", int, -1),
        transposed=attribute(group, "transposed", int) == 1,
    )
    if cast.hadamard_signs == -1:
        cast.hadamard_signs = None
    if "tensor_scale" in group:
        cast.tensor_scale, _ = read_tensor(file, f"{path}/tensor_scale", ("FP32",))
    _check_cast(file.filename, path, cast)
    return cast


def _check_cast(file: str, path: str, cast: Cast) -> None:
    if cast.codes.dim() != 2:
        raise RecordError(f"{file}: {path}/codes has {cast.codes.dim()} dimensions; expected 2")
    rows, columns = cast.codes.shape
    columns *= 2 if cast.format == "E2M1" else 1
    height, length = cast.block
    if height < 1 or length < 0:
        raise RecordError(f"{file}: {path} has blocks of {height} x {length}")
    wanted = (-(-rows // height), -(-columns // length)) if length else None
    if wanted is None and cast.scales.numel() != 1:
        raise RecordError(f"{file}: {path}/scale_inv has {cast.scales.numel()} numbers; expected 1")
    if wanted is not None and tuple(cast.scales.shape) != wanted:
        raise RecordError(
            f"{file}: {path}/scale_inv is {list(cast.scales.shape)}; expected {list(wanted)}, one "
            f"a block of {height} x {length}"
        )
    if cast.tensor_scale is not None and list(cast.tensor_scale.shape) not in ([1], [rows]):
        raise RecordError(
            f"{file}: {path}/tensor_scale is neither one number nor {rows}, one a row"
        )
    if cast.hadamard_signs is not None and not 0 <= cast.hadamard_signs < 2**HADAMARD_SIZE:
        raise RecordError(f"{file}: {path} has signs {cast.hadamard_signs}; expected 16 bits")
    if cast.hadamard_signs is not None and columns % HADAMARD_SIZE:
        raise RecordError(f"{file}: {path} has {columns} columns; the transform takes 16 at a time")


def _options(group: h5py.Group) -> dict[str, float] | None:
    if any(name not in group.attrs for name in _OPTIONS):
        return None
    options = {
        name: attribute(group, name, float if name == "amax_epsilon" else int) for name in _OPTIONS
    }
    if LARGEST_SCALE in group.attrs:
        options[SQUARED_ERROR] = attribute(group, SQUARED_ERROR, int)
        options[LARGEST_SCALE] = attribute(group, LARGEST_SCALE, float)
        if options[LARGEST_SCALE] not in (256.0, 448.0):
            raise RecordError(
                f"{group.file.filename}: {group.name} has {LARGEST_SCALE} "
                f"{options[LARGEST_SCALE]}; expected 256 or 448"
            )
    if ROW_SCALED in group.attrs:
        options[ROW_SCALED] = attribute(group, ROW_SCALED, int)
    for name, value in options.items():
        if name == LARGEST_SCALE:
            continue
        largest = {"scale_rounding": 2, "amax_epsilon": _LARGEST_FP32}.get(name, 1)
        if not 0 <= value <= largest:  # also a NaN
            raise RecordError(f"{group.file.filename}: {group.name} has {name} {value}")
    return options


def _operand(
    file: h5py.File, group_name: str, original_path: str, name: str, transposed: bool
) -> Operand:
    """transposed: the GEMM uses the tensor's columns as its rows."""
    if group_name not in file:
        raise RecordError(
            f"{file.filename}: it lacks {group_name}, the GEMM's operand {name}; dump it "
            "with `quantized_tensor: True`, or the GEMM with `operands: True`"
        )
    group = file[group_name]
    original = None
    if original_path in file:
        original = read_matrix(file, original_path)
        original = original.T.contiguous() if transposed else original
    described = group if "first_row" in group.attrs else file
    first_row = attribute(described, "first_row", int) if "first_row" in described.attrs else None
    if "values" in group:
        values = read_matrix(file, f"{group_name}/values")
        cast = Cast(codes=values.T.contiguous() if transposed else values, format="")
        return Operand(name, cast, original, None, first_row)
    cast = _quantized(file, group)
    if cast.transposed != transposed:
        raise RecordError(
            f"{file.filename}: {group_name} is in the other orientation than its GEMM uses"
        )
    return Operand(name, cast, original, _options(group), first_row)


def _checked(dump: Dump) -> Dump:
    """Returns the dump after checking that its shapes form a product."""
    dump = take_own_rows(dump)
    a, b = (operand.cast.codes.shape for operand in dump.operands)
    depths = [
        operand.cast.codes.shape[1] * (2 if operand.cast.format == "E2M1" else 1)
        for operand in dump.operands
    ]
    if depths[0] != depths[1]:
        raise RecordError(f"{dump.path}: a sum over {depths[0]} and one over {depths[1]} elements")
    if list(dump.result.shape) != [a[0], b[0]]:
        raise RecordError(
            f"{dump.path}: the result is {list(dump.result.shape)}; the operands make "
            f"{[a[0], b[0]]}"
        )
    for operand, rows in zip(dump.operands, (a[0], b[0]), strict=True):
        if operand.original is not None and list(operand.original.shape) != [rows, depths[0]]:
            raise RecordError(
                f"{dump.path}: the {operand.name} in high precision is "
                f"{list(operand.original.shape)}; its cast is {[rows, depths[0]]}"
            )
    if dump.bias is not None and list(dump.bias.shape) != [b[0]]:
        raise RecordError(f"{dump.path}: the bias is {list(dump.bias.shape)}; expected {[b[0]]}")
    return dump


def _read_gemm(found: Found) -> Dump:
    path = found.files["gemm"]
    name_a, name_b, _ = TENSORS[found.gemm]
    with opened(path) as file:
        return _checked(
            Dump(
                **_identity(found, path),
                recipe=attribute(file, "recipe", str),
                kernel=attribute(file, "kernel", str),
                kernel_reason=attribute(file, "kernel_reason", str, "").strip("\0"),
                operands=(
                    _operand(file, "a", "a/high_precision", name_a, found.gemm == "wgrad"),
                    _operand(file, "b", "b/high_precision", name_b, found.gemm != "fprop"),
                ),
                bias=read_tensor(file, "bias", PLAIN)[0] if "bias" in file else None,
                result=read_matrix(file, "result"),
            )
        )


def _identity(found: Found, path: pathlib.Path) -> dict:
    return {
        "path": str(path),
        "copy": found.copy,
        "layer": found.layer,
        "gemm": found.gemm,
        "iteration": found.iteration,
        "rank": found.rank,
        "evaluation": found.evaluation,
    }


def _read_tensors(found: Found) -> Dump:
    """Reads a dump from the files of its three tensors."""
    name_a, name_b, name_result = TENSORS[found.gemm]
    operands = []
    recipes = []
    for name, transposed in ((name_a, found.gemm == "wgrad"), (name_b, found.gemm != "fprop")):
        first = found.gemm == next(gemm for gemm, names in TENSORS.items() if name in names[:2])
        with opened(found.files[name]) as file:
            group = "rowwise" if first else "columnwise"
            # fprop and wgrad share this operand: quantized once, it is stored only under the first
            # name.
            operands.append(_operand(file, group, "high_precision", name, transposed))
            recipes.append(attribute(file, "recipe", str))
    path = found.files[name_result]
    with opened(path) as file:
        if "high_precision" not in file:
            raise RecordError(f"{path}: it lacks high_precision, the result of {found.gemm}")
        if "summed_over_ranks" in file.attrs:
            raise UsageError(
                f"{path}: {name_result} is a sum over ranks, and this rank's {found.gemm} made a "
                "part of it; `operands: True` dumps the GEMM as it ran"
            )
        has_bias = found.gemm == "fprop" and "bias" in file
        return _checked(
            Dump(
                **_identity(found, path),
                recipe=recipes[0],
                kernel="",
                kernel_reason="",
                operands=tuple(operands),
                bias=read_tensor(file, "bias", PLAIN)[0] if has_bias else None,
                result=read_matrix(file, "high_precision"),
            )
        )


def read(found: Found) -> Dump:
    """Reads the dump. Raises RecordError that names the file and the problem."""
    return _read_gemm(found) if "gemm" in found.files else _read_tensors(found)


def _rows(cast: Cast, first: int, count: int) -> Cast:
    height, length = cast.block
    scales, tensor_scale = cast.scales, cast.tensor_scale
    if length:
        scales = scales[first // height : -(-(first + count) // height)]
    if tensor_scale is not None and tensor_scale.numel() > 1:
        tensor_scale = tensor_scale[first : first + count]
    codes = cast.codes[first : first + count]
    return dataclasses.replace(cast, codes=codes, scales=scales, tensor_scale=tensor_scale)


def take_own_rows(dump: Dump) -> Dump:
    """Returns the dump with result and left operand cut to this rank's rows.

    Raises UsageError for a wgrad, which sums over the rows of every rank, and RecordError for
    missing rows.
    """
    if all(operand.first_row is None for operand in dump.operands):
        return dump
    left = dump.operands[0]
    if dump.gemm == "wgrad" or left.first_row is None:
        name = next(each.name for each in dump.operands if each.first_row is not None)
        raise UsageError(
            f"{dump.path}: {dump.gemm} sums over the rows of every rank (sequence_parallel), but "
            f"the dump has only this rank's rows of the {name} in high precision; replay fprop or "
            f"dgrad, or dump "
            "the layer without sequence_parallel"
        )
    first, rows = left.first_row, left.cast.codes.shape[0]
    own = rows if left.original is None else left.original.shape[0]
    is_whole = rows > own
    height = left.cast.block[0] if left.cast.block[1] else 1
    cuts = is_whole and (first % height or own % height)
    last = first + own
    if first < 0 or last > dump.result.shape[0] or (is_whole and last > rows) or cuts:
        raise RecordError(
            f"{dump.path}: the {left.name} of this rank has {own} rows from row {first} on, which "
            f"do not fit a result of {dump.result.shape[0]} rows"
        )
    if is_whole:
        left.cast = _rows(left.cast, first, own)
    dump.result = dump.result[first:last]
    return dump
