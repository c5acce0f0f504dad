"""Feature classes that inherit those of Transformer Engine's feature paths."""

import pytest
import torch
from debug_helpers import Scalars, config_of, logging_of

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling, NVFP4BlockScaling
from telens.debug.features.inheritable import (
    DisableFP8Layer,
    DisableQuantizationGEMM,
    DumpTensors,
    FakeQuant,
    LogFp8TensorStats,
    LogNvfp4TensorStats,
    LogTensorStats,
    PerTensorScaling,
    fake_quantize,
)
from telens.debug.registry import api_method


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(2)
    return torch.randn(16, 32)


def make_layer() -> te.Linear:
    torch.manual_seed(1)
    return te.Linear(32, 32, device="cpu", name="fc1")


def run(config, x, log_dir, recipe=None, steps=2) -> tuple[torch.Tensor, te.Linear, Scalars]:
    """Returns the output of the last step, the layer, and the logged scalars."""
    layer, scalars = make_layer(), Scalars()
    with debug.session(config, log_dir=log_dir, statistics_logger=scalars):
        for _ in range(steps):
            with te.autocast(enabled=recipe is not None, recipe=recipe):
                out = layer(x)
            out.sum().backward()
            debug.step()
    return out, layer, scalars


def test_fake_quant_casts_operands_to_the_format_and_back(register, x, tmp_path):
    class Coarser(FakeQuant):
        pass

    register(Coarser)
    config = config_of("Coarser", gemms=["fprop"], tensors=["activation"], quant_format="FP8E5M2")
    out, layer, _ = run(config, x, tmp_path, Float8CurrentScaling())
    expected = torch.nn.functional.linear(fake_quantize(x, "FP8E5M2"), layer.weight, layer.bias)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("name", ["FP8E4M3", "MXFP8E5M2"])
def test_fake_quantize_writes_into_a_given_tensor(x, name):
    out = torch.empty_like(x)
    assert fake_quantize(x, name, out) is None
    assert torch.equal(out, fake_quantize(x, name))
    assert not torch.equal(out, x)


def test_a_format_that_a_subclass_does_not_support_is_refused(register, x, tmp_path):
    class OnlyMx(FakeQuant):
        def _supported_formats(self):
            return ["MXFP8E4M3"]

    register(OnlyMx)
    config = config_of("OnlyMx", gemms=["fprop"], tensors=["weight"], quant_format="FP8E4M3")
    with pytest.raises(telens.Error, match=r"OnlyMx for weight .* one of MXFP8E4M3, not 'FP8E4M3'"):
        run(config, x, tmp_path)


def test_per_tensor_scaling_uses_the_tensors_own_amax(register, x, tmp_path):
    class OwnScale(PerTensorScaling):
        pass

    register(OwnScale)
    config = config_of("OwnScale", gemms=["fprop"], tensors=["activation", "weight"])
    out, _, _ = run(config, x, tmp_path, DelayedScaling(amax_history_len=1), steps=1)
    expected, _, _ = run("", x, tmp_path / "plain", Float8CurrentScaling(), steps=1)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize(
    ("base", "selected"), [(DisableQuantizationGEMM, {"gemms": ["fprop"]}), (DisableFP8Layer, {})]
)
def test_disabled_gemms_run_in_high_precision(register, x, tmp_path, base, selected):
    made = type("Disabled", (base,), {})
    register(made)
    out, layer, _ = run(config_of("Disabled", **selected), x, tmp_path, Float8CurrentScaling())
    expected = torch.nn.functional.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize(
    ("base", "stats", "recipe"),
    [
        (LogTensorStats, ["max", "mean"], None),
        (LogTensorStats, [{"max_blockwise_dynamic_range": {"block_size": 32, "dims": 1}}], None),
        (LogFp8TensorStats, ["underflows%", "mxfp8_mse"], Float8CurrentScaling()),
        (LogNvfp4TensorStats, ["mse"], NVFP4BlockScaling()),
    ],
)
def test_logging_class_matches_the_built_in_feature(register, x, tmp_path, base, stats, recipe):
    seen = []

    class Mine(base):
        """Calls the inherited method with the contract's arguments."""

        @api_method
        def inspect_tensor(self, config, layer_name, tensor_name, iteration, tp_group, tensor,
                           rowwise_quantized_tensor=None, columnwise_quantized_tensor=None,
                           quantizer=None, tp_size=1):  # fmt: skip
            seen.append(iteration)
            super().inspect_tensor(
                config, layer_name, tensor_name, iteration, tp_group, tensor,
                rowwise_quantized_tensor, columnwise_quantized_tensor, quantizer, tp_size,
            )  # fmt: skip

    register(Mine)
    mine = run(logging_of(["activation"], stats, "Mine", freq=2), x, tmp_path, recipe, steps=3)[2]
    built_in = logging_of(["activation"], stats, base.__name__, freq=2)
    theirs = run(built_in, x, tmp_path / "built_in", recipe, steps=3)[2]
    assert theirs.rows
    assert sorted(mine.rows) == sorted(theirs.rows)
    assert seen == [0, 2]


def test_a_statistic_that_does_not_exist_is_refused(register, x, tmp_path, capfd):
    class Misspelt(LogTensorStats):
        pass

    register(Misspelt)
    config = logging_of(["activation"], ["maxx"], "Misspelt")
    run(config, x, tmp_path)
    assert "unknown statistic 'maxx' (did you mean 'max'?)" in capfd.readouterr().err
    with pytest.raises(telens.UsageError, match="outside of a session's inspect_tensor"):
        Misspelt().inspect_tensor({"stats": ["max"]}, "fc1", "activation", 0)


def test_dumped_tensors_are_files_of_torch(register, x, tmp_path):
    class Keep(DumpTensors):
        pass

    register(Keep)
    config = config_of(
        "Keep", tensors=["activation"], high_precision_tensor=True, quantized_tensor=True, freq=2
    )
    run(config, x, tmp_path, Float8CurrentScaling(), steps=2)
    (file,) = tmp_path.rglob("*.pt")
    assert file.relative_to(file.parents[3]).as_posix() == (
        "tensor_dumps/rank_0/iter_000000/fc1_activation.pt"
    )
    found = torch.load(file, weights_only=False)
    assert torch.equal(found["high_precision"], x)
    assert isinstance(found["quantized"], te.Float8Tensor)
