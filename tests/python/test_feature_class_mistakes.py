"""Errors in a feature class or its configuration are reported early and by name."""

import numpy
import pytest
import torch
from debug_helpers import section

import telens
import telens.debug as debug
from telens import _C
from telens.debug import Parameter, TEConfigAPIMapper, api_method
from telens.debug.registry import Registry


def inspecting(**members) -> type:
    """Returns a class with inspect_tensor_enabled and inspect_tensor, or with the given
    attributes.
    """

    def enabled(self, config, layer_name, tensor_name, iteration):
        return True

    def inspect(self, config, layer_name, tensor):
        pass

    calls = {"inspect_tensor_enabled": api_method(enabled), "inspect_tensor": api_method(inspect)}
    return type("Inspecting", (TEConfigAPIMapper,), calls | members)


def load(config: dict, tmp_path) -> None:
    with debug.session(section({"Inspecting": {"enabled": True, **config}}), log_dir=tmp_path):
        pass


def refused(text: str):
    return pytest.raises(telens.UsageError, match=text)


# ---- at registration


def test_a_class_whose_constructor_raises_is_named_with_its_file(register):
    class Needs(TEConfigAPIMapper):
        def __init__(self, threshold):
            self.threshold = threshold

    with refused(rf"Needs \({__file__}\): .*built without arguments.* raised TypeError") as caught:
        register(Needs)
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def broken(:", r"broken\.py raised SyntaxError"),
        ("import no_such_module", r"broken\.py raised ModuleNotFoundError: .*no_such_module"),
        ("1 / 0", r"broken\.py raised ZeroDivisionError"),
    ],
)
def test_a_feature_file_that_fails_is_named_with_its_path(tmp_path, text, expected):
    (tmp_path / "features").mkdir()
    (tmp_path / "features/broken.py").write_text(text)
    with refused(rf"feature_dirs: {tmp_path}/features/{expected}") as caught:
        debug.initialize("", feature_dirs=tmp_path / "features", log_dir=tmp_path)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("inspect_tensr", r"no layer calls 'inspect_tensr', .*did you mean 'inspect_tensor'"),
        ("helper", "no layer calls 'helper', which has @api_method"),
        ("modify_tensor", "modify_tensor is never called without modify_tensor_enabled"),
        (
            "inspect_tensor_postquantize_enabled",
            "inspect_tensor_postquantize_enabled has no inspect_tensor_postquantize to switch on",
        ),
    ],
)
def test_a_call_that_never_comes_is_warned_of(register, call, expected):
    with pytest.warns(UserWarning, match=f"Inspecting: {expected}"):
        register(inspecting(**{call: api_method(lambda self, config, layer_name: None)}))


@pytest.mark.filterwarnings("error")
def test_complete_feature_class_does_not_warn(register):
    class Stats(debug.LogTensorStats):
        pass

    register(inspecting())
    register(Stats)
    register(inspecting(fp8_gemm=api_method(lambda self: None)))
    register(inspecting(helper=api_method(lambda self: None)), namespace="mine")


# ---- answers


def routed(answer, tmp_path, register, call: str = "inspect_tensor_enabled"):
    method = api_method(lambda self, config, layer_name, **keywords: answer)
    register(inspecting(**{call: method, call.removesuffix("_enabled"): method}))
    config = {"enabled": True, "gemms": ["fprop"], "tensors": ["activation"]}
    asked = []
    with debug.session(section({"Inspecting": config}), log_dir=tmp_path):
        for _ in range(7):
            arguments = {"tensor_name": "activation"}
            arguments |= {"gemm": "fprop"} if call.startswith("modify") else {}
            asked.append(getattr(debug.transformer_engine, call)("fc", **arguments)[0])
            debug.step()
    return asked


@pytest.mark.parametrize(
    "answer", [[True, 5], (True, numpy.int64(5)), (numpy.bool_(True), 5), (torch.tensor(True), 5)]
)
def test_a_pair_may_be_a_list_and_its_numbers_numpys(tmp_path, register, answer):
    assert routed(answer, tmp_path, register) == [True] + 4 * [False] + 2 * [True]


@pytest.mark.parametrize("answer", [(True, "x"), (True, 5, 6), "yes", None, ("yes", 5), (True,)])
def test_another_answer_is_an_error_that_names_class_and_call(tmp_path, register, answer):
    expected = "Inspecting: modify_tensor_enabled answered .* expected a bool, or a pair"
    with pytest.raises(telens.Error, match=expected):
        routed(answer, tmp_path, register, "modify_tensor_enabled")


# ---- configurations


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"tensors": ["weigth"]}, r"Inspecting', tensors: 'weigth' is none of .* mean 'weight'"),
        ({"tensors": "weigth"}, "did you mean 'weight'"),
        ({"gemms": ["fpropp"]}, r"gemms: 'fpropp' is none of fprop, dgrad, .* mean 'fprop'"),
        (
            {"gemms_struct": [{"gemm": "fprop", "tensors": ["activation"]}, {"gem": "dgrad"}]},
            r"gemms_struct\[1\]: expected a mapping with 'gemm'",
        ),
        (
            {"gemms_struct": [{"gemm": "fprop", "tensors_struct": [{"tensor": "wieght"}]}]},
            r"gemms_struct\[0\].tensors_struct\[0\].tensor: 'wieght' .* mean 'weight'",
        ),
        ({"tensor_struct": [{"tensor": "weight"}]}, "'tensor_struct' .did you mean 'tensors_str"),
        (
            {"tensors_struct": [{"tensor": "weight", "enabled": True}]},
            "'enabled' is not allowed here",
        ),
    ],
)
def test_class_parameters_are_checked_at_load(tmp_path, register, config, expected):
    register(inspecting())
    with pytest.raises(telens.ConfigError, match=expected):
        load(config, tmp_path)


