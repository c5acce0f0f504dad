"""Reads and checks attributes and datasets of files that may be damaged."""

from __future__ import annotations

import contextlib
import os
import pathlib
import stat
import zlib
from collections.abc import Iterator

import h5py
import numpy as np
import torch

from telens import RecordError, UsageError

__all__ = ["check_elements", "check_regular_file", "check_structure", "is_dump"]

# Attributes that hold the checksums (docs/run_file.md).
_ELEMENTS_CHECKSUM = "crc"
_STRUCTURE_CHECKSUM = "structure_crc"
_CHECKSUMS = (_ELEMENTS_CHECKSUM, _STRUCTURE_CHECKSUM)

_TYPES = [np.dtype(name) for name in ("u1", "<u2", "<i8", "<f2", "<f4", "<f8")]
_NUMBERS = [np.dtype(name) for name in ("<i8", "<f8", "<u4")]

# A GEMM dump has about 15 objects of about 15 attributes each, a file of sampled operands 5 objects
# for each tensor.
_MOST_OBJECTS = 100_000
_MOST_LEVELS = 3
_MOST_ATTRIBUTES = 100
_LONGEST_ATTRIBUTE = 1 << 16  # bytes


def check_regular_file(path: pathlib.Path) -> None:
    """Raises RecordError for a pipe or a device, which HDF5 would read forever."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise RecordError(f"{path}: it cannot be read as a dump: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise RecordError(f"{path}: it is not a regular file; expected a dump of DumpTensors")


def is_dump(file: h5py.File) -> bool:
    """Returns whether the file has the attribute ``schema``, which marks our files."""
    if "schema" not in file.attrs:
        return False
    _check_attribute(file, "schema", file.attrs.get_id("schema"))
    return True


def check_structure(file: h5py.File) -> None:
    """Raises RecordError for an object that is unknown in dumps or differs from the written one."""
    described = {}
    has_checksums = False
    for path, item in _objects(file):
        described[path] = _attribute_bytes(item)
        has_checksums |= any(name in item.attrs for name in _CHECKSUMS)
        if isinstance(item, h5py.Dataset):
            _check_dataset(item)
            described[path] += np.asarray(item.shape, "<u8").tobytes() + _stored_crc(item)
    if not has_checksums:
        return  # written before checksums existed
    expected = file.attrs.get(_STRUCTURE_CHECKSUM)
    # Paths are compared as bytes, as in C++.
    every = sorted((path.encode("utf-8", "surrogateescape"), path) for path in described)
    if zlib.crc32(b"".join(name + b"\0" + described[path] for name, path in every)) != expected:
        raise RecordError(
            f"{file.filename}: damaged file: names, attributes or shapes differ from the written "
            f"ones; copy the file again"
        )


def check_elements(dataset: h5py.Dataset, elements: np.ndarray) -> None:
    """Raises RecordError if the dataset's elements differ from the written ones."""
    expected = dataset.attrs.get(_ELEMENTS_CHECKSUM)
    if expected is not None and zlib.crc32(np.ascontiguousarray(elements).data) != expected:
        raise RecordError(
            f"{dataset.file.filename}: {dataset.name} is damaged: its elements do not match their "
            "checksum; copy the file again"
        )


def _objects(file: h5py.File) -> Iterator[tuple[str, h5py.Group | h5py.Dataset]]:
    """Yields (path, object) pairs of the file's objects, including the root."""
    waiting: list[tuple[str, h5py.Group]] = [("", file)]
    count = 0
    yield "", file
    while waiting:
        path, group = waiting.pop()
        for name in group:
            inner = f"{path}/{name}" if path else name
            count += 1
            if count > _MOST_OBJECTS or inner.count("/") >= _MOST_LEVELS:
                raise RecordError(f"{file.filename}: it holds more objects than a dump")
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise RecordError(
                    f"{file.filename}: {inner} is a link to another place; expected a dataset or "
                    "a group in this file"
                )
            item = group[name]
            if isinstance(item, h5py.Group):
                waiting.append((inner, item))
            elif not isinstance(item, h5py.Dataset):
                raise RecordError(f"{file.filename}: {inner} is neither a dataset nor a group")
            yield inner, item


def _check_dataset(dataset: h5py.Dataset) -> None:
    def refuse(what: str) -> None:
        raise RecordError(f"{dataset.file.filename}: {dataset.name} {what}")

    settings = dataset.id.get_create_plist()
    if settings.get_external_count() > 0:
        refuse("is stored in another file; expected its elements in this one")
    if settings.get_layout() != h5py.h5d.CONTIGUOUS:
        refuse("is not contiguous; dumps do not use chunks or virtual datasets")
    if settings.get_nfilters() > 0:
        refuse("is filtered; dumps do not use filters")
    if dataset.shape is None:
        refuse("lacks a shape")
    if dataset.dtype not in _TYPES or dataset.dtype.names or dataset.dtype.metadata:
        refuse(f"holds {dataset.dtype}; expected one of {', '.join(map(str, _TYPES))}")
    # A damaged shape may exceed any memory.
    if dataset.id.get_storage_size() != dataset.size * dataset.dtype.itemsize:
        refuse("does not have as many bytes as its shape needs")


def _attribute_bytes(item: h5py.Group | h5py.Dataset) -> bytes:
    """Returns the attributes that the file's checksum covers, after checking them."""
    names = list(item.attrs)
    if len(names) > _MOST_ATTRIBUTES:
        raise RecordError(f"{item.file.filename}: {item.name} has {len(names)} attributes")
    described = []
    for name in names:
        raw = item.attrs.get_id(name)
        _check_attribute(item, name, raw)
        if name in _CHECKSUMS:
            if raw.dtype != np.dtype("<u4") or raw.shape != ():
                raise RecordError(
                    f"{item.file.filename}: attribute '{name}' of {item.name} is not a checksum"
                )
            continue
        value = item.attrs[name]
        if isinstance(value, str):
            value = value.encode("utf-8", "surrogateescape")
        text = value.rstrip(b"\0") if isinstance(value, bytes) else np.asarray(value).tobytes()
        described.append((name.encode("utf-8", "surrogateescape"), text))
    return b"".join(name + b"\0" + value for name, value in sorted(described))


def _check_attribute(item: h5py.HLObject, name: str, raw: h5py.h5a.AttrID) -> None:
    kind = raw.get_type()
    is_text = isinstance(kind, h5py.h5t.TypeStringID) and not kind.is_variable_str()
    shape = raw.shape
    fits = shape is not None and len(shape) <= 1
    fits = fits and kind.get_size() * int(np.prod(shape or (1,))) <= _LONGEST_ATTRIBUTE
    if not fits or not (is_text or raw.dtype in _NUMBERS):
        raise RecordError(
            f"{item.file.filename}: attribute '{name}' of {item.name} is neither a short text nor "
            "a number"
        )


def _stored_crc(dataset: h5py.Dataset) -> bytes:
    crc = dataset.attrs.get(_ELEMENTS_CHECKSUM)
    return b"" if crc is None else int(crc).to_bytes(4, "little")


# Per format, the HDF5 layout of its elements and the torch dtype that holds them.
_STORED = {
    "E4M3": (np.dtype("u1"), torch.uint8),
    "E5M2": (np.dtype("u1"), torch.uint8),
    "E2M1": (np.dtype("u1"), torch.uint8),
    "E3M2": (np.dtype("u1"), torch.uint8),
    "E2M3": (np.dtype("u1"), torch.uint8),
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
