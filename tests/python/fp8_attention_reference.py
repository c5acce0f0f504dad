"""FP8 attention in FP64 by its formulas, with bounds for results in FP32.

A value is known as mid +- rad: sums in FP32 differ from ours by rad, and where that crosses the
middle between two codes, a cast may give either of them.
"""

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
LARGEST = {E4M3: 448.0, E5M2: 57344.0}
ULP = 2.0**-24  # half the distance of 1 and the next number of FP32
EXP = 16 * ULP  # the error of exp and of a division


@dataclass
class Known:
    """An interval: a result in FP32 lies between mid - rad and mid + rad."""

    mid: np.ndarray
    rad: np.ndarray = None

    def __post_init__(self):
        if self.rad is None:
            self.rad = np.zeros_like(self.mid)

    @property
    def t(self):
        return Known(self.mid.swapaxes(-1, -2), self.rad.swapaxes(-1, -2))

    def times(self, factor):
        return Known(self.mid * factor, (self.rad + 4 * ULP * np.abs(self.mid)) * np.abs(factor))

    def rounded(self, half_ulp):
        return Known(self.mid, self.rad + half_ulp * (np.abs(self.mid) + self.rad))

    def amax(self):
        """Returns the (lowest, highest, middle) possible amax."""
        size = np.abs(self.mid)
        return (size - self.rad).max(), (size + self.rad).max(), size.max()


def product(a: Known, b: Known) -> Known:
    """a @ b, summed in FP32 in any order."""
    sizes_a, sizes_b = np.abs(a.mid), np.abs(b.mid)
    terms = a.mid.shape[-1] + 2
    rad = a.rad @ (sizes_b + b.rad) + sizes_a @ b.rad
    return Known(a.mid @ b.mid, rad + terms * ULP * ((sizes_a + a.rad) @ (sizes_b + b.rad)))


def codes(x: np.ndarray, scale: float, form) -> np.ndarray:
    """Returns the values of the codes of x: multiplied in FP32 and rounded to the nearest code."""
    scaled = x.astype(np.float32) * np.float32(scale)
    return np.clip(scaled, -LARGEST[form], LARGEST[form]).astype(form).astype(np.float64)


def floor_to_power_of_two(x: float) -> np.float32:
    return np.exp2(np.floor(np.log2(np.float32(x))))


@dataclass
class Casts:
    """The six casts, with their scales; without one, that of the tensor's own amax."""

    scales: dict[str, float] = field(default_factory=dict)
    forward: type = E4M3
    backward: type = E5M2
    amaxes: dict[str, tuple[float, float]] = field(default_factory=dict)  # that the casts saw
    powers_of_two: tuple[str, ...] = ()  # casts whose scales of amaxes are rounded down to one

    def form(self, name: str) -> type:
        return self.backward if name.startswith("d") else self.forward

    def __call__(self, name: str, *parts: Known) -> list[tuple[Known, float]]:
        """(codes, 1 / scale) of parts that are cast under one scale."""
        scale = self.scale_of(name, *parts)
        inverse = float(np.float32(1) / np.float32(scale[0]))
        return [(self.under(name, part, scale), inverse) for part in parts]

    def scale_of(self, name: str, *parts: Known) -> tuple[float, float]:
        """Returns the scale with which the parts are cast together, and its possible relative
        error.
        """
        form = self.form(name)
        bounds = np.array([part.amax() for part in parts if part.mid.size]).max(0, initial=0)
        low, high, middle = bounds if np.ndim(bounds) else (0, 0, 0)
        self.amaxes[name] = (low, high)
        scale, slack = self.scales.get(name), 0.0
        if scale is None:
            scale = np.float32(LARGEST[form]) / np.float32(middle) if middle else np.float32(1)
            slack = (high - low) / middle + 2 * ULP if high > low else 0.0
            if name in self.powers_of_two and middle:
                scale = floor_to_power_of_two(scale)
                ends = [floor_to_power_of_two(LARGEST[form] / amax) for amax in (high, low)]
                slack = float(ends[1] / ends[0] - 1)
        return scale, slack

    def under(self, name: str, part: Known, scale: tuple[float, float]) -> Known:
        """The codes of a part under a scale."""
        value, slack = scale
        wide, form = part.rounded(slack), self.form(name)
        ends = codes(wide.mid - wide.rad, value, form), codes(wide.mid + wide.rad, value, form)
        middles = Known((ends[0] + ends[1]) / 2, np.abs(ends[1] - ends[0]) / 2)
        return middles.rounded(slack)


