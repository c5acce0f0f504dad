"""Trainings with and without graphed callables, for a CPU with recorded graphs and for a GPU."""

import contextlib
import copy

import pytest
import torch
from same_tensors import assert_same

import telens
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


def make_stored(recipe, device, dtype=torch.float32):
    """A layer whose weight is stored as codes."""
    torch.manual_seed(4)
    with te.fp8_model_init(recipe=recipe):
        return te.Linear(WIDTH, WIDTH, device=device, params_dtype=dtype)


def moves_of(recipe, device, dtype):
    """{name: how a stored weight gets other memory, or another dtype with the same codes}."""
    other = make_stored(recipe, device, dtype)

    def take_data(layer):
        layer.weight.data = other.weight.data

    def take_values(layer):
        layer.weight.data = torch.zeros(WIDTH, WIDTH, device=device, dtype=dtype)

    def change_dtype(layer):
        rebuild, (state, *rest) = layer.weight.detach().__reduce_ex__(2)
        state = [torch.float16 if each is dtype else each for each in state]
        layer.weight.data = rebuild(state, *rest)

    return {"codes": take_data, "values": take_values, "dtype": change_dtype}


def check_stored_weights_that_move(recipe, device, dtype, move):
    """Weights may change in place. If they have moved to other memory, a call raises an error."""
    layer, plain = (make_stored(recipe, device, dtype) for _ in range(2))
    te.make_graphed_callables(layer, sample(device, dtype), enabled=True, recipe=recipe)
    expected = train([plain], recipe, device, dtype, steps=2)
    assert_same(train([layer], recipe, device, dtype, steps=2), expected)
    x = inputs_of(7, device, dtype)
    move(layer)
    message = "its parameters have moved since the capture; .*stored weights by quantize_"
    with pytest.raises(telens.UsageError, match=message):
        layer(x)


class Forked(torch.nn.Module):
    """A module that is not of this package and draws random numbers from a tracker."""

    def __init__(self, tracker):
        super().__init__()
        self._telens_get_tracker = lambda: tracker

    def forward(self, x):
        with self._telens_get_tracker().fork():
            y = torch.nn.functional.dropout(x, 0.5)
        return y + torch.rand_like(x)


class Reads(torch.nn.Module):
    """Reads a value on the host, which a graph cannot capture. With a tracker, it draws numbers
    before.
    """

    def __init__(self, tracker=None):
        super().__init__()
        if tracker is not None:
            self._telens_get_tracker = lambda: tracker

    def forward(self, x):
        get_tracker = self.__dict__.get("_telens_get_tracker")
        with contextlib.nullcontext() if get_tracker is None else get_tracker().fork():
            y = x if get_tracker is None else torch.nn.functional.dropout(x, 0.5)
            return y * x.sum().item()


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
    """Returns the outputs, gradients and parameters of all steps, and the final states of the
    layers.
    """
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


def make_delayed(device, dtype=torch.float32, fuse_wgrad_accumulation=False):
    """Layers whose weight gradients are computed in backward_dw; with main_grad if they are
    fused.
    """
    torch.manual_seed(3)
    options = {
        "delay_wgrad_compute": True,
        "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
        "device": device,
        "params_dtype": dtype,
    }
    layers = [te.LayerNormMLP(WIDTH, 2 * WIDTH, **options), te.Linear(WIDTH, WIDTH, **options)]
    for p in (p for each in layers for p in each.parameters()):
        if fuse_wgrad_accumulation and p.dim() == 2:
            p.main_grad = torch.zeros(p.shape, device=device)
    return layers


def train_delayed(layers, recipe, device, dtype=torch.float32, flagged=False):
    """Returns outputs, gradients and states. Each backward_dw is called after a whole backward."""
    parameters = [p for each in layers for p in each.parameters()]
    seen = []
    for step in range(3):
        for microbatch in range(2):
            x = inputs_of(2 * step + microbatch, device, dtype)
            options = {"is_first_microbatch": microbatch == 0} if flagged else {}
            with te.autocast(enabled=recipe is not None, recipe=recipe):
                out = layers[1](layers[0](x, **options), **options)
            out.float().square().mean().backward()
            for each in layers:  # not the order of the captures
                each.backward_dw()
            seen += [out.detach().clone(), x.grad.clone()]
        gradients = [getattr(p, "main_grad", p.grad) for p in parameters]
        seen += [each.clone() for each in gradients]
        with torch.no_grad():
            for p, gradient in zip(parameters, gradients, strict=True):
                p.sub_(0.1 * gradient)
                p.grad = None
                gradient.zero_()
    return seen + [each.get_extra_state() for each in layers]


# Two chunks of one layer each, two micro-batches, interleaved.
ORDER = [1, 2, 1, 2, -2, -1, -2, -1]


def run_pipeline(calls, layers, recipe, device, dtype, steps=3, flagged=False):
    """Runs both micro-batches forward, then both backward, in each step. `calls` are those of
    ORDER.

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


class LoggedStream:
    """Stands for a GPU stream on a CPU; notes the calls of its methods."""

    device = torch.device("cuda", 0)

    def __init__(self, name, log):
        self.name, self.log = name, log

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event):
        self.log.append(f"{self.name} waits for {event}")
