"""Checkpoints around an autocast do not change amax histories, scales and gradients."""

import pytest
import torch

import telens.pytorch as te
from telens.common.recipe import DelayedScaling

MODULES = {
    "Linear": lambda: te.Linear(32, 32, device="cpu"),
    "LayerNormMLP": lambda: te.LayerNormMLP(32, 64, device="cpu"),
    "frozen first": lambda: torch.nn.Sequential(
        te.Linear(32, 32, device="cpu").requires_grad_(False), te.Linear(32, 32, device="cpu")
    ),
    "TransformerLayer": lambda: te.TransformerLayer(
        32, 64, 2, hidden_dropout=0, attention_dropout=0, device="cpu"
    ),
}
KINDS = {
    "none": lambda function, *x: function(*x),
    "ours": te.checkpoint,
    "reentrant": lambda function, *x: te.checkpoint(function, *x, use_reentrant=True),
    "nested": lambda function, *x: te.checkpoint(
        lambda *x: te.checkpoint(function, *x, use_reentrant=True), *x, use_reentrant=True
    ),
}


def scales(model: torch.nn.Module) -> list[torch.Tensor]:
    found = []
    for module in model.modules():
        for each in getattr(module, "fp8_meta", {}).values():
            if hasattr(each, "amax_history"):
                found += [each.amax_history.clone(), each.scale.clone()]
    return found


def train(kind: str, name: str, outer: bool, eval_mode: bool = False) -> list[torch.Tensor]:
    torch.manual_seed(5)
    model = MODULES[name]().train(not eval_mode)
    recipe = DelayedScaling(amax_history_len=4, fp8_dpa=name == "TransformerLayer")

    def block(x):
        with te.autocast(recipe=recipe):
            return model(x)

    for step in range(3):
        shape = (16, 2, 32) if name == "TransformerLayer" else (32, 32)
        x = (torch.randn(shape) * (step + 1)).requires_grad_()
        with te.autocast(enabled=outer, recipe=recipe):
            y = KINDS[kind](block, x)
        y.square().mean().backward()
        with torch.no_grad(), te.autocast(recipe=recipe):
            model(100 * x)  # an evaluation leaves no trace
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return [*scales(model), *grads, x.grad]


@pytest.mark.parametrize("eval_mode", [False, True])
@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "none"])
@pytest.mark.parametrize("name", MODULES)
def test_checkpoint_keeps_scales_and_gradients(name, kind, outer, eval_mode):
    found = train(kind, name, outer, eval_mode)
    for made, expected in zip(found, train("none", name, outer, eval_mode), strict=True):
        assert torch.equal(made, expected)


def test_a_layer_without_gradients_in_a_checkpoint_ends_no_region():
    """The first layer has no backward, so another one ends the region's backward."""

    def train(checkpoints: bool) -> list[torch.Tensor]:
        torch.manual_seed(6)
        frozen = te.Linear(32, 32, device="cpu").requires_grad_(False)
        layer = te.Linear(32, 32, device="cpu")

        def block(x):
            with torch.no_grad():
                start = frozen(x.detach())
            return layer(start + x)

        for step in range(2):
            x = (torch.randn(32, 32) * (step + 1)).requires_grad_()
            with te.autocast(recipe=DelayedScaling(amax_history_len=4)):
                y = te.checkpoint(block, x) if checkpoints else block(x)
            y.square().mean().backward()
        return scales(layer)

    for made, expected in zip(train(True), train(False), strict=True):
        assert torch.equal(made, expected)


# x requires no gradient, offset does. Without a checkpoint the frozen layer has no backward.
AROUND_FROZEN = {
    "frozen layer only": lambda call, frozen, layer, x, offset: layer(call(frozen, x) + offset),
    "frozen layer first": lambda call, frozen, layer, x, offset: call(
        lambda x, offset: layer(frozen(x) + offset), x, offset
    ),
    "two checkpoints": lambda call, frozen, layer, x, offset: call(
        lambda x, offset: layer(x + offset), call(frozen, x), offset
    ),
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "none"])
@pytest.mark.parametrize("case", AROUND_FROZEN)
def test_frozen_layer_without_backward_does_not_end_the_region(case, kind):
    def train(kind: str) -> list[torch.Tensor]:
        torch.manual_seed(6)
        frozen = te.Linear(32, 32, device="cpu").requires_grad_(False)
        layer = te.Linear(32, 32, device="cpu")
        for step in range(3):
            x = torch.randn(32, 32) * (step + 1)
            offset = torch.randn(32, 32).requires_grad_()
            with te.autocast(recipe=DelayedScaling(amax_history_len=4)):
                y = AROUND_FROZEN[case](KINDS[kind], frozen, layer, x, offset)
            y.square().mean().backward()
        return [*scales(frozen), *scales(layer), layer.weight.grad, offset.grad]

    for found, expected in zip(train(kind), train("none"), strict=True):
        assert torch.equal(found, expected)