def softmax(p: Known, sink: np.ndarray | None) -> tuple[Known, np.ndarray]:
    """Softmax over the last dimension, and the weight of the sink. A row with only -Inf is 0."""
    largest = p.mid.max(-1, keepdims=True)
    if sink is not None:
        largest = np.maximum(largest, sink)
    shift = np.where(np.isinf(largest), 0, largest)
    weights = np.exp(p.mid - shift)
    total = weights.sum(-1, keepdims=True)
    aside = np.zeros_like(total)
    if sink is not None:
        aside = np.exp(sink - shift)
        total = total + aside
    total = np.where(total == 0, 1, total)
    finite = np.where(np.isfinite(p.mid), p.rad + 2 * ULP * np.abs(p.mid), 0)
    off = np.expm1(2 * finite.max(-1, keepdims=True)) + (p.mid.shape[-1] + 4) * ULP + 2 * EXP
    return Known(weights / total, weights / total * off), aside / total


def product_of_codes(a: Known, b: Known) -> Known:
    """Element by element, summed over the last dimension in FP32 in any order."""
    sizes_a, sizes_b = np.abs(a.mid), np.abs(b.mid)
    rad = a.rad * (sizes_b + b.rad) + sizes_a * b.rad
    rad = rad + (a.mid.shape[-1] + 4) * ULP * (sizes_a + a.rad) * (sizes_b + b.rad)
    return Known((a.mid * b.mid).sum(-1, keepdims=True), rad.sum(-1, keepdims=True))


@dataclass
class Expected:
    output: Known
    query: Known
    key: Known
    value: Known
    bias: np.ndarray | None
    sink: np.ndarray | None  # gradient of the offset


def by_head(x: np.ndarray, heads: int) -> Known:
    return Known(np.repeat(x, heads // x.shape[1], 1))


def over_groups(x: Known, groups: int) -> Known:
    """Adds the gradients of heads that share a key."""
    shape = (x.mid.shape[0], groups, x.mid.shape[1] // groups, *x.mid.shape[2:])
    mid, rad, size = (each.reshape(shape).sum(2) for each in (x.mid, x.rad, np.abs(x.mid)))
    return Known(mid, rad + shape[2] * ULP * size)


def fp8_attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    gradient: np.ndarray,
    *,
    scale: float,
    casts: Casts,
    allowed: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    sink: np.ndarray | None = None,
    sums_output_codes: bool = False,
) -> Expected:
    """query, gradient [batch, heads, seq_q, size], key and value [batch, groups, seq_kv, size].

    sums_output_codes: the sum behind a softmax's gradient is that of the output's codes times its
    gradient's, not of softmax times its gradient.
    """
    heads, groups = query.shape[1], key.shape[1]
    (q, inverse), (k, _), (v, _) = casts("qkv", Known(query), Known(key), Known(value))
    k, v = by_head(k.mid, heads), by_head(v.mid, heads)
    factor = float(np.float32(inverse) * np.float32(inverse) * np.float32(scale))
    p = product(q, k.t).times(factor)
    if bias is not None:
        p = Known(p.mid + bias, p.rad + ULP * np.abs(p.mid + bias))
    if allowed is not None:
        p = Known(np.where(allowed, p.mid, -np.inf), np.where(allowed, p.rad, 0))
    s, aside = softmax(p, sink)
    ((s8, s_inverse),) = casts("s", s)
    ((o8, o_inverse),) = casts("o", product(s8, v).times(s_inverse * inverse))

    ((do8, do_inverse),) = casts("do", Known(gradient))
    dv = over_groups(product(s8.t, do8), groups).times(s_inverse * do_inverse)
    ds = product(do8, v.t).times(do_inverse * inverse)
    mix = s.mid * ds.mid
    mix_rad = s.rad * (np.abs(ds.mid) + ds.rad) + s.mid * ds.rad
    delta = mix.sum(-1, keepdims=True)
    terms = (mix.shape[-1] + 2) * ULP
    delta_rad = mix_rad.sum(-1, keepdims=True) + terms * np.abs(mix).sum(-1, keepdims=True)
    if sums_output_codes:
        products = product_of_codes(o8.times(o_inverse), do8.times(do_inverse))
        delta, delta_rad = products.mid, products.rad
    inner = ds.mid - delta
    inner_rad = ds.rad + delta_rad + 2 * ULP * np.abs(inner)
    dp = Known(s.mid * inner, s.rad * (np.abs(inner) + inner_rad) + s.mid * inner_rad)
    ((dp8, dp_inverse),) = casts("dp", dp.rounded(2 * ULP))
    dq = product(dp8, k).times(dp_inverse * inverse * scale)
    dk = over_groups(product(dp8.t, q), groups).times(dp_inverse * inverse * scale)
    last = casts("dqkv", dq, dk, dv)
    return Expected(
        o8.times(o_inverse),
        *(each.times(last_inverse) for each, last_inverse in last),
        bias=None if bias is None else dp8.times(dp_inverse),
        sink=None if sink is None else -(aside * delta).sum((0, 2, 3)),
    )
