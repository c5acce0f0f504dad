"""A table of a model's layers: the sizes of their GEMMs, and which run in FP8 or why not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch

from telens._names import refusal
from telens.common.recipe import Recipe
from telens.pytorch.conversion import (
    MULTIPLE,
    Candidates,
    is_linear,
    maker_of,
    reason_of_other_class,
)
from telens.pytorch.module import Module

if TYPE_CHECKING:
    import pandas

__all__ = ["ModelSummary", "SummaryRow", "summary"]

YES, CONVERTIBLE, NO = "yes", "after te.convert", "no"


class SummaryRow(NamedTuple):
    """A layer with a GEMM."""

    layer: str
    """Its name in the model. With several GEMMs, the name of the weight follows."""
    kind: str
    """The class."""
    in_features: int | None
    """K of fprop's [tokens, K] x [K, N]; None if the class is unknown."""
    out_features: int | None
    """N"""
    gemms: int
    """GEMMs of these sizes in one forward: the experts of a GroupedLinear, else 1."""
    parameters: int
    """Of the module, without its children; of a module with several GEMMs, of the weight."""
    fp8: str
    """"yes", "no", or "after te.convert"."""
    reason: str
    """Why not; "" if it runs in FP8 or would."""


@dataclass
class ModelSummary:
    """The result of ``summary``: prints as a table and gives access to the rows."""

    rows: list[SummaryRow] = field(default_factory=list)

    def to_pandas(self) -> pandas.DataFrame:
        """Returns one row per layer, with the fields of ``SummaryRow`` as columns."""
        import pandas

        return pandas.DataFrame(self.rows, columns=list(SummaryRow._fields))

    def __str__(self) -> str:
        return "\n".join(_lines(self.rows))

    def _repr_html_(self) -> str:
        return self.to_pandas().to_html()


def summary(model: torch.nn.Module, recipe: Recipe | None = None) -> ModelSummary:
    """Lists the layers of a model that have a GEMM with a weight, and which of them can run in FP8.

    ``print(telens.summary(model))`` shows a table. Layers whose names differ only in a number share
    a line.

    Parameters
    ----------
    model
        any module, before or after ``te.convert``
    recipe
        the recipe of the training, which determines the multiple that dimensions must be. None:
        16, the multiple of all recipes except MXFP8
    """
    if not isinstance(model, torch.nn.Module):
        raise refusal("summary", "model", "a torch.nn.Module", model)
    if recipe is not None and not isinstance(recipe, Recipe):
        raise refusal("summary", "recipe", "a recipe of telens.common.recipe", recipe)
    return ModelSummary(list(_rows(model, recipe)))


def _rows(model: torch.nn.Module, recipe: Recipe | None) -> Iterator[SummaryRow]:
    candidates = Candidates(model, recipe=recipe)
    multiple = MULTIPLE if recipe is None else recipe._row_multiple
    for name, module in model.named_modules():
        if isinstance(module, Module):
            yield from _own_rows(module, name, multiple)
            continue
        kind = type(module).__name__
        parameters = sum(p.numel() for p in module.parameters(recurse=False))
        if maker_of(module) is not None:
            if is_linear(module):
                sizes = _features(module)
                reason = candidates.refusal(module, name)
                fp8 = NO if reason else CONVERTIBLE
                yield SummaryRow(name, kind, *sizes, 1, parameters, fp8, reason)
            continue
        reason = reason_of_other_class(module)
        if reason and "Norm" not in kind:
            sizes = _features(module) if isinstance(module, torch.nn.Linear) else (None, None)
            yield SummaryRow(name, kind, *sizes, 1, parameters, NO, reason)


def _features(module: torch.nn.Module) -> tuple[int, int]:
    """(in, out) of a linear layer of torch or a Conv1D of transformers."""
    if hasattr(module, "in_features"):
        return module.in_features, module.out_features
    return module.nx, module.nf


