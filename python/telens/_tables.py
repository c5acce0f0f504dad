"""Tables of a run: the order of columns, and the bounds of histogram bins."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["bin_edges", "in_order"]

# The columns that tables begin with.
_FIRST = ["rank", "iteration", "layer", "tensor", "gemm", "statistic", "scope"]


def in_order(columns: Collection[str]) -> list[str]:
    """Orders columns: keys first, the value last."""
    middle = [name for name in columns if name not in _FIRST and name != "value"]
    return [
        *(name for name in _FIRST if name in columns),
        *middle,
        *(name for name in columns if name == "value"),
    ]


def bin_edges(statistics, bins):
    """Bounds of histogram bins, as defined in core/ops/histogram_layout.h."""
    import numpy

    low = numpy.full(len(bins), numpy.nan)
    high = numpy.full(len(bins), numpy.nan)
    for name in statistics.dropna().unique():  # a damaged or hostile file has rows without one
        rows = (statistics == name).to_numpy()
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
        least = numpy.exp2(
            distance - 128
        )  # the smallest normal number; a distance of 2 represents 2^-126
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
