"""Quantizers of a CustomRecipe that multiply their tensors themselves (qgemm)."""

import pytest
import torch
from debug_helpers import config_of
from recipe_helpers import forward

import telens
import telens.pytorch as te
from telens import debug
from telens.common.recipe import CustomRecipe, Float8CurrentScaling, IdentityQuantizer
from telens.pytorch.custom_recipes.gemm import GEMMType, MMParams

E4M3, E5M2 = te.DType.kFloat8E4M3, te.DType.kFloat8E5M2
ERRORS = (telens.UsageError, telens.ShapeError)
TORCH = {E4M3: torch.float8_e4m3fn, E5M2: torch.float8_e5m2}


class Multiplies(te.Float8CurrentScalingQuantizer):
    """A product in FP64 that only uses the arguments and no code of ours."""

    calls: list

    def qgemm(
        self, qx, qw, m_params, out_dtype, sx, sw, bias=None, out=None, accumulate=False,
        gemm_type=GEMMType.FPROP, qresult_x=None, qresult_w=None,
    ):  # fmt: skip
        assert (out, accumulate, torch.is_grad_enabled()) == (None, False, False)
        assert m_params in [MMParams(out_dtype, split) for split in (True, False)]
        self.calls.append((gemm_type, bias is not None))

        def values(codes, scale, tensor):
            assert isinstance(tensor, te.QuantizedTensor)
            return codes.view(TORCH[tensor._storage.fp8_dtype]).double() * scale.double()

        product = values(qx, sx, qresult_x) @ values(qw, sw, qresult_w).T
        return (product if bias is None else product + bias.double()).to(out_dtype)


def recipe_of(made, calls):
    def factory(role):
        backward = role.tensor_type in ("grad_output", "grad_input")
        quantizer = made(E5M2 if backward else E4M3)
        quantizer.calls = calls
        return quantizer

    return CustomRecipe(qfactory=factory)


def test_three_products_use_the_quantizers_qgemm():
    calls = []
    own, builtin = forward(recipe_of(Multiplies, calls)), forward(Float8CurrentScaling())
    assert calls == [(GEMMType.FPROP, True), (GEMMType.DGRAD, False), (GEMMType.WGRAD, False)]
    # FP32 sums of 32 to 64 exact products, against FP64's.
    torch.testing.assert_close(own, builtin, rtol=66 * 2.0**-24, atol=1e-5)
    assert not torch.equal(own, builtin)


@pytest.mark.parametrize("tokens", [0, 5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tokens_are_passed_without_padding(tokens, dtype):
    calls = []
    layer = te.GroupedLinear(2, 64, 32, device="cpu", params_dtype=dtype)
    x = torch.randn(tokens + 3, 64, dtype=dtype, requires_grad=True)
    with te.autocast(recipe=recipe_of(Multiplies, calls)):
        out = layer(x, [3, tokens])
    out.float().sum().backward()
    assert len(calls) == (6 if tokens else 3)
    assert out.dtype == x.grad.dtype == layer.weight0.grad.dtype == dtype


def test_an_accumulated_gradient_is_the_sum_of_buffer_and_product():
    calls = []
    layer = te.Linear(64, 32, bias=False, device="cpu", fuse_wgrad_accumulation=True)
    layer.weight.main_grad = torch.ones(32, 64)
    recipe = recipe_of(Multiplies, calls)
    x = torch.randn(16, 64)
    with te.autocast(recipe=recipe):
        layer(x).sum().backward()
    plain = te.Linear(64, 32, bias=False, device="cpu")
    plain.weight.data.copy_(layer.weight.data)
    with te.autocast(recipe=recipe):
        plain(x).sum().backward()
    assert torch.equal(layer.weight.main_grad, 1 + plain.weight.grad)


def test_watched_layer_has_the_same_product_and_is_in_the_ledger(tmp_path):
    calls = []
    alone = forward(recipe_of(Multiplies, calls))
    with debug.session(config_of("PrecisionLedger", "telens"), log_dir=tmp_path):
        watched = forward(recipe_of(Multiplies, calls))
        debug.step()
    assert torch.equal(alone, watched)
    table = telens.open_run(tmp_path).table("ledger")
    kernels = table[table["entry"] == "kernel"]["detail"]
    assert set(kernels) == {"the quantizer's own qgemm"}


def test_one_quantizer_of_two_with_a_product_is_refused_by_name():
    def factory(role):
        if role.tensor_type == "weight":
            return te.Float8CurrentScalingQuantizer(E4M3)
        quantizer = Multiplies(E4M3)
        quantizer.calls = []
        return quantizer

    layer = te.Linear(64, 32, device="cpu", name="fc")
    with (
        te.autocast(recipe=CustomRecipe(qfactory=factory)),
        pytest.raises(telens.UsageError, match=r"fc: in fprop, the activation's .* weight's"),
    ):
        layer(torch.randn(16, 64))

    def high(role):
        return IdentityQuantizer() if role.tensor_type == "weight" else factory(role)

    with te.autocast(recipe=CustomRecipe(qfactory=high)):
        assert layer(torch.randn(16, 64)).isfinite().all()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda shape, dtype: None, "Wrong.qgemm returned NoneType for fprop"),
        (lambda shape, dtype: torch.zeros(shape[::-1], dtype=dtype), r"returned \[32, 16\] of"),
        (lambda shape, dtype: torch.zeros(shape, dtype=torch.float64), "of torch.float64 on cpu"),
    ],
)
def test_invalid_qgemm_result_error_names_the_class(answer, message):
    class Wrong(te.Float8CurrentScalingQuantizer):
        def qgemm(self, qx, qw, m_params, out_dtype, *rest, **more):
            return answer((qx.size(0), qw.size(0)), out_dtype)

    recipe = CustomRecipe(qfactory=lambda role: Wrong(E4M3))
    with te.autocast(recipe=recipe), pytest.raises(ERRORS) as error:
        te.Linear(64, 32, device="cpu")(torch.randn(16, 64))
    assert error.match(message)


def test_output_codes_are_not_reused_by_other_layers():
    recipe = recipe_of(Multiplies, [])
    layer, plain = (te.Linear(64, 64, device="cpu") for _ in range(2))
    x = torch.randn(16, 64)
    with te.autocast(recipe=recipe):
        codes = layer(x, fp8_output=True)
    with te.autocast(recipe=Float8CurrentScaling()):
        assert torch.equal(plain(codes), plain(codes.dequantize()))
