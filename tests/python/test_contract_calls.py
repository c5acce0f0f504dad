"""The seven calls as a feature class in Python sees them: who is called when, with which
arguments.
"""

import pytest
import torch
from debug_helpers import Scalars, config_of, logging_of

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import Float8CurrentScaling
from telens.debug.base import BaseConfigAPIMapper
from telens.debug.features.api import TEConfigAPIMapper
from telens.debug.registry import api_method

ROUTING_CALLS = {
    "fp8_gemm_enabled": {"gemm", "iteration"},
    "modify_tensor_enabled": {"gemm", "tensor_name", "iteration"},
    "inspect_tensor_enabled": {"tensor_name", "iteration"},
    "inspect_tensor_postquantize_enabled": {"gemm", "tensor_name", "iteration"},
}
GEMM_CALLS = {
    "modify_tensor": {"gemm", "tensor_name", "tensor", "default_quantizer", "iteration", "dtype"},
    "inspect_tensor": {
        "tensor_name",
        "tensor",
        "iteration",
        "tp_group",
        "tp_size",
        "rowwise_quantized_tensor",
        "columnwise_quantized_tensor",
        "quantizer",
    },
    "inspect_tensor_postquantize": {
        "gemm",
        "tensor_name",
        "tensor",
        "iteration",
        "tp_group",
        "tp_size",
        "rowwise",
    },
}
INPUTS = {"activation": ("fprop", "wgrad"), "weight": ("fprop", "dgrad")}
INPUTS["gradient"] = ("dgrad", "wgrad")
OUTPUTS = {"output": "fprop", "dgrad": "dgrad", "wgrad": "wgrad"}
EVERYTHING = {"gemms": ["fprop", "dgrad", "wgrad"], "tensors": [*INPUTS, *OUTPUTS]}


@pytest.fixture
def layer() -> te.Linear:
    torch.manual_seed(1)
    return te.Linear(32, 32, name="fc")


def forward(layer, x, fp8: bool = False):
    with te.autocast(enabled=fp8, recipe=Float8CurrentScaling()):
        return layer(x)


def step(layer, x, fp8: bool = False):
    out = forward(layer, x, fp8)
    out.sum().backward()
    debug.step()
    return out.detach()


class Note:
    """Notes every call that a feature class gets."""

    def __init__(self):
        self.calls = []

    def of(self, call: str) -> list[dict]:
        return [arguments for name, arguments in self.calls if name == call]

    def add(self, call: str, config, layer_name, arguments) -> None:
        self.calls.append((call, {"config": config, "layer_name": layer_name, **arguments}))


def all_seven(note: Note, answers: dict) -> type:
    """A class with all seven calls, each with ``**keywords``, and the answers of its routing
    calls.
    """

    def routing(call):
        def asked(self, config, layer_name, **keywords):
            note.add(call, config, layer_name, keywords)
            return answers.get(call, call == "fp8_gemm_enabled")

        return api_method(asked)

    def arguments(call):
        def called(self, config, layer_name, **keywords):
            note.add(call, config, layer_name, keywords)
            return keywords["tensor"]

        return api_method(called)

    calls = {call: routing(call) for call in ROUTING_CALLS} | {
        call: arguments(call) for call in GEMM_CALLS
    }
    return type("AllSeven", (TEConfigAPIMapper,), calls)


def test_every_call_passes_the_keywords_of_the_contract(tmp_path, register, layer, x):
    note = Note()
    register(all_seven(note, dict.fromkeys(ROUTING_CALLS, True)))
    with debug.session(config_of("AllSeven", **EVERYTHING), log_dir=tmp_path):
        step(layer, x, fp8=True)
    for call, keywords in (ROUTING_CALLS | GEMM_CALLS).items():
        if call == "fp8_gemm_enabled":
            continue  # not asked: both operands of every GEMM are modified
        for arguments in note.of(call):
            expected = keywords | {"config", "layer_name"}
            if arguments["tensor_name"] in OUTPUTS:
                expected -= {"dtype"}
            assert set(arguments) == expected, call
            assert arguments["layer_name"] == "fc"
        assert note.of(call), call


