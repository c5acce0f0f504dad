"""Feature classes in Python, written as for Transformer Engine except for the import lines."""

import pathlib
import sys

import pytest
import torch
from debug_helpers import config_of, section, train

import telens
import telens.debug as debug
import telens.pytorch as te
from telens import _C
from telens.common.recipe import Float8CurrentScaling
from telens.debug.base import BaseConfigAPIMapper
from telens.debug.calls import LayerCalls
from telens.debug.features.api import (
    TEConfigAPIMapper,
)
from telens.debug.registry import Registry, api_method

PLUGIN = pathlib.Path(__file__).resolve().parents[2] / "samples/plugins/log_outliers"


def test_inspect_tensor_follows_selection_and_schedule(tmp_path, register, layer, x):
    calls, configs = [], []

    class Watch(TEConfigAPIMapper):
        """Watches."""

        @api_method
        def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
            configs.append(config)
            return iteration % 2 == 0, iteration + 1

        @api_method
        def inspect_tensor(self, config, layer_name, *, tensor_name, tensor, iteration, **kwargs):
            calls.append((layer_name, tensor_name, tuple(tensor.shape), iteration, set(kwargs)))

    register(Watch)
    with debug.session(
        config_of("Watch", tensors=["activation", "gradient"], mine=5), log_dir=tmp_path
    ):
        train(layer, x, steps=3)
        train(te.Linear(32, 32, name="other"), x)
    keywords = {
        "tp_group",
        "tp_size",
        "rowwise_quantized_tensor",
        "columnwise_quantized_tensor",
        "quantizer",
    }
    assert calls == [
        ("fc1", tensor, (16, 32), iteration, keywords)
        for iteration in (0, 2)
        for tensor in ("activation", "gradient")
    ]
    assert configs[0] == {"mine": 5, "tensor": "activation"}


def test_modify_tensor_takes_the_place_of_the_operand(tmp_path, register, layer, x):
    class Zero(TEConfigAPIMapper):
        @api_method
        def modify_tensor_enabled(self, config, layer_name, gemm, tensor_name, iteration):
            return True, None

        @api_method
        def modify_tensor(self, config, layer_name, *, gemm, tensor_name, tensor, **kwargs):
            assert config["gemm"] == gemm == "fprop"
            return torch.zeros_like(tensor)

    register(Zero)
    with debug.session(
        config_of("Zero", gemms=["fprop"], tensors=["activation"]), log_dir=tmp_path
    ):
        out = train(layer, x, loss=torch.sum)
    assert torch.equal(out, layer.bias.expand(16, 32))
    assert layer.weight.grad.abs().sum() > 0  # wgrad saw the activation itself


def test_modify_tensor_may_quantize_with_the_default_quantizer(tmp_path, register, layer, x):
    seen = []

    class Same(TEConfigAPIMapper):
        @api_method
        def modify_tensor_enabled(self, config, layer_name, gemm, tensor_name, iteration):
            return True

        @api_method
        def modify_tensor(self, config, layer_name, *, tensor, default_quantizer, **kwargs):
            quantized = default_quantizer(tensor)
            seen.append((type(default_quantizer), default_quantizer.dtype, type(quantized)))
            return quantized

    register(Same)
    expected = train(layer, x, fp8=True)
    layer.load_state_dict(
        te.Linear(32, 32).state_dict() | {"weight": layer.weight, "bias": layer.bias}
    )
    with debug.session(
        config_of("Same", gemms=["fprop"], tensors=["activation", "weight"]), log_dir=tmp_path
    ):
        out = train(te_copy(layer), x, fp8=True)
    assert torch.equal(out, expected)
    assert set(seen) == {(te.Float8Quantizer, te.DType.kFloat8E4M3, te.Float8Tensor)}


def te_copy(layer: te.Linear) -> te.Linear:
    fresh = te.Linear(32, 32, name="fc1")
    with torch.no_grad():
        fresh.weight.copy_(layer.weight)
        fresh.bias.copy_(layer.bias)
    return fresh


