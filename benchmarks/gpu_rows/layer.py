"""A transformer layer of Llama 7B's shape, forward and backward: 4096, 11008, 32 heads, batch 4 x
2048, delayed scaling, against the same layer of torch's modules in BF16 and in torchao's float8."""

import torch
from torch.nn import functional

from gpu_rows.bench import Bench, fp8
from gpu_rows.float8_peer import to_float8
from gpu_rows.linear import training_step
from gpu_rows.row import Measured, Row, at_least


class TorchLayer(torch.nn.Module):
    """Pre-norm attention and SwiGLU, each with its residual; [batch, sequence, hidden]."""

    def __init__(self, bench: Bench):
        super().__init__()
        sizes = bench.sizes
        self.heads = sizes.heads
        options = {"dtype": torch.bfloat16, "device": bench.device}

        def linear(inputs, outputs):
            return torch.nn.Linear(inputs, outputs, bias=False, **options)

        self.attention_norm = torch.nn.RMSNorm(sizes.hidden, eps=1e-5, **options)
        self.qkv = linear(sizes.hidden, 3 * sizes.hidden)
        self.proj = linear(sizes.hidden, sizes.hidden)
        self.mlp_norm = torch.nn.RMSNorm(sizes.hidden, eps=1e-5, **options)
        self.fc1 = linear(sizes.hidden, 2 * sizes.ffn)
        self.fc2 = linear(sizes.ffn, sizes.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, hidden = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, sequence, 3, self.heads, -1)
        query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, sequence, hidden))
        gate, up = self.fc1(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.fc2(functional.silu(gate) * up)


def our_layer(bench: Bench, name: str = "layer"):
    import telens.pytorch as te

    sizes = bench.sizes
    return te.TransformerLayer(
        sizes.hidden,
        sizes.ffn,
        sizes.heads,
        hidden_dropout=0,
        attention_dropout=0,
        fuse_qkv_params=True,
        bias=False,
        activation="swiglu",
        normalization="RMSNorm",
        params_dtype=torch.bfloat16,
        device=bench.device,
        name=name,
    )


def our_tensors(bench: Bench) -> tuple[torch.Tensor, torch.Tensor]:
    """Input and gradient, [sequence, batch, hidden]."""
    shape = (bench.sizes.sequence, bench.sizes.batch, bench.sizes.hidden)
    return bench.randn(*shape, requires_grad=True), bench.randn(*shape)


def operations(bench: Bench) -> float:
    """Of the products of the linear layers, forwards and backwards; attention's left out."""
    sizes = bench.sizes
    weights = sizes.hidden * (4 * sizes.hidden + 3 * sizes.ffn)
    return 3 * 2.0 * sizes.sequence * sizes.batch * weights


def against(bench: Bench, peer: torch.nn.Module) -> Measured:
    x, gradient = our_tensors(bench)
    ours = training_step(our_layer(bench), x, gradient, fp8)
    batch_first, its_gradient = (t.detach().transpose(0, 1).contiguous() for t in (x, gradient))
    theirs = training_step(peer, batch_first.requires_grad_(), its_gradient)
    return bench.against(ours, theirs, operations(bench))


LAYER = "transformer layer of Llama 7B's shape, forward and backward, delayed scaling"
ROWS = [
    Row(
        f"{LAYER}, against BF16",
        "the same layer of torch's modules in BF16",
        lambda bench: against(bench, TorchLayer(bench)),
        at_least(1.35),
    ),
    Row(
        f"{LAYER}, against torchao",
        "the same layer with torchao's float8 Linears (tensorwise, compiled)",
        lambda bench: against(bench, to_float8(bench, TorchLayer(bench))),
        at_least(1),
    ),
    Row(
        f"{LAYER}, against compiled BF16",
        "the same layer of torch's modules in BF16, compiled",
        lambda bench: against(bench, bench.compiled(TorchLayer(bench))),
    ),
]
