"""telens diagnose on healthy trainings with detached layers, decaying gains or factors."""

import json
import random

import pytest
from recorded_training import LAYERS, STEPS, where

GRADIENTS = ("gradient", "wgrad")


def drop_gradients(training, layer, steps):
    for key in [key for key in training.values if key[1] == layer and key[2] in GRADIENTS]:
        if key[0] in steps:
            del training.values[key]


def look_on(training, layer, steps=range(STEPS)):
    """Records inputs but no gradients, as of a layer of another model."""
    for step in steps:
        training.put(step, layer, "activation", 1.0)


@pytest.mark.parametrize("first", [0, 12])
def test_a_layer_that_no_backward_pass_reaches(findings, training, first):
    drop_gradients(training, LAYERS[1], range(first, STEPS))
    (finding,) = findings(training)
    assert where(finding) == ("detached_layer", LAYERS[1], "gradient", first)
    assert finding["last_iteration"] == STEPS - 1
    assert ("no longer" in finding["summary"]) == (first > 0)
    # If there never was a gradient, it may be that no section selects it.
    assert (finding["confidence"] > 0.5) == (first > 0)


def test_detached_layer_is_nearest_to_loss(findings, training):
    for layer in LAYERS[1:3]:
        drop_gradients(training, layer, range(12, STEPS))
    (finding,) = findings(training)
    assert where(finding) == ("detached_layer", LAYERS[2], "gradient", 12)
    assert "also affects 1 layer before it" in finding["summary"]


@pytest.mark.parametrize("first", [0, 12])
def test_whole_blocks_at_the_front_may_be_frozen_on_purpose(findings, training, first):
    for layer in LAYERS[:2]:
        drop_gradients(training, layer, range(first, STEPS))
    assert findings(training) == []


def test_a_part_of_the_first_block_is_not_frozen_so(findings, training):
    drop_gradients(training, LAYERS[0], range(12, STEPS))
    assert [where(each) for each in findings(training)] == [
        ("detached_layer", LAYERS[0], "gradient", 12)
    ]


def test_eval_model_without_gradients_is_ignored(findings, training):
    for number in range(2):
        look_on(training, f"teacher.{number}.fc1")
    assert findings(training) == []


def test_a_gradient_every_other_iteration_is_the_programs_way(findings, training):
    drop_gradients(training, LAYERS[1], [*range(1, 20, 2), *range(20, STEPS)])
    assert findings(training) == []


def test_four_iterations_without_a_gradient_are_too_few(findings, training):
    drop_gradients(training, LAYERS[1], range(STEPS - 4, STEPS))
    assert findings(training) == []


def test_iterations_without_backward_are_ignored(findings, training):
    for layer in LAYERS:
        drop_gradients(training, layer, range(STEPS - 10, STEPS))
    assert findings(training) == []


def test_an_expert_without_tokens_is_not_detached(findings, training):
    drop_gradients(training, LAYERS[1], range(15, STEPS))
    for step in range(15, STEPS):
        for statistic in ("l2_norm", "numel", "cur_amax", "std", "mean"):
            training.values[step, LAYERS[1], "activation", statistic] = 0
    assert "detached_layer" not in [each["cause"] for each in findings(training)]


def gain_of(training, layer, size_of):
    for step in range(STEPS):
        training.put(step, layer, "activation", size_of(step))


def test_a_gain_that_decays_from_the_first_step_on(findings, training):
    gain_of(training, LAYERS[2], lambda step: 0.999 * 0.985**step)
    (finding,) = findings(training)
    assert where(finding) == ("dead_gain", LAYERS[2], "activation", 1)
    assert "by 1.5 % per step" in finding["summary"]


@pytest.mark.parametrize(("start", "told"), [(0.999, True), (0.93, False)])
def test_a_gain_that_decays_while_the_first_step_is_warm_up(findings, lines, training, start, told):
    lines.warm_up(0, *LAYERS)
    gain_of(training, LAYERS[2], lambda step: start * 0.97**step)
    found = [where(each) for each in findings(training)]
    assert found == [("dead_gain", LAYERS[2], "activation", 2)] * told


