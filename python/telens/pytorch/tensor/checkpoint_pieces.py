"""Pieces of a whole weight under one scale, into which DCP reads values one by one.

All of them share the scale, which is known when the last has come: until then the values wait.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

__all__ = ["Piece", "write_values"]


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
    """Values of a weight of which some pieces have come."""

    values: torch.Tensor
    places: set[tuple[range, range]]


# A load's weights, by their storages, which all views of a weight share.
_arriving = WeakIdKeyDictionary()
_lock = threading.Lock()  # some readers write from several threads


def write_values(piece: Piece, values: torch.Tensor) -> None:
    """Writes the values of one piece; with the last one the whole is quantized, once.

    DCP saves only what covers a tensor, and reads all of it, so a last piece comes.
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
