"""telens diff on pairs of runs of which every number is known."""

import json
import math
import random

import pytest
from conftest import ROOT, Lines

STEPS = 20
LAYERS = ["layers.0.fc1", "layers.0.fc2", "layers.1.fc1", "layers.1.fc2"]


@pytest.fixture
def write(tmp_path):
    """Writes a run with noise of this seed; from a step on, a factor changes what `planted`
    names.
    """

    def write(
        name, seed, planted=(), at=STEPS, factor=1.0, prefix="layers", noise=0.0005, last=STEPS
    ):
        draw = random.Random(seed)
        lines = Lines()
        for step in range(STEPS):
            for layer in LAYERS:
                for tensor, size in (("activation", 1.0), ("gradient", 1e-3)):
                    rms = size * (1 + noise * draw.gauss(0, 1))
                    if (layer, tensor) in planted and at <= step <= last:
                        rms *= factor
                    named = layer.replace("layers", prefix)
                    lines.record(step, named, tensor, "l2_norm", rms * math.sqrt(4096))
                    lines.record(step, named, tensor, "numel", 4096)
            lines.scalar(step, "loss", 4 - 0.1 * step + 0.02 * draw.gauss(0, 1))
        return lines.write(tmp_path / name)

    return write


def test_runs_that_differ_by_noise_do_not_part(write, diff):
    printed = diff(write("a", 1), write("b", 2))
    assert printed["divergences"] == []
    assert printed["compared"] == 2 * len(LAYERS) + 1


@pytest.mark.parametrize("spread", [False, True])
def test_planted_layer_precedes_consequences(write, diff, spread):
    behind = [("layers.1.fc1", "activation"), ("layers.1.fc2", "activation")]
    gradients = [(layer, "gradient") for layer in LAYERS]
    a, b = write("a", 1), write("b", 2, behind + gradients, 12, 1.5)
    third = ("--spread", write("c", 3)) if spread else ()
    printed = diff(a, b, *third)["divergences"]
    first = printed[0]
    assert (first["layer"], first["tensor"], first["first_iteration"]) == (
        "layers.1.fc1",
        "activation",
        12,
    )
    assert first["difference"] == pytest.approx(1 / 3, abs=0.01)
    assert first["difference"] > first["tolerance"]
    assert [each["layer"] for each in printed[1:3]] == ["layers.1.fc2", "layers.1.fc2"]
    assert len(printed) == 2 + len(LAYERS)


def test_a_spread_as_large_as_the_difference_is_chance(write, diff):
    victim = [("layers.0.fc2", "activation")]
    a, b = write("a", 1), write("b", 2, victim, 5, 1.5)
    c = write("c", 3, victim, 0, 1.4)
    assert diff(a, b)["divergences"] != []
    assert diff(a, b, "--spread", c)["divergences"] == []


def test_a_single_iteration_is_chance_but_not_at_the_end(write, diff):
    """The same factor passes in one iteration, with noise of 5 %, but not at the end of the run."""
    victim = [("layers.0.fc2", "activation")]
    a = write("a", 1, noise=0.05)
    passing = write("b", 2, victim, 9, 1.8, last=9, noise=0.05)
    assert diff(a, passing)["divergences"] == []
    (last,) = diff(a, write("c", 2, victim, STEPS - 1, 1.8, noise=0.05))["divergences"]
    assert (last["first_iteration"], last["last_iteration"]) == (STEPS - 1, None)


@pytest.mark.parametrize("factor", [8.0, 0.125, 0.0, math.nan, math.inf])
@pytest.mark.parametrize("spread", [False, True])
def test_large_deviation_in_one_iteration_is_found(write, diff, telens, factor, spread):
    victim = [("layers.0.fc2", "activation")]
    a, b = write("a", 1), write("b", 2, victim, 9, factor, last=9)
    third = ("--spread", write("c", 3)) if spread else ()
    (found,) = diff(a, b, *third)["divergences"]
    assert (found["layer"], found["tensor"]) == ("layers.0.fc2", "activation")
    assert (found["first_iteration"], found["last_iteration"]) == (9, 9)
    assert "); for one iteration." in telens("diff", a, b, *third).stdout


