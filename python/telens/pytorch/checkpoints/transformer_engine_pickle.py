"""Reads Transformer Engine's pickles without executing anything that they name.

Containers represent the tensors, storages and recipes of a pickle. Any other name is rejected, and
so is a pickle with more bytes or opcodes than a state has (``pickle_machine``).
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from telens.pytorch.checkpoints.pickle_machine import PickleMachine, UnreadablePickle, Work

__all__ = [
    "Record",
    "UnreadablePickle",
    "format_program",
    "object_program",
    "read_pickle",
    "write_pickle",
]

RECIPE_MODULE = "transformer_engine.common.recipe"
_PICKLE_MAGIC = b"\x80"
_ZIP_MAGIC = b"PK"
# Total bytes of the tensors and storages in a state.
_MOST_BYTES = 64 << 20
_MOST_DIMENSIONS = 8
# Nested lists and dictionaries; recipes have two levels.
_MOST_LEVELS = 50
# Members of a file of torch.save, which has one per storage and five others.
_MOST_MEMBERS = 1000

# Keyed by the name that torch.save writes for a storage's class.
_DTYPES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "ByteStorage": torch.uint8,
    "CharStorage": torch.int8,
    "ShortStorage": torch.int16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
    "BoolStorage": torch.bool,
}


class Record:
    """An object of a class of Transformer Engine's recipes: its arguments and attributes."""

    def __init__(self, *args: Any) -> None:
        self.args = args

    def _set_state(self, state: Any) -> None:
        # (attributes, slots) of a class that has slots.
        for values in state if isinstance(state, tuple) else (state,):
            if isinstance(values, dict):
                self.__dict__.update({str(name): value for name, value in values.items()})


