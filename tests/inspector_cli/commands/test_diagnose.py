"""telens diagnose on runs of which every number is known."""

import json
import math
import re
import resource

import pytest
from conftest import ROOT, Lines
from recorded_training import LAYERS, STEPS, Training, where


@pytest.mark.parametrize("seed", range(4))
def test_healthy_run_gives_no_findings(findings, seed):
    training = Training(seed)
    for layer in LAYERS:
        training.follow_with_scales(layer, "activation")
    assert findings(training) == []


def test_the_first_value_that_is_not_finite_is_the_origin(findings, training):
    for step in range(20, STEPS):
        for layer in LAYERS[2:]:
            training.values[step, layer, "activation", "nonfinite"] = 3
        for layer in LAYERS:
            training.values[step, layer, "gradient", "nonfinite"] = 5
    found = findings(training)
    assert [where(each) for each in found] == [("nonfinite", "layers.1.fc1", "activation", 20)]
    assert found[0]["last_iteration"] == STEPS - 1


def test_nonfinite_loss_counts_without_nonfinite_tensors(findings, training):
    training.losses[22] = math.nan
    assert [where(each) for each in findings(training)] == [("nonfinite", None, None, 22)]


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_nonfinite_loss_without_tensors_is_a_finding(telens, lines, tmp_path, value):
    for step in range(10):
        lines.scalar(step, "loss", value if step == 6 else 3 - 0.1 * step)
    run = lines.write(tmp_path)
    answer = telens("diagnose", run, "--format", "json")
    (found,) = json.loads(answer.stdout)["findings"]
    assert where(found) == ("nonfinite", None, None, 6)
    assert "no tensor of this iteration was recorded" in found["summary"]
    assert answer.returncode == 1
    assert "The loss itself is" in telens("diagnose", run).stdout


@pytest.mark.parametrize("at", [8, 15, 25])
def test_exploding_gradients_name_last_layer(findings, training, at):
    for layer in LAYERS[:3]:
        training.scale(layer, "gradient", at, 100)
    assert where(findings(training)[0]) == ("exploding_gradients", "layers.1.fc1", "gradient", at)


def test_vanishing_gradients_differ_from_exploding(findings, training):
    for layer in LAYERS[:2]:
        training.scale(layer, "gradient", 12, 1e-4)
    assert where(findings(training)[0]) == ("vanishing_gradients", "layers.0.fc2", "gradient", 12)


def test_one_factor_on_all_gradients_is_the_loss_scale(findings, training):
    for layer in LAYERS:
        training.scale(layer, "gradient", 12, 2**10)
    assert [where(each) for each in findings(training)] == [("loss_scale", None, None, 12)]


def test_single_large_gradient_is_ignored(findings, training):
    training.scale("layers.0.fc1", "gradient", 12, 20, last=12)
    assert findings(training) == []


def test_a_single_weight_and_all_weights_that_jump(findings, training):
    training.scale("layers.1.fc1", "weight", 14, 3)
    found = findings(training)
    assert where(found[0]) == ("weight_jump", "layers.1.fc1", "weight", 14)
    assert "learning rate" not in found[0]["summary"]


def test_all_weights_that_jump_together_are_the_optimizers(findings, training):
    for layer in LAYERS:
        training.scale(layer, "weight", 14, 3)
    assert "learning rate" in findings(training)[0]["summary"]


def test_odd_initial_weight_is_found(findings):
    training = Training()
    training.scale("layers.1.fc1", "weight", 0, 200)
    found = findings(training)
    assert [where(each) for each in found] == [
        ("weight_initialization", "layers.1.fc1", "weight", 0)
    ]


def test_weights_that_are_equal_for_a_while_are_duplicates(findings, training):
    for statistic in ("l2_norm", "mean", "std", "cur_amax"):
        for step in (0, 1):
            value = training.values[step, "layers.0.fc1", "weight", statistic]
            training.values[step, "layers.1.fc2", "weight", statistic] = value
    assert where(findings(training)[0]) == ("duplicate_weights", "layers.1.fc2", "weight", 0)