class Halves(TEConfigAPIMapper):
    """Halves weights and returns them as the call asks for."""

    given = ()

    @api_method
    def modify_tensor_enabled(self, config, layer_name, gemm, tensor_name, iteration):
        return True, iteration + 1

    @api_method
    def modify_tensor(
        self, config, layer_name, *, gemm, tensor, default_quantizer, out=None, dtype=None, **kwargs
    ):
        type(self).given += ((gemm, out is not None, dtype),)
        value = tensor * 0.5
        if out is None:
            return value if default_quantizer is None else default_quantizer(value)
        if default_quantizer is None:
            out.copy_(value)
        else:
            default_quantizer.update_quantized(value, out)
        return None


class HalvesAnew(Halves):
    """Knows nothing of `out`."""

    @api_method
    def modify_tensor(self, config, layer_name, *, gemm, tensor, default_quantizer):
        value = tensor * 0.5
        return value if default_quantizer is None else default_quantizer(value)


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("feature", [Halves, HalvesAnew])
def test_an_update_of_the_weight_cache_passes_out(tmp_path, register, layer, x, feature, fp8):
    register(feature)
    Halves.given = ()

    def forward(is_first_microbatch):
        with te.autocast(enabled=fp8, recipe=Float8CurrentScaling()):
            return layer(x, is_first_microbatch=is_first_microbatch)

    config = config_of(feature.__name__, gemms=["fprop", "dgrad"], tensors=["weight"])
    with debug.session(config, log_dir=tmp_path):
        first = forward(True)
        debug.step()
        with torch.no_grad():
            layer.weight.mul_(-4)
        before = layer.weight.clone()
        updated, kept = forward(True), forward(False)
        anew = forward(None)
    assert torch.equal(layer.weight, before)
    assert torch.equal(updated, kept)
    assert torch.equal(updated, anew)
    assert not torch.equal(updated, first)
    if feature is Halves:
        dtype = torch.float32
        assert Halves.given == (
            ("dgrad", False, dtype),
            ("fprop", False, dtype),
            ("dgrad", True, None),
            ("fprop", True, None),
            ("dgrad", False, dtype),
            ("fprop", False, dtype),
        )


@pytest.mark.parametrize("feature", ["FakeQuant", "Halves"])
def test_a_weight_that_is_stored_in_fp8_can_be_modified(tmp_path, register, x, feature):
    register(Halves)
    with te.fp8_model_init():
        layer = te.Linear(32, 32, bias=False, name="fc1")
    parameters = {"gemms": ["fprop"], "tensors": ["weight"]}
    if feature == "FakeQuant":
        parameters["quant_format"] = "FP8E5M2"
    plain = layer(x)
    with debug.session(config_of(feature, **parameters), log_dir=tmp_path):
        modified = layer(x)
    if feature == "Halves":
        assert torch.equal(modified, plain / 2)
    else:
        assert not torch.equal(modified, plain)
        torch.testing.assert_close(modified, plain, rtol=0.1, atol=0.1)


def test_parts_of_an_unnamed_layer_share_its_automatic_name(tmp_path):
    config = config_of("LogTensorStats", stats=["max"], tensors=["activation"])
    config["section"]["layers"] = {"layer_types": ["all"]}
    first, mlp, last = te.Linear(32, 32), te.LayerNormMLP(32, 64), te.Linear(32, 32)
    for run in ("once", "again"):
        with debug.session(config, log_dir=tmp_path / run):
            last(mlp(first(torch.randn(16, 32))))
            debug.step()
        layers = set(telens.open_run(tmp_path / run).records()["layer"])
        assert layers == {"Layer_1", "Layer_2.fc1", "Layer_2.fc2", "Layer_3"}


def test_fp8_gemm_enabled_false_runs_the_gemm_in_high_precision(tmp_path, register, layer, x):
    class High(TEConfigAPIMapper):
        @api_method
        def fp8_gemm_enabled(self, config, layer_name, gemm, iteration):
            return False, None

    register(High)
    plain = layer(x)
    with debug.session(config_of("High", gemms=["fprop"]), log_dir=tmp_path):
        out = train(layer, x, fp8=True)
    assert torch.equal(out, plain)


