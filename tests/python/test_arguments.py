"""Arguments of telens.debug that scripts pass: which are accepted, and the errors for others."""

import os
import pathlib

import numpy
import pytest
import torch
from debug_helpers import Scalars, logging_of, message_log, section

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling

MAXIMA = logging_of(["activation"], ["max"])


def refused(text: str):
    return pytest.raises(telens.UsageError, match=text)


# ---- names


def test_all_names_of_the_contract_are_in_telens_debug():
    from telens.debug.debug_features.log_tensor_stats import LogTensorStats
    from telens.debug.features.utils import get_reduction_params, next_enabled_iter

    assert debug.LogTensorStats is LogTensorStats
    assert debug.next_enabled_iter is next_enabled_iter
    assert debug.get_reduction_params is get_reduction_params


def test_self_reducing_class_gets_its_group(tmp_path):
    group = object()
    with debug.session("", log_dir=tmp_path):
        assert debug.get_reduction_params("activation", group, 2) == (False, None, True)
        assert debug.get_reduction_params("weight", group, 2) == (False, group, False)
        assert debug.get_reduction_params("weight", group, 1)[0]
        assert debug.get_reduction_params("weight", None, 2)[0]
        debug.set_weight_tensor_tp_group_reduce(False)
        assert debug.get_reduction_params("weight", group, 2)[0]
    with debug.session("", log_dir=tmp_path):
        assert not debug.get_reduction_params("weight", group, 2)[0]


# ---- initialize


def test_an_empty_feature_dirs_is_none(tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text("raise RuntimeError('a script was run as a feature')")
    monkeypatch.chdir(tmp_path)
    for empty in ("", [""], [], None):
        with debug.session("", feature_dirs=empty, log_dir=tmp_path / "logs"):
            pass
    with refused("a script was run as a feature"):
        debug.initialize("", feature_dirs=".", log_dir=tmp_path / "logs")


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("statistics_logger", "a BaseLogger, with a method log_scalar"),
        ("tb_writer", "a SummaryWriter, with a method add_scalar"),
    ],
)
def test_a_logger_that_cannot_log_is_an_error_that_names_the_argument(tmp_path, argument, expected):
    with refused(f"debug.initialize: {argument} must be {expected}, not object"):
        debug.initialize("", log_dir=tmp_path, **{argument: object()})


@pytest.mark.parametrize("size", [-5, "5MB", 1.5, True])
def test_rejects_invalid_run_file_size(tmp_path, size):
    with refused(rf"debug.initialize: recording\['max_size'\] must be a number of bytes.*{size!r}"):
        debug.initialize("", log_dir=tmp_path, recording={"max_size": size})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"init_training_step": "a"}, r"init_training_step must be an integer, not 'a' \(a str\)"),
        ({"init_training_step": True}, "init_training_step must be an integer, not True"),
        ({"log_dir": 3}, r"log_dir must be a path, not 3 \(a int\)"),
        ({"feature_dirs": 3}, r"feature_dirs must be a folder or several, not 3 \(a int\)"),
    ],
)
def test_a_wrong_option_of_initialize_is_an_error_that_names_it(tmp_path, options, expected):
    with refused("debug.initialize: " + expected):
        debug.initialize("", **{"log_dir": tmp_path, **options})
    with debug.session("", log_dir=tmp_path):
        pass  # there was no session left


@pytest.mark.parametrize(
    "line",
    [
        "import transformer_engine.debug",
        "from nvdlfw_inspect.nowhere import Registry",
        "class Registry:\n    __module__ = 'nvdlfw_inspect.registry'",
    ],
)
def test_feature_file_with_peer_imports_gets_a_hint(tmp_path, line):
    (tmp_path / "features").mkdir()
    (tmp_path / "features/mine.py").write_text(line)
    rule = r"mine.py .*here transformer_engine.X is telens.X, and nvdlfw_inspect.X is telens.debug"
    with refused(rule):
        debug.initialize("", feature_dirs=tmp_path / "features", log_dir=tmp_path)


# ---- configurations as a dict


def test_configuration_accepts_numpy_torch_sets_and_paths(tmp_path):
    config = section(
        {
            "LogTensorStats": {
                "enabled": numpy.bool_(True),
                "tensors": {"activation"},
                "stats": ("max",),
                "freq": numpy.int64(2),
                "start_step": torch.tensor(2),
                "start_end_list": numpy.array([[2, 5]]),
            }
        },
        exact_layer_names={"fc"},
    )
    (row,) = debug.plan(config, "fc").rows
    assert row["tensor"] == "activation"
    scalars = Scalars()
    layer = te.Linear(16, 16, name="fc", device="cpu")
    with debug.session(config, log_dir=pathlib.Path(tmp_path), statistics_logger=scalars):
        for _ in range(7):
            layer(torch.ones(16, 16))
            debug.step()
    assert list(scalars.values("fc_activation_max")) == [2, 4]