def test_an_input_that_falls_and_is_none_of_a_fresh_norm(findings, training):
    gain_of(training, LAYERS[2], lambda step: 1.3 * 0.985**step)
    assert findings(training) == []


def test_activation_function_output_is_not_a_gain(findings, training):
    gain_of(training, LAYERS[2], lambda step: 0.999 * 0.985**step)
    for step in range(STEPS):
        training.values[step, LAYERS[2], "activation", "mean"] *= 50  # half of the size
    assert findings(training) == []


def test_a_gain_that_training_moves_down_goes_to_and_fro(findings, training):
    noise = random.Random(3)
    gain_of(training, LAYERS[2], lambda step: 0.985**step * (1 + 0.02 * noise.gauss(0, 1)))
    assert findings(training) == []


@pytest.mark.parametrize("factor", [7, 8, 1 / 8])
def test_common_gradient_factor_is_loss_scale(findings, training, factor):
    for layer in LAYERS:
        training.scale(layer, "gradient", 12, factor)
    assert [where(each) for each in findings(training)] == [("loss_scale", None, None, 12)]


@pytest.mark.parametrize(("late", "told"), [(2, True), (9, False)])
def test_current_scales_pass_factor_stepwise(findings, training, late, told):
    """The factor reaches the layer next to the loss at once, the others when their scales have
    grown.
    """
    training.scale(LAYERS[3], "gradient", 12, 7.8)
    for layer in LAYERS[:3]:
        for step in range(late):
            training.scale(layer, "gradient", 12 + step, 1.2 * 1.5**step, last=12 + step)
        training.scale(layer, "gradient", 12 + late, 7)
    found = [where(each) for each in findings(training)]
    assert (("loss_scale", None, None, 12) in found) == told


def test_a_batch_of_another_size_changes_a_mean(findings, training):
    for layer in LAYERS:
        training.scale(layer, "gradient", 12, 1 / 7)
        for step in range(12, STEPS):
            training.values[step, layer, "gradient", "numel"] *= 7
            training.values[step, layer, "gradient", "l2_norm"] *= 7**0.5
    assert findings(training) == []


def test_gradient_falling_with_successor_is_ignored(findings, training):
    training.scale(LAYERS[0], "gradient", 12, 1 / 16)
    training.scale(LAYERS[1], "gradient", 12, 1 / 7)
    assert findings(training) == []


@pytest.mark.parametrize(
    ("current", "mxfp8", "words"),
    [
        (
            30,
            1,
            ("MXFP8 would lose 1 %", "current scaling would lose 30 % here, so it does not help"),
        ),
        (
            1,
            30,
            ("current scaling would lose 1 %", "MXFP8 would lose 30 % here, so it does not help"),
        ),
        (
            1,
            None,
            ("current scaling would lose 1 %", "record mxfp8_underflows% with LogFp8TensorStats"),
        ),
    ],
)
def test_recipe_is_recommended_by_whatif_loss(findings, training, current, mxfp8, words):
    for step in range(STEPS):
        values = {"underflows%": 30 if step > 9 else 1}
        values["fp8_current_scaling_underflows%"] = current if step > 9 else 1
        if mxfp8 is not None:
            values["mxfp8_underflows%"] = mxfp8 if step > 9 else 1
        for statistic, value in values.items():
            training.values[step, LAYERS[1], "gradient", statistic] = value
    (finding,) = findings(training)
    assert where(finding) == ("underflow", LAYERS[1], "gradient", 10)
    assert all(each in finding["next_step"] for each in words)
    assert ("Float8CurrentScaling" in finding["next_step"]) == (current < 30)
    assert ("MXFP8BlockScaling" in finding["next_step"]) == (mxfp8 == 1)