def test_postquantize_gets_tensors_of_two_gemms(tmp_path, register, layer, x):
    seen = []

    class Post(TEConfigAPIMapper):
        @api_method
        def inspect_tensor_postquantize_enabled(
            self, config, layer_name, gemm, tensor_name, iteration
        ):
            return True

        @api_method
        def inspect_tensor_postquantize(
            self, config, layer_name, *, tensor_name, tensor, rowwise, **kwargs
        ):
            seen.append((tensor_name, type(tensor), rowwise))

    register(Post)
    with debug.session(config_of("Post", tensors=["activation"]), log_dir=tmp_path):
        train(layer, x, fp8=True)
    assert sorted(seen, key=str) == [
        ("activation", te.Float8Tensor, False),
        ("activation", te.Float8Tensor, True),
    ]


def test_a_class_may_parse_its_configuration_itself(tmp_path, register, layer, x):
    calls = []

    class Own(BaseConfigAPIMapper):
        def parse_config_and_api(self, config, **call):
            assert call["tensor_parsing"] is True
            assert call["gemm_parsing"] is False
            return call["tensor_name"] == config["which"], {"parsed": True}

        @api_method
        def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
            return config == {"parsed": True}

        @api_method
        def inspect_tensor(self, config, layer_name, tensor_name, **kwargs):
            calls.append(tensor_name)

    register(Own)
    with debug.session(config_of("Own", which="wgrad"), log_dir=tmp_path):
        train(layer, x)
    assert calls == ["wgrad"]


def test_a_layer_sleeps_between_the_calls_that_a_class_declares(tmp_path, register):
    class Seldom(TEConfigAPIMapper):
        @api_method
        def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
            return True, iteration + 5

    class Disabler(TEConfigAPIMapper):
        @api_method
        def fp8_gemm_enabled(self, config, layer_name, gemm, iteration):
            return True

    for feature, awake in ((Seldom, [0, 1, 5, 6]), (Disabler, [0, 1, 2, 3, 4, 5, 6])):
        register(feature)
        layer = _C.WatchedLayer("fc")
        parameters = {"tensors": ["activation"]} if feature is Seldom else {"gemms": ["fprop"]}
        routed = []
        with debug.session(config_of(feature.__name__, **parameters), log_dir=tmp_path):
            for iteration in range(7):
                if not layer.sleeps(under_recipe=True):
                    routed.append(iteration)
                layer.begin_forward(under_recipe=True)
                debug.step()
        assert routed == awake


def test_class_logs_names_with_several_tensor_words(tmp_path):
    class Scalars(debug.BaseLogger):
        rows = []  # noqa: RUF012

        def log_scalar(self, name, value, iteration, **kwargs):
            self.rows.append((name, value, iteration))

    with debug.session("", statistics_logger=Scalars(), log_dir=tmp_path):
        debug.MetricLogger.log_scalar("fc_weight_norm_weight_share", 0.5, 3)
        debug.MetricLogger.log_scalar("rate", torch.tensor(0.25), 4)
        debug.step()
    assert Scalars.rows == [("fc_weight_norm_weight_share", 0.5, 3), ("rate", 0.25, 4)]
    records = telens.open_run(tmp_path).records(statistic="share")
    assert records["layer"].tolist() == ["fc_weight_norm"]


def test_a_namespace_of_ones_own_is_known_to_configurations(tmp_path, register):
    config = {"section": {"enabled": True, "layers": {"layer_types": "all"}, "mine": {}}}
    with pytest.raises(telens.ConfigError, match="mine"):
        debug.initialize(config, log_dir=tmp_path)

    class Calls(debug.BaseNamespaceAPI):
        def double(self, x):
            return 2 * x

    Registry.register_namespace_api(namespace="mine")(Calls)
    try:
        with debug.session(config, log_dir=tmp_path):
            assert debug.mine.name == "mine"
            assert debug.mine.double(4) == 8
    finally:
        Registry.forget(f"{Calls.__module__}.{Calls.__qualname__}")
    with pytest.raises(AttributeError, match="mine"):
        _ = debug.mine
    with pytest.raises(TypeError, match="BaseNamespaceAPI"):
        Registry.register_namespace_api(namespace="mine")(object)


def test_a_name_that_is_taken_is_an_error_that_names_the_owners(register):
    class FakeQuant(TEConfigAPIMapper):
        pass

    with pytest.raises(telens.UsageError, match="FakeQuant"):
        register(FakeQuant)


