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
