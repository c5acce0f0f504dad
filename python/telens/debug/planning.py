"""Plans a configuration: its effects on layers and its records, before anything runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from telens import _C
from telens._names import rejects_bools
from telens.debug import arguments
from telens.debug.configuration import source_of
from telens.debug.logging import printable

if TYPE_CHECKING:
    import pandas

__all__ = ["Plan", "plan"]

_COLUMNS = ["layer", "gemm", "tensor", "feature", "section", "when"]


@dataclass
class Plan:
    """The result of ``plan``. It prints as a table followed by the warnings and the load.

    rows
        one per feature on a (gemm, tensor) of a layer: dicts with ``layer``, ``gemm`` and
        ``tensor`` (None if the feature does not select them), ``feature`` with its namespace,
        ``section``, ``when`` (the schedule in words) and ``parameters`` (defaults filled in)
    warnings
        selectors that match none of the layers, each with file, line and column
    load
        the expected records if every layer runs quantized: ``average_records`` a step, from
        iteration ``first`` to ``last`` (None if open-ended), ``most_records`` in iteration
        ``busiest``, ``bytes_per_record``, ``not_counted`` (features with an unknown load),
        ``waiting`` (sections that record once a trigger fires), ``text``
    """

    rows: list[dict[str, Any]]
    warnings: list[str]
    load: dict[str, Any]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def frame(self) -> pandas.DataFrame:
        """Returns the rows as a pandas table."""
        import pandas

        return pandas.DataFrame(self.rows, columns=[*_COLUMNS, "parameters"])

    def __str__(self) -> str:
        table = [
            _COLUMNS,
            *([printable(row[name] or "") for name in _COLUMNS] for row in self.rows),
        ]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in table
        ]
        warnings = [f"warning: {printable(warning)}" for warning in self.warnings]
        return "\n".join([*lines, "", *warnings, self.load["text"]])


@rejects_bools
def plan(
    config: str | os.PathLike | dict,
    layer_names: str | Iterable[str],
    iteration: int | None = None,
) -> Plan:
    """Plans a configuration for layers with these names; does not require a session.

    ``layer_names``: a list of names or one name. ``iteration``: restricts the plan to that
    iteration. Knows built-in features and those registered by the program. Raises
    ``telens.ConfigError`` as ``initialize`` does, also if two sections select a layer or two
    features modify one tensor.
    """
    path, text = source_of("debug.plan", config)
    if not isinstance(layer_names, Iterable):
        raise arguments.refusal("debug.plan", "layer_names", "names of layers", layer_names)
    names = [layer_names] if isinstance(layer_names, str) else list(layer_names)
    for name in names:
        arguments.text("debug.plan", "layer_names", name, empty=True)
    if iteration is not None:
        expected = "an iteration, or None for all"
        iteration = arguments.integer("debug.plan", "iteration", iteration, expected)
    return Plan(**_C.debug.plan(path, text, names, iteration))