def test_self_parsing_class_may_use_any_keys(tmp_path, register):
    class Inspecting(TEConfigAPIMapper):
        def parse_config_and_api(self, config, **call):
            return False, None

    register(Inspecting)
    load({"tensors": ["keys and values"], "gemms": 5}, tmp_path)


DECLARED = (
    Parameter("threshold", float, doc="What is above it counts."),
    Parameter("bits", int, default=4),
    Parameter("label", str, default=None),
)


@pytest.fixture
def declared():
    """What configurations arrive at the class; it declares its parameters."""
    seen = []

    def enabled(self, config, layer_name, tensor_name, iteration):
        seen.append(config)
        return False

    cls = inspecting(inspect_tensor_enabled=api_method(enabled))
    Registry.register_feature(namespace="transformer_engine", parameters=DECLARED)(cls)
    yield seen
    debug.end_debug()
    Registry.forget(f"{cls.__module__}.{cls.__qualname__}")


class Astray(Exception):
    """Has an attribute that mistakes in a configuration have."""

    place = ("nowhere",)


def test_foreign_position_attribute_is_not_a_config_error(tmp_path):
    def make_caller(config):
        raise Astray("lost")

    texts = {"summary": "", "doc": "", "owner": "a test"}
    _C.register_feature(
        feature_namespace="transformer_engine",
        name="Inspecting",
        make_caller=make_caller,
        **texts,
    )
    try:
        with pytest.raises(Astray, match=r"^lost$"):
            load({}, tmp_path)
    finally:
        _C.unregister_features("a test")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"treshold": 1.0}, r"unknown key 'treshold' \(did you mean 'threshold'\?\); it takes"),
        ({}, "'threshold' is missing; it must be a number"),
        ({"threshold": "high"}, "'threshold' is wrong; it must be a number, not 'high'"),
        ({"threshold": 1, "bits": 2.5}, "'bits' is wrong; it must be an integer, not 2.5"),
        ({"threshold": True}, "'threshold' is wrong"),
        (
            {"tensors_struct": [{"tensor": "weight", "threshold": 1}, {"tensor": "activation"}]},
            "'threshold' is missing",
        ),
        (
            {"threshold": 1, "tensors_struct": [{"tensor": "weight", "bit": 3}]},
            r"tensors_struct\[0\]: unknown key 'bit' \(did you mean 'bits'",
        ),
    ],
)
def test_declared_parameters_are_checked_when_they_are_loaded(tmp_path, declared, config, expected):
    with pytest.raises(
        telens.ConfigError, match=f"feature 'transformer_engine.Inspecting'.*{expected}"
    ):
        load(config, tmp_path)


def test_mistakes_in_the_configuration_of_a_class_carry_file_and_line(tmp_path, declared):
    path = tmp_path / "debug.yaml"
    path.write_text(
        "watch:\n"
        "  enabled: True\n"
        "  layers: {layer_types: all}\n"
        "  transformer_engine:\n"
        "    Inspecting:\n"
        "      enabled: True\n"
        "      threshold: 1\n"
        "      tensors_struct:\n"
        "        - tensor: weight\n"
        "        - {tensor: activation, bit: 3}\n"
    )
    text = path.read_text()
    for mistake, place in (
        (text, "10:32"),
        (text.replace("threshold: 1", "threshold: high").replace("bit:", "bits:"), "7:7"),
        (text.replace("activation, bit", "actvation, bits"), "10:12"),
        (text.replace("      threshold: 1\n", "").replace("bit:", "bits:"), "5:5"),
    ):
        path.write_text(mistake)
        with pytest.raises(telens.ConfigError) as error:
            debug.initialize(path, log_dir=tmp_path)
        assert str(error.value).startswith(f"{path}:{place}: section 'watch', feature 'transformer")


def test_declared_parameters_have_defaults_and_are_explained(tmp_path, declared, capsys):
    struct = [{"tensor": "weight", "threshold": 2}, {"tensor": "activation", "threshold": 3}]
    config = {"enabled": True, "tensors_struct": struct, "bits": 8}
    with debug.session(section({"Inspecting": config}), log_dir=tmp_path):
        debug.transformer_engine.inspect_tensor_enabled("fc", tensor_name="weight")
        text = debug.explain_features("Inspecting")
    assert {"tensor": "weight", "threshold": 2, "bits": 8, "label": None} in declared
    assert "threshold (a number, required)\n      What is above it counts." in text
    assert "bits (an integer, default 4)" in text


def test_a_parameter_of_no_such_type_is_refused():
    with refused("Parameter 'mine': type must be one of bool, int, float"):
        Parameter("mine", complex)