def test_no_recipe_is_recommended_without_whatif(findings, training):
    for step in range(STEPS):
        training.values[step, LAYERS[1], "gradient", "underflows%"] = 30 if step > 9 else 1
    (finding,) = findings(training)
    assert "Scaling" not in finding["next_step"]
    assert "fp8_current_scaling_underflows%" in finding["next_step"]


def resumed(lines, folder, losses, again):
    """A second process resumes the run in iteration `again`."""
    for part in (range(again), range(again, len(losses))):
        lines.lines.clear()
        for step in part:
            lines.record(step, LAYERS[0], "activation", "cur_amax", 1.0)
            lines.scalar(step, "loss", losses[step])
        lines.write(folder)


@pytest.mark.parametrize(("height", "told"), [(1.45, True), (1.15, False)])
def test_a_loss_that_rises_as_a_run_is_resumed(telens, lines, tmp_path, height, told):
    fallen = [5 - 0.2 * step for step in range(12)]
    later = [fallen[-1] * height - 0.02 * step for step in range(10)]
    resumed(lines, tmp_path, fallen + later, 12)
    found = json.loads(telens("diagnose", tmp_path, "--format", "json").stdout)["findings"]
    assert [where(each) for each in found] == [("loss_spike", None, None, 12)] * told
    assert all("the run was resumed at iteration 12" in each["summary"] for each in found)


def test_rise_to_earlier_height_is_not_a_resume(telens, lines, tmp_path):
    fallen = [5 - 0.2 * step for step in range(12)]
    later = [fallen[-1] * 1.45 - 0.02 * step for step in range(10)]
    for step, loss in enumerate(fallen + later):
        lines.record(step, LAYERS[0], "activation", "cur_amax", 1.0)
        lines.scalar(step, "loss", loss)
    assert telens("diagnose", lines.write(tmp_path)).returncode == 0


@pytest.mark.parametrize(("last", "words"), [(20, "falls again"), (STEPS - 1, "stays up")])
def test_loss_jump_differs_from_spike(findings, training, last, words):
    training.losses[20 : last + 1] = [12] * (last + 1 - 20)
    (finding,) = findings(training)
    assert where(finding) == ("loss_spike", None, None, 20)
    assert words in finding["summary"]
    assert ("batch of iteration 20" in finding["next_step"]) == (words == "falls again")


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        ("weight", "watch_optimizer"),
        ("activation", "the code before it"),
        ("gradient", "set_detect_anomaly"),
        ("output", "nan_hunt.yaml"),
    ],
)
def test_next_step_depends_on_nonfinite_tensor(findings, training, tensor, words):
    for step in range(STEPS):
        training.put(step, LAYERS[1], "wgrad", 1e-3)
        training.put(step, LAYERS[1], "output", 1.0)
    training.values[20, LAYERS[1], tensor, "nonfinite"] = 3
    (finding,) = findings(training)
    assert where(finding) == ("nonfinite", LAYERS[1], tensor, 20)
    assert words in finding["next_step"]
    assert ("its gradient was finite in iteration 19" in finding["summary"]) == (tensor == "weight")


@pytest.mark.parametrize("copy", [LAYERS[0], LAYERS[3]])
def test_jumped_weight_is_the_copy(findings, training, copy):
    other = LAYERS[3] if copy == LAYERS[0] else LAYERS[0]
    for statistic in ("l2_norm", "mean", "std", "cur_amax"):
        for step in (14, 15):
            value = training.values[step, other, "weight", statistic]
            training.values[step, copy, "weight", statistic] = value
    finding = findings(training)[0]
    assert where(finding) == ("duplicate_weights", copy, "weight", 14)
    assert f"a copy of the weight of {other}" in finding["summary"]


