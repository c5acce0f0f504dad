"""Pieces of a quantized weight, into which DCP reads values one by one.

They share scales, which are known when the last piece has been read: until then the values are
kept.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakIdKeyDictionary

__all__ = ["Piece", "PieceOfValues", "write_values"]

aten = torch.ops.aten


@dataclass
class Piece:
    """A piece of a weight, for one load of a checkpoint."""

    whole: Any
    load: Any  # the planner, which a load has for itself
    place: tuple[range, range]  # rows and columns

    def narrow(self, dim: int, some: range) -> Piece:
        rows, columns = self.place
        within = slice(some.start, some.stop)
        place = (rows[within], columns) if dim == 0 else (rows, columns[within])
        return Piece(self.whole, self.load, place)


@dataclass
class Arriving:
    """Values of a weight of which some pieces have been read."""

    values: torch.Tensor
    places: set[tuple[range, range]]


# A load's weights, by their storages, which all views of a weight share.
_arriving = WeakIdKeyDictionary()
_lock = threading.Lock()  # some readers write from several threads


def write_values(piece: Piece, values: torch.Tensor) -> None:
    """Writes the values of a piece; after the last piece, quantizes the whole weight once.

    DCP saves only pieces that cover a tensor and reads all of them, so the last piece is always
    read.
    """
    whole, (rows, columns) = piece.whole, piece.place
    with _lock:
        of_load = _arriving.setdefault(piece.load, {})
        if whole._storage not in of_load:
            empty = torch.empty(whole.shape, dtype=whole.dtype, device=whole.device)
            of_load[whole._storage] = Arriving(empty, set())
        arriving = of_load[whole._storage]
        arriving.values[rows.start : rows.stop, columns.start : columns.stop].copy_(values)
        arriving.places.add(piece.place)
        if sum(len(rows) * len(columns) for rows, columns in arriving.places) < whole.numel():
            return
        del of_load[whole._storage]
    whole.quantize_(arriving.values)


class PieceOfValues(torch.Tensor):
    """A piece as a tensor in high precision; a copy into it is written to the weight."""

    _piece: Piece

    @staticmethod
    def __new__(cls, piece: Piece) -> PieceOfValues:
        whole, sizes = piece.whole, [len(some) for some in piece.place]
        made = torch.Tensor._make_wrapper_subclass(
            cls, sizes, dtype=whole.dtype, device=whole.device
        )
        made._piece = piece
        return made

    def values(self) -> torch.Tensor:
        rows, columns = self._piece.place
        whole = self._piece.whole.dequantize()
        return whole[rows.start : rows.stop, columns.start : columns.stop]

    def narrowed(self, dim: int = 0, start: Any = None, end: Any = None) -> PieceOfValues:
        some = range(*slice(start, end).indices(self.shape[dim]))
        return PieceOfValues(self._piece.narrow(dim, some))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.detach.default:
            return PieceOfValues(args[0]._piece)
        if func is aten.slice.Tensor and len(args) <= 4:
            return args[0].narrowed(*args[1:])
        if func is aten.copy_.default and isinstance(args[0], PieceOfValues):
            write_values(args[0]._piece, args[1])
            return args[0]
        plain_args, plain_kwargs = tree_map(_plain, (args, kwargs or {}))
        return func(*plain_args, **plain_kwargs)

    __torch_function__ = torch._C._disabled_torch_function_impl


def _plain(value: Any) -> Any:
    return value.values() if isinstance(value, PieceOfValues) else value
