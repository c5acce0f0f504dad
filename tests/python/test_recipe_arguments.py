"""The arguments of recipes: Transformer Engine's order, options that only TELens has, and
QParams.
"""

import dataclasses
import inspect
import pickle

import numpy
import pytest
import torch
from recipe_helpers import forward

import telens
import telens.pytorch as te
from telens.common.custom_recipe import QuantizerRole
from telens.common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    Format,
    MMParams,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    QParams,
)
from telens.pytorch.quantization import DelayedScalingRequest

E4M3 = te.DType.kFloat8E4M3
BEHIND = ["fp8_dpa", "fp8_mha", "backward_override"]
GEMMS = ["fp8_gemm_fprop", "fp8_gemm_dgrad", "fp8_gemm_wgrad"]
POSITIONAL = {
    DelayedScaling: [
        "margin",
        "fp8_format",
        "amax_history_len",
        "amax_compute_algo",
        "scaling_factor_compute_algo",
        "reduce_amax",
        *BEHIND,
    ],
    Float8CurrentScaling: ["use_power_2_scales", "fp8_format", *GEMMS, *BEHIND],
    MXFP8BlockScaling: ["margin", "fp8_format", *BEHIND, "enable_2d_quantization"],
    Float8BlockScaling: [
        "use_f32_scales",
        "fp8_format",
        "x_block_scaling_dim",
        "w_block_scaling_dim",
        "grad_block_scaling_dim",
        *GEMMS,
        *BEHIND,
    ],
    NVFP4BlockScaling: [
        "disable_rht",
        "disable_stochastic_rounding",
        "disable_2d_quantization",
        "row_scaled_activation",
        "nvfp4_4over6",
        "nvfp4_4over6_e4m3_use_256",
        "nvfp4_4over6_err_mode",
        "fp4_format",
        "fp8_format",
        *BEHIND,
    ],
    CustomRecipe: ["qfactory", "fp8_format", *BEHIND, "quantization_alignment"],
}


@dataclasses.dataclass(frozen=True)
class ForeignParams:
    """Looks like another library's QParams."""

    power_2_scale: bool = False
    amax_epsilon: float = 0.0
    random_hadamard_transform: bool = False
    stochastic_rounding: bool = False
    fp4_2d_quantization: bool = False


@pytest.mark.parametrize("recipe", POSITIONAL)
def test_arguments_have_transformer_engines_order(recipe):
    parameters = inspect.signature(recipe).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == POSITIONAL[recipe]


@pytest.mark.parametrize("recipe", POSITIONAL)
@pytest.mark.parametrize(
    ("name", "default", "other"),
    [
        ("backward_override", None, "quantized"),
    ],
)
def test_ignored_arguments_accept_only_defaults(recipe, name, default, other):
    required = {"qfactory": lambda role: te.MXFP8Quantizer(E4M3)} if recipe is CustomRecipe else {}
    made = recipe(**required, **{name: default})
    assert getattr(made, name) == default
    with pytest.raises(telens.UsageError, match=f"{recipe.__name__}: {name}={other!r} is not sup"):
        recipe(**required, **{name: other})
    setattr(made, name, other)
    with pytest.raises(telens.UsageError, match=name):
        forward(made)


def test_interval_is_a_field_accepted_by_name():
    recipe = DelayedScaling(margin=0, interval=16, fp8_format=Format.E4M3)
    assert recipe != DelayedScaling(fp8_format=Format.E4M3)
    assert dataclasses.replace(recipe, margin=1).interval == 16


@pytest.mark.parametrize("interval", [0, -1, 1.5, True, "2"])
def test_rejects_invalid_interval(interval):
    with pytest.raises(telens.UsageError, match="DelayedScaling: interval must be"):
        DelayedScaling(interval=interval)


def test_megatron_module_arguments_have_no_effect():
    given = DelayedScaling(margin=1, params_dtype=torch.bfloat16, device="cpu")
    assert given == DelayedScaling(margin=1)


def test_an_interval_in_second_place_is_an_error_that_says_so():
    with pytest.raises(
        telens.UsageError, match=r"fp8_format must be a Format, not 1; .* by name: interval=1"
    ):
        DelayedScaling(0, 1, Format.E4M3)


