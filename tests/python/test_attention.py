"""DotProductAttention's masks, windows, biases and softmaxes against FP64 (attention_reference.py),
and the modules around it."""

import random

import pytest
import torch
from attention_reference import allowed_pairs, attend, slopes_of_alibi

import telens
import telens.pytorch as te

MASKS = [
    "no_mask", "padding", "causal", "padding_causal", "causal_bottom_right",
    "padding_causal_bottom_right", "arbitrary",
]  # fmt: skip
BIASES = ["no_bias", "pre_scale_bias", "post_scale_bias", "alibi", "alibi with slopes"]
SOFTMAXES = ["vanilla", "off-by-one", "learnable"]
CASES = 250
SIZE, VALUE_SIZE, HEADS = 4, 6, 6


def drawn_case(number):
    draw = random.Random(number)
    mask = MASKS[number % len(MASKS)]
    causal = "causal" in mask
    seq_q, seq_kv = draw.randint(1, 7), draw.randint(1, 9)
    window = (draw.choice([-1, 0, 2]), 0) if causal else draw.choice([(-1, -1), (1, 2), (0, 0)])
    padded = mask.startswith("padding")
    case = {
        "mask": mask,
        "seq": (seq_q, seq_kv),
        "lengths": [
            [draw.randint(0, seq) if padded else seq for _ in range(2)] for seq in (seq_q, seq_kv)
        ],
        "window": draw.choice([None, window]),
        "bottom_right": draw.choice([None, True, False]),
        "bias": BIASES[draw.randrange(len(BIASES))],
        "softmax": SOFTMAXES[draw.randrange(len(SOFTMAXES))],
        "groups": draw.choice([1, 2, 6]),
        "format": draw.choice(["sbhd", "bshd", "thd"] if padded else ["sbhd", "bshd"]),
        "scale": draw.choice([None, 0.3]),
    }
    # cu_seqlens of sequences in batches stand in for a mask of padding.
    case["by_lengths"] = padded and (case["format"] == "thd" or draw.random() < 0.5)
    case["gap"] = draw.choice([0, 3]) if case["format"] == "thd" else 0
    case["checkpoint"] = draw.random() < 0.3
    return case


def sums_of(lengths, gap=0):
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32) + (
        torch.arange(len(lengths) + 1, dtype=torch.int32) * gap
    )


def packed(tensor, lengths, gap):
    """[batch, seq, ...] -> [tokens, ...], garbage in the gaps."""
    between = torch.full((gap, *tensor.shape[2:]), 9.0, dtype=tensor.dtype)
    return torch.cat(
        [part for x, n in zip(tensor, lengths, strict=True) for part in (x[:n], between)]
    )