def test_fp8_gemm_enabled_gets_the_gemm_and_keeps_the_tensors(tmp_path, register, layer, x):
    note = Note()
    register(all_seven(note, {}))
    keys = {"gemms": ["fprop"], "tensors": ["activation"], "mine": 3}
    with debug.session(config_of("AllSeven", **keys), log_dir=tmp_path):
        step(layer, x, fp8=True)
    (asked,) = note.of("fp8_gemm_enabled")
    assert asked == {
        "config": {"gemm": "fprop", "tensors": ["activation"], "mine": 3},
        "layer_name": "fc",
        "gemm": "fprop",
        "iteration": 0,
    }


def test_call_configuration_is_a_copy(tmp_path, register, layer, x):
    note = Note()

    class Greedy(all_seven(note, dict.fromkeys(ROUTING_CALLS, True))):
        @api_method
        def modify_tensor(self, config, layer_name, *, tensor, **keywords):
            note.add("modify_tensor", dict(config), layer_name, {})
            config.clear()  # changes no other call's
            return tensor

    register(Greedy)
    keys = {"gemms": ["fprop"], "tensors_struct": [{"tensor": "activation", "mine": 4}], "mine": 3}
    with debug.session(config_of("Greedy", **keys), log_dir=tmp_path):
        step(layer, x)
        step(layer, x)
    of_a_gemm = {"gemm": "fprop", "tensor": "activation", "mine": 4}
    of_a_tensor = {"gemms": ["fprop"], "tensor": "activation", "mine": 4}
    for call, expected in {
        "modify_tensor_enabled": of_a_gemm,
        "modify_tensor": of_a_gemm,
        "inspect_tensor_enabled": of_a_tensor,
        "inspect_tensor": of_a_tensor,
        "inspect_tensor_postquantize_enabled": of_a_tensor,
        "inspect_tensor_postquantize": of_a_tensor,
    }.items():
        assert note.of(call), call
        assert all(arguments["config"] == expected for arguments in note.of(call)), call


def test_custom_parser_may_modify_its_arguments(tmp_path, register, layer, x):
    seen = []

    class Popper(BaseConfigAPIMapper):
        def parse_config_and_api(self, config, **call):
            return config.pop("which") == call["tensor_name"], config

        @api_method
        def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
            return True

        @api_method
        def inspect_tensor(self, config, layer_name, tensor_name, tensor):
            seen.append((tensor_name, config))

    register(Popper)
    with debug.session(config_of("Popper", which="weight", mine=1), log_dir=tmp_path):
        step(layer, x)
        step(layer, x)
    assert seen == [("weight", {"mine": 1})] * 2


def test_a_feature_gets_only_the_keywords_that_it_declares(tmp_path, register, layer, x):
    seen = []

    class Modest(TEConfigAPIMapper):
        @api_method
        def inspect_tensor_enabled(self, config, layer_name, tensor_name):
            return True

        @api_method
        def inspect_tensor(self, config, layer_name, tensor):
            seen.append(tensor.shape)

    register(Modest)
    with debug.session(config_of("Modest", tensors=["activation"]), log_dir=tmp_path):
        step(layer, x)
    assert seen == [x.shape]


def test_all_tensors_are_asked_for_at_the_forward(tmp_path, register, layer, x):
    note = Note()
    register(all_seven(note, {}))
    with debug.session(config_of("AllSeven", **EVERYTHING), log_dir=tmp_path):
        forward(layer, x)
        asked = {arguments["tensor_name"] for arguments in note.of("inspect_tensor_enabled")}
        assert asked == {*INPUTS, *OUTPUTS}
        pairs = {(each["gemm"], each["tensor_name"]) for each in note.of("modify_tensor_enabled")}
        feeds = {(gemm, name) for name, gemms in INPUTS.items() for gemm in gemms}
        assert pairs == feeds | {(gemm, name) for name, gemm in OUTPUTS.items()}
        postquantize = note.of("inspect_tensor_postquantize_enabled")
        assert {(each["gemm"], each["tensor_name"]) for each in postquantize} == feeds


def test_a_forward_without_gradients_is_asked_about_and_watched_too(tmp_path, register, layer, x):
    note = Note()
    register(all_seven(note, {"inspect_tensor_enabled": True}))
    with debug.session(config_of("AllSeven", **EVERYTHING), log_dir=tmp_path), torch.no_grad():
        forward(layer, x)
    assert [each["tensor_name"] for each in note.of("inspect_tensor")] == [
        "activation",
        "weight",
        "output",
    ]


