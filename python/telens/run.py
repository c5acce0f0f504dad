"""Recorded runs, as pandas tables."""

from __future__ import annotations

import operator
import os
import pathlib
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any

from telens import _C
from telens._names import among, names_arguments, refusal
from telens._tables import bin_edges, in_order

if TYPE_CHECKING:
    import pandas

__all__ = ["Run", "open_run"]

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_NEVER = (_INT64_MAX, _INT64_MIN)

_OF_BLOCKS = [
    f"block_{name}{copy}" for name in ("underflows%", "mse") for copy in ("", "_columnwise")
]


def open_run(path: str | os.PathLike) -> Run:
    """Opens a run: its folder, one of its .h5 files, or a log_dir.

    For a log_dir with several runs it opens the newest, like the command, and a UserWarning names
    it. Works while the run is being written and after its process was killed. Raises
    ``telens.RecordError`` that names the file and the cause.
    """
    if not isinstance(path, str | os.PathLike):
        raise refusal("open_run", "path", "a path", path)
    path = os.fspath(path)
    runs = _C.runs_beside(os.fsencode(path))
    if runs:
        (newest, run_id), (another, _), *_ = runs
        warnings.warn(
            f"open_run: using the newest of {len(runs)} runs in {path}: {run_id}. To choose "
            f"another, pass its folder, such as {another}",
            UserWarning,
            stacklevel=2,
        )
        path = newest
    return Run(path)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


