"""telens diagnose on losses that rise or do not fall, and on optimizers that lost their state."""

import random

import pytest
from recorded_training import LAYERS, STEPS, where


def rise(training, first, height, steps=1, last=STEPS - 1):
    """Lets the loss rise to `height` in equal steps, and stay there until `last`."""
    noise = random.Random(3)
    before = training.losses[first - 1]
    for step in range(first, last + 1):
        part = min(1, (step - first + 1) / steps)
        training.losses[step] = before + part * (height - before) + 0.05 * noise.gauss(0, 1)


@pytest.mark.parametrize("steps", [1, 6])
@pytest.mark.parametrize("height", [5.4, 7.0])  # one that it had, and one above all before
def test_a_loss_that_rises_and_stays_up(findings, training, height, steps):
    noise = random.Random(5)
    training.losses = [loss + 0.2 * noise.gauss(0, 1) for loss in training.losses]
    rise(training, 15, height, steps)
    (finding,) = findings(training)
    assert finding["cause"] == "loss_spike"
    assert abs(finding["first_iteration"] - 15) <= (2 if steps > 1 else 0)
    assert "stays up" in finding["summary"]
    assert "check other changes in iteration" in finding["next_step"]


@pytest.mark.parametrize(
    ("height", "steps", "last"),
    [
        (4.8, 1, STEPS - 1),  # by a tenth
        (5.4, 3, 20),  # falls again after 6 steps
    ],
)
def test_a_loss_that_rises_little_or_for_a_moment(findings, training, height, steps, last):
    rise(training, 15, height, steps, last)
    assert findings(training) == []


@pytest.mark.parametrize(("height", "told"), [(-3.5, True), (-4.6, False)])
def test_a_loss_below_zero_rises_too(findings, training, height, told):
    training.losses = [loss - 9 for loss in training.losses]  # from -4 to -5.5
    rise(training, 15, height, 6)
    assert [each["cause"] for each in findings(training)] == ["loss_spike"] * told


def optimize(lines, factor=1.0, rate=1.0, first=18, last=STEPS - 1, still=0, name=""):
    """Writes the scalars of debug.watch_optimizer. From `first` to `last` the updates are
    larger.
    """
    noise = random.Random(5)
    for step in range(STEPS):
        changed = first <= step <= last
        lr = 1e-3 * (1 - step / (2 * STEPS)) * (rate if changed else 1)
        update = 5 * lr * (1 + 0.02 * noise.gauss(0, 1)) * (factor if changed else 1)
        lines.scalar(step, f"{name}lr", lr)
        lines.scalar(step, f"{name}update_to_weight", 0 if step < still else update)


@pytest.mark.parametrize("name", ["", "adam."])
def test_growing_steps_mean_lost_optimizer_state(findings, lines, training, name):
    optimize(lines, factor=3, name=name)
    (finding,) = findings(training)
    assert where(finding) == ("weight_jump", None, None, 18)
    assert "state (moments) was lost" in finding["summary"]
    assert {each["statistic"] for each in finding["evidence"]} == {
        f"{name}update_to_weight", f"{name}lr",
    }  # fmt: skip
    assert "optimizer.state_dict()" in finding["next_step"]


@pytest.mark.parametrize(
    "steps",
    [
        {"rate": 2.5},  # the learning rate's part
        {"factor": 1.8},
        {"factor": 3, "last": 18},  # one step
        {"still": 9},  # a loss scaler that skips the first steps
        {"factor": 1 / 3},
        {"factor": 3, "first": 5},  # no past yet
    ],
)
def test_steps_that_grow_for_another_reason(findings, lines, training, steps):
    optimize(lines, **steps)
    assert findings(training) == []


def test_weights_that_are_trained_from_now_on_make_larger_steps(findings, lines, training):
    optimize(lines, factor=3)
    for statistic in ("l2_norm", "mean", "std", "cur_amax"):
        for step in range(19):
            value = training.values[18, LAYERS[0], "weight", statistic]
            training.values[step, LAYERS[0], "weight", statistic] = value
    assert findings(training) == []


def noisy(training, steps, size=0.2, seed=7):
    noise = random.Random(seed)
    for step in steps:
        training.losses[step] = 5 - 0.05 * step + size * noise.gauss(0, 1)


def test_a_jump_to_a_smooth_level_is_one_finding(findings, training):
    noisy(training, range(18))
    noise = random.Random(3)
    for step in range(18, STEPS):  # the loss of a model that tells nothing
        training.losses[step] = 5.54 + 0.002 * noise.gauss(0, 1)
    (finding,) = findings(training)
    assert where(finding) == ("loss_spike", None, None, 18)
    assert finding["consequences"] == []


@pytest.mark.parametrize("still", [range(STEPS), range(18, 24), range(18, STEPS)])
def test_smooth_losses_have_no_findings(findings, training, still):
    noisy(training, range(STEPS))
    for step in still:
        training.losses[step] = 4.5 - 0.03 * step
    assert findings(training) == []
