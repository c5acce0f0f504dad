"""Features on models that telens.watch attaches to: which work, and which are refused."""

import json
import subprocess

import h5py
import pytest
import torch
from conftest import PROJECT_ROOT
from torch import nn

import telens
from telens import debug
from telens.attach import layers, watching

ALL = {"layers": {"layer_types": ["all"]}, "enabled": True}
GEMM = {"enabled": True, "gemms": ["fprop"]}
FAKE_QUANT = {**GEMM, "tensors": ["weight"], "quant_format": "FP8E4M3"}
# Features that need FP8 modules, with a valid configuration.
USELESS = {
    "FakeQuant": {"transformer_engine": {"FakeQuant": FAKE_QUANT}},
    "PerTensorScaling": {
        "transformer_engine": {"PerTensorScaling": {**GEMM, "tensors": ["weight"]}}
    },
    "DisableFP8GEMM": {"transformer_engine": {"DisableFP8GEMM": GEMM}},
    "DisableFP8Layer": {"transformer_engine": {"DisableFP8Layer": {"enabled": True}}},
    "PrecisionLedger": {"telens": {"PrecisionLedger": {"enabled": True}}},
    "GemmError": {"telens": {"GemmError": GEMM}},
}


def train(section, folder, steps=3, **more):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
    config = {"section": {**ALL, **section}, **more}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with telens.watch(model, config, folder):
        for _ in range(steps):
            model(torch.randn(64, 32)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return telens.open_run(folder)


def test_the_warning_names_the_features_that_need_fp8_modules():
    command = [PROJECT_ROOT / "build/bin/telens", "features", "--format", "json"]
    rows = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    needing = {row["feature"].split(".")[1] for row in rows if row["attached"].startswith("no: ")}
    assert needing == {*USELESS} == watching._NEED_FP8_MODULES


@pytest.mark.parametrize("feature", USELESS)
def test_features_without_effect_are_named(tmp_path, feature):
    with pytest.warns(UserWarning, match=f"{feature}: no effect here.*convert"):
        train(USELESS[feature], tmp_path)


def test_statistics_for_every_recipe(tmp_path):
    tensors = ["activation", "weight", "gradient"]
    recipes = ("fp8_current_scaling", "mxfp8", "fp8_block_scaling")
    stats = [f"{recipe}_{name}" for recipe in recipes for name in ("mse", "underflows%")]
    fp8 = {"enabled": True, "tensors": tensors, "stats": stats}
    nvfp4 = {"enabled": True, "tensors": tensors, "stats": ["mse"]}
    section = {"transformer_engine": {"LogFp8TensorStats": fp8, "LogNvfp4TensorStats": nvfp4}}
    run = train(section, tmp_path)
    for statistic in [*stats, "nvfp4_mse"]:
        rows = run.records(statistic=statistic)
        assert {*rows["tensor"]} == {*tensors}, statistic
        assert {*rows["iteration"]} == {0, 1, 2}


def test_dumped_tensors_have_the_values(tmp_path):
    dump = {"enabled": True, "tensors": ["weight", "dgrad"], "high_precision_tensor": True}
    torch.manual_seed(0)
    weight = nn.Linear(32, 32).weight.detach()
    train({"transformer_engine": {"DumpTensors": dump}}, tmp_path, steps=1)
    (path,) = tmp_path.rglob("iter_000000/0_weight.h5")
    with h5py.File(path) as file:
        assert (file["high_precision"][()] == weight.numpy()).all()
    assert [*tmp_path.rglob("iter_000000/1_dgrad.h5")]


def test_value_histograms_count_all_elements(tmp_path):
    histogram = {"enabled": True, "tensors": ["activation", "gradient"]}
    run = train({"telens": {"ValueHistogram": histogram}}, tmp_path, steps=1)
    counts = run.histograms().groupby(["layer", "tensor"], observed=True)["count"].sum()
    assert counts["0", "activation"] == counts["1", "gradient"] == 64 * 32


def test_a_trigger_starts_another_section(tmp_path):
    trigger = {"enabled": True, "when": ["cur_amax of activation > 0"], "freq": 1, "start": 2}
    started = {
        **ALL,
        "started_by": "section",
        "transformer_engine": {
            "LogTensorStats": {"enabled": True, "tensors": ["weight"], "stats": ["l2_norm"]}
        },
    }
    run = train({"telens": {"Trigger": trigger}}, tmp_path, started=started)
    assert len(run.records(statistic="l2_norm")) > 0


def test_diagnosis_runs_during_the_training(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    stats = {"enabled": True, "tensors": ["activation", "weight", "gradient", "output", "wgrad"]}
    log = {**stats, "stats": ["cur_amax", "l2_norm", "numel", "mean", "std", "min", "max"]}
    diagnosis = {"enabled": True, "percent_of_time": 100}
    section = {"transformer_engine": {"LogTensorStats": log}, "telens": {"Diagnosis": diagnosis}}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    with telens.watch(model, {"section": {**ALL, **section}}, tmp_path):
        debug.on_finding(found.append)
        for step in range(12):
            x = torch.randn(8, 16)
            if step == 6:
                with torch.no_grad():
                    model[1].weight[3, 3] = float("nan")
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        debug.checkpoint_allowed(wait=60)
    assert [(each["cause"], each["layer"]) for each in found] == [("nonfinite", "1")]


def test_default_config_is_not_searched_for_useless_features(tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "_warn_of_features", lambda *_: pytest.fail("searched"))
    telens.watch(torch.nn.Linear(32, 32), log_dir=tmp_path).stop()


@pytest.mark.parametrize("converted", [False, True])
def test_fp8_region_without_fp8_layers_is_a_finding(tmp_path, build_folder, converted):
    te = pytest.importorskip("telens.pytorch", exc_type=ImportError, reason="no telens-core")
    model = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    if converted:
        model[1] = te.Linear(32, 32, device="cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with telens.watch(model, log_dir=tmp_path):
        for _ in range(3):
            with te.autocast(enabled=True):
                loss = model(torch.randn(32, 32)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    report = subprocess.run(
        [build_folder / "bin/telens", "diagnose", tmp_path, "--format", "json"],
        capture_output=True,
        text=True,
    )
    found = [each["cause"] for each in json.loads(report.stdout)["findings"]]
    assert ("gemm_precision" in found) == (not converted)


def test_tensors_of_devices_without_kernels_are_copied(tmp_path, monkeypatch):
    log = {"enabled": True, "tensors": ["activation", "weight", "dgrad"], "stats": ["cur_amax"]}
    section = {"transformer_engine": {"LogTensorStats": log}}
    train(section, tmp_path / "direct")
    copied = []
    monkeypatch.setattr(layers, "has_kernels", lambda device: False)
    monkeypatch.setattr(watching, "has_kernels", lambda device: False)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: copied.append(self) or self.clone())
    with pytest.warns(UserWarning, match=r"no kernels for cpu: each recorded tensor is copied"):
        train(section, tmp_path / "copied")
    assert copied
    direct, through_host = (
        telens.open_run(tmp_path / name).records() for name in ("direct", "copied")
    )
    assert direct.equals(through_host)
