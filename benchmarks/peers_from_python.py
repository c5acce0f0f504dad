"""Attention, mixtures of experts and a Llama layer beside what a user would take in their place.

Prints a line of JSON a row: {"row": ..., "samples": {contender: seconds of each round}}. Argument:
the rounds.
"""

import json
import sys
import time

import torch

import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling

HIDDEN, HEADS, SEQUENCE, BATCH = 512, 8, 512, 2
LLAMA_TOKENS = 128  # torch's products in BF16 are slow where the processor has none
EXPERTS, ROWS = 8, 256  # rows of each expert
SIZE = HIDDEN // HEADS


def drawn(*sizes, dtype=torch.bfloat16, grad=True):
    return torch.randn(sizes, dtype=dtype).requires_grad_(grad)


def attention():
    """A causal attention of ours and LibTorch's, which has heads before the sequence."""
    ours = te.DotProductAttention(HEADS, SIZE, qkv_format="bshd", device="cpu")
    inputs = [drawn(BATCH, SEQUENCE, HEADS, SIZE, dtype=torch.float32) for _ in range(3)]

    def theirs(*tensors):
        heads = (tensor.transpose(1, 2) for tensor in tensors)
        out = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return out.transpose(1, 2).flatten(2)

    return {"telens": lambda: ours(*inputs), "torch": lambda: theirs(*inputs)}


def masked_attention():
    """A long sample, a tenth of it padding, under padding_causal; LibTorch gets the whole mask."""
    heads, sequence, length = 2, 4096, 3700
    ours = te.DotProductAttention(
        heads, SIZE, qkv_format="bshd", attn_mask_type="padding_causal", device="cpu"
    )
    inputs = [drawn(1, sequence, heads, SIZE, dtype=torch.float32) for _ in range(3)]
    padding = torch.arange(sequence).view(1, 1, 1, sequence) >= length
    own = ~padding & ~padding.transpose(2, 3)
    seen = torch.ones(sequence, sequence).tril().bool() & own

    def theirs(*tensors):
        parts = (tensor.transpose(1, 2) for tensor in tensors)
        out = torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=seen)
        return out.transpose(1, 2).flatten(2)

    return {
        "telens": lambda: ours(*inputs, attention_mask=padding),
        "torch": lambda: theirs(*inputs),
    }


def grouped_linear():
    """The products of 8 experts: one module, a loop over eight, one Linear of all rows."""
    grouped = te.GroupedLinear(EXPERTS, HIDDEN, HIDDEN, bias=False, device="cpu")
    loop = [torch.nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(EXPERTS)]
    whole = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
    x = drawn(EXPERTS * ROWS, HIDDEN, dtype=torch.float32)

    def one_by_one():
        parts = x.split(ROWS)
        return torch.cat([layer(part) for layer, part in zip(loop, parts, strict=True)])

    return {
        "telens": lambda: grouped(x, [ROWS] * EXPERTS),
        "loop": one_by_one,
        "one Linear": lambda: whole(x),
    }


def grouped_linear_in_fp8():
    """The same under current scaling, with few rows an expert: one module, and eight."""
    rows, hidden = 32, 128
    grouped = te.GroupedLinear(EXPERTS, hidden, hidden, bias=False, device="cpu")
    loop = [te.Linear(hidden, hidden, bias=False, device="cpu") for _ in range(EXPERTS)]
    x = drawn(EXPERTS * rows, hidden, dtype=torch.float32)
    recipe = Float8CurrentScaling()

    def as_one():
        with te.autocast(recipe=recipe):
            return grouped(x, [rows] * EXPERTS)

    def one_by_one():
        with te.autocast(recipe=recipe):
            parts = x.split(rows)
            return torch.cat([layer(part) for layer, part in zip(loop, parts, strict=True)])

    return {"telens": as_one, "loop": one_by_one}


def permutation():
    """Rows sorted by expert, each token to two of them; torch finds their places too."""
    x = drawn(EXPERTS * ROWS, 4 * HIDDEN)
    scores = torch.rand(EXPERTS * ROWS, EXPERTS)
    routing_map = torch.zeros_like(scores, dtype=torch.int32)
    routing_map.scatter_(1, scores.topk(2, 1).indices, 1)
    rows = int(routing_map.sum())
    return {
        "telens": lambda: te.moe_permute(x, routing_map, rows)[0],
        "torch": lambda: x.index_select(0, routing_map.t().nonzero()[:, 1]),
    }


class TorchLayer(torch.nn.Module):
    """A layer of Llama of torch's own modules."""

    def __init__(self, ffn):
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(HIDDEN, 1e-5) for _ in range(2))
        self.qkv, self.proj = (torch.nn.Linear(HIDDEN, n * HIDDEN, bias=False) for n in (3, 1))
        self.fc1 = torch.nn.Linear(HIDDEN, 2 * ffn, bias=False)
        self.fc2 = torch.nn.Linear(ffn, HIDDEN, bias=False)

    def forward(self, x):
        """[seq, batch, hidden]"""
        shape = (*x.shape[:2], HEADS, SIZE)
        parts = self.qkv(self.norms[0](x)).chunk(3, -1)
        heads = [part.view(shape).permute(1, 2, 0, 3) for part in parts]
        seen = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.proj(seen.permute(2, 0, 1, 3).flatten(2))
        gate, linear = self.fc1(self.norms[1](x)).chunk(2, -1)
        return x + self.fc2(torch.nn.functional.silu(gate) * linear)


def llama_layer():
    """A layer in FP8 beside one of torch in BF16; neither rotates its heads."""
    ffn = 1376
    ours = te.TransformerLayer(
        HIDDEN, ffn, HEADS, normalization="RMSNorm", activation="swiglu", bias=False,
        hidden_dropout=0, attention_dropout=0, params_dtype=torch.bfloat16, device="cpu",
        fuse_qkv_params=True,
    )  # fmt: skip
    theirs = TorchLayer(ffn).bfloat16()
    x = drawn(LLAMA_TOKENS, 1, HIDDEN)
    recipe = DelayedScaling()

    def in_fp8():
        with te.fp8_autocast(fp8_recipe=recipe):
            return ours(x)

    return {"telens": in_fp8, "torch": lambda: theirs(x)}


ROWS_OF = {
    "attention": attention,
    "masked attention": masked_attention,
    "grouped linear": grouped_linear,
    "grouped linear in FP8": grouped_linear_in_fp8,
    "permute": permutation,
    "llama layer": llama_layer,
}


def time_round(forward):
    """Seconds of a forward and its backward."""
    start = time.perf_counter()
    out = forward()
    middle = time.perf_counter()
    gradient = torch.ones_like(out)
    begin = time.perf_counter()
    out.backward(gradient)
    return middle - start + time.perf_counter() - begin


def main():
    torch.manual_seed(1)
    for row, make in ROWS_OF.items():
        contenders = make()
        samples = {name: [] for name in contenders}
        for forward in contenders.values():
            time_round(forward)
        for _ in range(int(sys.argv[1])):
            for name, forward in contenders.items():
                samples[name].append(time_round(forward))
        print(json.dumps({"row": row, "samples": samples}))


if __name__ == "__main__":
    main()
