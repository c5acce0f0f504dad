"""telens.te_features in the real nvdlfw_inspect, with stubs of Transformer Engine's debug flow."""

import json
import subprocess

import nvdlfw_inspect.api as debug_api
import pytest
import te_debug_flow as flow
import torch

import telens
from telens import debug

STATISTICS = ["mean", "l2_norm", "cur_amax"]
HOOKS = {"current": flow.HOOKS, "old": flow.old_hooks()}


@pytest.fixture(autouse=True)
def _end():
    yield
    debug_api.end_debug()


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Installs the stub package and initializes nvdlfw_inspect; returns the folder of the run."""

    def begin(features, hooks="current", layers=".*", **options):
        flow.install(tmp_path / "packages", HOOKS[hooks])
        monkeypatch.syspath_prepend(tmp_path / "packages")
        config = {
            "section": {
                "enabled": True,
                "layers": {"layer_name_regex_pattern": layers},
                "transformer_engine": {
                    name: {"enabled": True, **keys} for name, keys in features.items()
                },
            }
        }
        debug_api.initialize(
            config, feature_dirs=[telens.te_features.path()], log_dir=str(tmp_path), **options
        )
        return tmp_path / "telens_logs"

    return begin


def random_tensor(seed=0, shape=(2, 48, 192)):
    """Values over many powers of two, so that casts lose some of them."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randn(shape, generator=generator).mul(5).exp()
    return (torch.randn(shape, generator=generator) * spread).bfloat16()


def recorded(folder):
    """The recorded values by (iteration, layer, tensor, statistic)."""
    rows = telens.open_run(folder).records()
    return {(r.iteration, r.layer, r.tensor, r.statistic): r.value for r in rows.itertuples()}


def expected(x):
    x = x.double()
    return {"mean": x.mean(), "l2_norm": x.norm(), "cur_amax": x.abs().max()}


@pytest.mark.parametrize("hooks", HOOKS)
def test_statistics_of_every_tensor_equal_torch(begin, hooks):
    tensors = ["activation", "weight", "gradient", "output", "wgrad", "dgrad"]
    folder = begin(
        {"TELensLogTensorStats": {"tensors": tensors, "stats": STATISTICS, "freq": 2}},
        hooks,
        layers="fc",
    )
    values = {}
    for iteration in range(3):
        for layer in ("fc1", "fc2", "norm"):
            for number, name in enumerate(tensors):
                x = random_tensor(iteration * 10 + number)
                flow.DebugQuantizer(layer, name, operands=hooks == "current")(x)
                values[iteration, layer, name] = expected(x)
        debug_api.step()
    debug_api.end_debug()
    rows = recorded(folder)
    assert {key[:2] for key in rows} == {(i, layer) for i in (0, 2) for layer in ("fc1", "fc2")}
    for iteration in (0, 2):
        for name in tensors:
            for statistic, value in values[iteration, "fc1", name].items():
                assert rows[iteration, "fc1", name, statistic] == pytest.approx(
                    value.item(), rel=1e-5
                )


QUANTIZERS = {
    "Float8Tensor": (flow.Float8Quantizer, "LogFp8TensorStats", "", None),
    "MXFP8Tensor": (flow.MXFP8Quantizer, "LogFp8TensorStats", "", "mxfp8_mse_columnwise"),
    "block 1D": (
        lambda: flow.Float8BlockQuantizer(1),
        "LogFp8TensorStats",
        "",
        "fp8_block_scaling_mse_columnwise",
    ),
    "block 2D": (
        lambda: flow.Float8BlockQuantizer(2),
        "LogFp8TensorStats",
        "",
        "fp8_block_scaling_mse_columnwise",
    ),
    "NVFP4Tensor": (flow.NVFP4Quantizer, "LogNvfp4TensorStats", "nvfp4_", "nvfp4_mse_columnwise"),
}


