"""Trainings with graphed callables and without, for a CPU with recorded graphs and for a GPU."""

import copy

import torch

import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling

RECIPES = {
    "none": None,
    "delayed": DelayedScaling(amax_history_len=4),
    "current": Float8CurrentScaling(),
}
ROWS, WIDTH = 32, 64


def make_layers(device, dtype=torch.float32):
    torch.manual_seed(3)
    kinds = (
        lambda **options: te.LayerNormLinear(WIDTH, WIDTH, **options),
        lambda **options: te.LayerNormMLP(WIDTH, 2 * WIDTH, **options),
        lambda **options: te.Linear(WIDTH, WIDTH, bias=False, **options),
    )
    return [make(device=device, params_dtype=dtype) for make in kinds]


def sample(device, dtype=torch.float32):
    return (torch.zeros(ROWS, WIDTH, device=device, dtype=dtype, requires_grad=True),)


def graphed(layers, recipe, device, dtype=torch.float32, **options):
    """The layers, with graphs."""
    return te.make_graphed_callables(
        tuple(layers),
        tuple(sample(device, dtype) for _ in layers),
        enabled=recipe is not None,
        recipe=recipe,
        **options,
    )


def inputs_of(step, device, dtype):
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(ROWS, WIDTH, generator=generator).to(device, dtype).requires_grad_()


def train(layers, recipe, device, dtype=torch.float32, steps=4, microbatches=1, flagged=False):
    """Outputs, gradients and parameters of all steps, and the layers' states at the end."""
    parameters = [p for each in layers for p in each.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    seen = []
    for step in range(steps):
        for microbatch in range(microbatches):
            x = inputs_of(step * microbatches + microbatch, device, dtype)
            out = x
            options = {"is_first_microbatch": microbatch == 0} if flagged else {}
            with te.autocast(enabled=recipe is not None, recipe=recipe):
                for layer in layers:
                    out = layer(out, **options)
            out.float().square().mean().backward()
            seen += [out.detach().clone(), x.grad.clone()]
        seen += [p.grad.clone() for p in parameters]
        optimizer.step()
        seen += [p.detach().clone() for p in parameters]
        optimizer.zero_grad()
    return seen + [each.get_extra_state() for each in layers]


# Two chunks of one layer, two micro-batches, interleaved.
ORDER = [1, 2, 1, 2, -2, -1, -2, -1]


def run_pipeline(calls, layers, recipe, device, dtype, steps=3, flagged=False):
    """Each step runs both micro-batches forward, then both backward; calls as ORDER returns them.

    With calls=None the layers themselves are called.
    """
    optimizer = torch.optim.SGD([p for each in layers for p in each.parameters()], lr=0.1)
    seen = []
    for step in range(steps):
        outs = []
        for microbatch in range(2):
            x = inputs_of(2 * step + microbatch, device, dtype)
            first, second = layers if calls is None else (calls[microbatch], calls[2 + microbatch])
            options = {"is_first_microbatch": microbatch == 0} if flagged else {}
            with te.autocast(enabled=recipe is not None, recipe=recipe):
                outs.append((x, second(first(x, **options), **options)))
        for x, out in outs:
            out.float().square().mean().backward()
            seen += [out.detach().clone(), x.grad.clone()]
        seen += [p.grad.clone() for each in layers for p in each.parameters()]
        optimizer.step()
        optimizer.zero_grad()
    return seen + [each.get_extra_state() for each in layers]


def graphed_pipeline(layers, recipe, device, dtype, **options):
    return te.make_graphed_callables(
        tuple(layers),
        tuple(sample(device, dtype) for _ in range(4)),
        enabled=recipe is not None,
        recipe=recipe,
        _order=ORDER,
        **options,
    )


def copies(layers):
    return copy.deepcopy(layers)


def assert_same(found, expected):
    for number, (one, two) in enumerate(zip(found, expected, strict=True)):
        assert torch.equal(one, two), f"tensor {number} of {len(expected)} differs"