def test_weights_that_are_always_equal_are_shared(findings, training):
    for statistic in ("l2_norm", "mean", "std", "cur_amax"):
        for step in range(STEPS):
            value = training.values[step, "layers.0.fc1", "weight", statistic]
            training.values[step, "layers.1.fc2", "weight", statistic] = value
    assert findings(training) == []


def test_shared_weights_that_become_nan_are_not_duplicates(findings, training):
    for step in range(STEPS):
        for statistic in ("l2_norm", "mean", "std", "cur_amax"):
            value = training.values[step, "layers.0.fc1", "weight", statistic]
            value = value if step < 20 else math.nan
            for layer in ("layers.0.fc1", "layers.1.fc2"):
                training.values[step, layer, "weight", statistic] = value
        for layer in ("layers.0.fc1", "layers.1.fc2"):
            training.values[step, layer, "weight", "nonfinite"] = 0 if step < 20 else 3
    causes = [each["cause"] for each in findings(training)]
    assert causes[0] == "nonfinite"
    assert "duplicate_weights" not in causes


def test_outliers_name_their_tensor(findings, training):
    for step in range(16, STEPS):
        training.values[step, "layers.1.fc2", "activation", "cur_amax"] *= 30
    assert where(findings(training)[0]) == ("outliers", "layers.1.fc2", "activation", 16)


def test_outliers_from_the_start_are_ignored(findings, training):
    for step in range(STEPS):
        training.values[step, "layers.1.fc2", "activation", "cur_amax"] *= 30
    assert findings(training) == []


def test_scale_held_while_tensor_grows_is_stale(findings, training):
    for step in range(15, STEPS):
        training.scale("layers.0.fc2", "activation", step, 1.3, last=step)
    for step in range(15, STEPS):
        training.scale("layers.0.fc2", "activation", step, 1.1 ** (step - 15), last=step)
    training.follow_with_scales("layers.0.fc2", "activation", held_from=15)
    assert where(findings(training)[0]) == ("stale_scale", "layers.0.fc2", "activation", 15)


@pytest.mark.parametrize("bits", [-4, 4])
def test_a_scale_that_no_history_explains_is_wrong(findings, training, bits):
    for layer in LAYERS:
        training.follow_with_scales(layer, "activation")
    training.follow_with_scales("layers.1.fc1", "activation", wrong_from=18, bits=bits)
    found = findings(training)
    assert where(found[0]) == ("wrong_scale", "layers.1.fc1", "activation", 18)


def test_deviating_margin_is_found(findings, training):
    for layer in LAYERS:
        training.follow_with_scales(layer, "activation", margin=3 if layer == LAYERS[1] else 0)
    assert where(findings(training)[0]) == ("wrong_margin", LAYERS[1], "activation", 1)


def test_wide_margin_on_every_tensor_is_found(findings, training):
    for layer in LAYERS:
        training.follow_with_scales(layer, "activation", margin=8)
    found = findings(training)
    assert found[0]["cause"] == "wrong_margin"
    assert "margin of 8" in found[0]["summary"]


def test_constant_activation_is_found(findings, training):
    for step in range(11, STEPS):
        training.values[step, "layers.0.fc2", "activation", "std"] = 0
    assert where(findings(training)[0]) == (
        "collapsed_activation", "layers.0.fc2", "activation", 11,
    )  # fmt: skip


def test_warm_up_after_the_beginning_is_a_lost_history(telens, lines, training, tmp_path):
    for layer in LAYERS:
        training.follow_with_scales(layer, "activation")
    lines.warm_up(0, *LAYERS)
    lines.warm_up(17, *LAYERS)
    result = telens("diagnose", training.write(lines, tmp_path), "--format", "json")
    assert where(json.loads(result.stdout)["findings"][0])[::3] == ("history_lost", 17)


def test_a_fresh_run_that_counts_from_one_lost_no_history(telens, lines, tmp_path):
    for step in range(1, STEPS):
        for layer in LAYERS:
            lines.record(step, layer, "activation", "cur_amax", 1.0)
    lines.warm_up(1, *LAYERS)
    result = telens("diagnose", lines.write(tmp_path), "--format", "json")
    assert json.loads(result.stdout)["findings"] == []