@pytest.mark.parametrize("number", [1e-05, 1e16, 2.5e-7, 0.5, -3e-300, float("inf")])
def test_numbers_of_a_dict_stay_numbers(register, tmp_path, number):
    seen = []

    class Keeps(debug.TEConfigAPIMapper):
        @debug.api_method
        def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
            seen.append(config["mine"])
            return False, None

        @debug.api_method
        def inspect_tensor(self, config, layer_name, tensor):
            pass

    register(Keeps)
    config = section({"Keeps": {"enabled": True, "tensors": ["activation"], "mine": number}})
    with debug.session(config, log_dir=tmp_path):
        debug.transformer_engine.inspect_tensor_enabled("mine", tensor_name="activation")
    assert seen == [number]


def test_characters_of_a_dict_beyond_16_bits_stay_themselves():
    """A backslash before such a character is a character, too."""
    name = "block \\ud83d \N{FIRE} \\N{FIRE}"
    config = section({"LogTensorStats": {"enabled": True, "tensors": ["weight"], "stats": ["max"]}})
    (own,) = config.values()
    own["layers"] = {"layer_types": [name]}
    assert debug.plan(config, name).rows


def test_unsupported_configuration_value_names_its_key(tmp_path):
    config = section({"LogTensorStats": {"enabled": True, "stats": ["max", object()]}})
    key = r"section\.transformer_engine\.LogTensorStats\.stats\[1\]"
    with refused(rf"debug.initialize: the configuration's key '{key}' has a object"):
        debug.initialize(config, log_dir=tmp_path)
    with refused(rf"debug.plan: the configuration's key '{key}'"):
        debug.plan(config, "fc")
    with refused("debug.initialize: the configuration must be a path, a dict, or '' for none"):
        debug.initialize(5, log_dir=tmp_path)


def test_plan_accepts_a_single_layer_name():
    assert debug.plan(MAXIMA, "fc").rows == debug.plan(MAXIMA, ["fc"]).rows
    assert [row["layer"] for row in debug.plan(MAXIMA, "fc")] == ["fc"]


# ---- calls


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: debug.step("a"), "debug.step: loss must be a number or .* not 'a'"),
        (lambda: debug.step("1.5"), r"debug.step: loss must be a number .* not '1.5' \(a str\)"),
        (
            lambda: debug.step(torch.ones(2)),
            r"debug.step: loss must be a number .* not one of shape \(2,\); pass its mean",
        ),
        (lambda: debug.record("x", "a"), "debug.record: value must be a number .* not 'a'"),
        (lambda: debug.record("x", None), "debug.record: value must be a number .* not None"),
        (lambda: debug.record("", 1), "debug.record: name must be a string, not empty, not ''"),
        (lambda: debug.record(3, 1), r"debug.record: name must be a string.* not 3 \(a int\)"),
        (
            lambda: debug.log_tensor_stats("l", tensor_name="x", tensor=[1, 2]),
            "debug.log_tensor_stats: tensor must be a torch.Tensor, not list",
        ),
        (
            lambda: debug.initialize_training_step("2"),
            "debug.initialize_training_step: train_step must be an integer, not '2'",
        ),
        (
            lambda: debug.plan({}, torch.nn.Linear(2, 2)),
            "debug.plan: layer_names must be names of layers, not Linear",
        ),
        (lambda: debug.plan({}, [3]), "debug.plan: layer_names must be a string, not 3"),
        (lambda: debug.log_message(5), "debug.log_message: msg must be a string, not 5"),
        (
            lambda: debug.log_message("x", level="WARNIG"),
            "debug.log_message: level must be one of .* not 'WARNIG'.*did you mean 'WARNING'",
        ),
        (lambda: debug.log_message("x", level=1.5), "debug.log_message: level must be a level"),
        (
            lambda: debug.MetricLogger.log_scalar("x", "a", 0),
            "MetricLogger.log_scalar: value must be a number",
        ),
    ],
)
def test_wrong_argument_names_function_and_argument(tmp_path, call, expected):
    with debug.session("", log_dir=tmp_path), refused(expected):
        call()


@pytest.mark.parametrize("model", [5, [torch.nn.Linear(2, 2), "fc"], None])
def test_only_modules_get_names(model):
    with refused("infer_and_assign_layer_names: model must be a torch.nn.Module or several"):
        debug.infer_and_assign_layer_names(model)