def test_a_divergence_that_ends_says_when(write, diff, telens):
    both = [("layers.0.fc2", "activation"), ("layers.1.fc1", "activation")]
    a, b = write("a", 1), write("b", 2, both, 9, 3, last=13)
    assert {each["last_iteration"] for each in diff(a, b)["divergences"]} == {13}
    text = telens("diff", a, b).stdout
    assert "; until iteration 13." in text
    assert "until" in text.splitlines()[3]


def test_other_names_of_layers_are_mapped(write, diff, telens):
    a, b = write("a", 1), write("b", 2, [("layers.1.fc1", "activation")], 8, 2, prefix="h")
    result = telens("diff", a, b, "--format", "json")
    printed = json.loads(result.stdout)
    assert printed["compared"] == 1  # the loss
    assert printed["only_in_a"] == LAYERS
    assert "only 0 of 4 layers correspond" in result.stderr
    printed = diff(a, b, "--map", "layers=h")
    assert printed["only_in_a"] == printed["only_in_b"] == []
    assert printed["divergences"][0]["layer"] == "layers.1.fc1"
    wrong = telens("diff", a, b, "--map", "layers")
    assert wrong.returncode == 2
    assert "expected FROM=TO" in wrong.stderr


@pytest.mark.parametrize("wrapped", ["a", "b"])
def test_prefix_of_a_wrapper_is_mapped(write, telens, wrapped):
    planted = [("layers.1.fc1", "activation")]
    runs = {"a": write("a", 1), "b": write("b", 2, planted, 8, 2)}
    runs[wrapped] = write(
        "wrapped",
        1 if wrapped == "a" else 2,
        planted if wrapped == "b" else (),
        8,
        2,
        prefix="model.layers",
    )
    result = telens("diff", runs["a"], runs["b"])
    assert "is compared with layer" in result.stderr
    assert "model." in result.stderr
    assert "The runs diverge in iteration 8" in result.stdout
    assert "only in" not in result.stdout


def test_mapped_prefix_does_not_change_the_middle_of_names(telens, tmp_path):
    def run(name, layers):
        new = Lines()
        for step in range(STEPS):
            for layer in layers:
                new.record(step, layer, "activation", "l2_norm", 1.0)
                new.record(step, layer, "activation", "numel", 1)
        return new.write(tmp_path / name)

    shared = ["vision_model.proj"]
    a = run("a", ["model.fc1", "model.fc2", "model.fc3", *shared])
    b = run("b", ["fc1", "fc2", "fc3", *shared])
    printed = json.loads(telens("diff", a, b, "--format", "json").stdout)
    assert (printed["only_in_a"], printed["only_in_b"]) == ([], [])


def test_text_names_origin_and_spread(write, telens):
    a = write("a", 1)
    b = write("b", 2, [("layers.0.fc1", "activation"), ("layers.0.fc2", "activation")], 9, 2)
    text = telens("diff", a, b).stdout
    assert text.startswith("The runs diverge in iteration 9: layers.0.fc1 activation")
    assert "It spreads to 1 more" in text
    assert "layers.0.fc2" in text


def test_the_documentation_has_the_keys(write, diff):
    documentation = (ROOT / "docs/command.md").read_text()
    for key in diff(write("a", 1), write("b", 2)):
        assert f"`{key}`" in documentation


