"""Attention in FP64 by its formulas, with masks computed for each pair of positions."""

import math

import torch

CAUSAL = ("causal", "padding_causal", "causal_bottom_right", "padding_causal_bottom_right")


def allowed_pairs(mask, window, bottom_right, lengths, arbitrary=None):
    """(allowed, distances), both [batch, 1, seq_q, seq_kv].

    lengths: (those of the queries, those of the keys, seq_q, seq_kv); padding is at the end.
    distance: of key j behind the diagonal of query i.
    """
    of_queries, of_keys, seq_q, seq_kv = lengths
    padded = mask.startswith("padding")
    corner = mask.endswith("bottom_right") if mask in CAUSAL else bottom_right
    left, right = window
    allowed = torch.zeros(len(of_queries), 1, seq_q, seq_kv, dtype=torch.bool)
    distances = torch.zeros(len(of_queries), 1, seq_q, seq_kv, dtype=torch.float64)
    for b, (queries, keys) in enumerate(zip(of_queries, of_keys, strict=True)):
        longer = keys - queries if padded else seq_kv - seq_q
        for i in range(seq_q):
            for j in range(seq_kv):
                distance = j - i - (longer if corner else 0)
                sees = not padded or (i < queries and j < keys)
                sees &= mask not in CAUSAL or distance <= 0
                sees &= left < 0 or distance >= -left
                sees &= mask in CAUSAL or right < 0 or distance <= right
                sees &= arbitrary is None or not bool(arbitrary[b, 0, i, j])
                allowed[b, 0, i, j] = sees
                distances[b, 0, i, j] = distance
    return allowed, distances


def slopes_of_alibi(heads):
    whole = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8 * k / whole) for k in range(1, whole + 1)]
    slopes += [2.0 ** (-4 * k / whole) for k in range(1, 2 * (heads - whole), 2)]
    return torch.tensor(slopes, dtype=torch.float64)


def attend(query, key, value, allowed, bias=0.0, scale=None, sink=None):
    """[batch, seq, heads, size] each; the bias applies to scaled scores.

    Returns (output [batch, seq_q, heads * size], each head's largest score).
    """
    groups = query.size(2) // key.size(2)
    key, value = (t.repeat_interleave(groups, 2).permute(0, 2, 1, 3) for t in (key, value))
    scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = query.permute(0, 2, 1, 3) @ key.transpose(-1, -2) * scale + bias
    scores = scores.masked_fill(~allowed, -math.inf)
    largest = scores.amax((0, 2, 3))
    exponents = scores.exp()
    total = exponents.sum(-1, keepdim=True)
    if sink is not None:
        total = total + sink.view(1, -1, 1, 1).exp()
    weights = exponents / total.where(total > 0, 1.0)
    return (weights @ value).permute(0, 2, 1, 3).flatten(2), largest
