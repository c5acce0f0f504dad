"""Classes of features that call the defaults of Transformer Engine's API."""

import pytest
import torch
from debug_helpers import config_of, train

import telens
import telens.debug as debug
from telens.debug.features.api import (
    TEConfigAPIMapper,
    TEDefaultFeatures,
    TransformerEngineAPI,
)
from telens.debug.registry import api_method


class Doubling(TEConfigAPIMapper, TEDefaultFeatures):
    """Calls the defaults for what it does not handle itself."""

    @api_method
    def modify_tensor_enabled(self, config, layer_name, gemm, tensor_name, iteration):
        if iteration > 0:
            return super().modify_tensor_enabled(config, layer_name, gemm, tensor_name, iteration)
        return True, iteration + 1

    @api_method
    def modify_tensor(self, config, layer_name, gemm, tensor_name, tensor, **rest):
        if config.get("unhandled"):
            rest.setdefault("out", None)
            return super().modify_tensor(config, layer_name, gemm, tensor_name, tensor, **rest)
        return 2 * tensor


def test_class_may_delegate_to_call_defaults(tmp_path, register, layer, x):
    plain = layer(x)
    register(Doubling)
    keys = {"gemms": ["fprop"], "tensors": ["output"]}
    with debug.session(config_of("Doubling", **keys), log_dir=tmp_path):
        assert torch.equal(train(layer, x), 2 * plain)
        assert torch.equal(train(layer, x), plain)
    unhandled = config_of("Doubling", unhandled=True, **keys)
    handles_nothing = pytest.raises(
        telens.Error, match=r"NotImplementedError: .*handles it; add one"
    )
    with debug.session(unhandled, log_dir=tmp_path), handles_nothing:
        layer(x)


def test_call_defaults_match_the_contract():
    defaults, at = TEDefaultFeatures(), {"config": {}, "layer_name": "fc", "iteration": 0}
    assert defaults.fp8_gemm_enabled(gemm="fprop", **at) == (True, None)
    weight = {"tensor_name": "weight", **at}
    assert defaults.modify_tensor_enabled(gemm="fprop", **weight) == (False, None)
    assert defaults.inspect_tensor_enabled(**weight) == (False, None)
    assert defaults.inspect_tensor_postquantize_enabled(gemm="fprop", **weight) == (False, None)


def test_namespace_matches_configuration_and_call():
    api, config = TransformerEngineAPI(), {"enabled": True, "gemms": ["fprop"], "tensors": "weight"}
    chosen = {"gemm": "fprop", "tensor_name": "weight"}
    selected, own = api.routing_condition(
        "modify_tensor_enabled", config, "fc", Doubling(), **chosen
    )
    assert selected
    assert (own["gemm"], own["tensor"]) == ("fprop", "weight")
    other = chosen | {"gemm": "dgrad"}
    assert api.routing_condition("modify_tensor", config, "fc", Doubling(), **other) == (
        False,
        None,
    )
    assert api.is_multiple_feature_invocation_allowed("inspect_tensor")
    assert not api.is_multiple_feature_invocation_allowed("modify_tensor")
    with pytest.raises(telens.UsageError, match="modify_tensor: argument 'gemm' is missing"):
        api.input_assertions_hook("modify_tensor", tensor_name="weight")
    out = api.call_feature(Doubling().modify_tensor, {}, "fc", gemm="fprop", tensor_name="output",
                           tensor=torch.ones(2), iteration=0)  # fmt: skip
    assert out.tolist() == [2, 2]