def with_gemms(name, tmp_path, error=0.03, victim_error=None, at=8, casts=True):
    """A run of layers, with one FP8 cast of each operand of each GEMM."""
    lines = Lines()
    for step in range(STEPS):
        for layer in LAYERS:
            lines.record(step, layer, "activation", "l2_norm", 64.0)
            lines.record(step, layer, "activation", "numel", 4096)
            if not casts:
                continue
            for gemm, result in (("fprop", "output"), ("wgrad", "wgrad")):
                bad = victim_error and (layer, gemm) == ("layers.1.fc1", "wgrad") and step >= at
                wave = 1 + 0.05 * math.sin(step)
                mse = (victim_error if bad else error * wave) ** 2
                lines.record(step, layer, "activation", "mse", mse, gemm=gemm)
                product = (victim_error if bad else error * wave) * 1.4
                lines.record(step, layer, result, "gemm_relative_error", product, gemm=gemm)
        lines.scalar(step, "loss", 4 - 0.1 * step)
    return lines.write(tmp_path / name)


def test_wrong_cast_is_found_by_its_error(diff, tmp_path):
    a = with_gemms("a", tmp_path)
    printed = diff(a, with_gemms("b", tmp_path, victim_error=0.6))["divergences"]
    assert [(each["gemm"], each["quantity"]) for each in printed] == [
        ("wgrad", "error of the cast"),
        ("wgrad", "error of the product"),
    ]
    assert {(each["layer"], each["first_iteration"]) for each in printed} == {("layers.1.fc1", 8)}
    assert printed[0]["tensor"] == "activation"
    assert printed[0]["difference"] == pytest.approx(0.57, abs=0.01)
    assert printed[0]["tolerance"] == 2**-3  # no ledger: that of E5M2
    assert diff(a, with_gemms("c", tmp_path, error=0.04))["divergences"] == []


def test_cast_error_is_bounded_by_its_format(diff, tmp_path):
    a = with_gemms("a", tmp_path, casts=False)
    assert diff(a, with_gemms("fine", tmp_path))["divergences"] == []
    printed = diff(a, with_gemms("b", tmp_path, victim_error=0.6))["divergences"]
    assert [(each["layer"], each["gemm"], each["a"]) for each in printed] == [
        ("layers.1.fc1", "wgrad", 0)
    ]


def test_cast_off_for_one_iteration_is_chance(diff, tmp_path):
    a = with_gemms("a", tmp_path)
    at_the_end = with_gemms("b", tmp_path, victim_error=0.6, at=STEPS - 2)
    assert diff(a, at_the_end)["divergences"] == []


def test_cast_for_all_gemms_is_compared(diff, tmp_path):
    def write(name, error):
        lines = Lines()
        for step in range(STEPS):
            lines.record(step, "fc", "gradient", "l2_norm", 64.0)
            lines.record(step, "fc", "gradient", "numel", 4096)
            if error is not None:
                lines.record(step, "fc", "gradient", "mse", error**2)
        return lines.write(tmp_path / name)

    (found,) = diff(write("a", None), write("b", 0.5))["divergences"]
    assert (found["layer"], found["gemm"], found["quantity"]) == ("fc", None, "error of the cast")
    assert diff(write("c", None), write("d", 0.05))["divergences"] == []


def deep(name, tmp_path, seed=1, layers=32, steps=4, factor=1.0, tensors=("gradient", "dgrad"),
         layers_with=range(1000), parts_with=("qkv", "proj", "fc1", "fc2"), at=0,
         every=1, plant=None):  # fmt: skip
    """A run of transformer layers in E5M2 with a new batch in each iteration. `plant` returns a
    factor for (layer, part, tensor, iteration).
    """
    draw = random.Random(seed)
    lines = Lines()
    for layer in range(layers):
        for part in ("qkv", "proj", "fc1", "fc2"):
            entries = {"activation ran": "E5M2 per tensor", "weight ran": "E5M2 per tensor"}
            lines.ledger(0, f"layers.{layer}.{part}", "fprop", 0, entries)
    for step in range(steps):
        batch = math.exp(0.05 * draw.gauss(0, 1))
        for layer in range(layers):
            for part in ("qkv", "proj", "fc1", "fc2"):
                for tensor in ("activation", "weight", "gradient", "dgrad", "wgrad"):
                    noise = {"weight": 0, "activation": 0.01}.get(tensor, 0.08)
                    rms = math.exp(noise * draw.gauss(0, 1))
                    if tensor in ("gradient", "dgrad", "wgrad"):
                        rms *= 1e-3 * batch
                    victim = tensor in tensors and layer in layers_with and part in parts_with
                    if victim and step >= at:
                        rms *= factor
                    rms *= plant(layer, part, tensor, step) if plant else 1
                    if step % every:
                        continue
                    named = f"layers.{layer}.{part}"
                    lines.record(step, named, tensor, "l2_norm", rms * 64)
                    lines.record(step, named, tensor, "numel", 4096)
    return lines.write(tmp_path / name)


