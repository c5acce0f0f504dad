"""FP8 attention in blocks of 32, computed in FP64, with bounds for FP32 results.

Blocks lie along what a product adds over, so query, key and the output's gradient have codes of two
kinds, and nothing that is computed is cast: all codes are known to the bit.
"""

import numpy as np
import torch
from block_references import E4M3, mxfp8
from fp8_attention_reference import (
    EXP,
    ULP,
    Expected,
    Known,
    by_head,
    over_groups,
    product,
    softmax,
)


def over_size(x: np.ndarray, form: type) -> np.ndarray:
    """Splits the last dimension of [batch, heads, positions, size] into blocks."""
    rows = x.astype(np.float32).reshape(-1, x.shape[-1])
    return mxfp8(rows, form)[0].astype(np.float64).reshape(x.shape)


def over_positions(x: np.ndarray, form: type) -> np.ndarray:
    return over_size(x.swapaxes(-1, -2), form).swapaxes(-1, -2)


def as_dtype(x: Known, dtype: torch.dtype) -> Known:
    """Rounds to the dtype; near a tie, either neighbor is possible."""
    ends = [
        torch.tensor(end, dtype=torch.float32).to(dtype).double().numpy()
        for end in (x.mid - x.rad, x.mid + x.rad)
    ]
    # FP64 -> FP32 -> dtype rounds twice, which matters up to one FP32 ulp from a tie.
    return Known((ends[0] + ends[1]) / 2, np.abs(ends[1] - ends[0]) / 2 + ULP * np.abs(ends[1]))


def sum_of_products(x: Known, weights: np.ndarray) -> Known:
    """A weighted sum over the last dimension, in FP32 and in any order."""
    terms = x.mid.shape[-1] + 2
    sizes = (np.abs(x.mid) + x.rad) * np.abs(weights)
    mid = (x.mid * weights).sum(-1, keepdims=True)
    rad = (x.rad * np.abs(weights)).sum(-1, keepdims=True)
    return Known(mid, rad + terms * ULP * sizes.sum(-1, keepdims=True))


def block_attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    gradient: np.ndarray,
    *,
    scale: float,
    dtype: torch.dtype,
    backward: type = E4M3,
    allowed: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    sink: np.ndarray | None = None,
    kept: np.ndarray | None = None,
    keep: float = 1.0,
    merged: int = 0,
) -> tuple[Expected, Known]:
    """query, gradient [batch, heads, seq_q, size], key and value [batch, groups, seq_kv, size].

    kept: which weights dropout leaves, by the probability keep. merged: the parts that the softmax
    is merged of, by the logarithms of their sums. The scores come besides.
    """
    heads, groups = query.shape[1], key.shape[1]
    k, v = (by_head(over_size(x, E4M3), heads) for x in (key, value))
    p = product(Known(over_size(query, E4M3)), k.t).times(np.float32(scale))
    if bias is not None:
        p = Known(p.mid + bias, p.rad + ULP * np.abs(p.mid + bias))
    if allowed is not None:
        p = Known(np.where(allowed, p.mid, -np.inf), np.where(allowed, p.rad, 0))
    s, aside = softmax(p, sink)
    largest = np.abs(p.mid, where=np.isfinite(p.mid), out=np.zeros_like(p.mid)).max(initial=0)
    s = s.rounded(merged * (4 * ULP * (largest + np.log(key.shape[2]) + 1) + 2 * EXP))

    def dropped(x: Known) -> Known:
        return x if kept is None else Known(x.mid * kept, x.rad * kept).times(1 / keep)

    output = product(dropped(s), by_head(over_positions(value, E4M3), heads))
    # The sum of the output times its gradient uses both unquantized.
    delta = sum_of_products(as_dtype(output, dtype), gradient)

    dv = over_groups(product(dropped(s).t, Known(over_positions(gradient, backward))), groups)
    ds = dropped(product(Known(over_size(gradient, backward)), v.t))
    inner = ds.mid - delta.mid
    inner_rad = ds.rad + delta.rad + 2 * ULP * np.abs(inner)
    dp = Known(s.mid * inner, s.rad * (np.abs(inner) + inner_rad) + s.mid * inner_rad)
    dp = dp.rounded(2 * ULP)
    dq = product(dp, by_head(over_positions(key, E4M3), heads)).times(scale)
    dk = over_groups(product(dp.t, Known(over_positions(query, E4M3))), groups).times(scale)
    return Expected(
        output,
        dq,
        dk,
        dv,
        bias=None if bias is None else dp,
        sink=None if sink is None else -(aside * delta.mid).sum((0, 2, 3)),
    ), p