def test_a_bare_bool_is_asked_again_in_the_next_iteration(tmp_path, register, layer, x):
    note = Note()
    register(all_seven(note, {"inspect_tensor_enabled": False}))
    keys = {"gemms": ["fprop"], "tensors": ["activation"]}
    with debug.session(config_of("AllSeven", **keys), log_dir=tmp_path):
        for _ in range(3):
            step(layer, x)
    assert [each["iteration"] for each in note.of("inspect_tensor_enabled")] == [0, 1, 2]
    assert note.of("inspect_tensor") == []


@pytest.mark.parametrize(
    ("answer", "asked"), [((True, 5), [0, 5, 10]), ((True, None), [0]), ((False, 4), [0, 4, 8])]
)
def test_a_pair_names_the_next_iteration_to_ask_in(tmp_path, register, layer, x, answer, asked):
    class Pair(TEConfigAPIMapper):
        @api_method
        def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
            questions.append(iteration)
            enabled, after = answer
            return enabled, None if after is None else iteration + after

        @api_method
        def inspect_tensor(self, config, layer_name, iteration, **keywords):
            inspected.append(iteration)

    questions, inspected = [], []
    register(Pair)
    with debug.session(config_of("Pair", tensors=["activation"]), log_dir=tmp_path):
        for _ in range(12):
            step(layer, x)
    assert questions == asked
    assert inspected == (asked if answer[0] else [])


def test_modify_tensor_outranks_fp8_gemm_enabled(tmp_path, register, layer, x):
    class Quantize(TEConfigAPIMapper):
        @api_method
        def fp8_gemm_enabled(self, config, layer_name, gemm, iteration):
            return False, None

        @api_method
        def modify_tensor_enabled(self, config, layer_name, gemm, tensor_name, iteration):
            return True, iteration + 1

        @api_method
        def modify_tensor(self, config, layer_name, *, tensor, default_quantizer, **keywords):
            return default_quantizer(tensor)

    register(Quantize)
    expected = step(layer, x, fp8=True)
    keys = {"gemms": ["fprop"], "tensors": ["activation", "weight"]}
    with debug.session(config_of("Quantize", **keys), log_dir=tmp_path):
        assert torch.equal(step(layer, x, fp8=True), expected)
    assert not torch.equal(step(layer, x), expected)


def test_one_modified_operand_must_meet_another_of_its_kind(tmp_path, register, layer, x):
    class Plain(TEConfigAPIMapper):
        @api_method
        def modify_tensor_enabled(self, config, layer_name, gemm, tensor_name, iteration):
            return True, None

        @api_method
        def modify_tensor(self, config, layer_name, *, tensor, **keywords):
            return tensor

    register(Plain)
    keys = {"gemms": ["fprop"], "tensors": ["weight"]}
    expected = "fc: fprop got activation quantized and weight in high precision"
    with (
        debug.session(config_of("Plain", **keys), log_dir=tmp_path),
        pytest.raises(telens.UsageError, match=expected),
    ):
        forward(layer, x, fp8=True)


def test_inspect_tensor_gets_original_and_operands(tmp_path, register, layer, x):
    note = Note()
    register(all_seven(note, {"inspect_tensor_enabled": True}))
    for fp8 in (False, True):
        note.calls.clear()
        with debug.session(config_of("AllSeven", **EVERYTHING), log_dir=tmp_path / str(fp8)):
            step(layer, x, fp8)
        calls = {each["tensor_name"]: each for each in note.of("inspect_tensor")}
        assert set(calls) == {*INPUTS, *OUTPUTS}
        kind = te.QuantizedTensor if fp8 else torch.Tensor
        for name, each in calls.items():
            operands = (each["rowwise_quantized_tensor"], each["columnwise_quantized_tensor"])
            assert type(each["tensor"]) in (torch.Tensor, torch.nn.Parameter)
            if name in OUTPUTS:
                assert operands == (None, None)
                assert each["quantizer"] is None
            else:
                assert [isinstance(each, te.QuantizedTensor) for each in operands] == [fp8, fp8]
                assert all(isinstance(each, kind) for each in operands)
                assert (each["quantizer"] is not None) == fp8
            assert each["tp_group"] is None
            assert each["tp_size"] == 1
        assert torch.equal(calls["activation"]["tensor"], x)