def test_gemm_parameters_are_taken_where_sums_in_fp32_keep_them():
    for use_split_accumulator in (True, False):
        params = MMParams(use_split_accumulator=use_split_accumulator)
        recipe = Float8CurrentScaling(fp8_gemm_fprop=params, fp8_gemm_wgrad=params)
        assert torch.equal(forward(recipe), forward(Float8CurrentScaling()))
    Float8BlockScaling(fp8_gemm_dgrad=MMParams())
    with pytest.raises(telens.UsageError, match="fp8_gemm_dgrad must have use_split_accumulator"):
        Float8BlockScaling(fp8_gemm_dgrad=MMParams(use_split_accumulator=False))
    with pytest.raises(telens.UsageError, match="fp8_gemm_wgrad must be an MMParams, not bool"):
        Float8CurrentScaling(fp8_gemm_wgrad=True)


def test_nvfp4_is_quantized_as_the_assigned_parameters_say():
    torch.manual_seed(0)
    plain = NVFP4BlockScaling(
        disable_rht=True, disable_stochastic_rounding=True, disable_2d_quantization=True
    )
    assigned = NVFP4BlockScaling()
    assert not torch.equal(forward(assigned), forward(plain))
    for name in ("fp4_quant_fwd_inp", "fp4_quant_fwd_weight", "fp4_quant_bwd_grad"):
        setattr(assigned, name, ForeignParams())
    assert torch.equal(forward(assigned), forward(plain))
    switched = NVFP4BlockScaling()
    switched.disable_rht = switched.disable_stochastic_rounding = True
    switched.disable_2d_quantization = True
    assert switched.fp4_quant_bwd_grad == QParams()
    assert torch.equal(forward(switched), forward(plain))


@pytest.mark.parametrize(
    ("recipe", "attribute", "value", "message"),
    [
        (
            NVFP4BlockScaling,
            "fp4_quant_fwd_inp",
            QParams(stochastic_rounding=True),
            "fwd_inp: stochastic_rounding=True is not supported",
        ),
        (
            NVFP4BlockScaling,
            "fp4_quant_bwd_grad",
            QParams(),
            "random_hadamard_transform is True in fp4_quant_fwd_inp and False",
        ),
        (NVFP4BlockScaling, "fp4_quant_fwd_weight", "2d", "must be a QParams, not str"),
        (
            Float8CurrentScaling,
            "fp8_quant_bwd_grad",
            QParams(stochastic_rounding=True),
            "fp8_quant_bwd_grad: stochastic_rounding=True is not supported",
        ),
        (
            Float8BlockScaling,
            "fp8_quant_fwd_weight",
            QParams(fp4_2d_quantization=True),
            "fp4_2d_quantization=True is not supported",
        ),
    ],
)
def test_parameters_that_a_recipe_does_not_have_are_named(recipe, attribute, value, message):
    made = recipe()
    setattr(made, attribute, value)
    with pytest.raises(telens.UsageError, match=message):
        forward(made)


@pytest.mark.parametrize(
    "recipe_class",
    [
        DelayedScaling,
        Float8CurrentScaling,
        MXFP8BlockScaling,
        Float8BlockScaling,
        NVFP4BlockScaling,
    ],
)
def test_a_recipe_is_pickled_by_the_name_that_it_always_had(recipe_class):
    recipe = recipe_class()
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        pickled = pickle.dumps(recipe, protocol)
        assert b"telens.common.recipe" in pickled
        assert b"block_recipes" not in pickled
        assert pickle.loads(pickled) == recipe


RECIPES = [DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling, Float8BlockScaling]
RECIPES += [NVFP4BlockScaling]
WRONG = {
    "int": ["a", 1.5, None, True, [1]],
    "bool": ["no", 2, None, 0.5],
    "tuple[bool, bool, bool]": ["no", (True, False), (True, "no", False), None],
}


@pytest.mark.parametrize(
    ("recipe", "field", "value"),
    [
        (recipe, field.name, value)
        for recipe in RECIPES
        for field in dataclasses.fields(recipe)
        for value in WRONG.get(field.type, [])
        if field.init
    ],
)
def test_every_argument_of_a_plain_type_refuses_another_one(recipe, field, value):
    with pytest.raises(telens.UsageError, match=f"{recipe.__name__}: {field} must be "):
        recipe(**{field: value})


