"""Recomputes a GEMM in FP64 and splits the error of its result by source. Requires only torch.

The operands are matrices a [M, K] and b [N, K], the sum runs along K, and result = a b^T + bias.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import torch

HADAMARD_SIZE = 16
# The maximum number of result elements per chunk. About thirty FP64 matrices of that size are in
# memory.
_MOST_ELEMENTS = 1 << 22
# 2^-53: the largest relative rounding error of an FP64 operation.
UNIT = 2.0**-53

# E2M1 by code: 1 sign bit, 2 bits of exponent, 1 of mantissa (OCP MX specification 1.0).
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclasses.dataclass
class Cast:
    """An operand in the orientation of its GEMM: [rows, K]."""

    # uint8 [rows, K], E2M1: [rows, K / 2], the code of even column in the lower four bits; or the
    # values themselves if `scales` is None.
    codes: torch.Tensor
    format: str
    scales: torch.Tensor | None = None  # one number, or [rows / block height, K / block length]
    scale_format: str = "FP32"
    tensor_scale: torch.Tensor | None = None  # one more factor for the tensor, or for each row
    block: tuple[int, int] = (
        1,
        0,
    )  # the rows and columns that share a scale; length 0 means all of them
    hadamard_signs: int | None = None  # a bit each, of the transform along K
    transposed: bool = False  # these are the codes of the transposed tensor

    def values(self) -> torch.Tensor:
        """Returns the multiplied values in FP64 with a random Hadamard transform undone. Exact
        without a transform."""
        values = decode(self.codes, self.format)
        if self.scales is None:
            return values
        scales = decode(self.scales, self.scale_format)
        height, length = self.block
        if length > 0:
            scales = scales.repeat_interleave(height, 0)[: values.shape[0]]
            scales = scales.repeat_interleave(length, 1)[:, : values.shape[1]]
        values = values * scales
        if self.tensor_scale is not None:
            values = values * self.tensor_scale.double().view(-1, 1)
        return values if self.hadamard_signs is None else undo_hadamard(values, self.hadamard_signs)


@dataclasses.dataclass
class Gemm:
    """A GEMM that ran, or a hypothetical GEMM without a result."""

    title: str
    names: tuple[str, str]  # the operands'
    originals: tuple[torch.Tensor, torch.Tensor]  # before their casts
    casts: tuple[Cast, Cast]
    # The casts with a scale from the operand's current amax. None if they already use that scale,
    # as they must if the result is missing.
    own_scales: tuple[Cast | None, Cast | None]
    bias: torch.Tensor | None  # the bias operand of the GEMM
    result: torch.Tensor | None
    result_dtype: torch.dtype
    notes: list[str]


@dataclasses.dataclass
class Part:
    """One cause of the error: a matrix [M, N], zero where some term is not finite."""

    name: str
    matrix: torch.Tensor


@dataclasses.dataclass
class Split:
    """The error of some rows of a result, and its parts, which add up to it within ``bound`` in
    every element."""

    exact: torch.Tensor
    total: torch.Tensor
    parts: list[Part]
    bound: torch.Tensor
    left_out: int  # nonfinite elements in the result or in intermediate values


def decode(codes: torch.Tensor, format: str) -> torch.Tensor:
    """Returns the exact values of codes in FP64."""
    if format == "E4M3":
        return codes.view(torch.float8_e4m3fn).double()
    if format == "E5M2":
        return codes.view(torch.float8_e5m2).double()
    if format == "E2M1":
        table = torch.tensor(_E2M1 + tuple(-value for value in _E2M1), dtype=torch.float64)
        pairs = torch.stack((codes & 0xF, codes >> 4), dim=-1).reshape(codes.shape[0], -1)
        return table[pairs.long()]
    if format == "E8M0":
        powers = torch.ldexp(torch.ones(codes.shape, dtype=torch.float64), codes.long() - 127)
        return torch.where(codes == 0xFF, math.nan, powers)
    return codes.double()


def undo_hadamard(values: torch.Tensor, signs: int) -> torch.Tensor:
    """Inverts the transform of [rows, K], which mapped 16 columns x to (flip(x, signs) H) / 4.

    Returns x in FP64. H is Sylvester's Hadamard matrix, so H H = 16 I.
    """
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while matrix.shape[0] < HADAMARD_SIZE:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    flips = torch.tensor([-1.0 if signs >> i & 1 else 1.0 for i in range(HADAMARD_SIZE)])
    rows, columns = values.shape
    groups = values.reshape(rows, columns // HADAMARD_SIZE, HADAMARD_SIZE)
    return ((groups @ matrix) * 0.25 * flips.double()).reshape(values.shape)


def round_once(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounds FP64 values to dtype, to nearest with ties to even. Returns FP64.

    Rounding to 16 bits goes through FP32 rounded to odd, which avoids false ties in the second
    rounding (Boldo and Melquiond, IEEE TC 57(4), 2008).
    """
    if dtype in (torch.float32, torch.float64):
        return values.to(dtype).double()
    nearest = values.float()
    bits = nearest.view(torch.int32)
    even = (values != nearest.double()) & (bits & 1 == 0) & values.isfinite()
    step = torch.where(nearest.double().abs() > values.abs(), -1, 1).to(torch.int32)
    to_odd = torch.where(even, bits + step, bits).view(torch.float32)
    return to_odd.to(dtype).double()