class Case:
    """One drawn case: what the module gets, and what FP64 makes of it."""

    def __init__(self, number):
        torch.manual_seed(number)
        self.of = drawn_case(number)
        seq_q, seq_kv = self.of["seq"]
        groups = self.of["groups"]
        self.leaves = [
            torch.randn(2, seq_q, HEADS, SIZE, dtype=torch.float64),
            torch.randn(2, seq_kv, groups, SIZE, dtype=torch.float64),
            torch.randn(2, seq_kv, groups, VALUE_SIZE, dtype=torch.float64),
        ]
        self.arbitrary = torch.rand(2, 1, seq_q, seq_kv) < 0.4
        self.sink = torch.randn(HEADS, dtype=torch.float64) * 2
        self.bias = torch.randn(1, HEADS, seq_q, seq_kv, dtype=torch.float64)
        self.slopes = torch.rand(2, HEADS, dtype=torch.float64)
        self.grad = torch.randn(2, seq_q, HEADS * VALUE_SIZE, dtype=torch.float64)
        if self.of["format"] == "thd":  # whose padding is not there to get gradients
            for row, length in zip(self.grad, self.of["lengths"][0], strict=True):
                row[length:] = 0

    def bias_of_scores(self, bias, distances, scale):
        kind = self.of["bias"]
        if kind == "no_bias":
            return 0.0
        if kind.startswith("alibi"):
            slopes = slopes_of_alibi(HEADS) if kind == "alibi" else self.slopes
            return -slopes.view(-1, HEADS, 1, 1) * distances.abs()
        return bias * scale if kind == "pre_scale_bias" else bias

    def expected(self):
        of = self.of
        leaves = [t.clone().requires_grad_() for t in self.leaves]
        bias, sink = self.bias.clone().requires_grad_(), self.sink.clone().requires_grad_()
        allowed, distances = allowed_pairs(
            of["mask"], of["window"] or (-1, -1), of["bottom_right"] is not False,
            (*of["lengths"], *of["seq"]), self.arbitrary if of["mask"] == "arbitrary" else None,
        )  # fmt: skip
        scale = of["scale"] or SIZE**-0.5
        term = {"vanilla": None, "off-by-one": torch.zeros(HEADS).double(), "learnable": sink}
        out, largest = attend(
            *leaves, allowed, self.bias_of_scores(bias, distances, scale), scale,
            term[of["softmax"]],
        )  # fmt: skip
        (out * self.grad).sum().backward()
        return out.detach(), largest.detach(), [t.grad for t in (*leaves, bias, sink)]

    def arguments(self, bias):
        of = self.of
        arguments = {"attn_mask_type": of["mask"], "qkv_format": of["format"]}
        if of["mask"] == "arbitrary":
            arguments["attention_mask"] = self.arbitrary
        if of["format"] == "thd":  # so that biases fit
            arguments["max_seqlen_q"], arguments["max_seqlen_kv"] = of["seq"]
        if of["by_lengths"]:
            for name, lengths in zip(["q", "kv"], of["lengths"], strict=True):
                arguments[f"cu_seqlens_{name}"] = sums_of(lengths)
                if of["gap"]:
                    arguments[f"cu_seqlens_{name}_padded"] = sums_of(lengths, of["gap"])
        elif of["mask"].startswith("padding"):
            arguments["attention_mask"] = tuple(
                (torch.arange(seq) >= torch.tensor(lengths)[:, None])[:, None, None]
                for seq, lengths in zip(of["seq"], of["lengths"], strict=True)
            )
        kind = of["bias"]
        arguments["core_attention_bias_type"] = kind.split(" ")[0]
        if kind.endswith("scale_bias"):
            arguments["core_attention_bias"] = bias
        if kind == "alibi with slopes":
            arguments["alibi_slopes"] = self.slopes.float()
        arguments["checkpoint_core_attention"] = of["checkpoint"]
        return arguments

    def laid_out(self, tensors):
        of = self.of
        if of["format"] == "thd":
            lengths = (of["lengths"][0], of["lengths"][1], of["lengths"][1])
            return [packed(t, n, of["gap"]) for t, n in zip(tensors, lengths, strict=True)]
        return [t.transpose(0, 1) if of["format"] == "sbhd" else t for t in tensors]

    def back(self, out):
        """[batch, seq, ...] of the module's output; padding 0."""
        of = self.of
        if of["format"] != "thd":
            return out.transpose(0, 1) if of["format"] == "sbhd" else out
        padded = torch.zeros_like(self.grad, dtype=out.dtype)
        starts = sums_of(of["lengths"][0], of["gap"]).tolist()
        for b, length in enumerate(of["lengths"][0]):
            padded[b, :length] = out[starts[b] : starts[b] + length]
        return padded

    def actual(self, dtype=torch.float32):
        of = self.of
        module = te.DotProductAttention(
            HEADS, (SIZE, VALUE_SIZE), of["groups"], softmax_scale=of["scale"],
            softmax_type=of["softmax"], return_max_logit=True, window_size=of["window"],
            bottom_right_diagonal=of["bottom_right"],
        )  # fmt: skip
        if of["softmax"] == "learnable":
            module.softmax_offset.data.copy_(self.sink.view(1, HEADS, 1, 1))
        leaves = [t.to(dtype).requires_grad_() for t in self.leaves]
        bias = self.bias.to(dtype).requires_grad_()
        out, largest = module(*self.laid_out(leaves), **self.arguments(bias))
        out = self.back(out)
        (out * self.grad).sum().backward()
        sink = None if of["softmax"] != "learnable" else module.softmax_offset.grad.flatten()
        return out.detach(), largest, [*(t.grad for t in leaves), bias.grad, sink]


