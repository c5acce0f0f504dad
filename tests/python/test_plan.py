"""telens.debug.plan: what a configuration would do and how much it would record."""

import subprocess
import sys

import pytest
import torch

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling

CONFIG = {
    "watch": {
        "enabled": True,
        "layers": {"layer_types": ["fc1", "qkv"]},
        "transformer_engine": {
            "LogTensorStats": {
                "enabled": True,
                "tensors": ["activation", "gradient"],
                "stats": ["min", "max", "nan"],
                "freq": 2,
            },
            "LogFp8TensorStats": {
                "enabled": True,
                "tensors": ["activation"],
                "stats": ["mse", "fp8_current_scaling_mse"],
                "start_step": 1,
                "freq": 3,
            },
        },
    }
}
LAYERS = ["layers.0.fc1", "layers.1.fc1", "head"]


def test_a_plan_has_a_row_for_each_feature_on_a_tensor_of_a_layer():
    plan = debug.plan(CONFIG, LAYERS)
    assert len(plan) == 2 * 3
    assert [(row["layer"], row["tensor"], row["feature"], row["when"]) for row in plan][:3] == [
        ("layers.0.fc1", "activation", "transformer_engine.LogTensorStats", "every 2 iterations"),
        (
            "layers.0.fc1",
            "activation",
            "transformer_engine.LogFp8TensorStats",
            "every 3 iterations, from 1",
        ),
        ("layers.0.fc1", "gradient", "transformer_engine.LogTensorStats", "every 2 iterations"),
    ]
    first = plan.rows[0]
    assert (first["gemm"], first["section"]) == (None, "watch")
    assert first["parameters"] == {"stats": ["min", "max", "nan"]}
    assert [row["tensor"] for row in debug.plan(CONFIG, LAYERS, iteration=3)] == ["activation"] * 2


def test_a_plan_warns_and_prints_and_becomes_a_table():
    plan = debug.plan(CONFIG, LAYERS)
    (warning,) = plan.warnings
    assert "section 'watch': no layer's name contains 'qkv'" in warning
    text = str(plan)
    assert text.splitlines()[0].split() == ["layer", "gemm", "tensor", "feature", "section", "when"]
    assert f"warning: {warning}" in text
    assert text.endswith(plan.load["text"])
    frame = plan.frame()
    assert list(frame.columns) == [*text.splitlines()[0].split(), "parameters"]
    assert len(frame) == len(plan)


def test_a_printed_plan_holds_no_control_characters_of_names():
    printed = str(debug.plan(CONFIG, "layers.0.fc1\n\x1b[2J\u202e"))
    assert r"layers.0.fc1\n\x1b[2J\u202e" in printed
    assert all(line.isprintable() for line in printed.splitlines())


def test_a_plan_that_selects_nothing_is_empty():
    nothing = {"section": CONFIG["watch"] | {"layers": {"layer_types": "fc2"}}}
    plan = debug.plan(nothing, ["layers.0.fc1"])
    assert plan.rows == []
    assert plan.load["most_records"] == 0
    with pytest.raises(telens.ConfigError, match=r"debug\.yaml"):
        debug.plan("/nowhere/debug.yaml", ["fc1"])


def test_estimate_matches_the_recorded_run(tmp_path):
    layer = te.Linear(16, 16, name="layers.0.fc1", params_dtype=torch.bfloat16, device="cpu")
    steps = 12
    with debug.session(CONFIG, log_dir=tmp_path):
        for _ in range(steps):
            with te.fp8_autocast(fp8_recipe=DelayedScaling()):
                out = layer(torch.randn(16, 16, dtype=torch.bfloat16, requires_grad=True))
            out.sum().backward()
            debug.step()
    recorded = telens.open_run(tmp_path).records().groupby("iteration").size()
    plan = debug.plan(CONFIG, ["layers.0.fc1"])
    load = plan.load
    assert recorded.max() == load["most_records"]
    assert recorded.idxmax() == load["busiest"]
    # Every second and every third iteration: iterations 6 to 11 are one period.
    assert recorded.loc[6:11].sum() / 6 == pytest.approx(load["average_records"])
    assert (load["first"], load["last"], load["not_counted"]) == (1, None, [])


def test_a_plan_knows_the_features_that_the_program_registered():
    @debug.Registry.register_feature(namespace="planned")
    class Rounding(debug.TEConfigAPIMapper):
        """Rounds."""

    config = {
        "s": {
            "enabled": True,
            "layers": {"layer_types": ["all"]},
            "planned": {"Rounding": {"enabled": True, "bits": 3}},
        }
    }
    (row,) = debug.plan(config, ["a"])
    assert (row["feature"], row["when"]) == ("planned.Rounding", "decided at run time")
    assert row["parameters"]["bits"] == 3
    assert debug.plan(config, ["a"]).load["not_counted"] == ["planned.Rounding"]


def test_plan_without_layers_omits_layer_totals():
    feature = {"LogTensorStats": {"enabled": True, "tensors": ["weight"], "stats": ["max"]}}
    layers = {"layer_types": "all"}
    everything = {"s": {"enabled": True, "layers": layers, "transformer_engine": feature}}
    assert debug.plan(everything, []).warnings == []


def test_a_plan_needs_no_pandas():
    code = (
        "import sys; sys.modules['pandas'] = None\n"
        "import telens.debug as debug\n"
        f"print(debug.plan({CONFIG!r}, ['layers.0.fc1']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "layers.0.fc1" in done.stdout


@pytest.mark.parametrize(
    ("namespace", "feature"),
    [
        ("telens", "ValueHistogram"),
        ("telens", "BlockTelemetry"),
        ("transformer_engine", "DumpTensors"),
    ],
)
def test_uncounted_features_are_listed(namespace, feature):
    parameters = {"enabled": True, "tensors": ["activation"]}
    layers = {"layer_types": ["all"]}
    config = {"s": {"enabled": True, "layers": layers, namespace: {feature: parameters}}}
    plan = debug.plan(config, ["a"])
    assert plan.load["not_counted"] == [f"{namespace}.{feature}"]
    assert plan.load["text"] == f"nothing is recorded; not counted: {namespace}.{feature}"