def test_a_dead_gain_and_its_collapse_are_one_finding(findings, training):
    gain_of(training, LAYERS[2], lambda step: (1 + 0.01 * (step % 2)) * (1e-3 if step > 14 else 1))
    (finding,) = findings(training)
    assert where(finding) == ("dead_gain", LAYERS[2], "activation", 15)
    assert "collapsed_activation" in {each["cause"] for each in finding["consequences"]}
    assert "dead_gain" not in {each["cause"] for each in finding["consequences"]}


def test_frozen_weight_evidence_labels_numbers(findings, training):
    for step in range(STEPS):
        for layer in LAYERS:
            training.put(step, layer, "wgrad", 1e-3)
    for statistic in ("l2_norm", "mean", "std", "cur_amax"):
        for step in range(13, STEPS):
            value = training.values[12, LAYERS[1], "weight", statistic]
            training.values[step, LAYERS[1], "weight", statistic] = value
    (finding,) = findings(training)
    assert [(each["tensor"], each["iteration"], each["what"]) for each in finding["evidence"]] == [
        ("weight", 12, None),
        ("weight", STEPS - 1, "unchanged"),
        ("wgrad", 12, "of its largest gradient"),
    ]


def test_a_wgrad_is_not_named_twice(telens, lines, training, tmp_path):
    for step in range(STEPS):
        training.put(step, LAYERS[1], "wgrad", 1e-3)
    training.values[20, LAYERS[1], "wgrad", "nonfinite"] = 3
    printed = telens("diagnose", training.write(lines, tmp_path)).stdout
    assert f"\n1. nonfinite: {LAYERS[1]} wgrad, iterations" in printed


@pytest.mark.parametrize(
    ("layer", "tensor", "has_attention"),
    [
        ("layers.0.fc1", "activation", False),
        ("decoder.0.self_attention.proj", "activation", True),
        ("model.layers.0.self_attn.q_proj", "activation", True),
        ("Attention_3", "activation", True),
        ("core", "query", True),
        ("core", "output", False),
    ],
)
def test_a_run_without_attention_lacks_nothing_of_it(
    telens, lines, training, tmp_path, layer, tensor, has_attention
):
    training.put(3, layer, tensor, 1.0)
    told = json.loads(
        telens("diagnose", training.write(lines, tmp_path), "--format", "json").stdout
    )
    lacking = {each["cause"] for each in told["not_recorded"]}
    of_attention = {"attention_logits", "attention_collapse"}
    assert lacking & of_attention == (of_attention if has_attention else set())
    assert "gemm_error" in lacking


def test_rules_are_available_as_json(telens):
    told = json.loads(telens("diagnose", "--rules", "--format", "json").stdout)
    page = telens("diagnose", "--rules").stdout
    assert told["schema_version"] == 1
    assert [f"## {each['cause']}" for each in told["rules"]] == [
        line for line in page.splitlines() if line.startswith("## ")
    ]
    assert set(told["rules"][0]) == {
        "cause", "title", "doc", "recorded_by", "alternatives", "next_step",
    }  # fmt: skip


def test_chosen_run_is_named(telens, write_run, tmp_path):
    for run in ("alpha", "beta"):
        write_run(run, 5, tmp_path)
    newest = tmp_path / "telens" / "beta"
    told = json.loads(telens("diagnose", tmp_path, "--format", "json").stdout)
    assert told["run"] == str(newest)
    first, second, *_ = telens("diagnose", tmp_path).stdout.splitlines()
    assert first.startswith("The run finished")
    assert second == f"the newest of 2 runs: {newest}"
    assert "runs" not in telens("diagnose", newest).stdout.splitlines()[1]


def test_warm_up_after_resume_is_not_a_span(telens, lines, tmp_path):
    for step in range(60):
        lines.record(step, LAYERS[0], "activation", "cur_amax", 1.0)
    for step in (0, 1, 58):
        lines.warm_up(step, *LAYERS)
    assert "warm-up ignored: iterations 0 to 1, 58 of 4 layers" in (
        " ".join(telens("info", lines.write(tmp_path)).stdout.split())
    )
