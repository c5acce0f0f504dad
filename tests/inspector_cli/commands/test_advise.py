"""telens advise: which recipe it suggests, and which layers stay in BF16."""

import ast
import json
import math

import pytest
import yaml

LAYERS = ("blocks.0.fc1", "blocks.0.fc2", "blocks.1.fc1", "lm_head")
ELEMENTS = {"activation": 4096, "weight": 4096, "gradient": 4096}
TYPICAL = {"fp8_current_scaling": 0.04, "mxfp8": 0.03, "nvfp4": 0.11}  # errors of a cast


@pytest.fixture
def advise(telens, lines, tmp_path):
    """Runs the command on a run with these unusual values of (recipe, layer, tensor)."""

    def run(unusual, recipes=("fp8_current_scaling", "mxfp8"), options=("--format", "json")):
        for step in range(3):
            for layer in LAYERS:
                for tensor, elements in ELEMENTS.items():
                    lines.record(step, layer, tensor, "l2_norm", 0.5 * math.sqrt(elements))
                    lines.record(step, layer, tensor, "numel", elements)
                    for recipe in recipes:
                        usual = (0.01, TYPICAL[recipe])
                        lost, error = unusual.get((recipe, layer, tensor), usual)
                        lines.record(step, layer, tensor, f"{recipe}_underflows%", lost)
                        lines.record(step, layer, tensor, f"{recipe}_mse", (0.5 * error) ** 2)
        lines.record(0, "norm", "activation", "mxfp8_underflows%", 90)  # norms have no GEMM
        result = telens("advise", lines.write(tmp_path), *options)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout) if options else result.stdout

    return run


def test_usual_losses_fit_every_layer(advise):
    found = advise({})
    assert found["verdict"] == "Current scaling and MXFP8 fit all 4 layers."
    assert found["yaml"] is None
    assert all(each["fits"] and each["keep_in_bf16"] == [] for each in found["recipes"])


def test_a_layer_that_loses_a_tenth_of_a_tensor_stays_in_bf16(advise):
    lost = {(recipe, "lm_head", "gradient"): (37.0, 0.04) for recipe in TYPICAL}
    found = advise(lost)
    assert found["verdict"].startswith("Current scaling: 37 % of the gradient of lm_head")
    section = yaml.safe_load(found["yaml"])["keep_in_bf16"]
    assert section["layers"] == {"exact_layer_names": ["lm_head"]}
    assert section["transformer_engine"] == {"DisableFP8Layer": {"enabled": True}}
    assert 'name not in {"lm_head"}' in found["torchao"]


def test_hostile_layer_names_are_escaped_in_code(telens, lines, tmp_path):
    hostile = 'x"}); print("injected'
    for tensor, elements in ELEMENTS.items():
        lines.record(0, hostile, tensor, "numel", elements)
        lines.record(0, hostile, tensor, "fp8_current_scaling_underflows%", 37)
    result = telens("advise", lines.write(tmp_path), "--format", "json")
    found = json.loads(result.stdout)
    layers = yaml.safe_load(found["yaml"])["keep_in_bf16"]["layers"]["exact_layer_names"]
    assert layers == [hostile]
    (call,) = (each for each in ast.walk(ast.parse(found["torchao"])) if isinstance(each, ast.Set))
    assert ast.literal_eval(call) == {hostile}


def test_the_recipe_that_fits_is_recommended(advise):
    lost = {("fp8_current_scaling", "blocks.0.fc2", "activation"): (12.0, 0.04)}
    found = advise(lost)
    assert found["recommended"] == "MXFP8"
    assert found["verdict"].startswith("MXFP8 fits all 4 layers; current scaling: 12 % of the")
    assert "MXFP8BlockScaling" in found["transformer_engine"]


@pytest.mark.parametrize(
    ("error", "fits"),
    # E4M3 by E4M3: 3 sqrt(2 (1/16)^2 / 3) = 0.153, because both operands of fprop have the error.
    [(0.05, True), (0.10, True), (0.115, False)],
)
def test_a_gemm_may_have_three_times_the_error_of_rounding(advise, error, fits):
    unusual = {("mxfp8", "blocks.1.fc1", each): (0, error) for each in ("activation", "weight")}
    found = advise(unusual, recipes=("mxfp8",))
    (recipe,) = found["recipes"]
    assert recipe["fits"] is fits
    if not fits:
        (kept,) = recipe["keep_in_bf16"]
        assert (kept["layer"], kept["gemm"], kept["tensor"]) == ("blocks.1.fc1", "fprop", None)
        assert kept["limit"] == pytest.approx(3 * math.sqrt(2 / 3) / 16, rel=1e-3)


def test_fp4_may_have_an_error_up_to_10_decibels(advise):
    good = advise({}, recipes=("nvfp4",))
    assert good["recipes"][0]["fits"]


def test_the_text_has_a_row_per_recipe(advise):
    text = advise({}, recipes=tuple(TYPICAL), options=())
    assert "no layer stands out under current scaling" in text
    rows = [row for row in text.splitlines() if "4 of 4" in row]
    assert [row.split("  ")[0] for row in rows] == ["current scaling", "MXFP8", "NVFP4"]


def test_a_run_without_losses_is_refused(telens, training, lines, tmp_path):
    result = telens("advise", training.write(lines, tmp_path))
    assert result.returncode == 2
    assert "configs/compare_recipes.yaml" in result.stderr
    assert "after the warm-up" in result.stderr  # a short run records nothing else