@pytest.mark.parametrize(("layers", "factor"), [(32, 3), (32, 1 / 3), (8, 2), (8, 0.5), (32, 2)])
def test_a_factor_in_all_gradients_is_found_at_any_depth(diff, tmp_path, layers, factor):
    a = deep("a", tmp_path, layers=layers)
    printed = diff(a, deep("b", tmp_path, layers=layers, factor=factor))["divergences"]
    first = printed[0]
    assert (first["tensor"], first["first_iteration"]) == ("gradient", 0)
    assert first["series"] == 4 * layers
    assert (first["a"], first["b"]) == (1, pytest.approx(factor, rel=0.1))
    assert {each["tensor"] for each in printed} == {"gradient", "dgrad"}


def batches(name, tmp_path, layers, noise, trend=0.0, factor=1.0, data=1, rounding=1):
    """A run whose gradients follow the noise of its batches and a trend, in bits per iteration."""
    draw = random.Random(data)
    draw_rounding = random.Random(rounding)
    lines = Lines()
    for step in range(12):
        batch = 2 ** (trend * step) * math.exp(noise * draw.gauss(0, 1))
        for layer in range(layers):
            for part in ("qkv", "proj", "fc1", "fc2"):
                for tensor in ("activation", "weight", "gradient"):
                    size = math.exp(0.02 * draw.gauss(0, 1))
                    size *= math.exp(1e-3 * draw_rounding.gauss(0, 1)) if tensor != "weight" else 1
                    size *= batch * factor if tensor == "gradient" else 1
                    named = f"layers.{layer}.{part}"
                    lines.record(step, named, tensor, "l2_norm", size * 64)
                    lines.record(step, named, tensor, "numel", 4096)
    return lines.write(tmp_path / name)


@pytest.mark.parametrize(("layers", "factor"), [(8, 2), (32, 3), (8, 1 / 2)])
@pytest.mark.parametrize(("noise", "trend"), [(0.05, 0), (0.2, 0), (0.5, 0), (0.05, -0.4)])
def test_factor_in_noisy_gradients_is_found(diff, tmp_path, layers, factor, noise, trend):
    a = batches("a", tmp_path, layers, noise, trend)
    same = diff(a, batches("b", tmp_path, layers, noise, trend, rounding=2))
    assert (same["other_seeds"], same["divergences"]) == (False, [])
    printed = diff(a, batches("c", tmp_path, layers, noise, trend, factor, rounding=2))
    assert printed["other_seeds"] is False
    assert {(each["tensor"], each["first_iteration"]) for each in printed["divergences"]} == {
        ("gradient", 0)
    }
    # The noise can hide the factor in a few series.
    assert sum(each["series"] for each in printed["divergences"]) >= 0.95 * 4 * layers


@pytest.mark.parametrize(("noise", "trend"), [(0.05, 0), (0.2, 0), (0.5, 0), (0.05, -0.4)])
def test_noisy_gradients_of_another_seed_have_no_factor(diff, tmp_path, noise, trend):
    a = batches("a", tmp_path, 8, noise, trend)
    for seed in range(2, 7):
        printed = diff(a, batches(f"b{seed}", tmp_path, 8, noise, trend, data=seed, rounding=seed))
        assert (printed["other_seeds"], printed["divergences"]) == (True, [])


@pytest.mark.parametrize("layers", [2, 8, 32])
def test_different_seed_gives_no_common_factor(diff, tmp_path, layers):
    a = deep("a", tmp_path, layers=layers)
    for seed in range(2, 7):
        assert diff(a, deep(f"b{seed}", tmp_path, seed, layers))["divergences"] == []


