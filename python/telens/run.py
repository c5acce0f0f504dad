"""Recorded runs, as pandas tables."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from telens import _C

if TYPE_CHECKING:
    import pandas

__all__ = ["Run", "open_run"]

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def open_run(path: str | os.PathLike) -> Run:
    """Opens a run: its folder, one of its .h5 files, or a log_dir with one run.

    Works while the run is being written and after its process was killed. Raises
    ``telens.RecordError`` with a line that names the file and the cause.
    """
    return Run(path)


class Run:
    """A recorded run; the files of its ranks and segments are joined."""

    def __init__(self, path: str | os.PathLike) -> None:
        self._reader = _C.RunReader(os.fspath(path))

    @property
    def config(self) -> str:
        """Text of the debug configuration."""
        return self._reader.config_text()

    @property
    def environment(self) -> dict[str, str]:
        """What the run ran on: machine, versions, variables."""
        return dict(self._reader.environment())

    @property
    def segments(self) -> pandas.DataFrame:
        """One row a file: rank, segment, start, end, bytes, records, dropped, ..."""
        import pandas

        return pandas.DataFrame(self._reader.segments())

    def names(self, kind: str) -> list[str]:
        """All names of a kind: layer, tensor, gemm, statistic, scope."""
        return self._reader.names(_C.Dictionary.__members__[kind])

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
        """What was observed, one value a row, in the order of writing.

        Columns: rank, iteration, layer, tensor, gemm, statistic, scope (the group that the value
        was reduced over), value. Names are categories; gemm and scope are missing where there is
        none.

        Parameters
        ----------
        layer
            a regular expression, searched for in the name
        tensor, gemm, statistic
            a name
        iterations
            (first, last), both inclusive, None for no end
        rank
            of this rank alone
        """
        query = self._query(layer, tensor, gemm, statistic, iterations, rank)
        return self._table(self._reader.records(**query))

    def histograms(
        self,
        *,
        layer: str | None = None,
        tensor: str | None = None,
        iterations: tuple[int | None, int | None] = (None, None),
        rank: int | None = None,
    ) -> pandas.DataFrame:
        """What ``telens.ValueHistogram`` and ``telens.BlockTelemetry`` recorded, one bin a row.

        Columns: rank, iteration, layer, tensor, gemm, statistic (``code_histogram_bf16``,
        ``scale_histogram_e8m0``, ...), scope, bin (its number, see docs/run_file.md), count, low
        and high: the smallest and the largest value that the bin can hold. Those of a code are
        equal; those of the bin of NaNs are NaN. Bins without elements are absent. The arguments are
        those of ``records``.
        """
        import pandas

        query = self._query(layer, tensor, None, None, iterations, rank)
        table = self._table(self._reader.histograms(**query))
        low, high = _edges(table["statistic"].astype(str).to_numpy(), table["bin"].to_numpy())
        return pandas.concat([table, pandas.DataFrame({"low": low, "high": high})], axis=1)

    def blocks(
        self,
        *,
        layer: str | None = None,
        tensor: str | None = None,
        statistic: str | None = None,
        iterations: tuple[int | None, int | None] = (None, None),
        rank: int | None = None,
    ) -> pandas.DataFrame:
        """Single blocks of tensors, one a row: the worst ones that ``telens.BlockTelemetry`` saw.

        Columns: rank, iteration, layer, tensor, gemm, statistic (``block_underflows%``,
        ``block_mse``, with ``_columnwise`` behind those of the columnwise copy), scope, block_row,
        block_column (in blocks, of the tensor as a matrix), value. The arguments are those of
        ``records``.
        """
        query = self._query(layer, tensor, None, statistic, iterations, rank)
        return self._table(self._reader.blocks(**query))

    def _query(self, layer, tensor, gemm, statistic, iterations, rank) -> dict:
        first, last = iterations
        return {
            "layers": self._ids("layer", layer and re.compile(layer).search),
            "tensors": self._ids("tensor", tensor and tensor.__eq__),
            "gemms": self._ids("gemm", gemm and gemm.__eq__),
            "statistics": self._ids("statistic", statistic and statistic.__eq__),
            "first_iteration": _INT64_MIN if first is None else first,
            "last_iteration": _INT64_MAX if last is None else last,
            "rank": rank,
        }

    def _table(self, columns) -> pandas.DataFrame:
        import pandas

        table = {name: column.numpy() for name, column in columns.items()}
        for kind in ("layer", "tensor", "gemm", "statistic", "scope"):
            table[kind] = pandas.Categorical.from_codes(table[kind], categories=self.names(kind))
        return pandas.DataFrame(table)

    @property
    def scalars(self) -> pandas.DataFrame:
        """Numbers recorded by name (loss, debug.record): rank, iteration, name, value."""
        import pandas

        words = self.names("word")
        rows = [
            (rank, step, words[name], value) for rank, step, name, value in self._reader.scalars()
        ]
        return pandas.DataFrame(rows, columns=["rank", "iteration", "name", "value"])

    @property
    def losses(self) -> pandas.Series:
        """The loss of each iteration on the lowest rank that recorded one."""
        scalars = self.scalars
        losses = scalars[scalars["name"] == "loss"]
        losses = losses[losses["rank"] == losses["rank"].min()]
        return losses.set_index("iteration")["value"].rename("loss")

    @property
    def events(self) -> pandas.DataFrame:
        """What happened: rank, time (seconds since 1970), iteration, kind, text, layer."""
        import pandas

        words, layers = self.names("word"), self.names("layer")
        rows = [
            (rank, time, step, words[kind], words[text], layers[layer] if layer >= 0 else None)
            for rank, time, step, kind, text, layer in self._reader.events()
        ]
        return pandas.DataFrame(
            rows, columns=["rank", "time", "iteration", "kind", "text", "layer"]
        )

    def _ids(self, kind: str, accepts) -> list[int] | None:
        if accepts is None:
            return None
        return [index for index, name in enumerate(self.names(kind)) if accepts(name)]


def _edges(statistics, bins):
    """The smallest and the largest value of each bin, as core/ops/histogram_layout.h defines it."""
    import numpy

    low = numpy.full(len(bins), numpy.nan)
    high = numpy.full(len(bins), numpy.nan)
    for name in numpy.unique(statistics):
        rows = statistics == name
        edges = _EDGES.get(name)
        if edges is not None:
            low[rows], high[rows] = edges(bins[rows])
    return low, high


def _edges_of_bf16_codes(bins):
    import numpy

    values = (bins.astype(numpy.uint32) << 16).view(numpy.float32)
    return values, values


def _edges_of_fp16_codes(bins):
    import numpy

    values = bins.astype(numpy.uint16).view(numpy.float16)
    return values, values


def _edges_of_e8m0(bins):
    import numpy

    scales = numpy.where(bins == 255, numpy.nan, numpy.exp2(bins.astype(numpy.float64) - 127))
    return scales, scales


def _edges_of_e4m3(bins):
    import numpy

    exponent, mantissa = bins >> 3, bins & 7
    scales = numpy.where(
        exponent == 0,
        numpy.ldexp(mantissa.astype(numpy.float64), -9),
        numpy.ldexp(8.0 + mantissa, exponent - 10),
    )
    scales = numpy.where(bins == 127, numpy.nan, scales)
    return scales, scales


def _edges_of_fp32_exponents(bins):
    import numpy

    least = numpy.exp2(bins.astype(numpy.float64) - 127)
    most = least * (2 - 2.0**-23)
    subnormal, special = bins == 0, bins == 255
    least = numpy.where(subnormal, 0.0, numpy.where(special, numpy.nan, least))
    most = numpy.where(subnormal, 2.0**-126 - 2.0**-149, numpy.where(special, numpy.nan, most))
    return least, most


def _edges_of_exponents(mantissa_bits: int, smallest_normal: float):
    def edges(bins):
        import numpy

        distance = numpy.abs(bins - 257).astype(numpy.float64)  # 257: zeros
        least = numpy.exp2(distance - 128)  # of the normal numbers; 2 stands for 2^-126
        most = least * (2 - 2.0**-mantissa_bits)
        least[distance == 1] = smallest_normal * 2.0**-mantissa_bits
        most[distance == 1] = smallest_normal * (1 - 2.0**-mantissa_bits)
        for edge in (least, most):
            edge[distance == 0] = 0
            edge[distance == 256] = numpy.inf
            edge[bins == 0] = numpy.nan
        negative = bins < 257
        return numpy.where(negative, -most, least), numpy.where(negative, -least, most)

    return edges


_EDGES = {
    "code_histogram_bf16": _edges_of_bf16_codes,
    "code_histogram_fp16": _edges_of_fp16_codes,
    "exponent_histogram_bf16": _edges_of_exponents(7, 2.0**-126),
    "exponent_histogram_fp16": _edges_of_exponents(10, 2.0**-14),
    "exponent_histogram_fp32": _edges_of_exponents(23, 2.0**-126),
}
for _copy in ("", "_columnwise"):
    _EDGES[f"scale_histogram_e8m0{_copy}"] = _edges_of_e8m0
    _EDGES[f"scale_histogram_e4m3{_copy}"] = _edges_of_e4m3
    _EDGES[f"scale_histogram_fp32{_copy}"] = _edges_of_fp32_exponents