def test_fp8_stored_weight_lacks_an_original(tmp_path, register, x):
    note = Note()
    register(all_seven(note, {"inspect_tensor_enabled": True}))
    with te.fp8_model_init():
        layer = te.Linear(32, 32, name="fc")
    with debug.session(config_of("AllSeven", **EVERYTHING), log_dir=tmp_path):
        step(layer, x, fp8=True)
    calls = {each["tensor_name"]: each for each in note.of("inspect_tensor")}
    assert calls["weight"]["tensor"] is None
    assert isinstance(calls["weight"]["rowwise_quantized_tensor"], te.QuantizedTensor)
    assert calls["activation"]["tensor"] is not None


def test_postquantize_requires_a_cast_or_modification(tmp_path, register, layer, x):
    note = Note()
    register(all_seven(note, {"inspect_tensor_postquantize_enabled": True}))
    with debug.session(config_of("AllSeven", **EVERYTHING), log_dir=tmp_path / "observed"):
        step(layer, x)
        assert note.of("inspect_tensor_postquantize") == []
        step(layer, x, fp8=True)
        seen = [
            (each["tensor_name"], each["gemm"], each["rowwise"])
            for each in note.of("inspect_tensor_postquantize")
        ]
        assert seen == [
            (name, gemm, gemm == gemms[0]) for name, gemms in INPUTS.items() for gemm in gemms
        ]


def test_default_quantizer_is_none_outside_fp8(tmp_path, register, layer, x):
    note = Note()
    register(all_seven(note, {"modify_tensor_enabled": True, "fp8_gemm_enabled": False}))
    with debug.session(config_of("AllSeven", **EVERYTHING), log_dir=tmp_path):
        step(layer, x)
        assert all(each["default_quantizer"] is None for each in note.of("modify_tensor"))
        note.calls.clear()
        step(layer, x, fp8=True)
    dtypes = {
        each["tensor_name"]: each["default_quantizer"].dtype
        for each in note.of("modify_tensor")
        if each["tensor_name"] in INPUTS
    }
    assert dtypes == {
        "activation": te.DType.kFloat8E4M3,
        "weight": te.DType.kFloat8E4M3,
        "gradient": te.DType.kFloat8E5M2,
    }


def test_modify_tensor_passes_the_dtype_of_the_cast(tmp_path, register, x):
    note = Note()
    register(all_seven(note, {"modify_tensor_enabled": True}))
    layer = te.Linear(32, 32, name="fc", params_dtype=torch.bfloat16)
    with debug.session(config_of("AllSeven", **EVERYTHING), log_dir=tmp_path):
        step(layer, x.detach().bfloat16().requires_grad_())
    for each in note.of("modify_tensor"):
        if each["tensor_name"] in INPUTS:
            assert each["dtype"] == torch.bfloat16
        else:
            assert "dtype" not in each


# ---- debug.transformer_engine.<call>


def test_calls_without_features_return_defaults(tmp_path, x):
    calls = debug.transformer_engine
    pair = {"layer_name": "mine", "gemm": "fprop", "tensor_name": "activation", "iteration": 0}
    with debug.session("", log_dir=tmp_path):
        assert calls.fp8_gemm_enabled(layer_name="mine", gemm="fprop", iteration=0)
        assert not calls.modify_tensor_enabled(**pair)
        assert not calls.inspect_tensor_enabled(
            layer_name="mine", tensor_name="activation", iteration=0
        )
        assert not calls.inspect_tensor_postquantize_enabled(**pair)
        assert calls.modify_tensor(tensor=x, **pair) is x