def test_a_factor_from_one_layer_on_names_that_layer(diff, tmp_path):
    a = deep("a", tmp_path, layers=16)
    b = deep("b", tmp_path, 2, 16, factor=2, layers_with=range(9))
    assert {each["layer"] for each in diff(a, b)["divergences"]} == {"layers.8.fc2"}
    b = deep("c", tmp_path, 2, 16, factor=1.8, layers_with=range(9, 16), tensors=("weight",))
    (found,) = diff(a, b)["divergences"]
    assert (found["layer"], found["tensor"]) == ("layers.9.qkv", "weight")


def test_factor_on_one_part_per_layer_is_found(diff, tmp_path):
    """As with weights whose gradients sequence parallelism adds twice."""
    a = deep("a", tmp_path, layers=8)
    b = deep("b", tmp_path, 2, 8, factor=2, tensors=("wgrad",), parts_with=("qkv",))
    (found,) = diff(a, b)["divergences"]
    assert (found["layer"], found["tensor"], found["series"]) == ("layers.7.qkv", "wgrad", 8)


def test_a_factor_that_begins_later_says_when(diff, tmp_path):
    a = deep("a", tmp_path, layers=8, steps=8)
    printed = diff(a, deep("b", tmp_path, 2, 8, steps=8, factor=2, at=4))["divergences"]
    assert {each["first_iteration"] for each in printed} == {4}


def test_series_without_a_counterpart_are_counted(diff, telens, tmp_path):
    def write(name, tensors, iteration=0):
        lines = Lines()
        for layer in ("fc1", "fc2"):
            for tensor in tensors:
                lines.record(iteration, layer, tensor, "l2_norm", 64.0)
                lines.record(iteration, layer, tensor, "numel", 4096)
        lines.scalar(0, "loss", 4)
        return lines.write(tmp_path / name)

    a = write("a", ("activation", "gradient"))
    b = write("b", ("activation", "output", "wgrad"))
    printed = diff(a, b)
    assert [(each["layer"], each["tensor"]) for each in printed["unmatched_in_a"]] == [
        ("fc2", "gradient"), ("fc1", "gradient"),
    ]  # fmt: skip
    assert len(printed["unmatched_in_b"]) == 4
    text = telens("diff", a, b).stdout
    assert "2 series of A have no counterpart and were not compared: fc" in text
    assert "4 series of B have no counterpart and were not compared: fc" in text
    later = diff(a, write("c", ("activation", "gradient"), iteration=7))
    assert (len(later["unmatched_in_a"]), len(later["unmatched_in_b"])) == (4, 4)


@pytest.mark.parametrize("layers", [1, 4, 16])
def test_runs_with_other_weights_and_data_do_not_part(diff, tmp_path, layers):
    """Values are constant for each seed, so run A alone does not show how much seeds differ."""

    def write(name, seed, victim=None):
        draw = random.Random(seed)
        lines = Lines()
        for layer in range(layers):
            for part in ("qkv", "proj", "fc1", "fc2"):
                for tensor, noise in (("weight", 0.02), ("activation", 0.02), ("gradient", 0.2)):
                    size = math.exp(noise * draw.gauss(0, 1))
                    for step in range(5):
                        named = f"layers.{layer}.{part}"
                        planted = 40 if victim == (named, tensor) and step > 1 else 1
                        lines.record(step, named, tensor, "l2_norm", 64 * size * planted)
                        lines.record(step, named, tensor, "numel", 4096)
        return lines.write(tmp_path / name)

    a = write("a", 1)
    for seed in range(2, 6):
        assert diff(a, write(f"b{seed}", seed))["divergences"] == []
    (found,) = diff(a, write("c", 2, ("layers.0.fc1", "gradient")))["divergences"]
    assert (found["layer"], found["first_iteration"]) == ("layers.0.fc1", 2)


