"""telens diagnose on runs of ordinary torch models, and on unusual but healthy runs."""

import pytest
from conftest import Lines
from recorded_training import LAYERS, STEPS, where

EVERY_TENTH = range(0, STEPS, 10)
PROJECTIONS = ["layers.0.attn.q", "layers.0.attn.k", "layers.0.attn.o"]  # in forward order


def miss_gradients(training, layers, steps=EVERY_TENTH):
    """The optimizer changes these weights, although no gradient is recorded for it."""
    for layer in layers:
        for key in [key for key in training.values if key[1:3] == (layer, "gradient")]:
            del training.values[key]
        for step in steps:
            training.values[step, layer, "wgrad", "missing"] = 1


def test_trained_weights_without_gradients_are_found(findings, training):
    miss_gradients(training, LAYERS[:2])
    assert [where(each) for each in findings(training)] == [
        ("detached_layer", LAYERS[1], "gradient", 0)
    ]


def test_unused_layers_without_gradients_are_ignored(findings, training):
    miss_gradients(training, LAYERS[:2])
    for key in [
        key for key in training.values if key[1:3] in [(each, "activation") for each in LAYERS[:2]]
    ]:
        del training.values[key]
    assert findings(training) == []


def test_a_gradient_that_is_missing_once_is_ignored(findings, training):
    miss_gradients(training, LAYERS[:2], steps=[0])
    assert findings(training) == []


def test_empty_batches_are_not_spikes(findings, training):
    for step in (9, 18):
        training.losses[step] = 0
        for layer in LAYERS:
            training.scale(layer, "gradient", step, 0, last=step)
    assert findings(training) == []


@pytest.mark.parametrize(("loss", "found"), [(5.6, False), (9.0, True)])
def test_spikes_that_fall_again_are_judged_by_height(findings, training, loss, found):
    training.losses[20] = loss
    expected = [("loss_spike", None, None, 20)] if found else []
    assert [where(each) for each in findings(training)] == expected


def test_gains_of_norms_may_leave_zero(findings, training):
    for step in range(STEPS):
        training.put(step, "layers.0.input_layernorm", "weight", 0.01)
        drift = 0.003 * max(0, step - 8)
        training.values[step, "layers.0.input_layernorm", "weight", "mean"] = drift
    assert findings(training) == []


@pytest.mark.parametrize("same_input", [True, False])
def test_parallel_projections_are_not_compared(findings, training, same_input):
    for step in range(STEPS):
        for number, layer in enumerate(PROJECTIONS):
            training.put(step, layer, "weight", 0.1 + 1e-4 * step)
            training.put(step, layer, "activation", 1.0 if same_input else 1.0 + 0.1 * number)
            # The gradients of queries fall, those of keys grow.
            factor = (0.25, 4, 1)[number] if step >= 12 else 1
            training.put(step, layer, "gradient", 1e-3 * factor)
    found = [where(each)[:2] for each in findings(training)]
    assert found == ([] if same_input else [("vanishing_gradients", PROJECTIONS[0])])


@pytest.mark.parametrize(("size", "found"), [(0.02, False), (20.0, True)])
def test_growth_of_a_single_block_is_judged_by_size(findings, training, size, found):
    for step in range(STEPS):
        growth = 1.25 ** min(max(0, step - 6), 13)
        training.put(step, "single.down_proj", "output", size * growth / 18)
    expected = [("activation_jump", "single.down_proj")] if found else []
    assert [where(each)[:2] for each in findings(training)] == expected


@pytest.mark.parametrize(
    ("weight", "gain", "found"), [(0.0014, 0.01, True), (0.0014, 0.1, False), (0.1, 0.01, False)]
)
def test_weights_that_are_all_too_small_are_found(findings, training, weight, gain, found):
    for step in range(STEPS):
        for block in range(3):
            for part in ("q_proj", "o_proj", "up_proj", "down_proj"):
                layer = f"model.{block}.{part}"
                training.put(step, layer, "weight", weight)
                training.put(step, layer, "activation", 1.0)
                training.put(step, layer, "output", gain)
                training.put(step, layer, "gradient", 1e-3)
    expected = [("weight_initialization", "model.0.q_proj", "weight", 0)] if found else []
    assert [where(each) for each in findings(training)] == expected


def test_nan_on_all_ranks_is_not_a_mismatch(telens, tmp_path):
    for rank in range(2):
        lines = Lines()
        for step in range(12):
            for layer in LAYERS:
                value = float("nan") if step > 0 else 1.0
                lines.record(step, layer, "weight", "l2_norm", value)
                lines.record(step, layer, "weight", "nonfinite", float(step > 0))
        lines.write(tmp_path, rank)
    printed = telens("diagnose", tmp_path).stdout
    assert "nonfinite" in printed
    assert "rank_mismatch" not in printed


@pytest.mark.parametrize("trained", [True, False])
def test_frozen_layers_need_no_gradient(findings, training, trained):
    for key in [key for key in training.values if key[1:3] == (LAYERS[1], "gradient")]:
        del training.values[key]
    for layer in LAYERS:
        if trained or layer != LAYERS[1]:
            training.values[0, layer, "wgrad", "accumulated_norm"] = 1.0
    found = [where(each)[:2] for each in findings(training)]
    assert found == ([("detached_layer", LAYERS[1])] if trained else [])


@pytest.mark.parametrize(("factor", "found"), [(0.1, False), (0.01, True)])
def test_gradients_of_parallel_projections_may_fall(findings, training, factor, found):
    for step in range(STEPS):
        for number, layer in enumerate(PROJECTIONS):
            training.put(step, layer, "weight", 0.1 + 1e-4 * step)
            training.put(step, layer, "activation", 1.0)
            size = factor if number == 0 and step >= 12 else 1
            training.put(step, layer, "gradient", 1e-3 * size)
    expected = [("vanishing_gradients", PROJECTIONS[0], "gradient", 12)] if found else []
    assert [where(each) for each in findings(training)] == expected


def test_nan_is_not_a_consequence_of_small_gradients(findings, training):
    training.scale(LAYERS[1], "gradient", 8, 0.01)
    for step in range(14, STEPS):
        training.values[step, LAYERS[2], "activation", "nonfinite"] = 1
    found = [where(each)[:2] for each in findings(training)]
    assert found == [("vanishing_gradients", LAYERS[1]), ("nonfinite", LAYERS[2])]