@pytest.mark.parametrize("answer", [True, (True, None)])
def test_class_without_modify_tensor_is_an_error(tmp_path, register, layer, x, answer):
    class Doubles(TEConfigAPIMapper):
        @api_method
        def modify_tensor_enabled(self, config, layer_name, gemm, tensor_name, iteration):
            return answer

        def modify_tensor(self, config, layer_name, *, tensor, **kwargs):  # without @api_method
            return 2 * tensor

    register(Doubles)
    config = config_of("Doubles", gemms=["dgrad"], tensors=["weight"])
    with (
        debug.session(config, log_dir=tmp_path),
        pytest.raises(
            telens.Error,
            match="Doubles: modify_tensor_enabled answered True for the weight of dgrad in layer "
            f"{layer.name}, but the class does not define modify_tensor; add one",
        ),
    ):
        layer(x)


def test_a_class_that_never_wants_to_modify_needs_no_modify_tensor(tmp_path, register, layer, x):
    asked = []

    class Never(TEConfigAPIMapper):
        @api_method
        def modify_tensor_enabled(self, config, layer_name, gemm, tensor_name, iteration):
            asked.append((gemm, tensor_name))
            return False

    register(Never)
    plain = layer(x)
    config = config_of("Never", gemms=["fprop"], tensors=["activation"])
    with debug.session(config, log_dir=tmp_path):
        assert torch.equal(train(layer, x), plain)
    assert asked == [("fprop", "activation")]


@pytest.mark.parametrize("name", ["transformer_engine", "base", "telens", "LogTensorStats"])
def test_built_in_namespace_cannot_be_registered(name):
    class Calls(debug.BaseNamespaceAPI):
        pass

    with pytest.raises(telens.UsageError, match=f"{name} of .*Calls .*: telens has that name"):
        Registry.register_namespace_api(namespace=name)(Calls)
    assert Registry.namespace_api(name) is None


def test_a_namespace_of_another_class_cannot_be_registered():
    class First(debug.BaseNamespaceAPI):
        pass

    class Second(debug.BaseNamespaceAPI):
        pass

    owners = [f"{each.__module__}.{each.__qualname__}" for each in (First, Second)]
    try:
        Registry.register_namespace_api(namespace="mine")(First)
        Registry.register_namespace_api(namespace="mine")(First)
        with pytest.raises(telens.UsageError, match=r"mine of .*Second .*: .*First has that name"):
            Registry.register_namespace_api(namespace="mine")(Second)
        assert isinstance(debug.mine, First)
    finally:
        for owner in owners:
            Registry.forget(owner)


def test_a_class_registered_again_replaces_itself(tmp_path, register, layer, x):
    called = []

    def make(version: int) -> type:
        """As when a notebook cell is run again: a new class with the old name."""

        class Again(TEConfigAPIMapper):
            @api_method
            def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
                called.append(version)
                return False

            @api_method
            def inspect_tensor(self, config, layer_name, **kwargs):
                pass

        return Again

    register(make(1))
    register(make(2))
    with debug.session(config_of("Again", tensors=["activation"]), log_dir=tmp_path):
        layer(x)
    assert called
    assert set(called) == {2}


def test_a_class_without_a_parser_is_refused(register):
    class Bare:
        pass

    with pytest.raises(telens.UsageError, match="parse_config_and_api"):
        register(Bare)


def test_sample_plugin_is_unregistered_after_session(tmp_path, layer, x):
    config = config_of("LogOutliers", "telens", tensors=["activation"], factor=1)
    for run in ("first", "second"):
        with debug.session(config, feature_dirs=PLUGIN, log_dir=tmp_path / run):
            train(layer, x, steps=2)
        records = telens.open_run(tmp_path / run).records(statistic="outliers%")
        share = 100 * (x.abs() > x.square().mean().sqrt()).float().mean().item()
        assert records["value"].tolist() == pytest.approx([share, share])
        assert records["layer"].tolist() == ["fc1", "fc1"]
    with pytest.raises(telens.ConfigError, match="LogOutliers"):
        debug.initialize(config, log_dir=tmp_path)