@pytest.mark.parametrize("number", range(CASES))
def test_drawn_cases_are_those_of_fp64(number):
    case = Case(number)
    out, largest, grads = case.expected()
    actual, actual_largest, actual_grads = case.actual()
    # Sums of at most 10 scores of at most 40 in FP32: 2^-24 * 40 * 10 of numbers around 1.
    close = {"rtol": 1e-4, "atol": 1e-4, "check_dtype": False}
    torch.testing.assert_close(actual, out, **close, msg=lambda text: f"{case.of}\n{text}")
    torch.testing.assert_close(actual_largest, largest, **close)
    for name, grad, expected in zip(
        ["q", "k", "v", "bias", "sink"], actual_grads, grads, strict=True
    ):
        if grad is None:
            assert name in ("bias", "sink")
            continue
        torch.testing.assert_close(
            grad, torch.zeros_like(grad).double() if expected is None else expected, **close,
            msg=lambda text, name=name: f"{name} of {case.of}\n{text}",
        )  # fmt: skip


def test_a_bias_keeps_its_digits_beside_tensors_in_bf16():
    heads, seq = 4, 600
    query = torch.zeros(seq, 1, heads, 8, dtype=torch.bfloat16)
    value = torch.zeros(seq, 1, heads, 8, dtype=torch.bfloat16)
    value[0] = 1
    module = te.DotProductAttention(heads, 8, attn_mask_type="no_mask")
    slopes = torch.full((heads,), 2.0**-6)
    out = module(query, query, value, core_attention_bias_type="alibi", alibi_slopes=slopes)
    distances = torch.arange(seq).double()
    weights = (-(distances[:, None] - distances).abs() * 2.0**-6).softmax(-1)[:, 0]
    # A distance of 513 has ten digits, BF16 eight: rounded, its weight would be off by 3 %.
    torch.testing.assert_close(out[:, 0, 0].double(), weights, rtol=2**-7, atol=1e-6)


def test_checkpointed_attention_draws_the_same_dropout_and_has_the_same_bits():
    module = te.DotProductAttention(4, 8, attention_dropout=0.5)

    def run(checkpoint):
        torch.manual_seed(3)
        qkv = [torch.randn(16, 2, 4, 8, requires_grad=True) for _ in range(3)]
        out = module(*qkv, checkpoint_core_attention=checkpoint)
        torch.rand(1)  # the model draws between the forward and the backward
        out.square().sum().backward()
        return [out, *(t.grad for t in qkv), torch.rand(3)]

    assert all(map(torch.equal, run(False), run(True)))


def test_windows_and_biases_that_do_not_fit_are_refused():
    qkv = [torch.zeros(4, 2, 2, 8)] * 3
    module = te.DotProductAttention(2, 8, attn_mask_type="no_mask")
    with pytest.raises(telens.UsageError, match=r"window_size is \(3, -1\)"):
        module(*qkv, window_size=(3, -1))
    with pytest.raises(telens.UsageError, match="post_scale_bias needs core_attention_bias"):
        module(*qkv, core_attention_bias_type="post_scale_bias")
    with pytest.raises(telens.UsageError, match="'pre' is unknown"):
        module(*qkv, core_attention_bias_type="pre")
    with pytest.raises(telens.UsageError, match="softmax_type 'none' is unknown"):
        te.DotProductAttention(2, 8, softmax_type="none")
    with pytest.raises(telens.UsageError, match="thd needs cu_seqlens_q and a padding mask"):
        module(torch.zeros(4, 2, 8), torch.zeros(4, 2, 8), torch.zeros(4, 2, 8), qkv_format="thd")
    wide = module(*qkv, attn_mask_type="causal", window_size=(2, 5))
    assert torch.equal(wide, module(*qkv, attn_mask_type="causal", window_size=(2, 0)))


