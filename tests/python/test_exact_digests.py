"""TensorDigests and telens diff --exact: single changed elements of a training are found."""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

import telens

ROOT = Path(__file__).resolve().parents[2]
COMMAND = os.environ.get("TELENS_COMMAND", str(ROOT / "build/bin/telens"))
CONFIG = ROOT / "configs/exact_digests.yaml"
LAYERS = ("0", "2", "4")
STEPS, MICRO_BATCHES = 3, 2


def new_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 12, bias=False), nn.ReLU(), nn.Linear(12, 8)
    )


class Replaced(torch.autograd.Function):
    """Returns other values of the same shape. The backward passes the gradient unchanged."""

    @staticmethod
    def forward(ctx, value, change):
        return change(value)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Change:
    """Changes one or two elements of a tensor of a layer in one micro-batch."""

    def __init__(self, layer, tensor, step, micro_batch, kind, place):
        self.layer, self.tensor, self.step = layer, tensor, step
        self.micro_batch, self.kind, self.place = micro_batch, kind, place
        self.calls = -1

    def apply(self, value):
        changed = value.detach().clone()
        flat = changed.view(-1)
        first, second = self.place[0] % flat.numel(), self.place[1] % flat.numel()
        if self.kind == "swap":
            if flat[first] == flat[second]:
                second = int((flat != flat[first]).nonzero()[0])
            flat[[first, second]] = flat[[second, first]]
        elif self.kind == "last_bit":
            flat[first] = torch.nextafter(flat[first], torch.tensor(torch.inf))
        elif self.kind == "sign_of_zero":
            zeros = (flat == 0).nonzero().flatten()
            flat[zeros[self.place[0] % len(zeros)]] = -0.0
        else:
            rows = min(changed.shape)
            changed[:rows, :rows] = changed[:rows, :rows].T.clone()
        return changed

    def is_due(self):
        self.calls += 1
        return self.calls == self.step * MICRO_BATCHES + self.micro_batch

    def hook(self, model):
        module = model.get_submodule(self.layer)
        if self.tensor == "activation":

            def before(module, args):
                return (Replaced.apply(args[0], self.apply),) if self.is_due() else None

            return module.register_forward_pre_hook(before)

        def after(module, args, output):
            if not self.is_due():
                return None
            if self.tensor == "output":
                return Replaced.apply(output, self.apply)
            output.register_hook(self.apply)
            return None

        return module.register_forward_hook(after)


def record(folder, change=None):
    model = new_model()
    if change is not None:
        change.hook(model)  # before the hooks of the watch
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    with telens.watch(model, CONFIG, folder):
        for _ in range(STEPS):
            for _ in range(MICRO_BATCHES):
                x = torch.randn(6, 8, generator=generator)
                (model(x) - x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


def compare(a, b):
    result = subprocess.run(
        [COMMAND, "diff", "--exact", a, b, "--format", "json"], capture_output=True, text=True
    )
    assert result.returncode in (0, 1), result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return record(tmp_path_factory.mktemp("original"))


def test_equal_trainings_have_equal_digests(original, tmp_path):
    found = compare(original, record(tmp_path))
    assert found["first"] is None
    # Inputs of the model need no gradient, so that the first layer has no dgrad.
    of_micro_batches = STEPS * MICRO_BATCHES * (len(LAYERS) * 5 - 1)
    assert found["compared"] == of_micro_batches + STEPS * len(LAYERS)


def planted_changes():
    draw = random.Random(5)
    changes = []
    for kind in ("swap", "transpose", "last_bit", "sign_of_zero"):
        for _ in range(25):
            # Only inputs that a ReLU computed contain zeros.
            of_zeros = kind == "sign_of_zero"
            layer = draw.choice(LAYERS[1:] if of_zeros else LAYERS)
            tensor = "activation" if of_zeros else draw.choice(("output", "gradient"))
            step, micro_batch = draw.randrange(STEPS), draw.randrange(MICRO_BATCHES)
            place = (draw.randrange(1000), draw.randrange(1000))
            changes.append(Change(layer, tensor, step, micro_batch, kind, place))
    return changes


def test_all_of_a_hundred_changes_are_found(original, tmp_path):
    missed = []
    for number, change in enumerate(planted_changes()):
        found = compare(original, record(tmp_path / str(number), change))["first"]
        place = found and tuple(
            found[key] for key in ("iteration", "micro_batch", "layer", "tensor")
        )
        expected = (change.step, change.micro_batch, change.layer, change.tensor)
        if place != expected:
            missed.append((change.kind, expected, place))
    assert missed == []


def test_an_output_from_equal_inputs_names_the_layer(original, tmp_path):
    change = Change("2", "output", 1, 1, "last_bit", (3, 4))
    found = compare(original, record(tmp_path, change))["first"]
    assert found["culprit"] == "forward"
    assert found["equal_inputs"] == ["2 activation", "2 weight"]
