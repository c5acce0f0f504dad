"""telens diagnose on errors of an optimizer or of gradients, and on recordings that stopped
early.
"""

import json
import math
import shlex
import subprocess

import pytest
from conftest import WRITE_RUN, age
from recorded_training import LAYERS, STEPS, where


def wgrads(training):
    for step in range(STEPS):
        for layer in LAYERS:
            training.put(step, layer, "wgrad", 1e-3)


def hold(training, layer, first, last=STEPS - 1):
    """The weight does not change from `first` to `last`."""
    for step in range(first + 1, last + 1):
        for statistic in ("l2_norm", "mean", "std", "cur_amax"):
            value = training.values[first, layer, "weight", statistic]
            training.values[step, layer, "weight", statistic] = value


@pytest.mark.parametrize("first", [0, 12])
def test_constant_weight_with_gradient_is_frozen(findings, training, first):
    wgrads(training)
    hold(training, "layers.1.fc1", first)
    assert [where(each) for each in findings(training)] == [
        ("frozen_weight", "layers.1.fc1", "weight", first)
    ]


def test_a_weight_without_a_gradient_is_frozen_on_purpose(findings, training):
    hold(training, "layers.1.fc1", 12)
    assert findings(training) == []


def test_constant_weight_with_zero_gradient_is_fine(findings, training):
    wgrads(training)
    hold(training, "layers.1.fc1", 0)
    for step in range(STEPS):
        training.values[step, "layers.1.fc1", "wgrad", "l2_norm"] = 0
    assert findings(training) == []


def test_all_weights_constant_means_no_step(findings, training):
    wgrads(training)
    for layer in LAYERS:
        hold(training, layer, STEPS - 8)
    assert findings(training) == []


def test_all_weights_growing_is_learning_rate(findings, training):
    for step in range(1, STEPS):
        for layer in LAYERS:
            training.scale(layer, "weight", step, 1.5)
            training.scale(layer, "activation", step, 1.2)
    found = findings(training)
    assert where(found[0])[::3] == ("weight_jump", 1)
    assert "learning rate" in found[0]["summary"]


def test_initial_growth_by_a_quarter_is_ignored(findings, training):
    for step in range(1, 4):
        for layer in LAYERS:
            training.scale(layer, "weight", step, 1.25)
    assert findings(training) == []


def with_rates(lines, rates, name="lr"):
    for step, rate in enumerate(rates):
        lines.scalar(step, name, rate)


@pytest.mark.parametrize(("rises", "told"), [(True, True), (False, False)])
def test_a_recorded_learning_rate_that_jumps(telens, lines, training, tmp_path, rises, told):
    with_rates(lines, [1e-3] * 15 + [1e-2] * 15)
    if rises:
        training.losses[17:] = [loss * 1.15 for loss in training.losses[17:]]
    result = telens("diagnose", training.write(lines, tmp_path), "--format", "json")
    found = json.loads(result.stdout)["findings"]
    assert [where(each) for each in found] == ([("weight_jump", None, None, 15)] if told else [])
    if told:
        assert found[0]["summary"].startswith("the learning rate rises from 0.001 to 0.01")


def test_learning_rate_jump_reports_old_rate(telens, lines, training, tmp_path):
    with_rates(lines, [1e-3] * 10 + [1e-5] * 5 + [5e-3] * 15, "model.lr")
    training.losses[17:] = [loss * 1.15 for loss in training.losses[17:]]
    result = telens("diagnose", training.write(lines, tmp_path), "--format", "json")
    (finding,) = json.loads(result.stdout)["findings"]
    assert where(finding) == ("weight_jump", None, None, 15)
    assert "from 1e-05 to 0.005, 5 times its earlier maximum" in finding["summary"]
    assert [
        (each["statistic"], each["iteration"], each["value"]) for each in finding["evidence"]
    ] == [
        ("model.lr", 15, 5e-3),
        ("model.lr", 14, 1e-5),
    ]


