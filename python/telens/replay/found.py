"""Finds GEMMs in files of DumpTensors (docs/run_file.md)."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator

from telens import RecordError, UsageError
from telens.replay.checked_hdf5 import attribute, opened

GEMM_SCHEMA, TENSOR_SCHEMA = "telens gemm dump", "telens tensor dump"
SCHEMA_VERSION = 1

# {GEMM: (operand a, operand b, result)}.
TENSORS = {
    "fprop": ("activation", "weight", "output"),
    "dgrad": ("gradient", "weight", "dgrad"),
    "wgrad": ("gradient", "activation", "wgrad"),
}


_NUMBERED = re.compile(r"\.(\d+)\.h5$")


@dataclasses.dataclass
class Found:
    """A dumped GEMM, found by reading only the attributes of files."""

    layer: str
    gemm: str
    iteration: int
    rank: int
    evaluation: bool
    files: dict[str, pathlib.Path]  # "gemm", or each of its three tensors

    @property
    def copy(self) -> int:
        """The number of earlier files of this name, for example of earlier micro-batches."""
        numbered = _NUMBERED.search(next(iter(self.files.values())).name)
        return int(numbered[1]) if numbered else 0


@dataclasses.dataclass
class _File:
    path: pathlib.Path
    schema: str
    place: tuple[str, int, int, bool]  # layer, iteration, rank, evaluation
    name: str  # the GEMM's or the tensor's


def _identify(path: pathlib.Path) -> _File | None:
    """Returns the file's attributes, or None if it is not a dump."""
    with opened(path) as file:
        schema = attribute(file, "schema", str, " ")
        if schema not in (GEMM_SCHEMA, TENSOR_SCHEMA):
            return None
        version = attribute(file, "schema_version", int)
        if version != SCHEMA_VERSION:
            raise RecordError(
                f"{path}: a {schema} of version {version}; this telens reads version "
                f"{SCHEMA_VERSION}"
            )
        name = attribute(file, "gemm" if schema == GEMM_SCHEMA else "tensor", str)
        known = (
            TENSORS if schema == GEMM_SCHEMA else {n for three in TENSORS.values() for n in three}
        )
        if name not in known:
            raise RecordError(f"{path}: unknown GEMM or tensor '{name}'")
        place = (
            attribute(file, "layer", str),
            attribute(file, "iteration", int),
            attribute(file, "rank", int),
            attribute(file, "mode", str, "train") == "eval",
        )
        return _File(path, schema, place, name)


# A run file (docs/run_file.md). HDF5 does not open one that is being written or whose training was
# killed; it must not count as a damaged dump.
_RUN_FILE = re.compile(r"rank\d+(\.\d+)?\.h5")


def _dumps_among(
    paths: Iterable[pathlib.Path], warn: Callable[[str], None], known: Iterable[_File] = ()
) -> list[_File]:
    """Returns the dumps, ``known`` ones first. Reports files that cannot be read; raises
    RecordError if every file is unreadable."""
    files, refusals = list(known), []
    for path in paths:
        try:
            file = _identify(path)
        except RecordError as error:
            refusals.append(error)
        else:
            files += [] if file is None else [file]
    if refusals and not files:
        raise refusals[0]
    for error in refusals:
        warn(f"{error}; it is left out")
    return files


def _files_in(folder: pathlib.Path, warn: Callable[[str], None]) -> list[_File]:
    """Yields the dumps at any depth."""
    paths = [path for path in sorted(folder.rglob("*.h5")) if path.is_file()]
    return _dumps_among((path for path in paths if not _RUN_FILE.fullmatch(path.name)), warn)


def _files_beside(path: pathlib.Path, warn: Callable[[str], None]) -> list[_File]:
    """Returns the dump at `path`; for a tensor also the dumps of its layer and step in the
    folder."""
    one = _identify(path)
    if one is None:
        raise RecordError(f"{path}: not a dump of DumpTensors")
    if one.schema == GEMM_SCHEMA:
        return [one]
    others = [
        each
        for each in sorted(path.parent.glob("*.h5"))
        if each.name != path.name and each.is_file() and not _RUN_FILE.fullmatch(each.name)
    ]
    return [
        each
        for each in _dumps_among(others, warn, known=[one])
        if (each.schema, each.place) == (TENSOR_SCHEMA, one.place)
        and any({one.name, each.name} <= set(names) for names in TENSORS.values())
    ]


def _gemms_of(tensors: Iterable[_File], known: set[str]) -> Iterator[Found]:
    """Returns the GEMMs for which three tensor files exist, except the known ones. The files share
    a layer and step."""
    by_name: dict[str, list[_File]] = {}
    for file in tensors:
        by_name.setdefault(file.name, []).append(file)
    for gemm, names in TENSORS.items():
        if gemm in known or not all(name in by_name for name in names):
            continue
        for name in names:
            if len(by_name[name]) > 1:
                first = by_name[name][0]
                raise UsageError(
                    f"{first.path.parent}: it contains {len(by_name[name])} files of "
                    f"{first.place[0]} {name}, as with several micro-batches; they cannot be "
                    "matched. Dump with `operands: True`, which writes one file per GEMM"
                )
        place = by_name[names[0]][0].place
        yield Found(place[0], gemm, *place[1:], {name: by_name[name][0].path for name in names})


def _missing(files: list[_File]) -> str:
    have = sorted({file.name for file in files})
    return (
        f"no GEMM is complete: there are only files of {', '.join(have)}. fprop requires "
        "activation, weight and output, dgrad gradient, weight and dgrad, wgrad gradient, "
        "activation and wgrad"
    )


def find(path: pathlib.Path, warn: Callable[[str], None] = lambda line: None) -> list[Found]:
    """Returns the GEMMs of a file, of a tensor's file and its neighbors, or of a folder.

    Ordered by iteration, rank, layer, micro-batch and GEMM. ``warn`` is called with a line for each
    unreadable file of the folder, which is skipped. Raises UsageError if no GEMM is found,
    RecordError for a file that is damaged or not a dump.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    files = _files_in(path, warn) if path.is_dir() else _files_beside(path, warn)
    if not files:
        raise UsageError(f"{path}: it holds no dump of DumpTensors (docs/run_file.md)")
    found = [
        Found(file.place[0], file.name, *file.place[1:], {"gemm": file.path})
        for file in files
        if file.schema == GEMM_SCHEMA
    ]
    known: dict[tuple, set[str]] = {}  # (folder, place) -> names
    tensors: dict[tuple, list[_File]] = {}
    for file in files:
        key = (file.path.parent, file.place)
        if file.schema == GEMM_SCHEMA:
            known.setdefault(key, set()).add(file.name)
        else:
            tensors.setdefault(key, []).append(file)
    for key, some in tensors.items():
        found += _gemms_of(some, known.get(key, set()))
    if not found:
        raise UsageError(f"{path}: {_missing(files)}")
    order = list(TENSORS)
    return sorted(
        found,
        key=lambda each: (each.iteration, each.rank, each.layer, each.copy, order.index(each.gemm)),
    )