def seeded(name, tmp_path, seed, layers=9, plant=lambda layer, tensor, step: 1, start=0):
    """A run of linear layers. Sizes depend on the seed and not on the iteration."""
    draw = random.Random(seed)
    lines = Lines()
    lines.scalar(0, "loss", 4)
    for layer in range(layers):
        for tensor, noise in (("weight", 0.02), ("activation", 0.02), ("gradient", 0.2)):
            size = math.exp(noise * draw.gauss(0, 1))
            for step in range(start, start + 5):
                rms = size * plant(layer, tensor, step)
                lines.record(step, f"fc{layer}", tensor, "l2_norm", 64 * rms)
                lines.record(step, f"fc{layer}", tensor, "numel", 4096)
    return lines.write(tmp_path / name)


@pytest.mark.parametrize("parts", [("fc1", "fc2"), ("w1", "w2"), ("up", "down")])
def test_layers_after_a_norm_do_not_judge_other_layers(diff, tmp_path, parts):
    """A norm makes the first layer's input equal for all seeds, but not the second layer's."""

    def write(name, seed, victim=None):
        draw = random.Random(seed)
        lines = Lines()
        for layer in range(8):
            for number, part in enumerate(parts):
                for tensor, noise in (("weight", 0.02), ("activation", 0.1 * number)):
                    size = math.exp(noise * draw.gauss(0, 1))
                    for step in range(5):
                        planted = 8 if (layer, part, tensor) == victim and step > 0 else 1
                        named = f"layers.{layer}.{part}"
                        lines.record(step, named, tensor, "l2_norm", 64 * size * planted)
                        lines.record(step, named, tensor, "numel", 4096)
        return lines.write(tmp_path / name)

    a = write("a", 1)
    for seed in range(2, 8):
        printed = diff(a, write(f"b{seed}", seed))
        assert printed["other_seeds"] is True
        assert printed["divergences"] == []
    (found,) = diff(a, write("c", 2, (3, parts[1], "activation")))["divergences"]
    assert (found["layer"], found["first_iteration"]) == (f"layers.3.{parts[1]}", 1)


def learning(name, tmp_path, seed, speed, steps=30, plant=lambda layer, step: 1):
    """A run whose loss and last activations follow a power law of `speed` times the iteration."""
    draw = random.Random(seed)
    lines = Lines()
    for step in range(steps):
        learned = 1 + speed * step
        lines.scalar(step, "loss", 4 * learned**-0.3)
        for layer in range(8):
            for tensor in ("weight", "activation"):
                size = math.exp(0.02 * draw.gauss(0, 1))
                if tensor == "activation":
                    size *= (learned**0.8 if layer > 5 else 1) * plant(layer, step)
                named = f"layers.{layer}.{'fc1' if layer % 2 else 'proj'}"
                lines.record(step, named, tensor, "l2_norm", 64 * size)
                lines.record(step, named, tensor, "numel", 4096)
    return lines.write(tmp_path / name)


@pytest.mark.parametrize("speeds", [(1, 1.7), (1.7, 1), (1, 0.6)])
def test_seed_that_learns_faster_does_not_diverge(diff, tmp_path, speeds):
    a = learning("a", tmp_path, 1, speeds[0])
    printed = diff(a, learning("b", tmp_path, 2, speeds[1]))
    assert printed["other_seeds"] is True
    assert printed["divergences"] == []

    def plant(layer, step):
        return 16 if layer == 3 and step >= 10 else 1

    (found,) = diff(a, learning("c", tmp_path, 2, speeds[1], plant=plant))["divergences"]
    assert (found["layer"], found["first_iteration"]) == ("layers.3.fc1", 10)


@pytest.mark.parametrize("layers", [5, 9, 37])
def test_two_layers_that_diverge_do_not_hide_each_other(diff, tmp_path, layers):
    def plant(layer, tensor, step):
        return 40 if layer in (1, 3) and tensor == "gradient" else 1

    a = seeded("a", tmp_path, 1, layers)
    printed = diff(a, seeded("b", tmp_path, 2, layers, plant))["divergences"]
    assert {(each["layer"], each["tensor"]) for each in printed} == {
        ("fc1", "gradient"), ("fc3", "gradient"),
    }  # fmt: skip


