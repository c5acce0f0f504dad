"""telens diagnose on learning rates, updates, and the gradients that an optimizer receives."""

import math
import random

import pytest
from recorded_training import LAYERS, STEPS, where

MEASURED = range(0, STEPS, 10)


@pytest.fixture
def diagnose(telens, tmp_path):
    """Diagnoses a training whose scalars are {name: {step: value}}."""
    import json

    def run(lines, training, scalars=(), folder=tmp_path):
        for name, values in dict(scalars).items():
            for step, value in values.items():
                lines.scalar(step, name, value)
        result = telens("diagnose", training.write(lines, folder), "--format", "json")
        assert result.returncode in (0, 1), result.stderr
        return json.loads(result.stdout)["findings"]

    return run


def constant(value, steps=range(STEPS)):
    return dict.fromkeys(steps, value)


# ------------------------------------------------------------------ lost updates


@pytest.mark.parametrize(("percent", "found"), [(80, True), (51, True), (49, False), (0, False)])
def test_half_of_the_updates_lost_is_found(diagnose, lines, training, percent, found):
    for step in MEASURED:
        for layer in LAYERS:
            training.values[step, layer, "weight", "lost_updates%"] = percent
    training.values[0, LAYERS[2], "weight", "lost_updates%"] = percent + 5
    rates = constant(1e-5)
    result = diagnose(lines, training, {"lr": rates, "lost_updates%": constant(percent, MEASURED)})
    expected = [("lost_updates", LAYERS[2], "weight", 0)] if found else []
    assert [where(each) for each in result] == expected


def test_updates_lost_at_a_tiny_rate_do_not_count(diagnose, lines, training):
    shares = {0: 99, 10: 5, 20: 5}  # the first step of a warm-up
    for step, share in shares.items():
        training.values[step, LAYERS[0], "weight", "lost_updates%"] = share
    rates = {step: 1e-7 if step == 0 else 1e-4 for step in range(STEPS)}
    assert diagnose(lines, training, {"lr": rates, "lost_updates%": shares}) == []


def test_nan_shares_of_lost_updates_do_not_count(diagnose, lines, training):
    shares = dict.fromkeys(MEASURED, math.nan)
    for step, share in shares.items():
        training.values[step, LAYERS[0], "weight", "lost_updates%"] = share
    scalars = {"lr": constant(1e-4), "lost_updates%": shares, "grad_norm": constant(1.0)}
    (finding,) = diagnose(lines, training, scalars)
    assert finding["cause"] == "nonfinite"
    assert "the origin is the optimizer step" in finding["summary"]
    assert "arithmetic of the optimizer" in finding["next_step"]


# ------------------------------------------------------------------ weight decay

EMBEDDING = LAYERS[0]


@pytest.mark.parametrize(("percent", "found"), [(100, True), (91, True), (85, False), (-8, False)])
def test_lost_weight_decay_is_found(diagnose, lines, training, percent, found):
    for step in MEASURED:
        for layer in LAYERS:
            training.values[step, layer, "weight", "lost_updates%"] = 3
        training.values[step, EMBEDDING, "weight", "lost_decay%"] = percent
    scalars = {
        "lr": constant(1e-3),
        "lost_updates%": constant(3, MEASURED),
        "lost_decay%": constant(percent, MEASURED),
    }
    result = diagnose(lines, training, scalars)
    expected = [("lost_updates", EMBEDDING, "weight", 0)] if found else []
    assert [where(each) for each in result] == expected
    assert all("weight decay has no effect" in each["summary"] for each in result)


# ------------------------------------------------------------------ batches and labels


@pytest.mark.parametrize(
    ("shares", "found"),
    [
        ((50, 50), 0),
        ((75, 70), 0),
        ((0, 50), None),  # half of the reads
        ((0, 0), None),
        ((10, 0), None),
        ((100, 100), None),  # one batch on purpose
        ((100, 50), 0),
    ],
)
def test_batches_that_repeat_are_found(diagnose, lines, training, shares, found):
    reads = dict(zip((10, 20), shares, strict=True))
    result = diagnose(lines, training, {"repeated_batches%": reads})
    expected = [] if found is None else [("repeated_batches", None, None, found)]
    assert [where(each) for each in result] == expected


def test_batches_that_begin_to_repeat_are_dated(diagnose, lines, training):
    reads = {5: 0, 10: 0, 15: 80, 20: 80, 25: 80}
    (found,) = diagnose(lines, training, {"repeated_batches%": reads})
    assert where(found) == ("repeated_batches", None, None, 10)