@pytest.mark.parametrize("hooks", HOOKS)
@pytest.mark.parametrize("kind", QUANTIZERS)
def test_statistics_of_casts_use_the_stored_codes_and_scales(begin, kind, hooks):
    make, feature, prefix, columnwise = QUANTIZERS[kind]
    statistics = ["underflows%", "mse"]
    if not prefix:
        statistics.append("scale_inv_max")
    if columnwise is not None:
        statistics.append(columnwise)
    folder = begin(
        {
            f"TELens{feature}": {"tensors": ["activation", "weight"], "stats": statistics},
            "TELensLogTensorStats": {"tensors": ["activation"], "stats": ["numel"]},
        },
        hooks,
    )
    quantizer, x = make(), random_tensor(3)
    for name in ("activation", "weight"):
        flow.DebugQuantizer("fc1", name, quantizer, operands=hooks == "current")(x)
    debug_api.step()
    debug_api.end_debug()
    rows = recorded(folder)
    flat = x.reshape(-1, x.shape[-1]).double()
    assert rows[0, "fc1", "activation", "numel"] == x.numel()  # read once for two features
    for name in ("activation", "weight"):
        values = {key[3]: value for key, value in rows.items() if key[2] == name}
        lost = ((quantizer.rowwise == 0) & (flat != 0)).double().mean() * 100
        assert lost > 0
        assert values[f"{prefix}underflows%"] == pytest.approx(lost.item(), rel=1e-6)
        mse = (quantizer.rowwise.double() - flat).square().mean().item()
        assert values[f"{prefix}mse"] == pytest.approx(mse, rel=1e-4)
        if not prefix:
            assert values["scale_inv_max"] == pytest.approx(quantizer.scales.max().item(), rel=1e-6)
        if columnwise is not None:
            mse = (quantizer.columnwise.double() - flat).square().mean().item()
            assert values[columnwise] == pytest.approx(mse, rel=1e-4)


def test_weights_stored_in_low_precision_are_read_from_their_codes(begin):
    fp8 = {"tensors": ["weight"], "stats": ["scale_inv_min"]}
    plain = {"tensors": ["weight"], "stats": ["mean"]}
    folder = begin({"TELensLogFp8TensorStats": fp8, "TELensLogTensorStats": plain})
    quantizer = flow.Float8Quantizer()
    copy = quantizer(random_tensor(shape=(16, 32)))
    debug_api.transformer_engine.inspect_tensor_enabled(
        layer_name="fc1", tensor_name="weight", iteration=0
    )
    debug_api.transformer_engine.inspect_tensor(
        layer_name="fc1",
        tensor_name="weight",
        tensor=None,
        iteration=0,
        tp_group=None,
        tp_size=1,
        rowwise_quantized_tensor=copy,
        columnwise_quantized_tensor=copy,
        quantizer=quantizer,
    )
    debug_api.step()
    debug_api.end_debug()
    row = recorded(folder)[0, "fc1", "weight", "scale_inv_min"]
    assert row == pytest.approx(1 / 3, rel=1e-6)


def test_micro_batches_are_merged_and_weights_counted_once(begin):
    folder = begin(
        {"TELensLogTensorStats": {"tensors": ["activation", "weight"], "stats": ["numel"]}}
    )
    x = random_tensor()
    for _ in range(2):
        flow.DebugQuantizer("fc1", "activation")(x)
        flow.DebugQuantizer("fc1", "weight")(x)
    debug_api.step()
    debug_api.end_debug()
    rows = recorded(folder)
    assert rows[0, "fc1", "activation", "numel"] == 2 * x.numel()
    assert rows[0, "fc1", "weight", "numel"] == x.numel()


def test_iterations_follow_nvdlfw_inspect(begin):
    folder = begin(
        {"TELensLogTensorStats": {"tensors": ["activation"], "stats": ["mean"]}},
        init_training_step=7,
    )
    for start in (None, 20):
        if start is not None:
            debug_api.initialize_training_step(start)
        for _ in range(2):
            flow.DebugQuantizer("fc1", "activation")(random_tensor())
            debug_api.step()
    debug_api.end_debug()
    assert sorted({key[0] for key in recorded(folder)}) == [7, 8, 20, 21]


def test_histograms_count_every_element(begin):
    folder = begin({"TELensValueHistogram": {"tensors": ["gradient"]}})
    x = random_tensor()
    flow.DebugQuantizer("fc1", "gradient")(x)
    debug_api.step()
    debug_api.end_debug()
    assert telens.open_run(folder).histograms()["count"].sum() == x.numel()


def test_trigger_stops_the_training(begin):
    begin({"TELensTrigger": {"when": ["nonfinite of gradient > 0"], "stop": True}})
    x = random_tensor()
    flow.DebugQuantizer("fc1", "gradient")(x)
    debug_api.step()
    x[0, 0, 0] = torch.inf
    with pytest.raises(telens.RunStopped, match="nonfinite of gradient"):  # noqa: PT012
        for _ in range(2):
            flow.DebugQuantizer("fc1", "gradient")(x)
            debug_api.step()