@pytest.mark.parametrize("layers", [2, 3])
def test_doubled_weights_of_few_layers_are_found(diff, tmp_path, layers):
    a = seeded("a", tmp_path, 1, layers)
    b = seeded("b", tmp_path, 2, layers, lambda layer, tensor, step: 1 + (tensor == "weight"))
    printed = diff(a, b)["divergences"]
    assert [(each["layer"], each["tensor"]) for each in printed] == [
        (f"fc{layer}", "weight") for layer in range(layers)
    ]
    for seed in range(3, 9):
        assert diff(a, seeded(f"c{seed}", tmp_path, seed, layers))["divergences"] == []


def test_other_seeds_are_named_in_text_and_json(diff, telens, tmp_path):
    a, b = seeded("a", tmp_path, 1), seeded("b", tmp_path, 2)
    assert diff(a, b)["other_seeds"] is True
    assert "The runs have different seeds" in telens("diff", a, b).stdout
    assert diff(a, a)["other_seeds"] is False
    assert "other seeds" not in telens("diff", a, a).stdout


def test_weights_rounded_to_bf16_are_of_the_same_seed(diff, tmp_path):
    """Rounding changes the norm of 4096 weights by up to 2^-15, and by 2^-19 for any number of
    them.
    """

    def rounded(layer, tensor, step):
        return 1 + 2**-15 if tensor == "weight" else 1

    a = seeded("a", tmp_path, 1)
    assert diff(a, seeded("b", tmp_path, 1, plant=rounded))["other_seeds"] is False


def test_weights_that_trained_apart_are_of_the_same_seed(diff, tmp_path):
    """B records after training has changed its weights, and one of its gradients is wrong."""

    def plant(layer, tensor, step):
        apart = 1.002 if tensor == "weight" else 1
        return 40 if (layer, tensor) == (1, "gradient") else apart

    a = seeded("a", tmp_path, 1, start=20)
    printed = diff(a, seeded("b", tmp_path, 1, plant=plant, start=20))
    assert printed["other_seeds"] is False
    assert {each["layer"] for each in printed["divergences"]} == {"fc1"}


@pytest.mark.parametrize("every", [2, 10])
def test_factor_is_found_in_sparse_run(diff, tmp_path, every):
    a = deep("a", tmp_path, layers=8, steps=40)
    b = deep("b", tmp_path, 2, 8, steps=40, factor=2, every=every)
    printed = diff(a, b)["divergences"]
    # The tolerance between seeds grows with the iterations, so a divergence may end.
    found = {(each["tensor"], each["first_iteration"]) for each in printed}
    assert found == {("gradient", 0), ("dgrad", 0)}


def test_later_factor_does_not_hide_earlier_one(diff, tmp_path):
    def plant(layer, part, tensor, step):
        if tensor != "wgrad":
            return 1
        if layer >= 4:
            return 2.2 if step >= 8 else 1
        return 3 if part == "qkv" else 1

    a = deep("a", tmp_path, layers=8, steps=12)
    printed = diff(a, deep("b", tmp_path, 2, 8, steps=12, plant=plant))["divergences"]
    assert {(each["layer"], each["series"], each["first_iteration"]) for each in printed} == {
        ("layers.3.qkv", 4, 0), ("layers.7.fc2", 16, 8),
    }  # fmt: skip


@pytest.mark.parametrize("factor", [2.5, 0.4])
def test_two_of_four_series_have_nothing_in_common(diff, tmp_path, factor):
    def plant(layer, part, tensor, step):
        return factor if tensor == "wgrad" and part in ("qkv", "fc1") else 1

    a = deep("a", tmp_path, layers=1)
    assert diff(a, deep("b", tmp_path, 2, 1, plant=plant))["divergences"] == []