@pytest.mark.parametrize(
    ("offset", "visible", "cause"),
    [
        (1, 0, None),
        (1, None, None),
        (1, 3, None),  # below the limit
        (1, 6, "label_leak"),
        (1, 100, "label_leak"),
        (2, 0, "wrong_labels"),
        (2, None, "wrong_labels"),
        (0, 0, "wrong_labels"),
        (0, 100, None),  # an autoencoder
        (0, None, None),
    ],
)
def test_labels_that_are_wrong_or_visible_are_found(
    diagnose, lines, training, offset, visible, cause
):
    scalars = {"label_offset": constant(offset, MEASURED)}
    if visible is not None:
        scalars["visible_labels%"] = constant(visible, MEASURED)
    result = diagnose(lines, training, scalars)
    assert [where(each) for each in result] == ([(cause, None, None, 0)] if cause else [])


def test_nan_is_not_a_consequence_of_repeated_batches(diagnose, lines, training):
    training.values[1, LAYERS[1], "output", "nonfinite"] = 3
    found = diagnose(lines, training, {"repeated_batches%": {10: 50, 20: 50}})
    assert {where(each) for each in found} == {
        ("nonfinite", LAYERS[1], "output", 1),
        ("repeated_batches", None, None, 0),
    }


def test_one_read_of_labels_is_not_enough(diagnose, lines, training):
    scalars = {"label_offset": {0: 2, 10: 1, 20: 1}, "visible_labels%": {0: 0, 10: 100, 20: 0}}
    assert diagnose(lines, training, scalars) == []


# ------------------------------------------------------------------ the first step of Adam


@pytest.mark.parametrize(
    ("change", "found"), [(1.0, False), (1.1, False), (0.9, False), (0.735, True), (3.0, True)]
)
def test_first_step_of_adam_is_the_learning_rate(diagnose, lines, training, change, found):
    result = diagnose(lines, training, {"lr": constant(1e-3), "first_update": {0: change}})
    expected = [("optimizer_step", None, None, 0)] if found else []
    assert [where(each) for each in result] == expected


# ------------------------------------------------------------------ learning rates


def cosine(step, steps=STEPS):
    return 1e-3 * (0.5 + 0.5 * math.cos(math.pi * step / steps))


@pytest.mark.parametrize(
    "rate",
    [
        cosine,
        lambda step: cosine(step % 10, 10) + 1e-6,  # restarts jump to the peak
        lambda step: 1e-3 * min(1, (step + 1) / 8),
        lambda step: 1e-3 if step < 12 else 1e-4,
        lambda step: 1e-3 * max(0, 1 - step / (STEPS - 2)),  # zero in the last step
    ],
)
def test_usual_schedules_are_silent(diagnose, lines, training, rate):
    assert diagnose(lines, training, {"lr": {s: rate(s) for s in range(STEPS)}}) == []


def test_a_cosine_beyond_its_end_is_found(diagnose, lines, training):
    rates = {step: cosine(step, 10) for step in range(STEPS)}
    (found,) = diagnose(lines, training, {"lr": rates})
    assert where(found) == ("learning_rate", None, None, 10)
    assert "beyond its end" in found["summary"]


def test_steps_with_a_rate_of_zero_are_found(diagnose, lines, training):
    rates = {step: max(0.0, 1e-3 * (1 - step / 15)) for step in range(STEPS)}
    (found,) = diagnose(lines, training, {"lr": rates})
    assert where(found) == ("learning_rate", None, None, 15)


# ------------------------------------------------------------------ received gradients


def give_gradients(training, passes=4, common=1.0, factors=None):
    """Writes wgrad over `passes` micro-batches, and the gradients that the optimizer received."""
    noise = random.Random(7)
    for step in range(STEPS):
        for layer in LAYERS:
            rms = 1e-3 * (1 + 0.05 * noise.gauss(0, 1))
            mean = rms * noise.choice((-1, 1)) * (0.02 + 0.01 * noise.random())
            values = training.values
            values[step, layer, "wgrad", "l2_norm"] = rms * math.sqrt(4096 * passes)
            values[step, layer, "wgrad", "numel"] = 4096 * passes
            values[step, layer, "wgrad", "mean"] = mean
            if step not in MEASURED:
                continue
            factor = common * (factors or {}).get(layer, 1.0)
            values[step, layer, "wgrad", "accumulated_mean"] = mean * passes * factor
            norm = rms * math.sqrt(4096 * passes) * factor
            values[step, layer, "wgrad", "accumulated_norm"] = norm


@pytest.mark.parametrize("common", [1.0, 1 / 4, 2.0**-16])
def test_gradients_with_one_factor_are_silent(diagnose, lines, training, common):
    give_gradients(training, common=common)
    assert diagnose(lines, training) == []


@pytest.mark.parametrize("factor", [2.0, 0.25, 0.85, 15 / 4])
def test_a_gradient_that_is_counted_wrong_is_found(diagnose, lines, training, factor):
    give_gradients(training, factors={LAYERS[1]: factor})
    (found,) = diagnose(lines, training)
    assert where(found) == ("gradient_accumulation", LAYERS[1], "wgrad", 0)