@pytest.mark.parametrize(("again", "lost"), [(12, True), (0, False)])
def test_a_resumed_run_without_a_history(telens, lines, tmp_path, again, lost):
    for begin in (0, again):  # each call writes a file of the same run
        lines.lines.clear()
        for step in range(begin, begin + 12):
            for layer in LAYERS:
                lines.record(step, layer, "activation", "cur_amax", 1.0)
        lines.warm_up(begin, *LAYERS)
        lines.write(tmp_path)
    found = json.loads(telens("diagnose", tmp_path, "--format", "json").stdout)["findings"]
    assert [(each["cause"], each["first_iteration"]) for each in found] == (
        [("history_lost", 12)] if lost else []
    )


def test_isolated_loss_spike_gets_no_numeric_cause(findings, training):
    training.losses[20] = 12
    found = findings(training)
    assert [where(each) for each in found] == [("loss_spike", None, None, 20)]
    assert "data" in found[0]["summary"]


def test_a_jump_while_gradients_still_fall_fast(findings, training):
    for layer in LAYERS:
        for step in range(STEPS):
            training.scale(layer, "gradient", step, 0.75 if step < 12 else 1, last=STEPS - 1)
    training.scale("layers.0.fc2", "gradient", 7, 50, last=7)  # a spike in the past
    training.scale("layers.0.fc2", "gradient", 12, 30)
    found = findings(training)
    assert [where(each) for each in found] == [
        ("exploding_gradients", "layers.0.fc2", "gradient", 12)
    ]


def test_infinite_gradients_of_a_skipped_step_are_a_loss_scalers(findings, training):
    frozen = {}
    for layer in LAYERS:
        for step in (9, 10):
            training.values[step, layer, "gradient", "nonfinite"] = 7
        for statistic in ("l2_norm", "std", "mean", "cur_amax"):
            frozen[layer, statistic] = training.values[9, layer, "weight", statistic]
            for step in (10, 11):  # no weight moves
                training.values[step, layer, "weight", statistic] = frozen[layer, statistic]
    assert findings(training) == []
    training.values[11, LAYERS[0], "weight", "l2_norm"] *= 1.001
    assert [each["cause"] for each in findings(training)] == ["nonfinite"]


def overflow_in_steps(training, steps, nan_layers=()):
    """Gradients are infinite in these steps, first in LAYERS[-1] in the order of the backward
    pass.
    """
    for step in steps:
        for layer in LAYERS:
            training.values[step, layer, "gradient", "nonfinite"] = 7
            training.values[step, layer, "gradient", "nan"] = 7 if layer in nan_layers else 0
            for statistic in ("l2_norm", "std", "mean", "cur_amax"):
                training.values[step + 1, layer, "weight", statistic] = training.values[
                    step, layer, "weight", statistic
                ]


def test_untrained_weights_do_not_mean_skipped_steps(findings, training):
    for step in range(1, STEPS):
        for layer in LAYERS:
            for statistic in ("l2_norm", "std", "mean", "cur_amax"):
                training.values[step, layer, "weight", statistic] = training.values[
                    0, layer, "weight", statistic
                ]
    overflow_in_steps(training, [9])
    assert [where(each)[::3] for each in findings(training)] == [("nonfinite", 9)]


def test_nans_after_loss_scaler_overflow_are_ignored(findings, training):
    overflow_in_steps(training, [9], nan_layers=LAYERS[:-1])
    assert findings(training) == []


def test_initial_nan_gradient_is_not_an_overflow(findings, training):
    overflow_in_steps(training, [9], nan_layers=LAYERS)
    assert [where(each) for each in findings(training)] == [
        ("nonfinite", LAYERS[-1], "gradient", 9)
    ]


def overflows(lines, log_dir, iterations, weight=1.0, sparse=False):
    """The gradients of a layer overflow in these iterations, so its weight does not change."""
    for number, iteration in enumerate(iterations):
        lines.record(iteration, LAYERS[0], "gradient", "nonfinite", 7)
        lines.record(iteration, LAYERS[0], "weight", "l2_norm", 1 + number / 1000)
        after = iteration + 10 if sparse else iteration + 1
        lines.record(after, LAYERS[0], "gradient", "nonfinite", 0)
        lines.record(after, LAYERS[0], "weight", "l2_norm", weight * (1 + number / 1000))
    return lines.write(log_dir)