def test_arguments_that_numpy_made_are_taken():
    recipe = DelayedScaling(
        margin=numpy.int64(1), reduce_amax=numpy.bool_(True), power_of_2_scale=1
    )
    assert forward(recipe).isfinite().all()


@pytest.mark.parametrize("margin", [19, 1000, -19, -1000])
def test_a_margin_that_leaves_nothing_of_a_tensor_is_refused(margin):
    with pytest.raises(telens.UsageError, match=f"must be between -18 and 18, not {margin}"):
        DelayedScaling(margin=margin)
    recipe = DelayedScaling()
    recipe.margin = margin
    with pytest.raises(telens.UsageError, match="must be between"):
        forward(recipe)


# Near the smallest value that E4M3 does not round to 0 if the amax is 1: the scale of 448 puts it
# just above 2^-10.
SMALLEST = 2.0**-18.5


def cast_with(margin: int) -> tuple[float, float]:
    """Returns what a cast leaves of the amax 1 and of SMALLEST."""
    layer, x = te.Linear(16, 16, bias=False, device="cpu"), torch.ones(16, 16)
    x[0, 0] = SMALLEST
    with te.autocast(recipe=DelayedScaling(margin=margin, amax_history_len=1)):
        layer(x)
    left = layer.quantizers["scaling_fwd"][0](x).dequantize()
    return left[1, 1].item(), left[0, 0].item()


def test_e4m3_without_margin_keeps_its_range():
    assert cast_with(0) == pytest.approx((1.0, 2.0**-9 / 448), rel=2**-23, abs=0)


def test_largest_margin_keeps_the_largest_value():
    assert cast_with(18) == pytest.approx((2.0**-9 * 2.0**18 / 448, 0.0), rel=2**-23, abs=0)


def test_smallest_margin_keeps_the_smallest_value():
    # 448 / scale, and the nearest of E4M3 to 448 x 2^-0.5, which is 320.
    assert cast_with(-18) == pytest.approx((2.0**-18, 2.0**-18 * 320 / 448), rel=2**-23, abs=0)


@pytest.mark.parametrize(("margin", "left"), [(19, 0.0), (-19, 2.0**-19)])
def test_beyond_the_largest_margin_all_values_would_become_one(monkeypatch, margin, left):
    monkeypatch.setattr("telens.common.recipe._LARGEST_MARGIN", abs(margin))
    assert cast_with(margin) == pytest.approx((left, left), abs=0)


@pytest.mark.parametrize("algorithm", ["value", "__class__", "median", None, 3])
def test_an_unknown_amax_algorithm_is_refused(algorithm):
    with pytest.raises(telens.UsageError, match="amax_compute_algo must be 'max', 'most_recent'"):
        DelayedScaling(amax_compute_algo=algorithm)


def test_rejects_scale_algorithm_that_is_not_callable():
    with pytest.raises(telens.UsageError, match="scaling_factor_compute_algo must be a function"):
        DelayedScaling(scaling_factor_compute_algo="default")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"amax_epsilon": "a"}, "QParams: amax_epsilon must be a number, not 'a'"),
        ({"amax_epsilon": -1.0}, "amax_epsilon must be a number from 0 on"),
        ({"amax_epsilon": float("nan")}, "amax_epsilon must be a number from 0 on"),
        ({"power_2_scale": "no"}, "QParams: power_2_scale must be a boolean"),
    ],
)
def test_parameters_of_quantization_are_checked(options, message):
    with pytest.raises(telens.UsageError, match=message):
        QParams(**options)


def test_parameters_of_gemms_are_checked():
    with pytest.raises(telens.UsageError, match="MMParams: use_split_accumulator must be a bool"):
        MMParams(use_split_accumulator="no")


@pytest.mark.parametrize(
    "made", [*POSITIONAL, CustomRecipe, DelayedScalingRequest, MMParams, QParams, QuantizerRole]
)
def test_unknown_argument_lists_valid_names(made):
    there = list(inspect.signature(made).parameters)[-1]
    with pytest.raises(TypeError, match=rf"{made.__name__}: .*'{there}s' \(did you mean '{there}'"):
        made(**{f"{there}s": 1})
    with pytest.raises(TypeError, match=rf"unknown argument 'xyz'; it has .*{there}"):
        made(xyz=1)