def test_the_sample_plugin_logs_the_same_in_python_and_in_cpp(tmp_path, build_folder, layer, x):
    recorded = {}
    for name, folder in (("python", PLUGIN), ("cpp", build_folder / "plugins/log_outliers")):
        with debug.session(
            PLUGIN / "log_outliers.yaml", feature_dirs=folder, log_dir=tmp_path / name
        ):
            train(layer, x.detach() ** 5, steps=3)
        records = telens.open_run(tmp_path / name).records(statistic="outliers%")
        columns = ["iteration", "layer", "tensor", "value"]
        recorded[name] = sorted(records[columns].itertuples(index=False, name=None))
    assert recorded["python"] == recorded["cpp"]
    assert [iteration for iteration, *_ in recorded["cpp"]] == [0, 0, 1, 2, 2]  # freq 2: gradient


def test_the_peers_own_feature_folder_is_skipped_with_a_message(tmp_path, capsys):
    folder = tmp_path / "transformer_engine" / "debug" / "features"
    folder.mkdir(parents=True)
    (folder / "fake_quant.py").write_text("raise RuntimeError('must not run')")
    with debug.session("", feature_dirs=str(folder), log_dir=tmp_path):
        assert "skipped" in capsys.readouterr().out


def test_self_instrumented_code_makes_the_calls_itself(tmp_path, register, x):
    seen = []

    class Watch(TEConfigAPIMapper):
        @api_method
        def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
            return True

        @api_method
        def inspect_tensor(self, config, layer_name, *, tensor_name, tensor, **kwargs):
            seen.append((layer_name, tensor_name, tensor.sum().item()))

    register(Watch)
    calls = debug.transformer_engine
    feature = {"Watch": {"enabled": True, "tensors": ["activation"]}}
    config = section(feature, layer_name_regex_pattern="fc")
    with debug.session(config, log_dir=tmp_path):
        asked = {"layer_name": "my_fc", "tensor_name": "activation", "iteration": 0}
        assert calls.inspect_tensor_enabled(**asked)
        assert not calls.inspect_tensor_enabled(**asked | {"tensor_name": "weight"})
        assert not calls.inspect_tensor_enabled(**asked | {"layer_name": "elsewhere"})
        assert calls.fp8_gemm_enabled(layer_name="my_fc", gemm="fprop", iteration=0)
        calls.inspect_tensor(tensor=torch.ones(4), tp_group=None, **asked)
        assert calls.modify_tensor(tensor=x, gemm="fprop", **asked) is not None
    assert seen == [("my_fc", "activation", 4.0)]


def test_self_instrumented_code_is_answered_by_the_session_that_runs(tmp_path):
    calls = LayerCalls()
    watched = []
    for tensor in ("activation", "weight"):
        config = config_of("LogTensorStats", tensors=[tensor], stats=["max"])
        with debug.session(config, log_dir=tmp_path / tensor):
            asked = {"layer_name": "fc", "iteration": 0}
            watched += [
                each
                for each in ("activation", "weight")
                if calls.inspect_tensor_enabled(tensor_name=each, **asked)
            ]
    assert watched == ["activation", "weight"]


def test_resetting_the_iteration_keeps_observation(tmp_path):
    calls = debug.transformer_engine
    config = config_of("LogTensorStats", tensors=["activation"], stats=["max"])
    asked = {"layer_name": "fc", "tensor_name": "activation", "iteration": 0}
    with debug.session(config, log_dir=tmp_path):
        assert calls.inspect_tensor_enabled(**asked)
        debug.initialize_training_step(0)
        calls.inspect_tensor(tensor=torch.full((4,), 3.0), **asked)
    assert telens.open_run(tmp_path).records(statistic="max")["value"].tolist() == [3.0]


def test_documented_names_are_importable():
    from telens.debug import (  # noqa: F401
        BaseLogger,
        BaseNamespaceAPI,
        MetricLogger,
        append_parent_docstring,
        gather_along_first_dim,
        get_logger,
    )
    from telens.debug.logging import BaseLogger as logging_name
    from telens.debug.utils import append_parent_docstring as utils_name

    assert logging_name is BaseLogger
    assert utils_name is append_parent_docstring
    assert "telens.debug.registry" in sys.modules