def test_a_negative_loss_that_falls_does_not_rise(telens, lines, training, tmp_path):
    with_rates(lines, [1e-3] * 15 + [1e-2] * 15)
    training.losses = [-10 - 0.001 * step for step in range(STEPS)]
    assert telens("diagnose", training.write(lines, tmp_path)).returncode == 0


def test_learning_rate_restart_is_not_a_jump(telens, lines, training, tmp_path):
    with_rates(lines, [min(1, (i + 1) / 10) * (1 if i < 20 else 0.1) for i in range(25)] + [1] * 5)
    training.losses[22:] = [loss * 1.15 for loss in training.losses[22:]]
    assert telens("diagnose", training.write(lines, tmp_path)).returncode == 0


def test_a_jump_of_weights_names_the_recorded_learning_rate(telens, lines, training, tmp_path):
    with_rates(lines, [1e-3] * 13 + [0.1] * 17)
    for layer in LAYERS:
        training.scale(layer, "weight", 14, 3)
    result = telens("diagnose", training.write(lines, tmp_path), "--format", "json")
    found = json.loads(result.stdout)["findings"]
    assert where(found[0])[::3] == ("weight_jump", 14)
    assert "from 0.001 to 0.1 in iteration 13" in found[0]["summary"]


def test_zeros_among_weights_of_a_kind_that_have_none(findings, training):
    for block in range(2, 5):
        for step in range(STEPS):
            training.put(step, f"layers.{block}.fc1", "weight", 0.1 * (1 + 1e-3 * step + block))
    for statistic in ("l2_norm", "mean", "std", "cur_amax"):
        training.values[0, "layers.3.fc1", "weight", statistic] = 0
    found = findings(training)
    assert ("weight_initialization", "layers.3.fc1", "weight", 0) in [where(e) for e in found]


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_gradient_that_changes_step_by_step(findings, training, factor):
    """All gradients vary together. Those of one layer, and of the layers before it, also change by
    a factor in each iteration.
    """
    for step in range(STEPS):
        for layer in LAYERS:
            training.scale(layer, "gradient", step, 1 + 0.6 * math.sin(step), last=step)
    for step in range(14, 24):
        for layer in LAYERS[:2]:
            training.scale(layer, "gradient", step, factor)
    cause = "exploding_gradients" if factor > 1 else "vanishing_gradients"
    assert where(findings(training)[0]) == (cause, "layers.0.fc2", "gradient", 14)


def test_short_burst_is_not_an_explosion(findings, training):
    for layer in LAYERS[:2]:
        training.scale(layer, "gradient", 14, 20, last=19)
    assert findings(training) == []


@pytest.mark.parametrize(("noise", "drowns"), [(0.4, False), (0.7, True)])
def test_a_gradient_below_the_noise_of_its_cast(findings, training, noise, drowns):
    for step in range(STEPS):
        rms = training.values[step, "layers.0.fc1", "gradient", "std"]
        share = noise if step >= 10 else 0.05
        training.values[step, "layers.0.fc1", "gradient", "mse"] = (share * rms) ** 2
    expected = [("gradient_noise", "layers.0.fc1", "gradient", 10)] if drowns else []
    assert [where(each) for each in findings(training)] == expected


def test_noise_ends_with_its_last_persistent_stretch(findings, training):
    for step in range(STEPS):
        rms = training.values[step, "layers.0.fc1", "gradient", "std"]
        share = 0.7 if 5 <= step < 12 or step == 25 else 0.05
        training.values[step, "layers.0.fc1", "gradient", "mse"] = (share * rms) ** 2
    (finding,) = findings(training)
    assert (finding["first_iteration"], finding["last_iteration"]) == (5, 11)


def test_explosion_after_ramp_is_reported(findings, training):
    for step in range(12, 20):
        for layer in LAYERS[:2]:
            training.scale(layer, "gradient", step, 2.0)
    training.scale(LAYERS[2], "gradient", 24, 100)
    found = findings(training)
    causes = [("exploding_gradients", "layers.0.fc2"), ("exploding_gradients", LAYERS[2])]
    told = found + [each for finding in found for each in finding["consequences"]]
    assert [(each["cause"], each["layer"]) for each in told][:2] == causes


