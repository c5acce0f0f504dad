"""Statistics of attention scores in FP64, row by row of the softmax."""

import math
import struct

import torch

COUNTS = ("numel", "nan", "posinf", "neginf", "zeros", "subnormals")
ROWS = ("blind", "nonfinite", "single", "choosing", "one_key", "first_key")
# Words of TensorSums before and after the counts (core/ops/statistics_layout.h).
TENSOR_WORDS = 18


def as_double(word):
    return struct.unpack("<d", struct.pack("<q", word))[0]


def unpacked(words):
    """The words of telens::attention_statistics by name."""
    words = words.tolist()
    assert len(words) == TENSOR_WORDS + 8
    sums = dict(zip(COUNTS, words[:6], strict=True))
    sums["min"], sums["max"] = as_double(words[6]), as_double(words[7])
    sums.update(zip(ROWS, words[TENSOR_WORDS : TENSOR_WORDS + 6], strict=True))
    sums["entropy"], sums["share"] = (as_double(word) for word in words[TENSOR_WORDS + 6 :])
    return sums


def expected(scores, seen, sink=None):
    """scores: FP64 [batch, heads, seq_q, seq_kv]; seen: boolean, the same; sink: [heads]."""
    sums = dict.fromkeys((*COUNTS, *ROWS), 0) | {"entropy": 0.0, "share": 0.0}
    sums["min"], sums["max"] = math.inf, -math.inf
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in scores.shape[:3])).tolist():
        row = scores[b, h, i][seen[b, h, i]].tolist()
        numbers = [x for x in row if not math.isnan(x)]
        sums["numel"] += len(row)
        sums["nan"] += len(row) - len(numbers)
        sums["posinf"] += numbers.count(math.inf)
        sums["neginf"] += numbers.count(-math.inf)
        sums["zeros"] += numbers.count(0)
        sums["subnormals"] += sum(0 < abs(x) < 2.0**-126 for x in numbers)
        sums["min"], sums["max"] = min([sums["min"], *numbers]), max([sums["max"], *numbers])
        if not row:
            sums["blind"] += 1
        elif len(numbers) < len(row) or math.isinf(max(row)):
            sums["nonfinite"] += 1
        elif len(row) == 1:
            sums["single"] += 1
        else:
            add_row(sums, row, None if sink is None else sink[h].item())
    return sums


def add_row(sums, row, sink):
    outcomes = row if sink is None else [*row, sink]
    top = max(outcomes)
    total = sum(math.exp(x - top) for x in outcomes)
    shares = [math.exp(x - top) / total for x in outcomes]
    entropy = -sum(p * math.log(p) for p in shares if p > 0)
    sums["choosing"] += 1
    sums["entropy"] += entropy
    sums["share"] += entropy / math.log(len(outcomes))
    largest = max(range(len(row)), key=row.__getitem__)
    sums["one_key"] += shares[largest] > 0.99
    sums["first_key"] += shares[largest] > 0.99 and largest == 0
