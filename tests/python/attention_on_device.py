"""Runs tests of DotProductAttention that were written for a CPU on a GPU: arguments are moved to
the GPU, results and gradients back to the CPU.
"""

import pytest
import torch
from cuda_helpers import DEVICE

import telens.pytorch as te


def moved(value, device=DEVICE):
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, tuple | list):
        return type(value)(moved(each, device) for each in value)
    if isinstance(value, dict):
        return {key: moved(each, device) for key, each in value.items()}
    return value


class Shown:
    """A parameter on the device, whose values and gradient are read on the CPU."""

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self._parameter = parameter
        self.data = parameter.data
        self.copy_ = parameter.data.copy_

    @property
    def grad(self):
        return self._parameter.grad.cpu()

    def detach(self):
        return self._parameter.detach().cpu()


class OnDevice:
    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module.to(DEVICE)

    def __call__(self, *arguments, **keywords):
        out = self._module(*moved(arguments), **moved(keywords))
        for each in out if isinstance(out, tuple) else (out,):
            assert each.device.type == torch.device(DEVICE).type
        return moved(out, "cpu")

    def __getattr__(self, name: str):
        value = getattr(self._module, name)
        return Shown(value) if isinstance(value, torch.nn.Parameter) else value


@pytest.fixture
def on_device(ops, monkeypatch):
    """Replaces DotProductAttention by one whose computations run on the device."""
    kind = te.DotProductAttention
    monkeypatch.setattr(te, "DotProductAttention", lambda *a, **o: OnDevice(kind(*a, **o)))
