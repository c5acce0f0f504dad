"""A run as a dataset of Parquet files, partitioned by rank (Run.to_parquet)."""

from __future__ import annotations

import contextlib
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from telens import _C
from telens._names import refusal
from telens._tables import bin_edges, in_order

if TYPE_CHECKING:
    import pyarrow

__all__ = ["write_dataset"]

_WIDTH = 30  # bar width in characters
_PAUSE = 0.1  # seconds between two updates


def write_dataset(reader: _C.RunReader, folder: pathlib.Path, show_progress: bool) -> dict:
    """Writes <folder>/<table>/rank=<rank>/part-0.parquet and returns {table: rows}.

    A table without rows gets no folder, and a rank without rows of a table no subfolder. Memory
    holds one piece of about a million rows at a time. A file gets its name when it is complete.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "Run.to_parquet: pyarrow is not installed, which writes Parquet; pip install pyarrow"
        ) from error
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise refusal("Run.to_parquet", "folder", "a folder that is empty or new", str(folder))
    segments = reader.segments()
    ranks = sorted({segment["rank"] for segment in segments})
    tables = [_Table(reader, name, ranks[0]) for name in ("records", *_others())]
    progress = Progress("to_parquet", sum(segment["records"] for segment in segments))
    with progress if show_progress else contextlib.nullcontext():
        for rank in ranks:
            for table in tables:
                table.write(folder, rank, progress)
    return {table.name: table.rows for table in tables if table.rows}


def _others() -> list[str]:
    return [name for name in _C.RunReader.tables() if name != "records"] + ["histograms"]


class _Table:
    """One table of a run: its Parquet columns and the number of rows written."""

    def __init__(self, reader: _C.RunReader, name: str, rank: int) -> None:
        self.name = name
        self.rows = 0
        self._read = _reading(reader, name)
        columns, kinds = self._read(_C.RecordQuery(**_NO_ROW, rank=rank), None)
        self._names = {
            column: _named(reader, kinds[column]) for column in columns if column in kinds
        }

    def write(self, folder: pathlib.Path, rank: int, progress: Progress) -> None:
        with _new_file(folder / self.name / f"rank={rank}" / "part-0.parquet") as write:

            def write_piece(columns: dict[str, Any]) -> None:
                piece = self._piece(columns)
                write(piece)
                self.rows += len(piece)
                if self.name == "records":
                    progress.advance(len(piece))

            self._read(_C.RecordQuery(**_ALL, rank=rank), write_piece)

    def _piece(self, columns: dict[str, Any]) -> pyarrow.Table:
        """Drops the rank, which is part of the path."""
        import pyarrow

        piece = {name: columns[name].numpy() for name in in_order(columns) if name != "rank"}
        if self.name == "histograms":
            piece["low"], piece["high"] = self._edges(piece)
        for name, texts in self._names.items():
            ids = pyarrow.array(piece[name], mask=piece[name] < 0, type=pyarrow.int32())
            piece[name] = pyarrow.DictionaryArray.from_arrays(ids, texts)
        return pyarrow.table(piece)

    def _edges(self, piece: dict[str, Any]) -> tuple:
        import pandas

        names = pandas.Categorical.from_codes(
            piece["statistic"], categories=self._names["statistic"].to_pylist()
        )
        return bin_edges(pandas.Series(names), piece["bin"])


# Query arguments that select every row, and none.
_ALL: dict[str, Any] = dict.fromkeys(("layers", "tensors", "gemms", "statistics"))
_ALL |= {"first_iteration": -(2**63), "last_iteration": 2**63 - 1}
_NO_ROW = _ALL | {"first_iteration": 2**63 - 1, "last_iteration": -(2**63)}


def _reading(reader: _C.RunReader, name: str) -> Callable:
    """Returns the function that reads a table: (query, callback for pieces of rows)."""
    if name in ("records", "histograms"):
        return getattr(reader, name)
    return lambda query, use: reader.table(name, query, use)


def _named(reader: _C.RunReader, kind: _C.Dictionary) -> pyarrow.Array:
    import pyarrow

    return pyarrow.array(reader.names(kind), type=pyarrow.string())


@contextlib.contextmanager
def _new_file(path: pathlib.Path) -> Iterator[Callable[[pyarrow.Table], None]]:
    """Yields a function that writes tables to a new Parquet file. Creates the file at the first
    write.

    The name of an unfinished file begins with a dot, which dataset readers skip.
    """

    unfinished = path.with_name(f".{path.name}.tmp")
    writer = None
    try:
        with contextlib.ExitStack() as opened:

            def write(table: pyarrow.Table) -> None:
                nonlocal writer
                if writer is None:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    # Pass a file, because its path may not be valid UTF-8.
                    file = opened.enter_context(open(unfinished, "wb"))
                    writer = opened.enter_context(_writer(file, table.schema))
                writer.write_table(table)

            yield write
        if writer is not None:
            unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _writer(file: Any, schema: pyarrow.Schema) -> Any:
    """Drops min and max of floating-point columns, which ignore NaN.

    DuckDB 2.0 would conclude from them that a column does not contain NaN, and find none.
    """
    import pyarrow.parquet

    exact = [field.name for field in schema if not pyarrow.types.is_floating(field.type)]
    return pyarrow.parquet.ParquetWriter(file, schema, compression="zstd", write_statistics=exact)


class Progress:
    """A progress bar on one line of stderr. Shows nothing outside of its `with`."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._shown_at: float | None = None

    def __enter__(self) -> Progress:
        self._show()
        return self

    def __exit__(self, kind: type | None, *_error: object) -> None:
        if kind is None:
            self._total = self._done  # fewer than expected if rows were skipped
        self._show()
        sys.stderr.write("\n")
        self._shown_at = None

    def advance(self, count: int) -> None:
        self._done += count
        if self._shown_at is not None and time.monotonic() - self._shown_at >= _PAUSE:
            self._show()

    def _show(self) -> None:
        part = min(1.0, self._done / self._total) if self._total else 1.0
        bar = "#" * int(_WIDTH * part)
        sys.stderr.write(
            f"\r{self._what} [{bar:<{_WIDTH}}] {part:4.0%}  {self._done:,} of {self._total:,} rows"
        )
        sys.stderr.flush()
        self._shown_at = time.monotonic()