# ---------------------------------------------------------------- modules around it


def head_norm(kind, eps, weight=None):
    def divided(x):
        if kind == "L2Normalization":
            return x * (x.square().sum(-1, keepdim=True) + eps).rsqrt()
        if kind == "RMSNorm":
            return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, None, eps)

    return divided


def rotated(x, angles):
    first, second = x.chunk(2, -1)
    turned = torch.cat([-second, first], -1)
    phase = angles[: x.size(0)]
    return x * phase.cos() + turned * phase.sin()


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("kind", ["L2Normalization", "RMSNorm", "LayerNorm"])
def test_query_and_key_are_normalized_head_by_head(kind, before):
    module = te.MultiheadAttention(
        32, 4, num_gqa_groups=2, attention_dropout=0.0, qk_norm_type=kind,
        qk_norm_before_rope=before, device="cpu",
    )  # fmt: skip
    names = [name for name, _ in module.named_parameters() if "norm" in name]
    assert ("q_norm.weight" in names) == (kind != "L2Normalization")
    norms = []
    for child in ("q_norm", "k_norm"):
        weight = None
        if kind != "L2Normalization":
            weight = getattr(module, child).weight
            torch.nn.init.uniform_(weight, 0.5, 2)
        norms.append(head_norm(kind, 1e-6, weight))
    x = torch.randn(6, 2, 32)
    angles = te.RotaryPositionEmbedding(8)(6)
    qkv = module.qkv(x)
    query, key, value = qkv.unflatten(-1, (8, 8)).split([4, 2, 2], -2)
    for norm in norms[:1] if before else []:
        query = norm(query)
        key = norms[1](key)
    query, key = rotated(query, angles), rotated(key, angles)
    if not before:
        query, key = norms[0](query), norms[1](key)
    expected = module.proj(te.DotProductAttention(4, 8, 2)(query, key, value))
    torch.testing.assert_close(module(x, rotary_pos_emb=angles), expected, rtol=1e-5, atol=1e-5)


def test_a_path_is_dropped_for_whole_positions_and_only_in_training():
    torch.manual_seed(1)
    layer = te.TransformerLayer(
        32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0, drop_path_rate=0.5, device="cpu"
    )
    x = torch.randn(400, 2, 32)
    whole = layer.eval()(x)
    assert torch.equal(whole, layer(x))
    dropped = layer.train()(x)
    # A position of which both branches were dropped is the input's, for all samples: a quarter.
    kept = (dropped == x).all(-1)
    assert torch.equal(kept[:, 0], kept[:, 1])
    assert 0.15 < kept[:, 0].float().mean() < 0.35


def test_a_decoder_takes_windows_biases_and_packed_sequences():
    torch.manual_seed(2)
    layer = te.TransformerLayer(
        32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0, layer_type="decoder",
        window_size=(2, 0), enc_dec_window_size=(1, 1), device="cpu",
    )  # fmt: skip
    x, memory = torch.randn(8, 2, 32), torch.randn(8, 2, 32)
    plain = layer(x, encoder_output=memory)
    given = layer(x, encoder_output=memory, window_size=(2, 0), enc_dec_window_size=(1, 1))
    assert torch.equal(plain, given)
    assert not torch.equal(plain, layer(x, encoder_output=memory, window_size=(7, 0)))
    assert not torch.equal(plain, layer(x, encoder_output=memory, enc_dec_window_size=(3, 3)))
    packed_layer = te.TransformerLayer(
        32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0, attn_input_format="thd",
        self_attn_mask_type="padding_causal", window_size=(2, 0), device="cpu",
    )  # fmt: skip
    one = te.TransformerLayer(
        32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0, window_size=(2, 0), device="cpu"
    )
    one.load_state_dict(packed_layer.state_dict())
    tokens = torch.randn(7, 32)
    sums = torch.tensor([0, 3, 7], dtype=torch.int32)
    out = packed_layer(tokens, cu_seqlens_q=sums, cu_seqlens_kv=sums)
    parts = [one(part.unsqueeze(1)).squeeze(1) for part in tokens.split([3, 4])]
    torch.testing.assert_close(out, torch.cat(parts), rtol=1e-5, atol=1e-5)