def test_an_update_of_a_cached_weight_passes_out_which_is_filled(tmp_path, register):
    seen = []

    class Fill(TEConfigAPIMapper):
        @api_method
        def modify_tensor_enabled(self, config, layer_name, gemm, tensor_name, iteration):
            return True, iteration + 1

        @api_method
        def modify_tensor(self, config, layer_name, *, tensor, default_quantizer, **keywords):
            seen.append(set(keywords) - {"gemm", "tensor_name", "iteration"})
            if "out" not in keywords:
                return default_quantizer(tensor)
            default_quantizer.update_quantized(tensor, keywords["out"])
            return None

    register(Fill)
    quantizer = te.Float8CurrentScalingQuantizer(te.DType.kFloat8E4M3, device="cpu")
    first, second = torch.randn(16, 16), torch.randn(16, 16)
    call = {"layer_name": "mine", "gemm": "fprop", "tensor_name": "weight", "iteration": 0}
    keys = {"gemms": ["fprop"], "tensors": ["weight"]}
    with debug.session(config_of("Fill", **keys), log_dir=tmp_path):
        modify = debug.transformer_engine.modify_tensor
        cached = modify(tensor=first, default_quantizer=quantizer, dtype=torch.float32, **call)
        assert torch.equal(cached.dequantize(), quantizer(first).dequantize())
        assert modify(tensor=second, default_quantizer=quantizer, out=cached, **call) is None
        assert torch.equal(cached.dequantize(), quantizer(second).dequantize())
    assert seen == [{"dtype"}, {"out"}]


def test_self_instrumented_code_drives_all_seven_calls(tmp_path, register, x):
    note = Note()
    register(all_seven(note, dict.fromkeys(ROUTING_CALLS, True)))
    calls = debug.transformer_engine
    pair = {"layer_name": "mine", "gemm": "fprop", "tensor_name": "activation", "iteration": 0}
    tensor = {"layer_name": "mine", "tensor_name": "activation", "iteration": 0}
    keys = {"gemms": ["fprop"], "tensors": ["activation"]}
    with debug.session(config_of("AllSeven", **keys), log_dir=tmp_path):
        assert calls.fp8_gemm_enabled(layer_name="mine", gemm="fprop", iteration=0)
        assert calls.modify_tensor_enabled(**pair)
        assert calls.inspect_tensor_enabled(**tensor)
        assert calls.inspect_tensor_postquantize_enabled(**pair)
        assert torch.equal(calls.modify_tensor(tensor=x, **pair), x)
        calls.inspect_tensor(tensor=x, tp_group=None, tp_size=1, **tensor)
        calls.inspect_tensor_postquantize(tensor=x, rowwise=False, **pair)
    for call in GEMM_CALLS:
        (arguments,) = note.of(call)
        assert arguments["tensor_name"] == "activation"
    assert note.of("inspect_tensor_postquantize")[0]["rowwise"] is False


def test_they_take_the_name_of_the_layer_by_position(tmp_path, x):
    calls = debug.transformer_engine
    with debug.session(logging_of(["activation"], ["max"]), log_dir=tmp_path):
        assert calls.fp8_gemm_enabled("mine", gemm="fprop", iteration=0)[0]
        assert calls.inspect_tensor_enabled("mine", tensor_name="activation", iteration=0)[0]
        pair = {"gemm": "fprop", "tensor_name": "activation", "iteration": 0}
        assert not calls.modify_tensor_enabled("mine", **pair)[0]
        assert not calls.inspect_tensor_postquantize_enabled("mine", **pair)[0]
        assert calls.modify_tensor("mine", tensor=x, default_quantizer=None, **pair) is x
        calls.inspect_tensor("mine", tensor_name="activation", tensor=x, iteration=0)
        calls.inspect_tensor_postquantize("mine", tensor=x, **pair)


def test_routing_calls_return_the_pair_and_are_as_true_as_its_first(tmp_path):
    with debug.session(logging_of(["activation"], ["max"]), log_dir=tmp_path, init_training_step=3):
        ask = debug.transformer_engine.inspect_tensor_enabled
        on, off = ask("mine", tensor_name="activation"), ask("mine", tensor_name="weight")
    assert (on, off) == ((True, 4), (False, 4))
    assert isinstance(on, tuple)
    assert on
    assert not off