class _Products:
    """Products of pairs of matrices a and b, each computed once."""

    def __init__(self, left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
        self._left, self._right = left, right
        self._known: dict[tuple[int, int], torch.Tensor] = {}

    def __call__(self, left: str, right: str) -> torch.Tensor:
        key = id(self._left[left]), id(self._right[right])
        if key not in self._known:
            self._known[key] = self._left[left] @ self._right[right].T
        return self._known[key]

    def of_step(self, side: int, frm: str, to: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Returns the effect of an operand's change, with the other operand before and after its
        own change."""
        ends = ("original", "cast")
        if side == 0:
            return [(self(to, end), self(frm, end)) for end in ends]
        return [(self(end, to), self(end, frm)) for end in ends]


def _stages(gemm: Gemm, side: int) -> dict[str, torch.Tensor]:
    own = gemm.own_scales[side]
    cast = gemm.casts[side].values()
    return {
        "original": gemm.originals[side].double(),
        "own": cast if own is None else own.values(),
        "cast": cast,
    }


def _rows_of(stages: dict[str, torch.Tensor], rows: slice) -> dict[str, torch.Tensor]:
    """A tensor under two names stays a single tensor."""
    parts = {id(each): each[rows] for each in stages.values()}
    return {name: parts[id(each)] for name, each in stages.items()}


def splits(gemm: Gemm, most_elements: int = _MOST_ELEMENTS) -> Iterator[Split]:
    """Splits the error of the result against the exact product of the original operands.

    The effect of an operand's change is the mean over the other operand before and after its cast,
    so that neither order is preferred:

        quantizing a = [(a' b - a b) + (a' b' - a b')] / 2,  with a and b exchanged for b

    The sum of both is a' b' - a b. The change from a to a' has two parts: the cast with a scale
    from a's current amax, and the choice of the scale that leads from there to the recorded codes.
    The remaining parts are the rounding of the exact sum with the bias to the result's dtype, and
    the kernel's own summation, which is the rest up to the recorded result.

    Each part is a sum of differences of the same FP64 matrices P, so that they telescope: apart
    from rounding their sum is result - (a b^T + bias). With n parts, u = 2^-53 and S the sum of
    the |P| over all differences, the sum of the parts differs from the total by at most (n + 4) u
    S, to the first order: 2 u S by the differences and the halves of their sums, (n - 1) u S by
    adding the parts up, 2 u S by the total and by adding the bias, 1 u S for the higher orders.

    Some rows of the result at a time, of at most ``most_elements`` unless one row has more.
    """
    left, right = _stages(gemm, 0), _stages(gemm, 1)
    height, width = left["cast"].shape[0], right["cast"].shape[0]
    step = max(1, most_elements // max(1, width))
    for first in range(0, max(1, height), step):
        rows = slice(first, first + step)
        yield _split(gemm, _Products(_rows_of(left, rows), right), rows)


def _split(gemm: Gemm, product: _Products, rows: slice) -> Split:
    steps = {}
    for side in (0, 1):
        steps[f"quantizing {gemm.names[side]}"] = product.of_step(side, "original", "own")
    for side in (0, 1) if gemm.result is not None else ():
        steps[f"scale choice {gemm.names[side]}"] = product.of_step(side, "own", "cast")
    exact, computed = product("original", "original"), product("cast", "cast")
    if gemm.bias is not None:
        exact, computed = exact + gemm.bias.double(), computed + gemm.bias.double()
    rounded = round_once(computed, gemm.result_dtype)
    steps["output cast"] = [(rounded, computed)]
    result = rounded
    if gemm.result is not None:
        result = gemm.result[rows].double()
        steps["accumulation"] = [(result, rounded)]
    return _telescope(exact, result, steps)


def _telescope(
    exact: torch.Tensor,
    result: torch.Tensor,
    steps: dict[str, list[tuple[torch.Tensor, torch.Tensor]]],
) -> Split:
    finite = exact.isfinite() & result.isfinite()
    size = exact.abs() + result.abs()
    for differences in steps.values():
        for to, frm in differences:
            finite &= to.isfinite() & frm.isfinite()
            size = size + to.abs() + frm.abs()

    def of_finite(matrix: torch.Tensor) -> torch.Tensor:
        return torch.where(finite, matrix, 0.0)

    parts = []
    for name, differences in steps.items():
        matrix = sum((to - frm) for to, frm in differences) / len(differences)
        parts.append(Part(name, of_finite(matrix)))
    split = Split(
        exact=of_finite(exact),
        total=of_finite(result - exact),
        parts=parts,
        bound=of_finite((len(parts) + 4) * UNIT * size),
        left_out=int((~finite).sum()),
    )
    unexplained = (split.total - sum(part.matrix for part in parts)).abs()
    if bool((unexplained > split.bound).any()):
        raise AssertionError(
            f"the parts miss the error by {float(unexplained.max())}, more than FP64 rounds"
        )
    return split


@dataclasses.dataclass
class _Sums:
    """Sums over a part's matrix, for every row of the result."""

    squares: float = 0.0
    with_total: float = 0.0  # elements times the total's elements
    elements: float = 0.0

    def add(self, matrix: torch.Tensor, total: torch.Tensor) -> None:
        self.squares += float((matrix * matrix).sum())
        self.with_total += float((matrix * total).sum())
        self.elements += float(matrix.sum())


@dataclasses.dataclass
class Figures:
    """Returns a row for each part of a GEMM's error, and a last one for the total.

    Rows have these keys. part: its name. relative_error: |part| / |exact|, Frobenius norms, which
    do not add up. share: <part, total> / <total, total>, which adds up to 1; negative if a part
    cancels others. mean_error: mean of the part over the mean of |exact|, which adds up too.
    """

    rows: list[dict]
    elements: int
    left_out: int  # nonfinite elements in the result or in intermediate values


def figures(gemm: Gemm, most_elements: int = _MOST_ELEMENTS) -> Figures:
    sums: dict[str, _Sums] = {}
    exact_squares = magnitudes = 0.0
    elements = left_out = 0
    for split in splits(gemm, most_elements):
        exact_squares += float((split.exact * split.exact).sum())
        magnitudes += float(split.exact.abs().sum())
        elements += split.exact.numel()
        left_out += split.left_out
        for part in (*split.parts, Part("total", split.total)):
            sums.setdefault(part.name, _Sums()).add(part.matrix, split.total)

    def ratio(value: float, of: float) -> float:
        return value / of if of != 0 else (0.0 if value == 0 else math.inf)

    error = sums["total"].squares
    rows = [
        {
            "part": name,
            "relative_error": ratio(math.sqrt(each.squares), math.sqrt(exact_squares)),
            "share": each.with_total / error if error != 0 else 0.0,
            "mean_error": ratio(each.elements, magnitudes),
        }
        for name, each in sums.items()
    ]
    return Figures(rows, elements, left_out)


def text(gemm: Gemm) -> str:
    """Formats the parts of a GEMM's error as a table."""
    found = figures(gemm)
    width = max(len(row["part"]) for row in found.rows)
    lines = [gemm.title, f"{'part':{width}}  {'error %':>10}  {'share %':>8}  {'mean %':>11}"]
    for row in found.rows:
        numbers = (100 * row[name] for name in ("relative_error", "share", "mean_error"))
        error, share, mean = numbers
        lines.append(f"{row['part']:{width}}  {error:10.4g}  {share:8.2f}  {mean:11.3g}")
    if found.left_out:
        lines.append(f"{found.left_out} of {found.elements} elements are not finite and left out")
    return "\n".join(lines)
