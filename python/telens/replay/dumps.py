"""GEMMs in the files that DumpTensors writes (docs/run_file.md), read and checked."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator

import h5py
import numpy as np
import torch

from telens import RecordError, UsageError
from telens.replay.gemm_error import HADAMARD_SIZE, Cast

GEMM_SCHEMA, TENSOR_SCHEMA = "telens gemm dump", "telens tensor dump"
SCHEMA_VERSION = 1

# The operands of each GEMM, a and b, and the tensor that it makes.
TENSORS = {
    "fprop": ("activation", "weight", "output"),
    "dgrad": ("gradient", "weight", "dgrad"),
    "wgrad": ("gradient", "activation", "wgrad"),
}

# How the elements of a dataset of each format lie in the file, and the torch dtype that takes them.
_STORED = {
    "E4M3": (np.dtype("u1"), torch.uint8),
    "E5M2": (np.dtype("u1"), torch.uint8),
    "E2M1": (np.dtype("u1"), torch.uint8),
    "E8M0": (np.dtype("u1"), torch.uint8),
    "BF16": (np.dtype("<u2"), torch.bfloat16),
    "FP16": (np.dtype("<f2"), torch.float16),
    "FP32": (np.dtype("<f4"), torch.float32),
    "FP64": (np.dtype("<f8"), torch.float64),
}
_CODES = ("E4M3", "E5M2", "E2M1")
_LARGEST_FP32 = torch.finfo(torch.float32).max
_OPTIONS = (
    "two_dimensional",
    "scale_rounding",
    "power_of_2_scales",
    "amax_epsilon",
    "stochastic_rounding",
)


@dataclasses.dataclass
class Operand:
    """One operand of a dumped GEMM; matrices [rows, K]."""

    name: str
    cast: Cast
    original: torch.Tensor | None  # None: the dump has none in high precision
    options: dict[str, float] | None  # the quantizer's; None: the dump does not tell


@dataclasses.dataclass
class Dump:
    """A dumped GEMM."""

    path: str
    layer: str
    gemm: str
    iteration: int
    rank: int
    evaluation: bool
    recipe: str
    kernel: str  # "": the dump does not tell
    kernel_reason: str
    operands: tuple[Operand, Operand]
    bias: torch.Tensor | None
    result: torch.Tensor


@dataclasses.dataclass
class Found:
    """A GEMM that some files hold, known by their attributes alone."""

    layer: str
    gemm: str
    iteration: int
    rank: int
    evaluation: bool
    files: dict[str, pathlib.Path]  # "gemm", or each of its three tensors


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[h5py.File]:
    """The file; whatever HDF5 or its contents raise becomes a RecordError that names it."""
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (RecordError, UsageError):
        raise
    # h5py has no class of its own for damage: OSError, KeyError, RuntimeError, TypeError, ...
    except Exception as error:
        raise RecordError(f"{path}: it cannot be read as a dump: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _attribute(item: h5py.HLObject, name: str, kind: type, default: object = None) -> object:
    value = item.attrs.get(name)
    if value is None:
        if default is not None:
            return default
        raise RecordError(f"{item.file.filename}: {item.name} has no attribute '{name}'")
    if isinstance(value, bytes):
        value = value.decode()
    if kind is str and isinstance(value, str):
        return value
    if kind is int and isinstance(value, int | np.integer):
        return int(value)
    if kind is float and isinstance(value, float | np.floating):
        return float(value)
    raise RecordError(
        f"{item.file.filename}: attribute '{name}' of {item.name} is no {kind.__name__}"
    )


def _tensor(file: h5py.File, path: str, formats: tuple[str, ...]) -> tuple[torch.Tensor, str]:
    """A dataset's elements, and their format."""
    dataset = file[path]
    if not isinstance(dataset, h5py.Dataset):
        raise RecordError(f"{file.filename}: {path} is no dataset")
    format = _attribute(dataset, "format", str)
    if format not in formats:
        expected = ", ".join(formats)
        raise RecordError(f"{file.filename}: {path} is {format}; expected one of {expected}")
    stored, dtype = _STORED[format]
    if dataset.dtype != stored:
        raise RecordError(
            f"{file.filename}: {path} holds {dataset.dtype}; {format} lies as {stored}"
        )
    # A damaged shape may claim more than any memory holds.
    if dataset.id.get_storage_size() != dataset.size * stored.itemsize:
        raise RecordError(f"{file.filename}: {path} has not as many bytes as its shape needs")
    array = np.ascontiguousarray(dataset[()]).reshape(dataset.shape)
    if format == "BF16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16), format
    return torch.from_numpy(array).to(dtype), format


_PLAIN = ("BF16", "FP16", "FP32", "FP64")


def _matrix(file: h5py.File, path: str) -> torch.Tensor:
    tensor, _ = _tensor(file, path, _PLAIN)
    if tensor.dim() == 0:
        raise RecordError(f"{file.filename}: {path} is a number; expected a matrix")
    rows = tensor.numel() // tensor.shape[-1] if tensor.shape[-1] else 0
    return tensor.reshape(rows, tensor.shape[-1])