def test_cross_attention_gets_the_rotary_embedding_too():
    torch.manual_seed(3)
    layer = te.TransformerLayer(
        32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0, layer_type="decoder", device="cpu"
    )
    x, memory = torch.randn(8, 2, 32), torch.randn(8, 2, 32)
    angles = te.RotaryPositionEmbedding(8)(8)
    seen = {}
    layer.inter_attention.register_forward_pre_hook(
        lambda module, args, kwargs: seen.update(kwargs), with_kwargs=True
    )
    layer(x, encoder_output=memory, rotary_pos_emb=angles)
    given = seen["rotary_pos_emb"]
    assert torch.equal(given if isinstance(given, torch.Tensor) else given[0], angles)


# ---------------------------------------------------------------- rotary angles


def test_rotary_angles_have_the_references_percent_and_interpolation():
    whole = te.RotaryPositionEmbedding(8)(6)
    by_hand = torch.arange(6.0)[:, None] * 10000.0 ** (-torch.arange(0, 8, 2) / 8)
    torch.testing.assert_close(whole[:, 0, 0], by_hand.repeat(1, 2))
    assert torch.equal(te.RotaryPositionEmbedding(16, 0.5)(6), whole)
    assert torch.equal(te.RotaryPositionEmbedding(8)(4, offset=2), whole[2:])
    # Twice as long as was trained: positions at half of their distance; longer: squeezed to 4.
    halved = te.RotaryPositionEmbedding(8, 1.0, 2.0, 4)
    torch.testing.assert_close(halved(8), te.RotaryPositionEmbedding(8)(8) / 2)
    torch.testing.assert_close(halved(12), te.RotaryPositionEmbedding(8)(12) / 3)
    assert torch.equal(te.RotaryPositionEmbedding(8, 1.0, 2.0)(6), whole)
    base = te.RotaryPositionEmbedding(8, 1.0, None, None, 4.0)(6)
    torch.testing.assert_close(base[:, 0, 0, 1], torch.arange(6.0) * 4.0**-0.25)
    with pytest.raises(telens.UsageError, match="interleaved must be False"):
        te.RotaryPositionEmbedding(8, interleaved=True)
    with pytest.raises(telens.UsageError, match="rotary_percent must be above 0"):
        te.RotaryPositionEmbedding(8, 10000.0)


# ---------------------------------------------------------------- what does not fit


def sums(*values):
    return torch.tensor(values, dtype=torch.int32)