@pytest.mark.parametrize(("apart", "told"), [(120, False), (5, True)])
def test_permanent_loss_scaler_overflow_is_found(telens, lines, tmp_path, apart, told):
    run = overflows(lines, tmp_path, range(50, 50 + 17 * apart, apart))
    found = json.loads(telens("diagnose", run, "--format", "json").stdout)["findings"]
    assert [each["cause"] for each in found] == ["nonfinite"] * told


@pytest.mark.parametrize(("weight", "told"), [(1.01, False), (math.nan, True)])
def test_weights_recorded_seldom_are_finite_after_a_skipped_step(
    telens, lines, tmp_path, weight, told
):
    run = overflows(lines, tmp_path, [50, 90], weight, sparse=True)
    found = json.loads(telens("diagnose", run, "--format", "json").stdout)["findings"]
    assert [where(each) for each in found] == [("nonfinite", LAYERS[0], "gradient", 50)] * told


def test_a_gain_that_decays_step_by_step(findings, training):
    for step in range(STEPS):
        training.put(step, "layers.1.fc1", "activation", 1 + 0.01 * (step % 2))
    for step in range(15, STEPS):
        training.scale("layers.1.fc1", "activation", step, 0.88)
    found = findings(training)
    assert [where(each) for each in found] == [("dead_gain", "layers.1.fc1", "activation", 15)]


def test_a_mean_that_drifts(findings, training):
    for step in range(12, STEPS):
        training.values[step, "layers.0.fc2", "activation", "mean"] += 0.3 * (step - 11)
    found = findings(training)
    assert [where(each) for each in found] == [("drifting_mean", "layers.0.fc2", "activation", 12)]


def test_drift_at_the_end_only_is_ignored(findings, training):
    training.values[STEPS - 1, "layers.0.fc2", "activation", "mean"] += 3
    assert "drifting_mean" not in [each["cause"] for each in findings(training)]


def test_units_that_die(findings, training):
    for step in range(STEPS):
        share = 0.5 if step < 16 else 0.85
        training.values[step, "layers.0.fc2", "activation", "zeros"] = int(4096 * share)
    found = findings(training)
    assert [where(each) for each in found] == [("dead_units", "layers.0.fc2", "activation", 16)]


def test_a_weight_that_goes_to_and_fro(findings, training):
    for step in range(14, STEPS):
        training.values[step, "layers.1.fc2", "weight", "mean"] += 0.002 * (-1) ** step
    found = findings(training)
    assert [where(each) for each in found] == [
        ("oscillating_weights", "layers.1.fc2", "weight", 14)
    ]


def test_an_expert_that_gets_nothing(findings, training):
    for step in range(STEPS):
        for expert in range(3):
            layer = f"moe.gemm_{expert}"
            training.put(step, layer, "activation", 1 + 0.01 * (step % 3))
            if expert == 1 and step >= 18:
                for statistic in ("numel", "cur_amax", "l2_norm", "std"):
                    training.values[step, layer, "activation", statistic] = 0
    found = findings(training)
    assert ("dead_expert", "moe.gemm_1", "activation", 18) in [
        where(each) for each in found + found[0]["consequences"]
    ]


def experts(lines, tmp_path, reads, every, amax):
    """Three experts without numel, with this many reads; `amax(expert, read)` is that of the
    input.
    """
    for read in range(reads):
        for expert in range(3):
            layer = f"moe.gemm_{expert}"
            lines.record(read * every, layer, "activation", "cur_amax", amax(expert, read))
    return lines.write(tmp_path)


@pytest.mark.parametrize(("missed", "dead"), [(1, False), (4, False), (5, True)])
def test_an_expert_is_dead_by_reads_that_it_missed(telens, lines, tmp_path, missed, dead):
    log_dir = experts(lines, tmp_path, 12, 10, lambda e, r: 0 if e == 1 and r >= 12 - missed else 1)
    found = json.loads(telens("diagnose", log_dir, "--format", "json").stdout)["findings"]
    places = [where(each) for each in found if each["cause"] == "dead_expert"]
    first = 10 * (12 - missed)
    assert places == ([("dead_expert", "moe.gemm_1", "activation", first)] if dead else [])