def test_gradients_without_a_common_factor_are_not_judged(diagnose, lines, training):
    # As with an optimizer that clips each parameter by itself.
    give_gradients(training, factors=dict(zip(LAYERS, (0.1, 0.3, 0.5, 0.9), strict=True)))
    assert diagnose(lines, training) == []


def test_gradients_cleared_before_the_step_are_found(diagnose, lines, training):
    give_gradients(training, common=0.0)
    (found,) = diagnose(lines, training)
    assert where(found) == ("gradient_accumulation", None, None, 0)
    assert "receives gradients of 0" in found["summary"]


def test_gradients_of_zero_in_one_step_are_silent(diagnose, lines, training):
    give_gradients(training)
    for layer in LAYERS:
        training.values[MEASURED[1], layer, "wgrad", "accumulated_mean"] = 0
        training.values[MEASURED[1], layer, "wgrad", "accumulated_norm"] = 0
    assert diagnose(lines, training) == []


@pytest.mark.parametrize("passes", [1, 4])
def test_gradients_that_are_never_cleared_are_found(diagnose, lines, training, passes):
    give_gradients(training, passes=passes)
    for layer in LAYERS:
        total = 0
        for step in range(STEPS):
            total += training.values[step, layer, "wgrad", "mean"] * passes
            if step in MEASURED:
                training.values[step, layer, "wgrad", "accumulated_mean"] = total
    (found,) = diagnose(lines, training)
    assert where(found) == ("gradient_accumulation", None, None, 1)
    assert "zero_grad" in found["next_step"]


def clip(training, norms, after):
    """Scales the optimizer's gradients from norm n to after(n); returns the new norms."""
    give_gradients(training)
    for step in MEASURED:
        factor = after(norms[step]) / norms[step]
        for layer in LAYERS:
            for statistic in ("accumulated_mean", "accumulated_norm"):
                training.values[step, layer, "wgrad", statistic] *= factor
    return {step: after(norms[step]) for step in MEASURED}


NORMS = {0: 25.0, 10: 14.0, 20: 9.0}


def test_clipping_to_a_limit_is_silent(diagnose, lines, training):
    grad_norm = clip(training, NORMS, lambda norm: min(norm, 1.0))
    assert diagnose(lines, training, {"grad_norm": grad_norm}) == []


def test_clipping_by_the_square_of_the_norm_is_found(diagnose, lines, training):
    grad_norm = clip(training, NORMS, lambda norm: 1.0 / norm)
    (found,) = diagnose(lines, training, {"grad_norm": grad_norm})
    assert where(found) == ("gradient_clipping", None, None, 0)
    assert "square" in found["summary"]


def test_clipping_with_the_loss_scale_is_found(diagnose, lines, training):
    # The recorded gradients are scaled by 65536, and the optimizer's are clipped to 1 / 65536.
    scale = 65536.0
    grad_norm = clip(training, {s: n * scale for s, n in NORMS.items()}, lambda norm: 1 / scale)
    scalars = {"grad_norm": grad_norm, "loss_scale": constant(scale)}
    (found,) = diagnose(lines, training, scalars)
    assert where(found) == ("gradient_clipping", None, None, 0)
    assert "unscale_" in found["next_step"]


# ------------------------------------------------------------------ weights that others write


def test_a_weight_that_changes_more_than_its_update_is_found(diagnose, lines, training):
    layer = LAYERS[3]
    training.scale(layer, "weight", 1, 0.5)
    for each in LAYERS:
        training.values[0, each, "weight", "update_rms"] = 1e-3
    found = diagnose(lines, training)
    assert where(found[0]) == ("weight_jump", layer, "weight", 1)


def test_a_large_update_explains_a_change(diagnose, lines, training):
    training.scale(LAYERS[3], "weight", 1, 0.9)
    for each in LAYERS:
        training.values[0, each, "weight", "update_rms"] = 0.05
    assert diagnose(lines, training) == []


@pytest.mark.parametrize(
    ("update", "later", "found"),
    [
        (0.5, 3.0, True),
        (4.0, 50.0, True),
        (0.5, 2.0, False),  # the loss falls: weights that start at zero, for example
        (0.1, 3.0, False),
        (math.nan, 3.0, False),
    ],
)
def test_too_large_first_update_is_found(diagnose, lines, training, update, later, found):
    training.losses = [2.5] + [later] * (STEPS - 1)
    scalars = {
        "update_to_weight": {step: update if step == 0 else 0.02 for step in MEASURED},
        "lr": constant(5.0),
    }
    result = [each for each in diagnose(lines, training, scalars) if each["cause"] != "nonfinite"]
    assert [where(each) for each in result] == [("weight_jump", None, None, 0)] * found
    assert all("learning rate is too large" in each["summary"] for each in result)
