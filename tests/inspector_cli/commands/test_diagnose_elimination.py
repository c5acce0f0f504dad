"""telens diagnose: causes that it infers from finite or zero values elsewhere."""

import json
import math

import pytest
from conftest import Lines
from recorded_training import LAYERS, STEPS, where

GRADIENTS = ("gradient", "wgrad")


@pytest.fixture
def optimizer(telens, lines, training, tmp_path):
    """Returns the findings of a training with the scalars of debug.watch_optimizer."""

    def optimizer(bad=(), tensors=(*GRADIENTS, "output")):
        for step in range(STEPS):
            for layer in LAYERS:
                for tensor in tensors:
                    training.put(step, layer, tensor, training.values[step, layer, "gradient",
                                                                      "std"])  # fmt: skip
            for name, value in (("grad_norm", 1.0), ("update_to_weight", 1e-3)):
                lines.scalar(step, name, dict(bad).get((step, name), value))
        run = training.write(lines, tmp_path)
        return json.loads(telens("diagnose", run, "--format", "json").stdout)["findings"]

    return optimizer


def spoil(training, layer, tensor, first, count=1):
    for step in range(first, STEPS):
        training.values[step, layer, tensor, "nonfinite"] = count


def test_gradient_that_overflows_after_backward_names_the_weight(optimizer, training):
    spoil(training, LAYERS[2], "weight", 13)
    found = optimizer({(12, "grad_norm"): math.inf})
    assert where(found[0]) == ("nonfinite", LAYERS[2], "weight", 12)
    assert "every recorded tensor of the backward pass is finite" in found[0]["summary"]
    assert "in iteration 13, 1 element of the weight is not finite" in found[0]["summary"]
    assert "unscaling" in found[0]["next_step"]
    assert "loss function" not in found[0]["next_step"]
    assert [each["statistic"] for each in found[0]["evidence"]] == ["grad_norm", "nonfinite"]


def test_norm_of_nan_that_spoils_every_weight_names_none(optimizer, training):
    for layer in LAYERS:
        spoil(training, layer, "weight", 13, 4096)
    found = optimizer({(12, "grad_norm"): math.nan})
    assert where(found[0]) == ("nonfinite", None, None, 12)
    assert f"all {len(LAYERS)} weights are non-finite afterwards" in found[0]["summary"]


def test_update_after_a_finite_norm_is_the_optimizers(optimizer):
    found = optimizer({(12, "update_to_weight"): math.nan})
    assert where(found[0]) == ("nonfinite", None, None, 12)
    assert "the origin is the optimizer step" in found[0]["summary"]


def test_norm_without_recorded_gradients_blames_nothing(telens, lines, tmp_path):
    for step in range(STEPS):
        lines.record(step, "fc", "activation", "nonfinite", 0)
        lines.scalar(step, "grad_norm", math.inf if step == 12 else 1)
    run = lines.write(tmp_path)
    (found,) = json.loads(telens("diagnose", run, "--format", "json").stdout)["findings"]
    assert "no gradient of this iteration was recorded" in found["summary"]


def test_infinite_norm_of_a_skipped_step_is_a_loss_scalers(optimizer, training):
    """No recorded weight changes: the loss scaler skipped a step in which gradients overflowed."""
    for layer in LAYERS:
        for statistic in ("l2_norm", "std", "mean", "cur_amax"):
            kept = training.values[12, layer, "weight", statistic]
            training.values[13, layer, "weight", statistic] = kept
    assert optimizer({(12, "grad_norm"): math.inf}) == []


@pytest.mark.parametrize("scaler", [False, True])
def test_infinite_norm_between_weights_needs_a_loss_scale(telens, lines, tmp_path, scaler):
    """The weights are recorded every 10 iterations, and are finite after the infinite norm."""
    for step in range(STEPS):
        if step % 10 == 0:
            lines.record(step, "fc", "weight", "l2_norm", 1 + 1e-3 * step)
        for tensor in ("activation", "gradient"):
            lines.record(step, "fc", tensor, "nonfinite", 0)
        lines.scalar(step, "grad_norm", math.inf if step == 12 else 1)
        if scaler:
            lines.scalar(step, "loss_scale", 65536 if step < 13 else 32768)
    found = json.loads(telens("diagnose", lines.write(tmp_path), "--format", "json").stdout)
    causes = [(each["cause"], each["first_iteration"]) for each in found["findings"]]
    assert causes == ([] if scaler else [("nonfinite", 12)])