def test_an_expert_of_nans_is_in_use(telens, lines, tmp_path):
    log_dir = experts(lines, tmp_path, 12, 1, lambda e, r: "nan" if e == 1 and r >= 6 else 1)
    found = json.loads(telens("diagnose", log_dir, "--format", "json").stdout)["findings"]
    assert "dead_expert" not in [each["cause"] for each in found]


def test_scales_are_derived_without_scale_health(findings, training):
    for layer in LAYERS:
        for step in range(1, STEPS):
            before = training.values[step - 1, layer, "activation", "cur_amax"]
            wrong = 16 if layer == "layers.1.fc1" and step >= 17 else 1
            for statistic in ("scale_inv_min", "scale_inv_max"):
                training.values[step, layer, "activation", statistic] = wrong * before / 448
    found = findings(training)
    assert [where(each) for each in found] == [("wrong_scale", "layers.1.fc1", "activation", 17)]


def test_a_layer_whose_casts_end_left_low_precision(findings, training):
    for layer in LAYERS:
        for step in range(STEPS):
            if layer != "layers.0.fc2" or step < 13:
                training.values[step, layer, "activation", "underflows%"] = 0.1
    found = findings(training)
    assert [where(each) for each in found] == [("gemm_precision", "layers.0.fc2", "activation", 13)]
    assert "add PrecisionLedger" in found[0]["next_step"]
    assert "telens ledger" not in found[0]["next_step"]  # this run has none


def test_tensor_statistics_do_not_imply_precision(telens, lines, training, tmp_path):
    told = json.loads(
        telens("diagnose", training.write(lines, tmp_path), "--format", "json").stdout
    )
    lacking = {each["cause"]: each["lacks"] for each in told["not_recorded"]}
    assert lacking["gemm_precision"] == ["a ledger"]


def test_deviations_replace_norms(findings, training):
    training.scale("layers.0.fc1", "activation", 20, 30)
    for key in [key for key in training.values if key[3] in ("l2_norm", "numel")]:
        del training.values[key]
    found = findings(training)
    assert [where(each) for each in found] == [
        ("activation_jump", "layers.0.fc1", "activation", 20)
    ]


def test_consequences_are_listed_under_origin(findings, training):
    training.scale("layers.0.fc1", "weight", 14, 50)
    for layer in LAYERS:
        training.scale(layer, "activation", 14, 50)
        training.scale(layer, "gradient", 15, 100)
    training.losses[15:] = [20] * (STEPS - 15)
    found = findings(training)
    assert [where(each) for each in found] == [("weight_jump", "layers.0.fc1", "weight", 14)]
    causes = {each["cause"] for each in found[0]["consequences"]}
    assert "activation_jump" in causes
    assert "loss_spike" in causes


def test_json_has_documented_fields(telens, lines, training, tmp_path):
    training.values[20, "layers.0.fc1", "activation", "nonfinite"] = 1
    log_dir = training.write(lines, tmp_path)
    told = json.loads(telens("diagnose", log_dir, "--format", "json").stdout)
    assert told["schema_version"] == 1
    assert (told["first_iteration"], told["last_iteration"]) == (0, STEPS - 1)
    finding = told["findings"][0]
    assert set(finding) == {
        "cause", "title", "summary", "layer", "tensor", "gemm", "rank", "first_iteration",
        "last_iteration", "confidence", "evidence", "alternatives", "next_step", "consequences",
    }  # fmt: skip
    assert finding["evidence"][0] == {
        "statistic": "nonfinite", "layer": "layers.0.fc1", "tensor": "activation", "gemm": None,
        "rank": 0, "iteration": 20, "value": 1, "what": None,
    }  # fmt: skip
    assert "layers.0.fc1" in finding["next_step"]
    lacking = {each["cause"]: each for each in told["not_recorded"]}
    assert "gemm_relative_error" in lacking["gemm_error"]["lacks"]
    assert "GemmError" in lacking["gemm_error"]["recorded_by"]