def test_lengths_heads_and_biases_that_do_not_fit_are_refused():
    module = te.DotProductAttention(4, 8, 2, attn_mask_type="no_mask")
    q, k = torch.zeros(4, 2, 4, 8), torch.zeros(6, 2, 2, 8)
    with pytest.raises(telens.ShapeError, match="expected as many positions"):
        module(q, k, k[:5])
    with pytest.raises(telens.ShapeError, match="kv_channels"):
        module(q[..., :6], k[..., :6], k)
    for shape in ((3, 4, 6), (6,), (3, 1, 4, 6)):
        with pytest.raises(telens.ShapeError, match=r"broadcasts to .* \[2, 4, 4, 6\]"):
            module(
                q, k, k, core_attention_bias_type="post_scale_bias",
                core_attention_bias=torch.zeros(shape),
            )  # fmt: skip
    mask = torch.zeros(1, 1, 4, 6, dtype=torch.bool)
    with pytest.raises(telens.UsageError, match="arbitrary takes one attention_mask; got 2"):
        module(q, k, k, attn_mask_type="arbitrary", attention_mask=(mask, mask))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cu_seqlens_q": sums(0, 3, 9)}, "end within the 7 tokens; .* ends at 9"),
        ({"cu_seqlens_q": sums(0, 3, 9), "max_seqlen_q": 6}, "end within the 7 tokens"),
        ({"cu_seqlens_q": sums(0, 5, 3)}, "the smallest is -2"),
        ({"cu_seqlens_kv": sums(0, 3)}, "2 sequences and cu_seqlens_kv 1"),
        ({"cu_seqlens_q_padded": sums(0, 3)}, "3 numbers and cu_seqlens_q_padded 2"),
        ({"query_layer": torch.zeros(7, 3, 8)}, "query_layer is .* 4 heads"),
        ({"key_layer": torch.zeros(7, 4, 8)}, "key_layer is .* 2 heads"),
        ({"value_layer": torch.zeros(6, 2, 8)}, "expected as many positions"),
    ],
)
def test_packed_sequences_that_do_not_fit_are_refused(arguments, message):
    module = te.DotProductAttention(4, 8, 2, attn_mask_type="padding", qkv_format="thd")
    given = {"query_layer": torch.zeros(7, 4, 8), "cu_seqlens_q": sums(0, 3, 7)}
    given |= {"key_layer": torch.zeros(7, 2, 8), "value_layer": torch.zeros(7, 2, 8)}
    module(**given)
    with pytest.raises(telens.ShapeError, match=message):
        module(**given | arguments)


@pytest.mark.parametrize("rate", [-0.5, 1.5, float("nan")])
def test_rates_are_probabilities(rate):
    made = {"device": "cpu"}
    for option in ("hidden_dropout", "attention_dropout", "drop_path_rate"):
        with pytest.raises(telens.UsageError, match=f"{option} is .*; expected a probability"):
            te.TransformerLayer(32, 64, 4, **{option: rate}, **made)
    with pytest.raises(telens.UsageError, match="expected a probability"):
        te.MultiheadAttention(32, 4, attention_dropout=rate, **made)
    with pytest.raises(telens.UsageError, match="expected a probability"):
        te.DotProductAttention(4, 8, attention_dropout=rate)


def test_a_path_that_is_always_dropped_leaves_the_input():
    layer = te.TransformerLayer(32, 64, 4, drop_path_rate=1.0, device="cpu")
    x = torch.randn(4, 2, 32)
    assert torch.equal(layer(x), x)


def test_a_kept_path_is_divided_by_its_probability():
    torch.manual_seed(5)
    made = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "parallel_attention_mlp": True}
    layer = te.TransformerLayer(32, 64, 4, drop_path_rate=0.75, device="cpu", **made)
    x = torch.randn(64, 2, 32)
    added = layer.eval()(x) - x
    dropped = layer.train()(x) - x
    kept = (dropped != 0).any(-1)[:, 0]
    assert 0 < kept.sum() < 64
    torch.testing.assert_close(dropped[kept], added[kept] * 4, rtol=1e-4, atol=1e-5)


def test_angles_that_do_not_fit_are_refused_and_fp64_keeps_its_digits():
    layer = te.MultiheadAttention(
        32, 4, attention_dropout=0.0, device="cpu", params_dtype=torch.float64
    )
    x, angles = torch.randn(6, 2, 32, dtype=torch.float64), te.RotaryPositionEmbedding(8)(6)
    for wrong in (angles[:, 0, 0], angles.expand(6, 3, 1, 8), angles.expand(6, 1, 4, 8)):
        with pytest.raises(telens.ShapeError, match=r"expected \[seq, 1 or 2, 1, channels\]"):
            layer(x, rotary_pos_emb=wrong)
    qkv = layer.qkv(x).unflatten(-1, (12, 8)).split([4, 4, 4], -2)
    query, key = (rotated(each, angles.double()) for each in qkv[:2])
    expected = layer.proj(te.DotProductAttention(4, 8)(query, key, qkv[2]))
    torch.testing.assert_close(layer(x, rotary_pos_emb=angles), expected, rtol=1e-12, atol=1e-13)