class _Storage:
    """The elements of a tensor, 1-D, and how many bytes of its tensors are already charged."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        self.charged = values.numel() * values.element_size()


class _Load:
    """Maps the names in a pickle, and bounds the bytes of their values."""

    def __init__(self, members: Callable[[str], bytes] | None = None) -> None:
        self._left = _MOST_BYTES
        self._work = Work()
        self._members = members

    def run(self, data: bytes) -> Any:
        persistent = self._storage_of_member if self._members is not None else None
        return _plain(self._machine(persistent).load(data), {}, 0)

    def _machine(self, persistent: Callable[[Any], Any] | None) -> PickleMachine:
        return PickleMachine(self._find, self._build, persistent, self._work)

    def _find(self, module: str, name: str) -> Callable[[list[Any]], Any]:
        known = {
            ("collections", "OrderedDict"): self._ordered_dict,
            ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
            ("torch.storage", "_load_from_bytes"): self._storage_from_bytes,
            # How some versions of Python pickle a member of an enumeration.
            ("builtins", "getattr"): self._member_of_record,
        }
        if (module, name) in known:
            return known[module, name]
        if module == "torch" and name in _DTYPES:
            return _StorageClass(_DTYPES[name])
        if module == RECIPE_MODULE and name.isidentifier():
            return _RecordClass(name)
        raise UnreadablePickle(f"the name {module}.{name}, of which nothing was called")

    @staticmethod
    def _build(value: Any, state: Any) -> None:
        if not isinstance(value, Record):
            raise UnreadablePickle(f"attributes of a {type(value).__name__}")
        value._set_state(state)

    def _ordered_dict(self, arguments: list[Any]) -> OrderedDict:
        if arguments:
            raise UnreadablePickle("an OrderedDict with arguments")
        return OrderedDict()

    def _member_of_record(self, arguments: list[Any]) -> Any:
        owner, name = arguments
        made = getattr(owner, "call", None)
        if not isinstance(made, _RecordClass) or not isinstance(name, str):
            raise UnreadablePickle("an attribute of something else than a recipe's class")
        return made([name])

    def _spend(self, bytes_: int) -> None:
        self._left -= bytes_
        if self._left < 0:
            raise UnreadablePickle(f"tensors of more than {_MOST_BYTES >> 20} MB")

    def _charge_tensor(self, storage: _Storage, bytes_: int) -> None:
        """Charges the bytes of a tensor beyond those that its storage has already paid for."""
        paid = min(storage.charged, bytes_)
        storage.charged -= paid
        self._spend(bytes_ - paid)

    def _tensor(self, arguments: list[Any]) -> torch.Tensor:
        storage, offset, size, stride = arguments[:4]
        sizes = [size, stride] if isinstance(size, tuple) and isinstance(stride, tuple) else None
        if (
            not isinstance(storage, _Storage)
            or sizes is None
            or not all(type(each) is int and each >= 0 for each in (offset, *size, *stride))
            or len(size) != len(stride)
            or len(size) > _MOST_DIMENSIONS
        ):
            raise UnreadablePickle("an invalid tensor")
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if 0 not in size and last >= storage.values.numel():
            raise UnreadablePickle("a tensor that is larger than its storage")
        if math.prod(size) > storage.values.numel():
            raise UnreadablePickle("a tensor of more elements than its storage has")
        self._charge_tensor(storage, math.prod(size) * storage.values.element_size())
        return storage.values.as_strided(size, stride, offset).clone()

    def _storage_from_bytes(self, arguments: list[Any]) -> _Storage:
        """Replaces torch.storage._load_from_bytes: reads a file in torch.save's older format.

        It consists of five pickles (a number, the version, the writer's sizes of types, a reference
        to the storage, and the keys of all storages), then the count of elements and the elements.
        """
        (data,) = arguments
        if not isinstance(data, bytes):
            raise UnreadablePickle("a storage that is not bytes")
        self._spend(len(data))
        values = []
        for _ in range(5):
            machine = self._machine(_identity)
            values.append(machine.load(data))
            data = data[machine.consumed :]
        magic, _, _, (kind, key, count), keys = values
        if magic != torch.serialization.MAGIC_NUMBER or keys != [key]:
            raise UnreadablePickle("an invalid storage")
        if len(data) < 8 or int.from_bytes(data[:8], "little") != count:
            raise UnreadablePickle("a storage whose size does not fit its elements")
        return self._storage(kind, count, data[8:])

    def _storage_of_member(self, reference: Any) -> _Storage:
        kind, key, count = _identity(reference)
        content = self._members(f"data/{key}")
        self._spend(len(content))
        return self._storage(kind, count, content)

    def _storage(self, kind: _StorageClass, count: int, content: bytes) -> _Storage:
        # The caller has charged the content.
        if len(content) != count * kind.dtype.itemsize:
            raise UnreadablePickle("a storage whose size does not fit its elements")
        if not content:
            return _Storage(torch.empty(0, dtype=kind.dtype))
        values = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        return _Storage(values.view(kind.dtype))


def _identity(reference: Any) -> tuple[_StorageClass, str, int]:
    """Returns the identity of torch.save's reference to a storage: ("storage", class, key, device,
    elements[, view])."""
    if not isinstance(reference, tuple) or reference[:1] != ("storage",):
        raise UnreadablePickle("a reference to something outside")
    if len(reference) not in (5, 6) or reference[5:] not in ((), (None,)):
        raise UnreadablePickle("a storage that is a part of another")
    kind, key, count = getattr(reference[1], "call", None), reference[2], reference[4]
    if not isinstance(kind, _StorageClass) or type(key) is not str or type(count) is not int:
        raise UnreadablePickle("an invalid storage")
    return kind, key, count


class _RecordClass:
    """Creates records for a class of recipes."""

    def __init__(self, name: str) -> None:
        self._made = type(name, (Record,), {"__module__": RECIPE_MODULE})

    def __call__(self, arguments: list[Any]) -> Record:
        return self._made(*arguments)


class _StorageClass:
    """A class of storages, which a pickle names and never calls."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, arguments: list[Any]) -> Any:
        raise UnreadablePickle("a storage without its bytes")