class Run:
    """A recorded run; the files of its ranks and segments are joined."""

    def __init__(self, path: str | os.PathLike) -> None:
        self._reader = _C.RunReader(os.fsencode(path))
        self._path = os.fsdecode(path)

    def __repr__(self) -> str:
        try:
            files = self._reader.segments()
        except _C.RecordError:  # its files are gone
            return f"Run({self._path!r})"
        ranks = len({each["rank"] for each in files})
        records = sum(each["records"] for each in files)
        layers = len(self._reader.names(_C.Dictionary.layer))
        return (
            f"Run({self._path!r}: {_counted(ranks, 'rank')}, {_counted(layers, 'layer')}, "
            f"{_counted(records, 'record')})"
        )

    @property
    def config(self) -> str:
        """The text of the debug configuration."""
        return self._reader.config_text()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the run: machine, versions, variables."""
        return dict(self._reader.environment())

    @property
    def segments(self) -> pandas.DataFrame:
        """Returns one row per file: rank, segment, start, end, bytes, records, dropped, ...

        ``dropped`` counts rows that found the queue full or were in a removed file, ``lost`` counts
        rows after the disk was full.
        """
        return _table_of_files(self._reader.segments())

    @property
    def damage(self) -> pandas.DataFrame:
        """Returns damaged rows: path, table, first_row, rows. Reads every file.

        Other methods skip damaged rows with a warning.
        """
        return _table_of_files(
            self._reader.damage(), columns=["path", "table", "first_row", "rows"]
        )

    def names(self, kind: str) -> list[str]:
        """Returns the names of a kind: layer, tensor, gemm, statistic, scope."""
        kinds = _C.Dictionary.__members__
        return self._reader.names(kinds[among("Run.names", "kind", kind, [*kinds])])

    @names_arguments
    def records(
        self,
        *,
        layer: str | None = None,
        tensor: str | None = None,
        gemm: str | None = None,
        statistic: str | None = None,
        iterations: tuple[int | None, int | None] = (None, None),
        rank: int | None = None,
    ) -> pandas.DataFrame:
        """Returns the recorded values, one per row, in the order of writing.

        Columns: rank, iteration, layer, tensor, gemm, statistic, scope (the group that the value
        was reduced over), value. Names are categories; gemm and scope are missing values if they do
        not apply.

        Parameters
        ----------
        layer
            a regular expression, searched for in the name
        tensor, gemm, statistic
            a name
        iterations
            (first, last), both inclusive, None for no end
        rank
            only this rank

        Raises UsageError with the nearest name if the run lacks the name, if the pattern matches
        none of its layers, or if the rank wrote no file.
        """
        query = self._query(layer, tensor, gemm, statistic, iterations, rank)
        return self._frame(*self._reader.records(query))

    @names_arguments
    def histograms(
        self,
        *,
        layer: str | None = None,
        tensor: str | None = None,
        iterations: tuple[int | None, int | None] = (None, None),
        rank: int | None = None,
    ) -> pandas.DataFrame:
        """Returns the histograms of ``telens.ValueHistogram`` and ``telens.BlockTelemetry``, one
        bin per row.

        Columns: rank, iteration, layer, tensor, gemm, statistic (``code_histogram_bf16``,
        ``scale_histogram_e8m0``, ...), scope, bin (its number, see docs/run_file.md), count, low
        and high: the smallest and the largest value that the bin can hold. They are equal for a
        code, and NaN for the bin of NaNs. Bins without elements are absent. The arguments match
        ``records``.
        """
        import pandas

        query = self._query(layer, tensor, None, None, iterations, rank)
        table = self._frame(*self._reader.histograms(query))
        low, high = bin_edges(table["statistic"], table["bin"].to_numpy())
        return pandas.concat([table, pandas.DataFrame({"low": low, "high": high})], axis=1)

    @names_arguments
    def blocks(
        self,
        *,
        layer: str | None = None,
        tensor: str | None = None,
        statistic: str | None = None,
        iterations: tuple[int | None, int | None] = (None, None),
        rank: int | None = None,
    ) -> pandas.DataFrame:
        """Returns the worst blocks that ``telens.BlockTelemetry`` found, one per row.

        Columns: rank, iteration, layer, tensor, gemm, statistic (``block_underflows%``,
        ``block_mse``, with the suffix ``_columnwise`` for the columnwise copy), scope, block_row,
        block_column (in blocks, of the tensor as a matrix), value. The arguments match ``records``.
        """
        if statistic in _OF_BLOCKS and statistic not in self.names("statistic"):
            statistic, iterations = None, _NEVER  # no block was bad
        query = self._query(layer, tensor, None, statistic, iterations, rank)
        table = self._frame(*self._reader.table("blocks", query))
        import numpy
        import pandas

        nowhere = numpy.full(len(table), -1, dtype="int8")
        scope = pandas.Categorical.from_codes(nowhere, categories=self.names("scope"))
        table.insert(table.columns.get_loc("statistic") + 1, "scope", scope)
        return table

    @names_arguments
    def table(
        self,
        name: str,
        *,
        layer: str | None = None,
        tensor: str | None = None,
        gemm: str | None = None,
        statistic: str | None = None,
        iterations: tuple[int | None, int | None] = (None, None),
        rank: int | None = None,
    ) -> pandas.DataFrame:
        """Returns any other table of the run file by its name; docs/run_file.md lists them.

        Columns: rank and the file's columns, with names instead of ids. The other arguments match
        ``records``; filters on missing columns are ignored.
        """
        among("Run.table", "name", name, _C.RunReader.tables())
        query = self._query(layer, tensor, gemm, statistic, iterations, rank)
        return self._frame(*self._reader.table(name, query))

    @names_arguments
    def to_parquet(
        self, folder: str | os.PathLike, *, progress: bool | None = None
    ) -> dict[str, int]:
        """Writes the run as a dataset that DuckDB, Spark, Dask, pandas and Polars read.

        ``<folder>/<table>/rank=<rank>/part-0.parquet`` for each table that has rows, with the
        columns of ``records``, ``histograms`` and ``table``; the rank is in the path. Returns
        {table: number of rows}. Needs pyarrow, and memory for a million rows at a time.

        Parameters
        ----------
        folder
            new or empty
        progress
            whether to show a bar on stderr; None shows it on a terminal
        """
        from telens._parquet import write_dataset

        if not isinstance(folder, str | os.PathLike):
            raise refusal("Run.to_parquet", "folder", "a path", folder)
        show = sys.stderr.isatty() if progress is None else progress
        return write_dataset(self._reader, pathlib.Path(os.fspath(folder)), show)

    def _query(self, layer, tensor, gemm, statistic, iterations, rank) -> _C.RecordQuery:
        first, last = _range(iterations)
        ranks = sorted({segment["rank"] for segment in self._reader.segments()})
        if rank is not None and (isinstance(rank, bool) or rank not in ranks):
            raise _C.UsageError(f"Run: rank must be one of {_listed(ranks)}, not {rank!r}")
        return _C.RecordQuery(
            layers=self._layers(layer),
            tensors=self._ids("tensor", tensor),
            gemms=self._ids("gemm", gemm),
            statistics=self._ids("statistic", statistic),
            first_iteration=_INT64_MIN if first is None else first,
            last_iteration=_INT64_MAX if last is None else last,
            rank=rank,
        )

    def _named(self, ids, kind: str, as_text: bool):
        """Replaces ids by names: strings, or categories for names that repeat in many rows."""
        import numpy
        import pandas

        names = self.names(kind)
        if as_text or kind == "word":
            return numpy.array([*names, None], dtype=object)[ids]  # -1, no name, is the last
        return pandas.Categorical.from_codes(ids, categories=names)

    def _frame(self, columns, dictionaries, as_text: bool = False) -> pandas.DataFrame:
        """Returns the table with ordered columns and names instead of ids."""
        import pandas

        table = {}
        for column in in_order(columns):
            values = columns.pop(column).numpy()  # frees the ids once names replace them
            kind = dictionaries.get(column)
            if kind is not None:
                values = self._named(values, kind.name, as_text=as_text)
            table[column] = values
        return pandas.DataFrame(table, copy=False)  # A copy of millions of rows would need memory.

    def _small_table(self, name: str) -> pandas.DataFrame:
        """Returns a small table with strings as names."""
        query = self._query(None, None, None, None, (None, None), None)
        table = self._frame(*self._reader.table(name, query), as_text=True)
        return table.astype({"rank": "int64"})

    @property
    def scalars(self) -> pandas.DataFrame:
        """Returns numbers recorded by name (loss, debug.record): rank, iteration, name, value."""
        return self._small_table("scalars")

    @property
    def losses(self) -> pandas.Series:
        """The loss per iteration on the lowest rank that recorded one."""
        scalars = self.scalars
        losses = scalars[scalars["name"] == "loss"]
        losses = losses[losses["rank"] == losses["rank"].min()]
        return losses.set_index("iteration")["value"].rename("loss")

    @property
    def events(self) -> pandas.DataFrame:
        """Returns events: rank, time (seconds since 1970), iteration, kind, text, layer."""
        table = self._small_table("events")
        return table[["rank", "time", "iteration", "kind", "text", "layer"]]

    def _ids(self, kind: str, name: str | None) -> list[int] | None:
        if name is None:
            return None
        names = self.names(kind)
        # If a run has no names of this kind, no row has one, and nothing needs checking.
        if not names:
            return []
        return [names.index(among("Run", kind, name, names))]

    def _layers(self, pattern: str | None) -> list[int] | None:
        if pattern is None:
            return None
        names = self.names("layer")
        try:
            search = re.compile(pattern).search
        except (re.error, TypeError) as error:
            expected = f"a regular expression ({error})"
            raise refusal("Run", "layer", expected, pattern) from error
        if not names:
            return []
        ids = [index for index, name in enumerate(names) if search(name)]
        return ids or [
            names.index(among("Run", "layer", pattern, names, "a pattern that fits one"))
        ]


def _range(iterations: Any) -> tuple[int | None, int | None]:
    try:
        first, last = (each if each is None else operator.index(each) for each in iterations)
        return first, last
    except (TypeError, ValueError):
        pass
    raise refusal("Run", "iterations", "a pair (first, last) of integers or None", iterations)


def _table_of_files(rows: list[dict], columns: list[str] | None = None) -> pandas.DataFrame:
    """One dict per row. A path may not be valid UTF-8, which pyarrow's strings in pandas reject."""
    import pandas

    names = columns or list(rows[0])
    return pandas.DataFrame(
        {
            name: pandas.Series(
                [row[name] for row in rows], dtype=object if name == "path" else None
            )
            for name in names
        }
    )


def _listed(values: list) -> str:
    return ", ".join(map(str, values))