@pytest.mark.parametrize("hooks", HOOKS)
def test_precision_of_operands_and_fallbacks_are_recorded(begin, hooks):
    folder = begin({"TELensGemmPrecision": {"freq": 1}}, hooks)
    operands = hooks == "current"
    for iteration in range(2):
        debug_quantizer = flow.DebugQuantizer("fc1", "weight", flow.MXFP8Quantizer(), operands)
        debug_quantizer(random_tensor())
        flow.DebugQuantizer("fc1", "activation", flow.NVFP4Quantizer(), operands)(random_tensor())
        flow.DebugQuantizer("head", "weight", None, operands)(random_tensor())
        assert iteration == debug_quantizer.iteration
        debug_api.step()
    debug_api.end_debug()
    bits = {key: value for key, value in recorded(folder).items() if key[3].startswith("bits_in")}
    assert bits == {
        (iteration, layer, tensor, f"bits_in_{gemm}"): value
        for iteration in range(2)
        for layer, tensor, gemm, value in [
            ("fc1", "weight", "fprop", 8),
            ("fc1", "weight", "dgrad", 8),
            ("fc1", "activation", "fprop", 4),
            ("fc1", "activation", "wgrad", 4),
            ("head", "weight", "fprop", 16),
            ("head", "weight", "dgrad", 16),
        ]
    }


def test_unquantized_operand_under_a_recipe_causes_a_warning(begin):
    folder = begin({"TELensGemmPrecision": {}})
    quantizer, x = flow.MXFP8Quantizer(), random_tensor()
    copy = quantizer(x)
    debug_api.transformer_engine.inspect_tensor(
        layer_name="fc1",
        tensor_name="weight",
        tensor=x,
        iteration=0,
        tp_group=None,
        rowwise_quantized_tensor=copy,
        columnwise_quantized_tensor=x,
        quantizer=quantizer,
    )
    debug_api.step()
    debug_api.end_debug()
    events = telens.open_run(folder).events
    texts = events[events["kind"] == "warning"]["text"].tolist()
    assert any("weight of dgrad is BF16, although the recipe quantizes it" in t for t in texts)


def test_a_telens_config_file_adds_its_sections(begin, tmp_path):
    file = tmp_path / "telens.yaml"
    section = {
        "enabled": True,
        "layers": {"layer_types": ["all"]},
        "transformer_engine": {
            "LogTensorStats": {"enabled": True, "tensors": ["output"], "stats": ["mean"]}
        },
    }
    file.write_text(json.dumps({"outputs": section}))
    folder = begin({"TELensConfig": {"config_file": str(file)}})
    flow.DebugQuantizer("fc1", "output")(random_tensor())
    debug_api.step()
    debug_api.end_debug()
    assert (0, "fc1", "output", "mean") in recorded(folder)


def test_losses_of_the_program_and_the_command_work(begin, build_folder):
    folder = begin({"TELensLogTensorStats": {"tensors": ["activation"], "stats": ["mean"]}})
    telens.te_features.begin()
    for iteration in range(2):
        flow.DebugQuantizer("fc1", "activation")(random_tensor())
        debug.record("loss", 2.0 - iteration)
        debug_api.step()
    debug_api.end_debug()
    assert telens.open_run(folder).losses.tolist() == [2.0, 1.0]
    command = build_folder / "bin/telens"
    for words in (["info"], ["stats"], ["diagnose"], ["report", "--out", "report.html"]):
        done = subprocess.run(
            [command, words[0], str(folder), *words[1:]],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        assert done.returncode in (0, 1), done.stderr


def test_mistakes_of_the_config_are_errors_of_telens(begin):
    begin({"TELensLogTensorStats": {"tensors": ["activation"], "stats": ["average"]}})
    with pytest.raises(telens.ConfigError, match="average"):
        flow.DebugQuantizer("fc1", "activation")


def test_unreadable_tensors_do_not_stop_the_training(begin):
    begin({"TELensLogFp8TensorStats": {"tensors": ["activation"], "stats": ["mse"]}})
    quantizer, x = flow.MXFP8Quantizer(), random_tensor()
    copy = quantizer(x)
    copy._rowwise_scale_inv = None
    debug_quantizer = flow.DebugQuantizer("fc1", "activation", lambda _: copy)
    with pytest.warns(UserWarning, match="stopped recording after an error"):
        debug_quantizer(x)
    flow.DebugQuantizer("fc1", "activation")(x)
    debug_api.step()


def test_begin_requires_nvdlfw_inspect():
    with pytest.raises(telens.UsageError, match="not initialized"):
        telens.te_features.begin()