def _own_rows(module: Module, name: str, multiple: int) -> Iterator[SummaryRow]:
    """The GEMMs of a module of TELens, weights of the same role in one row."""
    weights: dict[str, list[torch.Tensor]] = {}
    for key, parameter in module.named_parameters(recurse=False):
        if module._telens_adapter.is_gemm_weight(key):
            role = re.sub(r"\d+$", "", key)
            shape = f" {list(parameter.shape)}"
            weights.setdefault(role + shape, []).append(parameter)
    transposed = hasattr(module, "nf")  # Conv1D keeps [in, out]
    for title, group in weights.items():
        role = title.partition(" ")[0]
        rows, columns = group[0].shape[-2:]
        sizes = (rows, columns) if transposed else (columns, rows)
        reason = ""
        if any(size % multiple for size in sizes):
            reason = f"weight [{rows}, {columns}]: FP8 GEMMs need multiples of {multiple}"
        layer = name if len(weights) == 1 else f"{name}.{role}".lstrip(".")
        own = list(module.parameters(recurse=False)) if len(weights) == 1 else group
        parameters = sum(p.numel() for p in own)
        gemms = len(group) if group[0].dim() == 2 else len(group) * group[0].shape[0]
        fp8 = NO if reason else YES
        yield SummaryRow(layer, type(module).__name__, *sizes, gemms, parameters, fp8, reason)


# ---------------------------------------------------------------------- the table

_TITLES = ("layer", "class", "K -> N", "parameters", "FP8")


def _lines(rows: list[SummaryRow]) -> Iterator[str]:
    if not rows:
        yield "no layer with a GEMM"
        return
    notes: dict[str, int] = {}  # numbers of reasons
    cells = [_TITLES, *(_cells(group, notes) for group in _alike(rows))]
    widths = [max(len(row[i]) for row in cells) for i in range(len(_TITLES))]
    for number, row in enumerate(cells):
        columns = [
            cell.rjust(width) if title == "parameters" else cell.ljust(width)
            for title, cell, width in zip(_TITLES, row, widths, strict=True)
        ]
        yield "  ".join(columns).rstrip()
        if number == 0:
            yield "-" * (sum(widths) + 2 * (len(widths) - 1))
    yield ""
    for reason, number in notes.items():
        yield f"({number}) {reason}"
    yield from _totals(rows)


def _alike(rows: list[SummaryRow]) -> list[list[SummaryRow]]:
    """Rows that differ only in the numbers of their names, in order of first occurrence."""
    groups: dict[tuple, list[SummaryRow]] = {}
    for row in rows:
        key = (re.sub(r"\d+", "#", row.layer), *row[1:])
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def _cells(group: list[SummaryRow], notes: dict[str, int]) -> tuple[str, ...]:
    row = group[0]
    sizes = "" if row.in_features is None else f"{row.in_features} -> {row.out_features}"
    times = len(group) * row.gemms
    count = f"{times * row.parameters // row.gemms:,}"
    fp8 = row.fp8
    if row.reason:
        fp8 += f" ({notes.setdefault(row.reason, len(notes) + 1)})"
    return (
        _joined_name([each.layer for each in group]),
        row.kind if times == 1 else f"{row.kind} x{times}",
        sizes,
        count,
        fp8,
    )


def _joined_name(names: list[str]) -> str:
    """'h.0.fc', 'h.1.fc' become 'h.{0,1}.fc', longer runs of numbers 'h.{0-11}.fc'."""
    if len(names) == 1:
        return names[0] or "the model"
    numbers = [tuple(map(int, re.findall(r"\d+", name))) for name in names]
    places = iter(zip(*numbers, strict=True))

    def number_of(match: re.Match) -> str:
        values = sorted(set(next(places)))
        if len(values) == 1:
            return match[0]
        consecutive = values == list(range(values[0], values[-1] + 1))
        if consecutive and len(values) > 2:
            return f"{{{values[0]}-{values[-1]}}}"
        return "{" + ",".join(map(str, values)) + "}"

    return re.sub(r"\d+", number_of, names[0])


def _totals(rows: list[SummaryRow]) -> Iterator[str]:
    counts = {fp8: sum(row.fp8 == fp8 for row in rows) for fp8 in (YES, CONVERTIBLE, NO)}
    of = f"of {len(rows)} layers"
    if counts[YES]:
        yield f"{counts[YES]} {of} run in FP8 inside of te.autocast()"
    if counts[CONVERTIBLE]:
        yield f"{counts[CONVERTIBLE]} {of} run in FP8 after te.convert(model)"
    if counts[NO]:
        yield f"{counts[NO]} {of} cannot or should not run in FP8"