def test_a_call_may_be_about_another_iteration_than_the_running_one(tmp_path, x):
    calls, scalars = debug.transformer_engine, Scalars()
    config = logging_of(["activation"], ["max"], start_step=100)
    tensor = {"layer_name": "mine", "tensor_name": "activation"}
    with debug.session(config, log_dir=tmp_path, statistics_logger=scalars):
        assert not calls.inspect_tensor_enabled(**tensor, iteration=99)
        assert calls.inspect_tensor_enabled(**tensor, iteration=100) == (True, 101)
        assert calls.inspect_tensor_enabled(**tensor) == (False, 1)
        calls.inspect_tensor(**tensor, tensor=x, iteration=200)
        calls.inspect_tensor(**tensor, tensor=x)  # in iteration 0 it is off
        debug.step()
    assert scalars.values("mine_activation_max") == {200: x.max().item()}
    for wrong in (-1, "first"):
        with (
            debug.session(config, log_dir=tmp_path),
            pytest.raises(telens.UsageError, match="iteration must be an integer from 0 on, not"),
        ):
            calls.inspect_tensor_enabled(**tensor, iteration=wrong)


@pytest.mark.parametrize(
    ("call", "names", "expected"),
    [
        (
            "inspect_tensor_enabled",
            {"tensor_name": "actvation"},
            r"inspect_tensor_enabled: tensor_name .* not 'actvation' \(did you mean 'activation'",
        ),
        ("fp8_gemm_enabled", {"gemm": "fpropp"}, r"gemm .* not 'fpropp' \(did you mean 'fprop'"),
        ("modify_tensor", {"gemm": "dgrda", "tensor_name": "weight"}, "did you mean 'dgrad'"),
        ("inspect_tensor", {"tensor_name": "weights"}, "did you mean 'weight'"),
        ("inspect_tensor_postquantize", {"tensor_name": "output"}, "gemm must be one of"),
    ],
)
def test_a_misspelt_name_is_an_error_with_the_nearest(tmp_path, x, call, names, expected):
    tensor = {} if call.endswith("_enabled") else {"tensor": x}
    with (
        debug.session("", log_dir=tmp_path),
        pytest.raises(telens.UsageError, match=expected),
    ):
        getattr(debug.transformer_engine, call)("mine", **names, **tensor)


def test_postquantize_without_gemm_uses_orientation(tmp_path, register, x):
    note = Note()
    register(all_seven(note, {"inspect_tensor_postquantize_enabled": True}))
    with debug.session(config_of("AllSeven", **EVERYTHING), log_dir=tmp_path):
        tell = debug.transformer_engine.inspect_tensor_postquantize
        tell("mine", tensor_name="activation", tensor=x, rowwise=True, tp_group=None)
        tell("mine", tensor_name="activation", tensor=x, rowwise=False, tp_size=1)
    calls = note.of("inspect_tensor_postquantize")
    assert [each["gemm"] for each in calls] == ["fprop", "wgrad"]


@pytest.mark.parametrize("tensors", [["activation", "weight"], ["weight"], ["output"]])
def test_fake_quant_disables_fp8_for_its_gemms(tmp_path, tensors):
    fake = config_of("FakeQuant", gemms=["fprop"], tensors=tensors, quant_format="FP8E4M3")
    with debug.session(fake, log_dir=tmp_path):
        calls = debug.transformer_engine
        assert not calls.fp8_gemm_enabled("fc", gemm="fprop")
        assert calls.fp8_gemm_enabled("fc", gemm="dgrad")
        assert calls.modify_tensor_enabled("fc", gemm="fprop", tensor_name=tensors[0])


@pytest.mark.parametrize(
    "feature",
    [
        ("FakeQuant", {"gemms": []}),
        ("FakeQuant", {"gemms": [], "tensors": ["weight"], "quant_format": "FP8E4M3"}),
        ("DisableFP8GEMM", {"gemms": []}),
        ("LogTensorStats", {"tensors": [], "stats": ["max"]}),
    ],
)
def test_feature_with_empty_lists_does_nothing(tmp_path, layer, x, feature):
    plain = forward(layer, x, fp8=True)
    name, keys = feature
    scalars = Scalars()
    with debug.session(config_of(name, **keys), log_dir=tmp_path, statistics_logger=scalars):
        calls = debug.transformer_engine
        assert all(calls.fp8_gemm_enabled("fc", gemm=gemm) for gemm in ("fprop", "dgrad", "wgrad"))
        assert torch.equal(forward(layer, x, fp8=True), plain)
        debug.step()
    assert scalars.rows == []