@pytest.mark.parametrize("with_gradient", [False, True])
def test_loss_of_nan_after_a_finite_output_is_the_origin(optimizer, training, with_gradient):
    training.losses[22] = math.nan
    if with_gradient:
        training.values[22, LAYERS[-1], "gradient", "nonfinite"] = 9
        optimizer_tensors = ("wgrad", "output")
    else:
        optimizer_tensors = (*GRADIENTS, "output")
    found = optimizer(tensors=optimizer_tensors)
    assert found[0]["first_iteration"] == 22
    assert found[0]["layer"] == (LAYERS[-1] if with_gradient else None)
    assert "the loss itself is NaN, while every recorded tensor of the forward pass is finite, "\
        f"up to {LAYERS[-1]} output" in found[0]["summary"]  # fmt: skip
    assert "a mean over no element is NaN" in found[0]["next_step"]
    assert found[0]["evidence"][0]["statistic"] == "loss"


def test_nan_loss_without_records_blames_nothing(telens, lines, tmp_path):
    for step in range(STEPS):
        if step % 10 == 0:
            lines.record(step, "fc", "output", "nonfinite", 0)
        lines.scalar(step, "loss", math.nan if step == 15 else 1)
    run = lines.write(tmp_path)
    (found,) = json.loads(telens("diagnose", run, "--format", "json").stdout)["findings"]
    assert "no tensor of this iteration was recorded" in found["summary"]
    assert "loss function" not in found["next_step"]


@pytest.mark.parametrize(("known", "words"), [
    (True, "its operands were finite, so the product or the bias is the origin"),
    (False, "it was not recorded whether its operands were finite"),
])  # fmt: skip
def test_operands_count_as_finite_only_if_recorded(telens, lines, tmp_path, known, words):
    for step in range(STEPS):
        for tensor in ("activation", "weight") if known else ():
            lines.record(step, "fc", tensor, "nonfinite", 0)
        lines.record(step, "fc", "output", "nonfinite", int(step > 11))
    run = lines.write(tmp_path)
    (found,) = json.loads(telens("diagnose", run, "--format", "json").stdout)["findings"]
    assert words in found["next_step"]


# ---- a part of a weight that is zero from the start

PARTS = ("qkv", "fc1", "fc2")


def weights(lines, log_dir, zeros, layers=4, size=None, steps=STEPS, masked=False, inputs=None):
    """Writes a run whose weights begin with a share of zeros: `zeros` by (layer, part).

    Training changes these zeros, unless they are masked. `inputs` is the share of zeros in the
    inputs by part.
    """
    for step in range(steps):
        for layer in range(layers):
            for number, part in enumerate(PARTS):
                share = zeros.get((layer, part), 0)
                rms = 0.1 * (1 + number) * math.sqrt(1 - share)
                rms = rms * (1 + 1e-3 * step) * (size or (lambda layer: 1))(layer)
                name = f"layers.{layer}.{part}"
                lines.record(step, name, "weight", "l2_norm", rms * 64)
                lines.record(step, name, "weight", "numel", 4096)
                left = share * 4096 if step == 0 or masked else 0
                lines.record(step, name, "weight", "zeros", left)
                if inputs:
                    lines.record(step, name, "activation", "zeros", inputs.get(part, 0) * 8192)
                    lines.record(step, name, "activation", "numel", 8192)
                lines.record(step, name, "weight", "std", rms)
                lines.record(step, name, "weight", "mean", 1e-3 * (layer + 1))
    return lines.write(log_dir)


def found_in(telens, run):
    return json.loads(telens("diagnose", run, "--format", "json").stdout)["findings"]


@pytest.mark.parametrize("share", [1 / 2, 1 / 4, 1 / 8, 1 / 32])
@pytest.mark.parametrize("part", PARTS)
def test_weight_of_which_a_part_is_zero_was_not_filled(telens, lines, tmp_path, share, part):
    found = found_in(telens, weights(lines, tmp_path, {(1, part): share}))
    assert [where(each) for each in found] == [
        ("weight_initialization", f"layers.1.{part}", "weight", 0)
    ]
    assert f"{100 * share:.3g} % of the elements" in found[0]["summary"]


def test_half_of_a_weight_without_its_kind_is_possible(telens, lines, tmp_path):
    (found,) = found_in(telens, weights(lines, tmp_path, {(0, "fc1"): 1 / 2}, layers=1))
    assert (found["layer"], found["confidence"]) == ("layers.0.fc1", 0.4)


