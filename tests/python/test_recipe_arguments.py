"""The arguments of recipes: Transformer Engine's order, what it has alone, and QParams."""

import copy
import dataclasses
import gc
import inspect
import pickle
import warnings
import weakref

import numpy
import pytest
import torch

import telens
import telens.pytorch as te
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
    """What another library's QParams looks like."""

    power_2_scale: bool = False
    amax_epsilon: float = 0.0
    random_hadamard_transform: bool = False
    stochastic_rounding: bool = False
    fp4_2d_quantization: bool = False


def forward(recipe) -> torch.Tensor:
    torch.manual_seed(0)
    layer = te.Linear(64, 64, device="cpu")
    x = torch.randn(32, 64, requires_grad=True)
    with te.autocast(recipe=recipe):
        y = layer(x)
    y.backward(torch.randn_like(y))
    return torch.cat([y, x.grad, layer.weight.grad])


@pytest.mark.parametrize("recipe", POSITIONAL)
def test_arguments_stand_in_transformer_engines_order(recipe):
    parameters = inspect.signature(recipe).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == POSITIONAL[recipe]


@pytest.mark.parametrize("recipe", POSITIONAL)
@pytest.mark.parametrize(
    ("name", "default", "other"),
    [
        ("fp8_dpa", False, True),
        ("fp8_mha", False, True),
        ("backward_override", None, "quantized"),
    ],
)
def test_arguments_without_effect_are_taken_with_their_defaults_alone(recipe, name, default, other):
    required = {"qfactory": lambda role: te.MXFP8Quantizer(E4M3)} if recipe is CustomRecipe else {}
    made = recipe(**required, **{name: default})
    assert getattr(made, name) == default
    with pytest.raises(telens.UsageError, match=f"{recipe.__name__}: {name}={other!r} is not sup"):
        recipe(**required, **{name: other})
    setattr(made, name, other)
    with pytest.raises(telens.UsageError, match=name):
        forward(made)


@pytest.mark.parametrize("recipe", POSITIONAL)
def test_a_backward_in_high_precision_is_the_override_of_both_gemms(recipe):
    required = {}
    if recipe is CustomRecipe:
        required = {"qfactory": lambda role: te.Float8CurrentScalingQuantizer(E4M3, device="cpu")}
    if recipe is DelayedScaling:
        return  # see below
    plain, overridden = recipe(**required), recipe(**required, backward_override="high_precision")
    expected = recipe(**required, override_linear_precision=(False, True, True))
    assert torch.equal(forward(overridden), forward(expected))
    assert not torch.equal(forward(overridden), forward(plain))
    plain.backward_override = "high_precision"  # later on
    assert torch.equal(forward(plain), forward(expected))
    assert (
        pickle.loads(
            pickle.dumps(
                dataclasses.replace(overridden, qfactory=int)
                if recipe is CustomRecipe
                else overridden
            )
        ).backward_override
        == "high_precision"
    )


def codes_values(quantizer, tensor):
    return quantizer(tensor.detach()).dequantize()


@pytest.mark.parametrize(
    ("recipe", "quantizer"),
    [
        (Float8CurrentScaling, lambda: te.Float8CurrentScalingQuantizer(E4M3, device="cpu")),
        (MXFP8BlockScaling, lambda: te.MXFP8Quantizer(E4M3)),
    ],
)
@pytest.mark.parametrize("custom", [False, True])
@pytest.mark.parametrize("is_first_microbatch", [None, True])
def test_a_dequantized_backward_multiplies_what_fprop_multiplied(
    recipe, quantizer, custom, is_first_microbatch
):
    torch.manual_seed(1)
    make = recipe if not custom else lambda **kw: CustomRecipe(lambda role: quantizer(), **kw)
    layer = te.Linear(64, 96, device="cpu")
    x = torch.randn(32, 64, requires_grad=True)
    with te.autocast(recipe=make(backward_override="dequantized")):
        y = layer(x, is_first_microbatch=is_first_microbatch)
    with te.autocast(recipe=make()):
        assert torch.equal(y, layer(x))
    grad = torch.randn_like(y)
    y.backward(grad)

    plain = te.Linear(64, 96, device="cpu")
    with torch.no_grad():
        plain.weight.copy_(codes_values(quantizer(), layer.weight))
    values = codes_values(quantizer(), x).requires_grad_()
    plain(values).backward(grad)
    assert torch.equal(x.grad, values.grad)
    assert torch.equal(layer.weight.grad, plain.weight.grad)


