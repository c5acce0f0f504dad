"""A training step under a recipe."""

import torch

import telens.pytorch as te


def forward(recipe) -> torch.Tensor:
    """The output of a Linear and all gradients of its step, one below the other."""
    torch.manual_seed(0)
    layer = te.Linear(64, 64, device="cpu")
    x = torch.randn(32, 64, requires_grad=True)
    with te.autocast(recipe=recipe):
        y = layer(x)
    y.backward(torch.randn_like(y))
    return torch.cat([y, x.grad, layer.weight.grad])
