"""The optimizer statistics that telens.watch records, against their definitions."""

import math

import pytest
import torch
from test_attach import AMAX, new_model, recorded, scalars, train
from torch.nn import functional

import telens


def test_first_update_of_adam_is_the_learning_rate(tmp_path):
    model = new_model()
    with telens.watch(model, AMAX, tmp_path, every=1):
        train(model, steps=3)
    assert scalars(tmp_path, "first_update") == [pytest.approx(1, abs=0.01)]


def test_first_update_is_not_recorded_after_earlier_steps(tmp_path):
    model = new_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(model, steps=1, optimizer=lambda *_, **__: optimizer)
    with telens.watch(model, AMAX, tmp_path, every=1):
        train(model, steps=2, optimizer=lambda *_, **__: optimizer)
    assert scalars(tmp_path, "first_update") == []


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.RAdam])
def test_other_optimizers_have_no_first_update(tmp_path, optimizer):
    model = new_model()
    with telens.watch(model, AMAX, tmp_path, every=1):
        train(model, steps=2, optimizer=optimizer)
    assert scalars(tmp_path, "first_update") == []


@pytest.mark.parametrize("beta", [0.999, 0.95])
def test_a_counted_empty_step_shows_in_the_first_update(tmp_path, beta):
    model = new_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, beta))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    with telens.watch(model, AMAX, tmp_path, every=1):
        train(model, steps=1, optimizer=lambda *_, **__: optimizer)
    # (1 - b1) / (1 - b1^2) over the root of (1 - b2) / (1 - b2^2)
    expected = math.sqrt(1 + beta) / 1.9
    assert scalars(tmp_path, "first_update") == [pytest.approx(expected, abs=0.01)]


def test_received_gradients_match_the_parameters(tmp_path):
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    expected = {}

    def keep(*_):
        for name in ("query", "up", "norm", "embed"):
            gradient = model.get_submodule(name).weight.grad.double()
            expected[name] = (gradient.norm().item(), gradient.mean().item())

    optimizer.register_step_pre_hook(keep)
    with telens.watch(model, AMAX, tmp_path, every=1):
        train(model, steps=1, parts=3, optimizer=lambda *_, **__: optimizer)
    norms = recorded(tmp_path, "accumulated_norm")
    means = recorded(tmp_path, "accumulated_mean")
    for name, (norm, mean) in expected.items():
        assert norms[name, "wgrad", 0] == pytest.approx(norm, rel=1e-5)
        assert means[name, "wgrad", 0] == pytest.approx(mean, rel=1e-3, abs=1e-9)


def test_update_is_the_root_mean_square_of_the_change(tmp_path):
    model = new_model()
    before = model.query.weight.detach().clone()
    with telens.watch(model, AMAX, tmp_path, every=1):
        train(model, steps=1)
        change = (model.query.weight.detach() - before).square().mean().sqrt().item()
    update = recorded(tmp_path, "update_rms")["query", "weight", 0]
    assert update == pytest.approx(change, rel=1e-4)


def test_loss_scale_is_the_one_of_the_backward(tmp_path):
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0, growth_interval=1)
    with telens.watch(model, AMAX, tmp_path):
        for _ in range(3):
            tokens = torch.randint(40, (2, 8))
            loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert scalars(tmp_path, "loss_scale") == [128, 256, 512]
