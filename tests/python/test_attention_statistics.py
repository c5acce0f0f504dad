"""telens::attention_statistics against FP64, with random masks, biases, sinks and non-finite
values.
"""

import math
import random

import pytest
import torch
from attention_statistics_reference import COUNTS, expected, unpacked

CASES = 300


def drawn(number):
    """Arguments of the operator, scores in FP64, and which of them are seen."""
    draw = random.Random(number)
    torch.manual_seed(number)
    batch, groups, seq_q, seq_kv, size = 2, draw.choice([1, 2]), *(
        draw.randint(1, 9) for _ in range(2)
    ), 4  # fmt: skip
    heads = 2 * groups
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float64])
    query = (torch.randn(batch, heads, seq_q, size) * draw.choice([0.1, 1, 30])).to(dtype)
    key = torch.randn(batch, groups, seq_kv, size).to(dtype)
    allowed = blind = bias = offset = None
    if draw.random() < 0.5:
        allowed = torch.rand(draw.choice([1, batch]), 1, seq_q, seq_kv) < draw.choice([0.2, 0.7])
    if draw.random() < 0.3:
        blind = torch.rand(batch, 1, seq_q, 1) < 0.3
    if draw.random() < 0.4:
        bias = torch.randn(draw.choice([1, batch]), heads, draw.choice([1, seq_q]), seq_kv)
        if draw.random() < 0.4:
            bias[torch.rand_like(bias) < 0.4] = -math.inf
    is_causal = draw.random() < 0.4
    has_sink = draw.random() < 0.4
    if has_sink and draw.random() < 0.5:
        offset = torch.randn(1, heads, 1, 1) * 3
    for tensor in (query, key):
        for _ in range(draw.choice([0, 0, 1])):
            value = draw.choice([math.nan, math.inf, -math.inf, 0.0])
            tensor[draw.randrange(batch), 0, draw.randrange(tensor.size(2))] = value
    scale = draw.choice([0.5, 1.0])
    scores = query.double() @ key.double().repeat_interleave(heads // groups, 1).mT * scale
    if bias is not None:
        scores = scores + bias.double()
    seen = torch.ones(batch, heads, seq_q, seq_kv, dtype=torch.bool)
    if bias is not None:
        seen = seen & (bias != -math.inf)
    if allowed is not None:
        seen = seen & allowed
    if blind is not None:
        seen = seen & ~blind
    if is_causal:
        seen = seen & torch.ones(seq_q, seq_kv, dtype=torch.bool).tril()
    sink = None
    if has_sink:
        sink = torch.zeros(heads) if offset is None else offset.flatten()
    arguments = (query, key, allowed, blind, bias, offset, is_causal, has_sink, scale)
    return arguments, (scores, seen, None if sink is None else sink.double())


def decides(scores, seen, sink):
    """False if rounding may decide whether a key has more than 99 %, or which key is the first."""
    shares = scores.masked_fill(~seen, -math.inf).softmax(-1)
    return not bool(((shares.amax(-1) - 0.99).abs() < 1e-3).any()) and sink is None


def check(number, telens_ops):
    arguments, reference = drawn(number)
    actual = unpacked(telens_ops.attention_statistics(*arguments))
    wanted = expected(*reference)
    # FP32 scores: 4 products and their sums, scale and bias: 7 roundings of at most the sum of
    # magnitudes. Such a sum may be zero in only one of the two.
    finite = reference[0][reference[1] & reference[0].isfinite()].abs()
    size = finite.max().item() if finite.numel() else 0.0
    bound = 0 if arguments[0].dtype == torch.float64 and arguments[4] is None else 7 * 2.0**-24
    bound *= 4 * size + 1
    exact = [*COUNTS[:4], "blind", "nonfinite", "single", "choosing"]
    if decides(*reference):
        exact += ["one_key", "first_key"]
    for name in exact:
        assert actual[name] == wanted[name], (name, number, actual, wanted)
    for name in ("min", "max"):
        assert actual[name] == pytest.approx(wanted[name], abs=bound + 1e-12), (name, number)
    # d entropy / d scores is below 1 + entropy <= 1 + log(10), for rows whose scores differ by at
    # most twice `bound`; exp() and its sums add 20 roundings.
    rows = max(1, wanted["choosing"])
    for name in ("entropy", "share"):
        assert actual[name] == pytest.approx(
            wanted[name], abs=rows * (7 * bound + 20 * 2.0**-24 * 10)
        ), (name, number)


@pytest.mark.parametrize("first", range(0, CASES, 50))
def test_random_cases_match_fp64(telens_ops, first):
    for number in range(first, first + 50):
        check(number, telens_ops)


def test_blocks_of_queries_and_of_samples_add_up(telens_ops):
    torch.manual_seed(1)
    # 3 samples of 2 heads, 1500 x 1500: more than one block each, with a shorter last block.
    query, key = torch.randn(2, 3, 2, 1500, 8)
    blind = torch.rand(3, 1, 1500, 1) < 0.1
    bias = torch.randn(1, 2, 1500, 1500)
    options = (None, blind, bias, None, True, False, 0.3)
    actual = unpacked(telens_ops.attention_statistics(query, key, *options))
    scores = query.double() @ key.double().mT * 0.3 + bias
    seen = torch.ones(1500, 1500, dtype=torch.bool).tril() & ~blind
    scores = scores.masked_fill(~seen, -math.inf)
    keys = seen.sum(-1).expand(3, 2, 1500)
    rows = keys > 1
    log_shares = scores[rows].log_softmax(-1)
    entropy = -torch.where(log_shares.isfinite(), log_shares.exp() * log_shares, 0.0).sum(-1)
    assert actual["numel"] == int(keys.sum())
    assert actual["choosing"] == int(rows.sum())
    assert actual["single"] == int((keys == 1).sum())
    assert actual["blind"] == int((keys == 0).sum())
    assert actual["entropy"] == pytest.approx(entropy.sum().item(), rel=1e-6)
    assert actual["share"] == pytest.approx((entropy / keys[rows].log()).sum().item(), rel=1e-6)
    assert actual["one_key"] == int((log_shares.exp().amax(-1) > 0.99).sum())
    assert actual["max"] == pytest.approx(scores.max().item(), rel=1e-6)


def test_distinguishes_one_key_from_attention_sink(telens_ops):
    query = torch.ones(1, 1, 4, 1)
    key = torch.zeros(1, 1, 4, 1)
    for place, first in ((0, 3), (2, 0)):
        key.zero_()[0, 0, place] = 50
        sums = unpacked(
            telens_ops.attention_statistics(query, key, None, None, None, None, True, False, 1.0)
        )
        assert sums["one_key"] == (3 if place == 0 else 2)
        assert sums["first_key"] == first
        assert sums["single"] == 1


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)])
def test_nothing_to_look_at_is_nothing(telens_ops, shape):
    batch, heads, seq, size = shape
    query, key = torch.ones(2, batch, heads, seq, size)
    options = (None, None, None, None, False, False, 1.0)
    sums = unpacked(telens_ops.attention_statistics(query, key, *options))
    rows = batch * heads * seq
    seen = rows * seq if size == 0 else 0
    assert sums["numel"] == seen
    assert sums["zeros"] == seen  # a sum of no products
    assert sums["choosing"] == (rows if size == 0 else 0)
    empty_keys = telens_ops.attention_statistics(
        torch.ones(2, 2, 3, 4), torch.ones(2, 2, 0, 4), *options
    )
    assert unpacked(empty_keys)["blind"] == 12


def test_shape_function_returns_shape_or_rejects(telens_ops):
    options = (None, None, None, None, False, False, 1.0)
    query, key = torch.ones(2, 1, 4, 3, 8, device="meta")
    assert telens_ops.attention_statistics(query, key, *options).shape == (26,)
    for wrong in (key[:, :3], key[..., :4], key[0]):
        with pytest.raises(RuntimeError, match="of which the groups divide the heads"):
            telens_ops.attention_statistics(query, wrong, *options)
    with pytest.raises(RuntimeError, match="dtype"):
        telens_ops.attention_statistics(query, key.half(), *options)