def test_records_any_number_type_and_accepts_level_names(tmp_path):
    with debug.session("", log_dir=tmp_path):
        for value in (2, 2.0, numpy.float32(2), numpy.array([2.0]), torch.tensor([[2.0]])):
            debug.record("two", value)
            debug.step(torch.tensor(2.0, requires_grad=True))
        debug.log_message("as a name", level="warning")
    assert "WARNING" in message_log(tmp_path)
    assert os.listdir(tmp_path / "telens")


# ---- arguments of the compiled part, with errors in our own words


E4M3 = te.DType.kFloat8E4M3
ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: te.Float8Quantizer("a", ONE, E4M3),
            "Float8Quantizer: scale must be a one-element",
        ),
        (lambda: te.Float8Quantizer(torch.ones(2), ONE, E4M3), "must be a one-element tensor"),
        (lambda: te.Float8Quantizer(ONE), "it needs scale, amax, fp8_dtype; there is no amax and"),
        (lambda: te.Float8Quantizer(ONE, ONE, "E4M3"), "fp8_dtype must be a DType, not 'E4M3'"),
        (lambda: te.Float8Quantizer(ONE, ONE, E4M3, rowise=True), "did you mean 'rowwise'"),
        (
            lambda: te.MXFP8Quantizer(E4M3, True),
            "accepts 1 arguments by position .fp8_dtype., got 2",
        ),
        (lambda: te.MXFP8Quantizer(E4M3, fp8_dtype=E4M3), "fp8_dtype was given twice"),
        (lambda: te.NVFP4Quantizer(rowwise="x"), "NVFP4Quantizer: rowwise must be a boolean"),
        (lambda: te.Float8BlockQuantizer(E4M3, block_scaling_dim=3), "must be 1 or 2, not 3"),
        (
            lambda: te.Float8CurrentScalingQuantizer(E4M3, "cpu", amax_epsilon=-1),
            "amax_epsilon must be a number from 0 on",
        ),
        (lambda: te.MXFP8Quantizer(E4M3)("a"), r"Quantizer: takes \(self: .* tensor: torch.Tensor"),
        (lambda: te.MXFP8Quantizer(E4M3).set_usage(rowwise="x"), r"set_usage: .*rowwise: str"),
        (lambda: te.autocast(enabled="no").__enter__(), r"autocast: takes \(enabled: bool, "),
        (lambda: te.fp8_model_init(enabled="no").__enter__(), "enabled must be a boolean"),
        (lambda: te.fp8_model_init(recipe="x").__enter__(), "recipe must be one of telens.common"),
        (lambda: te.checkpoint(3, ONE), "checkpoint: function must be a function or a module"),
        (lambda: te.RotaryPositionEmbedding("a"), "PositionEmbedding: dim must be an integer"),
        (lambda: te.Linear(16, 16).set_debug_name(3), "set_debug_name: takes"),
        (lambda: te.convert(torch.nn.Linear(16, 16), filter="mlp"), "filter must be a function"),
        (lambda: debug.set_weight_tensor_tp_group_reduce("x"), "debug.set_weight_tensor_tp_group"),
        (lambda: debug.plan({}, ["a"], iteration=-1), "iteration must be an iteration, or None"),
        (lambda: debug.initialize("", recording=[1]), "recording must be a dict of on_full"),
        (lambda: debug.initialize("", recording=[]), "recording must be a dict of on_full"),
        (lambda: debug.initialize("", recording=0), "recording must be a dict of on_full"),
        (lambda: debug.initialize("", feature_dirs=[3]), "feature_dirs must be a path, not 3"),
        (
            lambda: debug.initialize("", default_logging_enabled="no"),
            "debug.initialize: default_logging_enabled must be a boolean, not 'no'",
        ),
    ],
)
def test_wrong_arguments_of_bound_functions_are_usage_errors(tmp_path, monkeypatch, call, message):
    monkeypatch.chdir(tmp_path)
    with refused(message) as error:
        call()
    assert "incompatible" not in str(error.value)
    assert "telens._C" not in str(error.value)


def test_type_errors_inside_callbacks_are_kept():
    def misuse(_):
        torch._C._jit_pass_inline("no graph")

    with pytest.raises(TypeError, match=r"^_jit_pass_inline\(\): incompatible") as error:
        te.Linear(16, 16, init_method=misuse)
    assert error.traceback[-1].name == "misuse"


@pytest.mark.parametrize("name", ["amax_compute_algo", "scaling_factor_compute_algo"])
def test_a_function_of_a_recipe_that_returns_no_tensor_is_named(name):
    layer, x = te.Linear(16, 16), torch.ones(16, 16)
    recipe = DelayedScaling(**{name: lambda *_: 3})
    with refused(f"DelayedScaling: {name} must be a function that returns a tensor, not 3"):
        for _ in range(2):
            with te.autocast(recipe=recipe):
                layer(x).sum().backward()
