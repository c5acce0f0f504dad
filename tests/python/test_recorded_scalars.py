"""Scalars of a training in the run: from debug.step, and from a watched optimizer."""

import math
import warnings

import pytest
import torch

import telens
import telens.debug as debug
from telens.debug import optimizers


def scalars(log_dir) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for row in telens.open_run(log_dir).scalars.itertuples():
        found.setdefault(row.name, {})[row.iteration] = row.value
    return found


def test_step_records_any_number_under_its_name(tmp_path):
    with debug.session(log_dir=tmp_path):
        debug.step(2.5, lr=0.1, grad_norm=torch.tensor(3.0))
        debug.step(lr=0.2, tokens=7)
    assert scalars(tmp_path) == {
        "loss": {0: 2.5},
        "lr": {0: 0.1, 1: 0.2},
        "grad_norm": {0: 3.0},
        "tokens": {1: 7.0},
    }


def test_a_misspelt_loss_is_recorded_and_warned_of(tmp_path):
    with debug.session(log_dir=tmp_path), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        debug.step(lss=1.0)
        debug.step(2.0, loss2=1.0, lr=0.1)
        debug.step(lm_loss=1.0, lr=0.1)
    (only,) = [str(each.message) for each in warned]
    assert only.startswith("debug.step: lss=1.0 is recorded under that name, but no 'loss' is")
    assert "did you mean 'loss'" in only
    assert scalars(tmp_path)["lss"] == {0: 1.0}


def test_step_names_the_invalid_scalar(tmp_path):
    with (
        debug.session(log_dir=tmp_path),
        pytest.raises(telens.UsageError, match=r"debug\.step: lr must be a number"),
    ):
        debug.step(lr=[0.1, 0.2])


def test_scalars_of_a_step_are_not_read_without_a_session():
    debug.step(lr=torch.empty(3, device="meta"))  # to read it would raise


@pytest.fixture
def parameters():
    torch.manual_seed(3)
    return [torch.nn.Parameter(torch.randn(4, 5)), torch.nn.Parameter(torch.randn(7))]


def one_step(parameters, optimizer) -> None:
    optimizer.zero_grad()
    sum((each**3).sum() for each in parameters).backward()
    optimizer.step()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_watched_optimizer_records_its_steps(tmp_path, parameters, kind):
    optimizer = kind(parameters, lr=0.01)
    debug.watch_optimizer(optimizer, every=2)
    expected = {"lr": {}, "grad_norm": {}, "update_to_weight": {}}
    with debug.session(log_dir=tmp_path):
        for step in range(4):
            optimizer.param_groups[0]["lr"] = 0.01 * (step + 1)
            before = torch.cat([each.detach().flatten().double() for each in parameters])
            one_step(parameters, optimizer)
            after = torch.cat([each.detach().flatten().double() for each in parameters])
            gradient = torch.cat([each.grad.flatten().double() for each in parameters])
            expected["lr"][step] = 0.01 * (step + 1)
            if step % 2 == 0:
                expected["grad_norm"][step] = gradient.norm().item()
                expected["update_to_weight"][step] = (
                    (after - before).norm() / before.norm()
                ).item()
            debug.step()
    found = scalars(tmp_path)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-5), name


def test_a_watch_changes_no_step_and_ends(tmp_path, parameters):
    plain = [torch.nn.Parameter(each.detach().clone()) for each in parameters]
    watched, unwatched = (torch.optim.AdamW(each, lr=0.1) for each in (parameters, plain))
    handle = debug.watch_optimizer(watched, every=1, name="model")
    with debug.session(log_dir=tmp_path):
        one_step(parameters, watched)
        one_step(plain, unwatched)
        handle.remove()
        one_step(parameters, watched)
        one_step(plain, unwatched)
        debug.step()
    assert all(torch.equal(a, b) for a, b in zip(parameters, plain, strict=True))
    assert scalars(tmp_path).keys() == {"model.lr", "model.grad_norm", "model.update_to_weight"}


def test_observed_optimizer_survives_a_failed_hook(tmp_path, parameters, monkeypatch):
    def fail(tensors):
        raise RuntimeError("no memory for it")

    monkeypatch.setattr("telens.debug.optimizers._norms", fail)
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    debug.watch_optimizer(optimizer, every=1)
    before = parameters[0].detach().clone()
    with debug.session(log_dir=tmp_path):
        with pytest.warns(UserWarning, match="no steps are watched any more: no memory"):
            one_step(parameters, optimizer)
        one_step(parameters, optimizer)
        debug.step()
    assert not torch.equal(before, parameters[0])
    assert scalars(tmp_path).keys() == {"lr"}


@pytest.mark.parametrize(
    ("optimizer", "every", "expected"),
    [(None, 1, "optimizer must be an optimizer"), ("real", 0, "every must be a number of steps")],
)
def test_rejects_optimizers_without_hooks(parameters, optimizer, every, expected):
    if optimizer:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
    with pytest.raises(telens.UsageError, match=expected):
        debug.watch_optimizer(optimizer, every=every)


def test_nonfinite_gradient_norm_is_recorded(tmp_path, parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.0)
    debug.watch_optimizer(optimizer, every=1)
    with debug.session(log_dir=tmp_path):
        parameters[0].grad = torch.full((4, 5), math.inf)
        optimizer.step()
        debug.step()
    assert scalars(tmp_path)["grad_norm"] == {0: math.inf}


def test_norms_of_groups_use_one_transfer(monkeypatch):
    groups = [[torch.tensor([3.0]), torch.tensor([[4.0]])], [], [torch.full((7,), 2.0)]]
    transfers = []
    cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: transfers.append(1) or cpu(self))
    assert optimizers._norms(groups) == [5.0, 0.0, pytest.approx(28**0.5)]
    assert len(transfers) == 1
    assert optimizers._norms([[]]) == [0.0]