def test_a_decoders_self_attention_has_the_lengths_of_its_own_tokens():
    torch.manual_seed(6)
    layer = te.TransformerLayer(
        32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0, layer_type="decoder",
        attn_input_format="thd", self_attn_mask_type="padding_causal",
        enc_dec_attn_mask_type="padding", device="cpu",
    )  # fmt: skip
    x, memory = torch.randn(7, 32), torch.randn(9, 32)
    out = layer(
        x, encoder_output=memory, cu_seqlens_q=sums(0, 3, 7), cu_seqlens_kv=sums(0, 5, 9),
        max_seqlen_q=4, max_seqlen_kv=5,
    )  # fmt: skip
    parts = [
        layer(
            own, encoder_output=encoded, cu_seqlens_q=sums(0, len(own)),
            cu_seqlens_kv=sums(0, len(encoded)),
        )
        for own, encoded in zip(x.split([3, 4]), memory.split([5, 4]), strict=True)
    ]  # fmt: skip
    torch.testing.assert_close(out, torch.cat(parts), rtol=1e-5, atol=1e-5)
    seen = {}
    layer.self_attention.core_attention.register_forward_pre_hook(
        lambda module, args, kwargs: seen.update(kwargs), with_kwargs=True
    )
    layer(x, encoder_output=memory, cu_seqlens_q=sums(0, 3, 7), cu_seqlens_kv=sums(0, 5, 9))
    assert torch.equal(seen["cu_seqlens_kv"], sums(0, 3, 7))


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_bias_keeps_its_digits_under_autocast(checkpoint):
    heads, seq = 4, 600
    zeros, value = torch.zeros(2, seq, 1, heads, 8)
    value[0] = 1
    module = te.DotProductAttention(heads, 8, attn_mask_type="no_mask", return_max_logit=True)
    slopes = torch.full((heads,), 2.0**-6)
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = module(
            zeros, zeros, value, core_attention_bias_type="alibi", alibi_slopes=slopes,
            checkpoint_core_attention=checkpoint,
        )  # fmt: skip
    assert out.dtype == torch.bfloat16
    distances = torch.arange(seq).double()
    weights = (-(distances[:, None] - distances).abs() * 2.0**-6).softmax(-1)[:, 0]
    torch.testing.assert_close(out[:, 0, 0].double(), weights, rtol=2**-7, atol=1e-6)


def test_the_largest_score_of_many_queries_and_of_no_sample():
    torch.manual_seed(7)
    module = te.DotProductAttention(2, 8, return_max_logit=True)
    q, k, v = torch.randn(3, 300, 1, 2, 8)
    q[290, 0, 1] = 20 * k[5, 0, 1]
    scores = torch.einsum("qbhd,kbhd->bhqk", q.double(), k.double()) / 8**0.5
    scores = scores.masked_fill(~torch.ones(300, 300).tril().bool(), -torch.inf)
    largest = module(q, k, v)[1]
    torch.testing.assert_close(largest.double(), scores.amax((0, 2, 3)), rtol=1e-5, atol=1e-5)
    out, largest = module(q[:, :0], k[:, :0], v[:, :0])
    assert out.shape == (300, 0, 16)
    assert (largest == -torch.inf).all()


def test_a_checkpoint_has_the_same_bits_with_what_else_is_learned():
    q, k, v = torch.randn(3, 40, 1, 2, 8)
    module = te.DotProductAttention(2, 8, softmax_type="learnable")
    bias = torch.randn(1, 2, 40, 40, requires_grad=True)
    arguments = {"core_attention_bias_type": "post_scale_bias", "core_attention_bias": bias}
    plain = module(q, k, v, **arguments)
    checkpointed = module(q, k, v, checkpoint_core_attention=True, **arguments)
    assert torch.equal(plain, checkpointed)
    q.requires_grad_()
    nothing = module(q, k[:0], v[:0], checkpoint_core_attention=True)
    nothing.sum().backward()
    assert torch.equal(nothing, torch.zeros(40, 1, 16))
