"""telens diff, on pairs of runs whose every number is known."""

import json
import math
import random

import pytest
from conftest import ROOT, Lines

STEPS = 20
LAYERS = ["layers.0.fc1", "layers.0.fc2", "layers.1.fc1", "layers.1.fc2"]


@pytest.fixture
def write(tmp_path):
    """Writes a run: noise of its seed, and a factor on what `planted` names from a step on."""

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


@pytest.fixture
def diff(telens):
    def diff(*arguments):
        result = telens("diff", *arguments, "--format", "json")
        assert result.returncode in (0, 1), result.stderr
        told = json.loads(result.stdout)
        assert result.returncode == bool(told["divergences"])
        return told

    return diff


def test_runs_that_differ_by_noise_do_not_part(write, diff):
    told = diff(write("a", 1), write("b", 2))
    assert told["divergences"] == []
    assert told["compared"] == 2 * len(LAYERS) + 1


@pytest.mark.parametrize("spread", [False, True])
def test_the_planted_layer_is_named_before_what_follows(write, diff, spread):
    behind = [("layers.1.fc1", "activation"), ("layers.1.fc2", "activation")]
    gradients = [(layer, "gradient") for layer in LAYERS]
    a, b = write("a", 1), write("b", 2, behind + gradients, 12, 1.5)
    third = ("--spread", write("c", 3)) if spread else ()
    told = diff(a, b, *third)["divergences"]
    first = told[0]
    assert (first["layer"], first["tensor"], first["first_iteration"]) == (
        "layers.1.fc1",
        "activation",
        12,
    )
    assert first["difference"] == pytest.approx(1 / 3, abs=0.01)
    assert first["difference"] > first["tolerance"]
    assert [each["layer"] for each in told[1:3]] == ["layers.1.fc2", "layers.1.fc2"]
    assert len(told) == 2 + len(LAYERS)


def test_a_spread_as_large_as_the_difference_is_chance(write, diff):
    victim = [("layers.0.fc2", "activation")]
    a, b = write("a", 1), write("b", 2, victim, 5, 1.5)
    c = write("c", 3, victim, 0, 1.4)
    assert diff(a, b)["divergences"] != []
    assert diff(a, b, "--spread", c)["divergences"] == []


def test_a_single_iteration_is_chance_but_not_at_the_end(write, diff):
    """The same factor, within thrice the tolerance of a healthy noise of 5 %."""
    victim = [("layers.0.fc2", "activation")]
    a = write("a", 1, noise=0.05)
    passing = write("b", 2, victim, 9, 1.5, last=9, noise=0.05)
    assert diff(a, passing)["divergences"] == []
    (last,) = diff(a, write("c", 2, victim, STEPS - 1, 1.5, noise=0.05))["divergences"]
    assert (last["first_iteration"], last["last_iteration"]) == (STEPS - 1, None)


@pytest.mark.parametrize("factor", [8.0, 0.125, 0.0, math.nan, math.inf])
@pytest.mark.parametrize("spread", [False, True])
def test_what_is_far_off_in_a_single_iteration_is_no_chance(write, diff, telens, factor, spread):
    victim = [("layers.0.fc2", "activation")]
    a, b = write("a", 1), write("b", 2, victim, 9, factor, last=9)
    third = ("--spread", write("c", 3)) if spread else ()
    (found,) = diff(a, b, *third)["divergences"]
    assert (found["layer"], found["tensor"]) == ("layers.0.fc2", "activation")
    assert (found["first_iteration"], found["last_iteration"]) == (9, 9)
    assert "is to be expected; this lasts for one iteration." in telens("diff", a, b, *third).stdout


def test_a_divergence_that_ends_says_when(write, diff, telens):
    both = [("layers.0.fc2", "activation"), ("layers.1.fc1", "activation")]
    a, b = write("a", 1), write("b", 2, both, 9, 3, last=13)
    assert {each["last_iteration"] for each in diff(a, b)["divergences"]} == {13}
    text = telens("diff", a, b).stdout
    assert "this lasts until iteration 13." in text
    assert "until" in text.splitlines()[3]


def test_other_names_of_layers_are_mapped(write, diff, telens):
    a, b = write("a", 1), write("b", 2, [("layers.1.fc1", "activation")], 8, 2, prefix="h")
    told = diff(a, b)
    assert told["compared"] == 1  # the loss
    assert told["only_in_a"] == LAYERS
    told = diff(a, b, "--map", "layers=h")
    assert told["only_in_a"] == told["only_in_b"] == []
    assert told["divergences"][0]["layer"] == "layers.1.fc1"
    wrong = telens("diff", a, b, "--map", "layers")
    assert wrong.returncode == 2
    assert "expected A=B" in wrong.stderr


def test_the_text_names_the_first_and_what_it_spreads_to(write, telens):
    a = write("a", 1)
    b = write("b", 2, [("layers.0.fc1", "activation"), ("layers.0.fc2", "activation")], 9, 2)
    text = telens("diff", a, b).stdout
    assert text.startswith("The runs part in iteration 9: layers.0.fc1 activation")
    assert "It spreads to 1 more" in text
    assert "layers.0.fc2" in text


def test_the_documentation_has_the_keys(write, diff):
    documentation = (ROOT / "docs/command.md").read_text()
    for key in diff(write("a", 1), write("b", 2)):
        assert f"`{key}`" in documentation


def with_gemms(name, tmp_path, error=0.03, victim_error=None, at=8, casts=True):
    """A run of layers with an FP8 cast of each GEMM's operands."""
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


def test_a_gemm_whose_cast_went_wrong_is_named_where_no_size_tells(diff, tmp_path):
    a = with_gemms("a", tmp_path)
    told = diff(a, with_gemms("b", tmp_path, victim_error=0.6))["divergences"]
    assert [(each["gemm"], each["quantity"]) for each in told] == [
        ("wgrad", "error of the cast"),
        ("wgrad", "error of the product"),
    ]
    assert {(each["layer"], each["first_iteration"]) for each in told} == {("layers.1.fc1", 8)}
    assert told[0]["tensor"] == "activation"
    assert told[0]["difference"] == pytest.approx(0.57, abs=0.01)
    assert told[0]["tolerance"] == 2**-3  # no ledger: that of E5M2
    assert diff(a, with_gemms("c", tmp_path, error=0.04))["divergences"] == []


def test_beside_a_run_in_high_precision_a_cast_is_measured_by_its_format(diff, tmp_path):
    a = with_gemms("a", tmp_path, casts=False)
    assert diff(a, with_gemms("fine", tmp_path))["divergences"] == []
    told = diff(a, with_gemms("b", tmp_path, victim_error=0.6))["divergences"]
    assert [(each["layer"], each["gemm"], each["a"]) for each in told] == [
        ("layers.1.fc1", "wgrad", 0)
    ]


def test_a_cast_that_is_off_for_an_iteration_is_chance_also_at_the_end(diff, tmp_path):
    a = with_gemms("a", tmp_path)
    at_the_end = with_gemms("b", tmp_path, victim_error=0.6, at=STEPS - 2)
    assert diff(a, at_the_end)["divergences"] == []


def test_a_cast_for_all_gemms_stands_beside_a_run_in_high_precision_too(diff, tmp_path):
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
