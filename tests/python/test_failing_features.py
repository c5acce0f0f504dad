"""How an exception or an invalid result of a feature class is handled."""

import math
import pathlib

import pytest
import torch
from debug_helpers import config_of, stopping, train

import telens
import telens.debug as debug
from telens.debug import TEConfigAPIMapper, api_method


def modifying(feature: str, gemm: str = "fprop", tensor: str = "activation") -> dict:
    return config_of(feature, gemms=[gemm], tensors=[tensor])


class Modifies(TEConfigAPIMapper):
    """Returns `result` of the tensor as the modified tensor."""

    result = staticmethod(lambda tensor: tensor)

    @api_method
    def modify_tensor_enabled(self, config, layer_name, gemm, tensor_name, iteration):
        return True

    @api_method
    def modify_tensor(self, config, layer_name, *, tensor, **kwargs):
        return self.result(tensor)


def cannot(tensor):
    raise ValueError("cannot do it")


def test_failing_altering_feature_stops_the_run(tmp_path, register, layer, x):
    register(type("Broken", (Modifies,), {"result": staticmethod(cannot)}))
    debug.initialize(modifying("Broken"), log_dir=tmp_path)
    with pytest.raises(telens.Error, match=r"Broken.*fc1.*modify_tensor.*cannot do it") as caught:
        train(layer, x)
    assert isinstance(caught.value.__cause__, ValueError)
    # The message names the place where it was raised.
    assert f"(at {pathlib.Path(__file__)}(" in str(caught.value)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    ("gemm", "tensor"),
    [
        ("fprop", "activation"),
        ("dgrad", "weight"),
        ("dgrad", "gradient"),
        ("fprop", "output"),
        ("dgrad", "dgrad"),
        ("wgrad", "wgrad"),
    ],
)
def test_a_result_of_another_shape_is_an_error_that_names_the_feature(
    tmp_path, register, layer, x, gemm, tensor
):
    register(type("Halves", (Modifies,), {"result": staticmethod(lambda tensor: tensor[:8])}))
    debug.initialize(modifying("Halves", gemm, tensor), log_dir=tmp_path)
    rows = 32 if tensor in ("weight", "wgrad") else 16
    expected = (
        rf"Halves.*fc1.*the {tensor} of {gemm} came out as \[8, 32\]; expected \[{rows}, 32\]"
    )
    with pytest.raises(Exception, match=expected):
        train(layer, x)


def test_result_on_wrong_device_names_the_feature(tmp_path, register, layer, x):
    register(type("Moves", (Modifies,), {"result": staticmethod(lambda tensor: tensor.to("meta"))}))
    debug.initialize(modifying("Moves"), log_dir=tmp_path)
    expected = r"Moves.*fc1.*came out on the device meta; expected cpu, its own device"
    with pytest.raises(telens.UsageError, match=expected):
        train(layer, x)


def test_stop_raises_run_stopped(tmp_path, layer, x):
    debug.initialize(stopping(), log_dir=tmp_path)
    with pytest.raises(telens.RunStopped, match="nonfinite of output"):
        train(layer, x.detach() * math.nan)
    assert issubclass(telens.RunStopped, telens.Error)
    debug.end_debug()


def test_a_nan_is_written_without_a_sign(tmp_path, layer, x):
    config = {
        "section": {
            "enabled": True,
            "layers": {"layer_types": ["all"]},
            "transformer_engine": {
                "LogTensorStats": {
                    "enabled": True,
                    "tensors": ["activation"],
                    "stats": ["mean", "std"],
                }
            },
        }
    }
    minus_nan = torch.tensor([0xFFC00000], dtype=torch.uint32).view(torch.float32)
    with debug.session(config, log_dir=tmp_path):
        train(layer, x.detach() * minus_nan)
    (log,) = (tmp_path / "nvdlfw_inspect_statistics_logs").iterdir()
    values = [line.rsplit("value=", 1)[1] for line in log.read_text().splitlines()]
    assert values == ["nan", "nan"]


def test_failing_observer_is_disabled_with_one_warning(tmp_path, register, layer, x, capfd):
    calls = []

    class Broken(TEConfigAPIMapper):
        @api_method
        def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
            return True

        @api_method
        def inspect_tensor(self, config, layer_name, **kwargs):
            calls.append(1)
            raise ValueError("cannot look")

    register(Broken)
    with debug.session(modifying("Broken"), log_dir=tmp_path):
        train(layer, x, steps=3)
    assert calls == [1]
    assert capfd.readouterr().err.count("cannot look") == 1