@pytest.mark.parametrize("recipe", [Float8BlockScaling, NVFP4BlockScaling])
def test_a_dequantized_backward_is_one_in_high_precision_of_values_that_casts_keep(recipe):
    def gradients(override, x, weight):
        layer = te.Linear(128, 128, device="cpu", bias=False)
        with torch.no_grad():
            layer.weight.copy_(weight)
        x = x.clone().requires_grad_()
        with te.autocast(recipe=recipe(backward_override=override)):
            y = layer(x)
        torch.manual_seed(3)
        y.backward(torch.randn_like(y))
        return torch.cat([x.grad, layer.weight.grad])

    torch.manual_seed(2)
    signs = torch.randint(0, 2, (2, 128, 128)) * 2.0 - 1
    assert torch.equal(gradients("dequantized", *signs), gradients("high_precision", *signs))
    drawn = torch.randn(2, 128, 128)
    assert not torch.equal(gradients("dequantized", *drawn), gradients("high_precision", *drawn))


def test_a_cache_without_the_backwards_operand_is_not_used_for_a_dequantized_backward():
    torch.manual_seed(1)
    layer = te.Linear(64, 64, device="cpu")
    x = torch.randn(32, 64, requires_grad=True)
    grads = []
    for first in (True, None):
        with te.autocast(recipe=Float8CurrentScaling(backward_override="dequantized")):
            if first:
                with torch.no_grad():
                    layer(x, is_first_microbatch=True)
            y = layer(x, is_first_microbatch=False if first else None)
        y.backward(torch.ones_like(y))
        grads.append(x.grad)
        x.grad = None
    assert torch.equal(*grads)


@pytest.mark.parametrize("override", ["high_precision", "dequantized"])
def test_delayed_scaling_has_no_backward_in_high_precision(override):
    with pytest.raises(telens.UsageError, match="backward_override does not go with delayed"):
        DelayedScaling(backward_override=override)


def test_an_interval_is_taken_by_name_and_all_but_1_are_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recipe = DelayedScaling(margin=0, interval=1, fp8_format=Format.E4M3)
    assert recipe == DelayedScaling(fp8_format=Format.E4M3)
    assert dataclasses.replace(recipe, margin=1).margin == 1
    with pytest.warns(UserWarning, match="interval=16 is without effect") as caught:
        DelayedScaling(interval=16)
    assert caught[0].filename == __file__


def test_an_interval_in_second_place_is_an_error_that_says_so():
    with pytest.raises(
        telens.UsageError, match=r"fp8_format must be a Format, not 1; .* by name: interval=1"
    ):
        DelayedScaling(0, 1, Format.E4M3)


def test_a_custom_recipe_takes_an_alignment_without_effect():
    made = CustomRecipe(lambda role: te.MXFP8Quantizer(E4M3), quantization_alignment=32)
    assert torch.equal(forward(made), forward(MXFP8BlockScaling()))
    with pytest.raises(telens.UsageError, match="quantization_alignment must be at least 1, not 0"):
        CustomRecipe(lambda role: None, quantization_alignment=0)


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


def test_nvfp4_arguments_of_other_scalings_are_named():
    assert NVFP4BlockScaling(nvfp4_4over6="none", row_scaled_activation=False).nvfp4()
    with pytest.raises(telens.UsageError, match="nvfp4_4over6='all' is not supported"):
        NVFP4BlockScaling(nvfp4_4over6="all")
    with pytest.raises(telens.UsageError, match="row_scaled_activation=True is not supported"):
        NVFP4BlockScaling(row_scaled_activation=True)


class Factory:
    """Makes MXFP8 quantizers; equal to every other one, so it cannot be hashed."""

    def __init__(self):
        self.calls = 0

    def __eq__(self, other):
        return True

    def __call__(self, role):
        self.calls += 1
        return te.MXFP8Quantizer(E4M3)