def _quantized(file: h5py.File, group: h5py.Group) -> Cast:
    path = group.name
    codes, format = _tensor(file, f"{path}/codes", _CODES)
    scales, scale_format = _tensor(file, f"{path}/scale_inv", ("FP32", "E8M0", "E4M3"))
    block = _attribute(group, "block_height", int), _attribute(group, "block_length", int)
    cast = Cast(
        codes=codes,
        format=format,
        scales=scales,
        scale_format=scale_format,
        block=block,
        hadamard_signs=_attribute(group, "hadamard_signs", int, -1),
        transposed=_attribute(group, "transposed", int) == 1,
    )
    if cast.hadamard_signs == -1:
        cast.hadamard_signs = None
    if "tensor_scale" in group:
        cast.tensor_scale, _ = _tensor(file, f"{path}/tensor_scale", ("FP32",))
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
    if cast.tensor_scale is not None and cast.tensor_scale.numel() != 1:
        raise RecordError(f"{file}: {path}/tensor_scale is not one number")
    if cast.hadamard_signs is not None and not 0 <= cast.hadamard_signs < 2**HADAMARD_SIZE:
        raise RecordError(f"{file}: {path} has signs {cast.hadamard_signs}; expected 16 bits")
    if cast.hadamard_signs is not None and columns % HADAMARD_SIZE:
        raise RecordError(f"{file}: {path} has {columns} columns; the transform takes 16 at a time")


def _options(group: h5py.Group) -> dict[str, float] | None:
    if any(name not in group.attrs for name in _OPTIONS):
        return None
    options = {
        name: _attribute(group, name, float if name == "amax_epsilon" else int) for name in _OPTIONS
    }
    for name, value in options.items():
        largest = {"scale_rounding": 2, "amax_epsilon": _LARGEST_FP32}.get(name, 1)
        if not 0 <= value <= largest:  # also a NaN
            raise RecordError(f"{group.file.filename}: {group.name} has {name} {value}")
    return options


def _operand(
    file: h5py.File, group_name: str, original_path: str, name: str, transposed: bool
) -> Operand:
    """transposed: the GEMM takes the tensor's columns as its rows."""
    if group_name not in file:
        raise RecordError(
            f"{file.filename}: it lacks {group_name}, what the GEMM got of the {name}; dump it "
            "with `quantized_tensor: True`, or the GEMM with `operands: True`"
        )
    group = file[group_name]
    original = None
    if original_path in file:
        original = _matrix(file, original_path)
        original = original.T.contiguous() if transposed else original
    if "values" in group:
        values = _matrix(file, f"{group_name}/values")
        cast = Cast(codes=values.T.contiguous() if transposed else values, format="")
        return Operand(name, cast, original, None)
    cast = _quantized(file, group)
    if cast.transposed != transposed:
        raise RecordError(
            f"{file.filename}: {group_name} lies the other way than its GEMM takes it"
        )
    return Operand(name, cast, original, _options(group))


def _checked(dump: Dump) -> Dump:
    """The dump, whose shapes are those of one product."""
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
    with _opened(path) as file:
        return _checked(
            Dump(
                **_identity(found, path),
                recipe=_attribute(file, "recipe", str),
                kernel=_attribute(file, "kernel", str),
                kernel_reason=_attribute(file, "kernel_reason", str, "").strip("\0"),
                operands=(
                    _operand(file, "a", "a/high_precision", name_a, found.gemm == "wgrad"),
                    _operand(file, "b", "b/high_precision", name_b, found.gemm != "fprop"),
                ),
                bias=_tensor(file, "bias", _PLAIN)[0] if "bias" in file else None,
                result=_matrix(file, "result"),
            )
        )


def _identity(found: Found, path: pathlib.Path) -> dict:
    return {
        "path": str(path),
        "layer": found.layer,
        "gemm": found.gemm,
        "iteration": found.iteration,
        "rank": found.rank,
        "evaluation": found.evaluation,
    }


def _read_tensors(found: Found) -> Dump:
    """The same from the files of its three tensors."""
    name_a, name_b, name_result = TENSORS[found.gemm]
    operands = []
    recipes = []
    for name, transposed in ((name_a, found.gemm == "wgrad"), (name_b, found.gemm != "fprop")):
        first = found.gemm == next(gemm for gemm, names in TENSORS.items() if name in names[:2])
        with _opened(found.files[name]) as file:
            group = "rowwise" if first else "columnwise"
            # One product of both: quantized once, it is stored under the first name alone.
            operands.append(_operand(file, group, "high_precision", name, transposed))
            recipes.append(_attribute(file, "recipe", str))
    path = found.files[name_result]
    with _opened(path) as file:
        if "high_precision" not in file:
            raise RecordError(f"{path}: it lacks high_precision, the result of {found.gemm}")
        has_bias = found.gemm == "fprop" and "bias" in file
        return _checked(
            Dump(
                **_identity(found, path),
                recipe=recipes[0],
                kernel="",
                kernel_reason="",
                operands=tuple(operands),
                bias=_tensor(file, "bias", _PLAIN)[0] if has_bias else None,
                result=_matrix(file, "high_precision"),
            )
        )


