"""For tests of fused casts, on the CPU and on a GPU: a training, watched or not, with its bits and
the operators that it ran.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from debug_helpers import logging_of

import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling

STEPS, ROWS, FEATURES, HIDDEN = 3, 64, 32, 64
NORM_CASTS = ("telens::layer_norm_quantize", "telens::rms_norm_quantize")
ACTIVATION_CAST = "telens::activation_quantize"
GRADIENT_CAST = "telens::activation_backward_quantize"
ALL_TENSORS = ("activation", "weight", "gradient", "output", "wgrad", "dgrad")


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().view(torch.uint8)


def training(
    make: Callable[[], torch.nn.Module],
    *,
    tensors: tuple[str, ...] = (),
    log_dir=None,
    run: Callable = lambda module, x, step: module(x),
    device: str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    recipe: DelayedScaling | None = None,
) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    """Trains for STEPS with ``tensors`` watched. Returns all resulting tensors, and how often each
    of our operators ran.
    """
    torch.manual_seed(1)
    module = make()
    generator = torch.Generator().manual_seed(2)
    recipe = recipe or DelayedScaling(amax_history_len=4)
    bits: dict[str, torch.Tensor] = {}
    watching = contextlib.nullcontext()
    if tensors:
        watching = debug.session(logging_of(list(tensors), ["min"]), log_dir=log_dir)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with watching, torch.profiler.profile(activities=activities, acc_events=True) as profile:
        for step in range(STEPS):
            x = torch.randn(2, ROWS // 2, FEATURES, generator=generator).to(device, dtype)
            x.requires_grad_()
            with te.autocast(enabled=True, recipe=recipe):
                out = run(module, x, step)
            out.float().square().mean().backward()
            with torch.no_grad():
                for name, parameter in module.named_parameters():
                    if parameter.grad is not None:
                        bits[f"{step} {name}.grad"] = bits_of(parameter.grad)
                        parameter -= 0.1 * parameter.grad
                        parameter.grad = None
                    bits[f"{step} {name}"] = bits_of(parameter)
            bits[f"{step} out"] = bits_of(out)
            bits[f"{step} x.grad"] = bits_of(x.grad)
            if tensors:
                debug.step()
    for name, state in module.state_dict().items():
        if name.endswith("_extra_state"):
            bits[name] = bits_of(state)
    counts = {event.key: event.count for event in profile.key_averages()}
    return bits, {name: n for name, n in counts.items() if name.startswith("telens::")}


def assert_same_training(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]):
    assert actual.keys() == expected.keys()
    different = [name for name in expected if not torch.equal(actual[name], expected[name])]
    assert not different
