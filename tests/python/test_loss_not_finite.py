"""A loss that is not finite, and the configuration for production: who gets which message when."""

import math
from pathlib import Path

import pytest
import torch
import yaml
from debug_helpers import message_log

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def events(log_dir, kind: str) -> list[tuple[int, str, str | None]]:
    rows = telens.open_run(log_dir).events
    rows = rows[rows["kind"] == kind]
    return list(zip(rows["iteration"], rows["text"], rows["layer"], strict=True))


@pytest.mark.parametrize(
    ("loss", "word"), [(math.nan, "NaN"), (math.inf, "infinite"), (-math.inf, "-infinite")]
)
def test_nonfinite_loss_is_reported_in_its_step(tmp_path, capfd, loss, word):
    debug.initialize("", log_dir=tmp_path)
    for value in (3.0, 2.5):
        debug.step(loss=value)
    assert capfd.readouterr().err == ""
    debug.step(loss=torch.tensor(loss))
    said = capfd.readouterr().err
    assert f"the loss is {word} in iteration 2; the last finite one was 2.5 in iteration 1" in said
    assert "nan_hunt.yaml" in said
    debug.end_debug()
    ((iteration, text, layer),) = events(tmp_path, "loss_not_finite")
    assert (iteration, layer) == (2, None)
    assert word in text


def test_nonfinite_loss_is_reported_again_after_a_finite_one(tmp_path):
    with debug.session("", log_dir=tmp_path):
        for loss in (math.nan, math.nan, math.nan, 1.0, math.nan):
            debug.step(loss=loss)
    reports = events(tmp_path, "loss_not_finite")
    assert [iteration for iteration, _, _ in reports] == [0, 4]
    assert "no loss before it was finite" in reports[0][1]


# ---- debug.record("loss", ...)


def losses(log_dir) -> list[tuple[int, float]]:
    rows = telens.open_run(log_dir).table("scalars")
    rows = rows[rows["name"] == "loss"]
    return list(zip(rows["iteration"], rows["value"], strict=True))


def test_a_recorded_loss_is_the_loss_of_its_iteration(tmp_path):
    with debug.session("", log_dir=tmp_path):
        for loss in (3.0, math.nan):
            debug.record("loss", loss)
            debug.step()
    ((iteration, _, _),) = events(tmp_path, "loss_not_finite")
    assert iteration == 1


def test_an_iteration_has_one_loss_however_it_is_given(tmp_path, capfd):
    with debug.session("", log_dir=tmp_path):
        for loss in (3.0, math.nan, 2.0):
            debug.record("loss", loss)
            debug.step(loss=loss)
        debug.step(loss=1.0)
    assert "two losses" not in capfd.readouterr().err
    found = losses(tmp_path)
    assert [iteration for iteration, _ in found] == [0, 1, 2, 3]
    assert [found[0][1], found[2][1], found[3][1]] == [3.0, 2.0, 1.0]


def test_mismatched_losses_warn_once(tmp_path, capfd):
    with debug.session("", log_dir=tmp_path):
        for _ in range(3):
            debug.record("loss", 3.0)
            debug.step(loss=2.5)
    said = capfd.readouterr().err
    assert said.count("has two losses") == 1
    assert 'iteration 0 has two losses: 3 by debug.record("loss", ...)' in said
    assert "2.5 by debug.step(loss=...)" in said
    assert losses(tmp_path) == [(0, 3.0), (1, 3.0), (2, 3.0)]


# ---- production.yaml

LAYERS = 6
PLANTED_AT = 12


def production(freq: int | None = None) -> dict:
    config = yaml.safe_load((CONFIGS / "production.yaml").read_text())
    if freq is not None:
        config["overflow_warning"]["telens"]["Trigger"]["freq"] = freq
    return config


def model() -> torch.nn.Sequential:
    torch.manual_seed(1)
    layers = [te.LayerNormMLP(64, 128, name=f"layers.{i}") for i in range(LAYERS)]
    return torch.nn.Sequential(*layers)


def run(log_dir, config, steps: int, recipe=None, plant=None, hands_over: bool = True) -> None:
    """Trains with SGD; ``plant(model)`` is called before the forward of iteration 12."""
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(2)
    with debug.session(config, log_dir=log_dir):
        for step in range(steps):
            if plant is not None and step == PLANTED_AT:
                plant(trained)
            x = torch.randn(64, 64, generator=generator)
            with te.autocast(enabled=recipe is not None, recipe=recipe):
                loss = trained(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            debug.step(loss=loss if hands_over else None)


def plant_in_weight(trained: torch.nn.Sequential) -> None:
    with torch.no_grad():
        trained[3].fc1_weight[5, 7] = math.nan


def plant_in_activation(trained: torch.nn.Sequential) -> None:
    def poison(module, args):
        handle.remove()
        x = args[0].clone()
        x[3, 4] = math.inf
        return (x,)

    handle = trained[3].register_forward_pre_hook(poison)


RECIPES = {
    "bf16": None,
    "delayed": DelayedScaling(amax_history_len=16),
    "current": Float8CurrentScaling(),
    "mxfp8": MXFP8BlockScaling(),
    "block": Float8BlockScaling(),
    "nvfp4": NVFP4BlockScaling(),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_healthy_run_raises_no_alarm(tmp_path, name):
    run(tmp_path, production(freq=1), steps=6, recipe=RECIPES[name])
    assert events(tmp_path, "trigger") == []
    assert events(tmp_path, "loss_not_finite") == []


@pytest.mark.parametrize("name", ["bf16", "delayed", "nvfp4"])
@pytest.mark.parametrize("plant", [plant_in_weight, plant_in_activation])
def test_nan_in_middle_layer_is_reported_by_the_loss(tmp_path, name, plant):
    run(tmp_path, production(), steps=PLANTED_AT + 1, recipe=RECIPES[name], plant=plant)
    ((iteration, _, _),) = events(tmp_path, "loss_not_finite")
    assert iteration == PLANTED_AT
    assert f"the loss is NaN in iteration {PLANTED_AT}" in message_log(tmp_path)


@pytest.mark.parametrize(
    ("plant", "tensor"), [(plant_in_weight, "weight"), (plant_in_activation, "activation")]
)
def test_every_iteration_check_names_the_layer(tmp_path, plant, tensor):
    run(tmp_path, production(freq=1), steps=PLANTED_AT + 2, plant=plant, hands_over=False)
    ((iteration, text, layer),) = events(tmp_path, "trigger")
    assert iteration == PLANTED_AT
    assert layer == "layers.3.fc1"
    assert f"nonfinite of {tensor} of layer layers.3.fc1 was" in text
    assert "may have begun elsewhere" not in text


def test_sparse_check_reports_uncertain_origin(tmp_path):
    run(tmp_path, production(), steps=25, plant=plant_in_weight, hands_over=False)
    ((iteration, text, _),) = events(tmp_path, "trigger")
    assert iteration == 20
    assert f"and the condition also held in {2 * LAYERS - 1} later layers" in text
    assert "since iteration 10 none of them was checked, so it may have begun elsewhere" in text
