"""A training step with a recipe."""

import torch

import telens.pytorch as te


def forward(recipe) -> torch.Tensor:
    """Returns the output of a Linear and all gradients of its step, stacked along the rows."""
    torch.manual_seed(0)
    layer = te.Linear(64, 64, device="cpu")
    x = torch.randn(32, 64, requires_grad=True)
    with te.autocast(recipe=recipe):
        y = layer(x)
    y.backward(torch.randn_like(y))
    return torch.cat([y, x.grad, layer.weight.grad])