def test_a_custom_recipe_takes_a_factory_that_cannot_be_hashed():
    first, second = Factory(), Factory()
    expected = forward(MXFP8BlockScaling())
    recipe = CustomRecipe(qfactory=first)
    assert torch.equal(forward(recipe), expected)
    recipe.qfactory = second
    assert torch.equal(forward(recipe), expected)
    assert (first.calls, second.calls) == (5, 5)


def test_a_custom_recipe_lets_its_factory_go():
    factory = Factory()
    recipe = CustomRecipe(qfactory=factory)
    forward(recipe)
    alive = weakref.ref(factory)
    del factory, recipe
    gc.collect()
    assert alive() is None


def test_a_custom_recipe_is_copied_and_pickled_after_use():
    recipe = CustomRecipe(qfactory=only_mxfp8)
    expected = forward(recipe)
    for other in (copy.deepcopy(recipe), pickle.loads(pickle.dumps(recipe))):
        assert other == recipe
        assert torch.equal(forward(other), expected)


def only_mxfp8(role):
    return te.MXFP8Quantizer(E4M3)


def test_a_quantizer_that_a_factory_shares_stays_as_it_was():
    shared = te.MXFP8Quantizer(E4M3)
    recipe = CustomRecipe(qfactory=lambda role: shared)
    layer = te.Linear(64, 64, device="cpu")
    x = torch.randn(32, 64)
    with te.autocast(recipe=recipe), torch.no_grad():
        layer(x)  # makes rowwise copies alone
    assert (shared.rowwise_usage, shared.columnwise_usage) == (True, True)
    assert torch.equal(forward(recipe), forward(MXFP8BlockScaling()))


def test_a_shared_quantizer_with_a_known_scale_still_collects_the_amax():
    amax = torch.zeros(1)
    shared = te.Float8Quantizer(torch.ones(1), amax, E4M3)
    forward(CustomRecipe(qfactory=lambda role: shared))
    assert amax.item() > 0


def test_an_output_in_fp8_is_rounded_along_its_rows_whatever_its_quantizer_was_used_for():
    def factory(role):
        return te.MXFP8Quantizer(E4M3, rowwise=role.tensor_type != "output")

    torch.manual_seed(0)
    layer = te.Linear(64, 64, bias=False, device="cpu", params_dtype=torch.bfloat16)
    x = torch.randn(32, 64, dtype=torch.bfloat16)
    x[::2] *= 2.0**-20  # a scale for 32 rows would leave nothing of these
    with te.autocast(recipe=MXFP8BlockScaling()):
        expected = te.MXFP8Quantizer(E4M3)(layer(x).detach()).dequantize()
    with te.autocast(recipe=CustomRecipe(qfactory=factory)):
        assert torch.equal(layer(x, fp8_output=True), expected)


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
        if field.init and field.name not in ("fp8_dpa", "fp8_mha", "row_scaled_activation")
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
    with pytest.raises(telens.UsageError, match=f"must lie between -18 and 18, not {margin}"):
        DelayedScaling(margin=margin)
    recipe = DelayedScaling()
    recipe.margin = margin
    with pytest.raises(telens.UsageError, match="must lie between"):
        forward(recipe)


# About the smallest value that is not rounded to 0 in E4M3 beside an amax of 1: the scale of 448
# puts it just above 2^-10.
SMALLEST = 2.0**-18.5


def cast_with(margin: int) -> tuple[float, float]:
    """What a cast of 1, the amax, and of SMALLEST leaves of them."""
    layer, x = te.Linear(16, 16, bias=False, device="cpu"), torch.ones(16, 16)
    x[0, 0] = SMALLEST
    with te.autocast(recipe=DelayedScaling(margin=margin, amax_history_len=1)):
        layer(x)
    left = layer.quantizers["scaling_fwd"][0](x).dequantize()
    return left[1, 1].item(), left[0, 0].item()


def test_without_a_margin_e4m3_holds_both_ends_of_its_range():
    assert cast_with(0) == pytest.approx((1.0, 2.0**-9 / 448), rel=2**-23, abs=0)


def test_with_the_largest_margin_the_largest_value_is_not_lost():
    assert cast_with(18) == pytest.approx((2.0**-9 * 2.0**18 / 448, 0.0), rel=2**-23, abs=0)


def test_with_the_most_negative_margin_the_smallest_value_is_not_clipped():
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


def test_a_scale_algorithm_that_is_no_function_is_refused():
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