@pytest.mark.parametrize("embeddings", [1, 4])
def test_zeros_of_the_highest_ranks_are_at_most_possible(telens, tmp_path, embeddings):
    """A vocabulary that is padded for 4 ranks: half of the last shard is padding."""
    for rank in range(4):
        lines = Lines()
        for step in range(STEPS):
            for layer in [*(f"heads.{number}.out" for number in range(embeddings)), "a", "b", "c"]:
                zeros = 2048 if rank == 3 and layer.startswith("heads") and step == 0 else 0
                rms = 0.1 * math.sqrt(1 - zeros / 4096) * (1 + 1e-3 * step)
                for name, value in (("l2_norm", rms * 64), ("numel", 4096), ("zeros", zeros)):
                    lines.record(step, layer, "weight", name, value)
        lines.write(tmp_path, rank, 4)
    confidences = {
        each["confidence"]
        for each in found_in(telens, tmp_path)
        if each["cause"] == "weight_initialization"
    }
    assert confidences <= {0.4}


@pytest.mark.parametrize(
    "zeros",
    [
        {(layer, "fc2"): 1 for layer in range(4)},  # LoRA's B, residual branches
        {(0, "qkv"): 1 / 4096},  # the row of a padding token
        {(layer, "fc1"): 1200 / 4096 for layer in range(4)},  # a sparse initialization
        {},
    ],
)
def test_intended_zeros_are_ignored(telens, lines, tmp_path, zeros):
    assert found_in(telens, weights(lines, tmp_path, zeros)) == []


OF_ALL = {(layer, part): 0.5 for layer in range(4) for part in PARTS}
OF_ONE_KIND = {(layer, "fc1"): 0.25 for layer in range(4)}


@pytest.mark.parametrize("inputs", [{}, {"fc1": 0.4375, "fc2": 0.5625}])
@pytest.mark.parametrize("zeros", [OF_ALL, OF_ONE_KIND])
def test_zeros_that_a_mask_keeps_are_ignored(telens, lines, tmp_path, zeros, inputs):
    assert found_in(telens, weights(lines, tmp_path, zeros, masked=True, inputs=inputs)) == []


@pytest.mark.parametrize(("zeros", "layers", "first", "weights_with"), [
    (OF_ALL, 4, "layers.0.qkv", 12),
    (OF_ALL, 1, "layers.0.qkv", 3),
    (OF_ONE_KIND, 4, "layers.0.fc1", 4),
])  # fmt: skip
def test_zeros_of_a_whole_shard_are_possible(
    telens, lines, tmp_path, zeros, layers, first, weights_with
):
    """The shard of one rank was not initialized; the optimizer then changes the zeros."""
    share = next(iter(zeros.values()))
    (found,) = found_in(telens, weights(lines, tmp_path, zeros, layers))
    assert where(found) == ("weight_initialization", first, "weight", 0)
    assert found["confidence"] == 0.4
    assert f"{100 * share:.3g} % of the elements of {weights_with} weights" in found["summary"]


def test_shares_that_differ_by_kind_are_reported_as_up_to(telens, lines, tmp_path):
    zeros = OF_ONE_KIND | {(layer, "fc2"): 0.125 for layer in range(4)}
    (found,) = found_in(telens, weights(lines, tmp_path, zeros))
    assert found["summary"].startswith("up to 25 % of the elements of 8 weights start as exactly 0")


def test_zeros_in_the_next_input_show_an_unfilled_shard(telens, lines, tmp_path):
    """Half of the rows are zero and stay zero, as with ReLU or in frozen weights."""
    run = weights(lines, tmp_path, OF_ONE_KIND, masked=True, inputs={"fc2": 0.25})
    (found,) = [each for each in found_in(telens, run) if each["cause"] == "weight_initialization"]
    assert (found["layer"], found["confidence"]) == ("layers.0.fc1", 0.4)
    assert "the same share of the next layer's input" in found["summary"]


def test_pruning_by_size_leaves_the_root_mean_square(telens, lines, tmp_path):
    """The smaller half of normally distributed values has 7 % of the sum of squares."""
    size = {1: math.sqrt(0.93 / 0.5)}
    run = weights(lines, tmp_path, {(1, "fc1"): 0.5, (1, "fc2"): 0.5, (1, "qkv"): 0.5},
                  size=lambda layer: size.get(layer, 1))  # fmt: skip
    assert found_in(telens, run) == []


def test_sizes_that_vary_by_depth_do_not_hide_zeros(telens, lines, tmp_path):
    run = weights(lines, tmp_path, {(1, "fc1"): 0.5}, size=lambda layer: (1 + layer) ** -0.5)
    (found,) = found_in(telens, run)
    assert (found["layer"], found["confidence"]) == ("layers.1.fc1", 0.4)