def test_a_person_reads_it_in_a_hundred_columns(telens, lines, training, tmp_path):
    training.values[20, "layers.0.fc1", "activation", "nonfinite"] = 1
    result = telens("diagnose", training.write(lines, tmp_path))
    assert result.returncode == 1
    assert "1. nonfinite: layers.0.fc1 activation" in result.stdout
    sentences = [line for line in result.stdout.splitlines() if " telens " not in line]
    assert max(len(line) for line in sentences) <= 100


def test_a_healthy_run_says_so_in_one_line(telens, lines, training, tmp_path):
    result = telens("diagnose", training.write(lines, tmp_path))
    assert result.returncode == 0
    ending, verdict, *_ = result.stdout.splitlines()
    assert ending.startswith("The run finished, ")
    assert verdict.startswith(f"no problems found in iterations 0-{STEPS - 1} (")


def test_skipped_rules_are_one_line_that_names_the_features(telens, lines, tmp_path):
    for step in range(3):
        lines.record(step, "fc1", "weight", "std", 0.1)
    lines.config({"s": {"telens": {"LogTensorStats": {"enabled": True}}}})
    run = lines.write(tmp_path)
    told = " ".join(telens("diagnose", run).stdout.split())
    skipped = len(json.loads(telens("diagnose", run, "--format", "json").stdout)["not_recorded"])
    line = re.search(
        r"(\d+) rules skipped for missing data; add (.*) to check (.*) \(--missing lists all\)$",
        told,
    )
    assert int(line[1]) == skipped > 3
    assert {"ScaleHealth", "PrecisionLedger", "more statistics of LogTensorStats"} <= set(
        line[2].split(", ")
    )
    assert line[3].count(",") == 3  # three rules, and "..."
    assert len(telens("diagnose", run).stdout.splitlines()) <= 5


def test_missing_lists_each_skipped_rule_with_its_data(telens, lines, tmp_path):
    lines.record(0, "fc1", "weight", "std", 0.1)
    run = lines.write(tmp_path)
    told = json.loads(telens("diagnose", run, "--format", "json").stdout)["not_recorded"]
    listed = " ".join(telens("diagnose", run, "--missing").stdout.split())
    for rule in told:
        needs = ", ".join(rule["lacks"])
        assert (
            f"skipped {rule['cause']}: needs {needs}, recorded by {rule['recorded_by']}" in listed
        )


def test_empty_run_gives_no_findings(telens, write_run):
    result = telens("diagnose", write_run(iterations=0))
    assert result.returncode == 0
    assert "nothing to diagnose was recorded" in result.stdout


def seconds_of_diagnosis(telens, lines, folder, steps):
    """Returns the processor time of a diagnosis of a run with this many iterations."""
    for step in range(steps):
        lines.record(step, "fc1", "weight", "std", 0.1)
        lines.record(step, "fc1", "weight", "mean", 1e-3 + 1e-9 * (step % 7))
        size = 1 + step % 2  # in bits; the scale is that of the amax before
        lines.record(step, "fc1", "activation", "cur_amax", 2.0**size)
        lines.record(step, "fc1", "activation", "scale_staleness", 2 * size - 3)
        lines.record(step, "fc1", "activation", "scale_headroom", 3 - 2 * size)
    log_dir = lines.write(folder)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    assert telens("diagnose", log_dir).returncode in (0, 1)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def test_the_time_grows_with_the_run_not_with_its_square(telens, tmp_path):
    """A run four times as long would take 16 times as long if each point searched the whole
    past.
    """
    short, whole = (
        seconds_of_diagnosis(telens, Lines(), tmp_path / str(steps), steps)
        for steps in (12_500, 50_000)
    )
    assert whole < 9 * short


def test_wrong_use_is_two(telens, tmp_path):
    assert telens("diagnose", tmp_path / "none").returncode == 2
    assert telens("diagnose", tmp_path, "--format", "csv").returncode == 2


def test_the_page_has_every_rule_as_the_command_prints_it(telens):
    rules = telens("diagnose", "--rules").stdout
    assert rules.count("\n- Recorded by: ") >= 20
    assert (ROOT / "docs/diagnosis_rules.md").read_text().endswith(rules)