def read(found: Found) -> Dump:
    """What the files hold. Raises RecordError that names the file and what is wrong with it."""
    return _read_gemm(found) if "gemm" in found.files else _read_tensors(found)


@dataclasses.dataclass
class _File:
    path: pathlib.Path
    schema: str
    place: tuple[str, int, int, bool]  # layer, iteration, rank, evaluation
    name: str  # the GEMM's or the tensor's


def _identify(path: pathlib.Path) -> _File | None:
    """The file's attributes; None: it is no dump."""
    with _opened(path) as file:
        schema = _attribute(file, "schema", str, " ")
        if schema not in (GEMM_SCHEMA, TENSOR_SCHEMA):
            return None
        version = _attribute(file, "schema_version", int)
        if version != SCHEMA_VERSION:
            raise RecordError(
                f"{path}: a {schema} of version {version}; this telens reads version "
                f"{SCHEMA_VERSION}"
            )
        name = _attribute(file, "gemm" if schema == GEMM_SCHEMA else "tensor", str)
        known = (
            TENSORS if schema == GEMM_SCHEMA else {n for three in TENSORS.values() for n in three}
        )
        if name not in known:
            raise RecordError(f"{path}: there is no GEMM or tensor '{name}'")
        place = (
            _attribute(file, "layer", str),
            _attribute(file, "iteration", int),
            _attribute(file, "rank", int),
            _attribute(file, "mode", str, "train") == "eval",
        )
        return _File(path, schema, place, name)


_Key = tuple[pathlib.Path, str, str, bool]  # folder, layer, GEMM, evaluation


def _whole_gemms(file: _File, beside: list[_File], known: set[_Key]) -> Iterator[Found]:
    """The GEMMs, but for the known ones, of which `file` is the result and all files are there."""
    layer, iteration, rank, evaluation = file.place
    for gemm, names in TENSORS.items():
        if file.name != names[2] or (file.path.parent, layer, gemm, evaluation) in known:
            continue
        files = {}
        for name in names:
            same = [each for each in beside if each.name == name]
            if len(same) > 1:
                raise UsageError(
                    f"{file.path.parent}: it holds {len(same)} files of {layer} {name}, as of "
                    "several micro-batches; which belong together is not known. Dump with "
                    "`operands: True`, which writes a file a GEMM"
                )
            if not same:
                break
            files[name] = same[0].path
        else:
            yield Found(layer, gemm, iteration, rank, evaluation, files)


def _missing(files: list[_File]) -> str:
    have = sorted({file.name for file in files})
    return (
        f"no GEMM is whole: there are files of {', '.join(have)} alone. fprop takes activation, "
        "weight and output, dgrad gradient, weight and dgrad, wgrad gradient, activation and wgrad"
    )


def find(path: pathlib.Path) -> list[Found]:
    """The GEMMs of a file, of a tensor's file and those beside it, or of a folder.

    In the order of iterations, ranks, layers, and of training. Raises UsageError where there is
    none, RecordError for a file that is no dump or is damaged.
    """
    if not path.exists():
        raise UsageError(f"{path}: there is no such file or folder")
    one = None
    if path.is_dir():
        identified = [_identify(each) for each in sorted(path.rglob("*.h5")) if each.is_file()]
        files = [each for each in identified if each is not None]
    else:
        one = _identify(path)
        if one is None:
            raise RecordError(f"{path}: it is no dump of DumpTensors")
        files = [one]
        if one.schema == TENSOR_SCHEMA:
            beside = [_identify(each) for each in sorted(path.parent.glob("*.h5"))]
            files = [
                each
                for each in beside
                if each is not None and each.schema == TENSOR_SCHEMA and each.place == one.place
            ]
    if not files:
        raise UsageError(f"{path}: it holds no dump of DumpTensors (docs/run_file.md)")
    found = [
        Found(file.place[0], file.name, *file.place[1:], {"gemm": file.path})
        for file in files
        if file.schema == GEMM_SCHEMA
    ]
    known = {(each.files["gemm"].parent, each.layer, each.gemm, each.evaluation) for each in found}
    tensors = [file for file in files if file.schema == TENSOR_SCHEMA]
    for file in tensors:
        beside = [
            each
            for each in tensors
            if each.path.parent == file.path.parent and each.place == file.place
        ]
        found += [
            each
            for each in _whole_gemms(file, beside, known)
            if one is None or one.name in TENSORS[each.gemm]
        ]
    if not found:
        raise UsageError(f"{path}: {_missing(files)}")
    order = list(TENSORS)
    return sorted(
        found, key=lambda each: (each.iteration, each.rank, each.layer, order.index(each.gemm))
    )
