"""Reads and checks attributes and datasets of files that may be damaged."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import h5py
import numpy as np
import torch

from telens import RecordError, UsageError
from telens.replay.dump_structure import (
    check_elements,
    check_regular_file,
    check_structure,
    is_dump,
)

# Per format, the HDF5 layout of its elements and the torch dtype that holds them.
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
PLAIN = ("BF16", "FP16", "FP32", "FP64")


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[h5py.File]:
    """Opens the file and checks its structure. HDF5 errors become RecordErrors that name the
    file."""
    check_regular_file(path)
    try:
        with h5py.File(path, "r") as file:
            if is_dump(file):
                check_structure(file)
            yield file
    except (RecordError, UsageError, MemoryError):
        raise
    # h5py lacks an exception class for damage: OSError, KeyError, RuntimeError, TypeError, ...
    except Exception as error:
        raise RecordError(f"{path}: it cannot be read as a dump: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def attribute(item: h5py.HLObject, name: str, kind: type, default: object = None) -> object:
    value = item.attrs.get(name)
    if value is None:
        if default is not None:
            return default
        raise RecordError(f"{item.file.filename}: {item.name} lacks the attribute '{name}'")
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


def read_tensor(file: h5py.File, path: str, formats: tuple[str, ...]) -> tuple[torch.Tensor, str]:
    """Returns a dataset's elements and their format."""
    dataset = file[path]
    if not isinstance(dataset, h5py.Dataset):
        raise RecordError(f"{file.filename}: {path} is not a dataset")
    format = attribute(dataset, "format", str)
    if format not in formats:
        expected = ", ".join(formats)
        raise RecordError(f"{file.filename}: {path} is {format}; expected one of {expected}")
    stored, dtype = _STORED[format]
    if dataset.dtype != stored:
        raise RecordError(
            f"{file.filename}: {path} holds {dataset.dtype}; {format} is stored as {stored}"
        )
    # A damaged shape may exceed any memory.
    if dataset.id.get_storage_size() != dataset.size * stored.itemsize:
        raise RecordError(f"{file.filename}: {path} has not as many bytes as its shape needs")
    array = np.ascontiguousarray(dataset[()]).reshape(dataset.shape)
    check_elements(dataset, array)
    if format == "BF16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16), format
    return torch.from_numpy(array).to(dtype), format


def read_matrix(file: h5py.File, path: str) -> torch.Tensor:
    tensor, _ = read_tensor(file, path, PLAIN)
    if tensor.dim() == 0:
        raise RecordError(f"{file.filename}: {path} is a number; expected a matrix")
    rows = tensor.numel() // tensor.shape[-1] if tensor.shape[-1] else 0
    return tensor.reshape(rows, tensor.shape[-1])
