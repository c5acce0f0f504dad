"""Reads Transformer Engine's pickles without executing anything that they ask for.

A pickle is a program that calls what it names. This reader knows few names, and puts containers in
their place: of tensors, of their storages, of recipes. Any other name ends the reading.
"""

from __future__ import annotations

import io
import math
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from telens.common import recipe

__all__ = [
    "Record",
    "UnreadablePickle",
    "format_program",
    "object_program",
    "read_pickle",
    "write_pickle",
]


def _is_recipe(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, recipe.Recipe)


RECIPE_MODULE = "transformer_engine.common.recipe"
_PICKLE_MAGIC = b"\x80"
_ZIP_MAGIC = b"PK"
# Classes of recipes, which have the names of ours, and of what recipes hold, for torch's own
# restricted reader.
_RECIPE_CLASSES = [
    *(name for name in recipe.__all__ if _is_recipe(getattr(recipe, name))),
    "Format",
    "MMParams",
    "QParams",
    "_FormatHelper",
    "_OverrideLinearPrecision",
]


class UnreadablePickle(Exception):
    """What was met that is no part of Transformer Engine's state."""


class Record:
    """An object of a class of Transformer Engine's recipes: its arguments and attributes."""

    def __new__(cls, *args: Any) -> Record:
        record = super().__new__(cls)
        record.args = args
        return record

    def __init__(self, *args: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        # (attributes, slots) of a class that has slots.
        for values in state if isinstance(state, tuple) else (state,):
            if isinstance(values, dict):
                self.__dict__.update({str(name): value for name, value in values.items()})


def _class_of_record(name: str) -> type[Record]:
    return type(name, (Record,), {"__module__": RECIPE_MODULE})


class _Storage:
    """The elements of a tensor, 1-D."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values


class _Tensor:
    """A tensor that nothing can be done to while the pickle is read."""

    def __init__(self, storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> None:
        sizes = [size, stride] if isinstance(size, tuple) and isinstance(stride, tuple) else None
        if (
            not isinstance(storage, _Storage)
            or sizes is None
            or not all(type(each) is int and each >= 0 for each in (offset, *size, *stride))
            or len(size) != len(stride)
        ):
            raise UnreadablePickle("a tensor that is none")
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if 0 not in size and last >= storage.values.numel():
            raise UnreadablePickle("a tensor that is larger than its storage")
        if math.prod(size) > storage.values.numel():
            raise UnreadablePickle("a tensor of more elements than its storage has")
        self.value = storage.values.as_strided(size, stride, offset).clone()


def _storage_from_bytes(data: Any) -> _Storage:
    """In the place of torch.storage._load_from_bytes, by torch's restricted reader."""
    if not isinstance(data, bytes):
        raise UnreadablePickle("a storage that is no bytes")
    storage = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if not isinstance(storage, torch.storage.TypedStorage):
        raise UnreadablePickle("a storage that is none")
    return _Storage(torch.empty(0, dtype=storage.dtype).set_(storage._untyped_storage))


_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _Tensor,
    ("torch.storage", "_load_from_bytes"): _storage_from_bytes,
    # How some versions of Python pickle a member of an enumeration.
    ("builtins", "getattr"): lambda owner, name: (
        owner(str(name)) if isinstance(owner, type) and issubclass(owner, Record) else None
    ),
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        if module == RECIPE_MODULE and name.isidentifier():
            return _class_of_record(name)
        raise UnreadablePickle(f"the name {module}.{name}, of which nothing was called")

    def persistent_load(self, pid: Any) -> Any:
        raise UnreadablePickle("a reference to something outside")


def read_pickle(data: bytes) -> Any:
    """What a pickle or a file of torch.save holds, with records where it has recipes.

    Raises UnreadablePickle for anything else than plain values, tensors and recipes.
    """
    try:
        if data.startswith(_ZIP_MAGIC):
            return _read_torch_file(data)
        if data.startswith(_PICKLE_MAGIC):
            return _plain(_Reader(io.BytesIO(data)).load())
    except UnreadablePickle:
        raise
    except Exception as error:
        lines = str(error).splitlines()
        raise UnreadablePickle(lines[0] if lines else type(error).__name__) from error
    raise UnreadablePickle("no pickle")


def _read_torch_file(data: bytes) -> Any:
    known = [(_class_of_record(name), f"{RECIPE_MODULE}.{name}") for name in _RECIPE_CLASSES]
    with torch.serialization.safe_globals(known):
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _plain(value: Any) -> Any:
    """The tensors themselves, in dicts and lists of any depth."""
    if isinstance(value, _Tensor):
        return value.value
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
    return value


def write_pickle(values: dict[str, Any], records: dict[str, bytes]) -> bytes:
    """A pickle of a dictionary: plain values and tensors, and programs that make the others.

    ``records``: by key, what ``object_program`` returned.
    """
    return pickle.PROTO + bytes([_PROTOCOL]) + _dict_program(values, records) + pickle.STOP


def object_program(
    name: str, attributes: dict[str, Any], records: dict[str, bytes] | None = None
) -> bytes:
    """The part of a pickle that makes an object of a class of the recipes, without its class."""
    made = _global(name) + pickle.EMPTY_TUPLE + pickle.NEWOBJ
    return made + _dict_program(attributes, records or {}) + pickle.BUILD


def format_program(max_fwd: float, max_bwd: float) -> bytes:
    """The part of a pickle that finds the member of Format with these largest values."""
    largest = _global("_FormatHelper") + _program((max_fwd, max_bwd)) + pickle.NEWOBJ
    return _global("Format") + largest + pickle.TUPLE1 + pickle.REDUCE


_PROTOCOL = 3  # the newest one without frames, which know their length


def _program(value: Any) -> bytes:
    """The opcodes that put a value onto the stack; they refer to no other part's memo."""
    return pickle.dumps(value, _PROTOCOL)[2:-1]  # without PROTO and STOP


def _dict_program(values: dict[str, Any], records: dict[str, bytes]) -> bytes:
    items = (_program(key) + program + pickle.SETITEM for key, program in records.items())
    return _program(values) + b"".join(items)


def _global(name: str) -> bytes:
    return pickle.GLOBAL + f"{RECIPE_MODULE}\n{name}\n".encode()
