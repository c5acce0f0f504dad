"""Random cases of DotProductAttention: arguments of the module and the expected FP64 results."""

import random

import torch
from attention_reference import allowed_pairs, attend, slopes_of_alibi

import telens.pytorch as te

MASKS = [
    "no_mask", "padding", "causal", "padding_causal", "causal_bottom_right",
    "padding_causal_bottom_right", "arbitrary",
]  # fmt: skip
BIASES = ["no_bias", "pre_scale_bias", "post_scale_bias", "alibi", "alibi with slopes"]
SOFTMAXES = ["vanilla", "off-by-one", "learnable"]
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
    # For batches, cu_seqlens may replace a padding mask.
    case["by_lengths"] = padded and (case["format"] == "thd" or draw.random() < 0.5)
    case["gap"] = draw.choice([0, 3]) if case["format"] == "thd" else 0
    case["checkpoint"] = draw.random() < 0.3
    return case


def sums_of(lengths, gap=0):
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32) + (
        torch.arange(len(lengths) + 1, dtype=torch.int32) * gap
    )


def packed(tensor, lengths, gap):
    """[batch, seq, ...] -> [tokens, ...], with arbitrary values in the gaps."""
    between = torch.full((gap, *tensor.shape[2:]), 9.0, dtype=tensor.dtype)
    return torch.cat(
        [part for x, n in zip(tensor, lengths, strict=True) for part in (x[:n], between)]
    )


class Case:
    """One random case: the arguments of the module and the expected results in FP64."""

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
        """The module's output as [batch, seq, ...], with 0 at padding."""
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