def read_pickle(data: bytes) -> Any:
    """Returns the contents of a pickle or a file of torch.save, with records for recipes.

    Raises UnreadablePickle unless it contains only plain values, tensors and recipes.
    """
    try:
        if data.startswith(_ZIP_MAGIC):
            return _read_torch_file(data)
        if data.startswith(_PICKLE_MAGIC):
            return _Load().run(data)
    except UnreadablePickle:
        raise
    except Exception as error:
        lines = str(error).splitlines()
        raise UnreadablePickle(lines[0] if lines else type(error).__name__) from error
    raise UnreadablePickle("not a pickle")


def _read_torch_file(data: bytes) -> Any:
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = {info.filename.partition("/")[2]: info for info in file.infolist()}
        if len(members) > _MOST_MEMBERS or "data.pkl" not in members:
            raise UnreadablePickle("not a file of torch.save")

        def read(name: str) -> bytes:
            info = members.get(name)
            # torch.save compresses nothing.
            if info is None or info.compress_type != zipfile.ZIP_STORED:
                raise UnreadablePickle(f"no member {name} of a file of torch.save")
            return file.read(info)

        if "byteorder" in members and read("byteorder") != b"little":
            raise UnreadablePickle("numbers that are not little-endian")
        return _Load(read).run(read("data.pkl"))


def _plain(value: Any, known: dict[int, Any], level: int) -> Any:
    """Returns the value without this reader's classes. Shared values stay shared."""
    if not isinstance(value, dict | list | tuple):
        if isinstance(value, _PLAIN) or value is None:
            return value
        raise UnreadablePickle(f"a {type(value).__name__.lstrip(chr(95))} as a value")
    if level > _MOST_LEVELS:
        raise UnreadablePickle(f"more than {_MOST_LEVELS} nested lists")
    if id(value) in known:
        made = known[id(value)]
        if made is _UNDER_WAY:
            raise UnreadablePickle("a list that holds itself")
        return made
    known[id(value)] = _UNDER_WAY
    if isinstance(value, dict):
        made = {name: _plain(each, known, level + 1) for name, each in value.items()}
    else:
        made = type(value)(_plain(each, known, level + 1) for each in value)
    known[id(value)] = made
    return made


_UNDER_WAY = object()
_PLAIN = (bool, int, float, complex, str, bytes, bytearray, torch.Tensor, Record)


def write_pickle(values: dict[str, Any], records: dict[str, bytes]) -> bytes:
    """Writes a pickle of a dictionary: plain values and tensors, and programs that create other
    objects.

    ``records``: by key, the results of ``object_program``.
    """
    return pickle.PROTO + bytes([_PROTOCOL]) + _dict_program(values, records) + pickle.STOP


def object_program(
    name: str, attributes: dict[str, Any], records: dict[str, bytes] | None = None
) -> bytes:
    """Returns the part of a pickle that creates an object of a recipe class, without importing the
    class."""
    made = _global(name) + pickle.EMPTY_TUPLE + pickle.NEWOBJ
    return made + _dict_program(attributes, records or {}) + pickle.BUILD


def format_program(max_fwd: float, max_bwd: float) -> bytes:
    """Returns the part of a pickle that finds the member of Format with these largest values."""
    largest = _global("_FormatHelper") + _program((max_fwd, max_bwd)) + pickle.NEWOBJ
    return _global("Format") + largest + pickle.TUPLE1 + pickle.REDUCE


_PROTOCOL = 3  # the newest one without frames, which know their length


def _program(value: Any) -> bytes:
    """Returns the opcodes that push a value onto the stack, without references to other parts'
    memos."""
    return pickle.dumps(value, _PROTOCOL)[2:-1]  # removes PROTO and STOP


def _dict_program(values: dict[str, Any], records: dict[str, bytes]) -> bytes:
    items = (_program(key) + program + pickle.SETITEM for key, program in records.items())
    return _program(values) + b"".join(items)


def _global(name: str) -> bytes:
    return pickle.GLOBAL + f"{RECIPE_MODULE}\n{name}\n".encode()