def test_a_steady_tensor_that_is_none_of_a_norm_may_fall(findings, training):
    """It changes by a few percent in each iteration, as outputs of attention do."""
    for step in range(STEPS):
        wobble = 1 + 0.04 * (step % 2)
        fallen = 1.0 if step < 15 else max(0.45, 0.9 ** (step - 14))
        training.put(step, "layers.1.fc1", "activation", wobble * fallen)
    assert findings(training) == []


def test_an_output_whose_mean_drifts(findings, training):
    for step in range(STEPS):
        training.put(step, "layers.0.fc2", "output", 1.0)
    for step in range(12, STEPS):
        mean = 0.3 * (step - 11)
        training.values[step, "layers.0.fc2", "output", "mean"] = mean
        training.values[step, "layers.0.fc2", "output", "l2_norm"] = 64 * math.hypot(mean, 1)
    assert [where(each) for each in findings(training)] == [
        ("drifting_mean", "layers.0.fc2", "output", 12)
    ]


def test_a_killed_run_says_so_above_its_findings(telens, tmp_path):
    arguments = [WRITE_RUN, str(tmp_path), "run", "-1"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "recorded\n"
        told = json.loads(telens("diagnose", tmp_path, "--format", "json").stdout)
        assert told["recording"] == []  # it goes on
        process.kill()
    age(tmp_path)
    result = telens("diagnose", tmp_path)
    ending, notes = result.stdout.split("\n\n")[0].split("\n", 1)
    assert ending.startswith("The run was killed")
    assert notes.startswith("the recording of rank 0: not closed (killed?)")
    told = json.loads(telens("diagnose", tmp_path, "--format", "json").stdout)
    assert told["recording"] == [" ".join(notes.split())]


def test_clean_end_prints_no_note(telens, lines, training, tmp_path):
    result = telens("diagnose", training.write(lines, tmp_path), "--format", "json")
    assert json.loads(result.stdout)["recording"] == []


# The text as it is written today, and as in files of the first runs of telens 0.1.0.
SELDOM = (
    "budget of section 's': its overhead was 9% of the time of 2 steps on this rank (budget 3%), "
    "so its features run in {} of their iterations (before: 1 of 8)"
)
OLD_SELDOM = (
    "budget of section 's': 9% of 2 steps on this rank, of 3%; its features run in {} of their "
    "iterations, before in 1 of 8"
)


@pytest.mark.parametrize(("level", "shown"), [("1 of 64", True), ("all", False)])
@pytest.mark.parametrize("text", [SELDOM, OLD_SELDOM], ids=["new", "old"])
def test_iterations_that_a_budget_left_out_are_reported(
    telens, lines, training, tmp_path, text, level, shown
):
    lines.event(2, "budget", text.format("1 of 8"), "-")
    lines.event(9, "budget", text.format(level), "-")
    result = telens("diagnose", training.write(lines, tmp_path))
    assert ("UTC\nbudget of section 's': " in result.stdout) == shown
    said = " ".join(result.stdout.split())
    note = (
        text.format("1 of 64") + ". Iterations in between were not recorded; to record all, remove"
    )
    assert (note in said) == shown


def test_next_step_commands_are_on_own_lines(telens, lines, training, tmp_path):
    folder = tmp_path / ("a folder with a long name " * 5)
    for step in range(20, STEPS):
        training.values[step, LAYERS[2], "activation", "nonfinite"] = 3
    run = training.write(lines, folder)
    printed = telens("diagnose", run).stdout.splitlines()
    (command,) = [line.strip() for line in printed if line.strip().startswith("telens ")]
    assert shlex.split(command)[:3] == ["telens", "stats", str(run)]
    assert telens(*shlex.split(command)[1:]).returncode == 0
