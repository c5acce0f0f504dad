"""A quantizer knows whether its 128-block scales are powers of two, and products are told so: no
value is read from the device for it.
"""

import copy
import io
import math

import pytest
import torch
from gemm_calls import GemmCalls

import telens.pytorch as te
from telens import _C
from telens.common.recipe import (
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    QParams,
)
from telens.pytorch.tensor import wrap

E4M3, E5M2 = te.DType.kFloat8E4M3, te.DType.kFloat8E5M2
KNOWN = 6  # where QuantizedStorage.blocks says it


def train(layer, recipe) -> list[bool]:
    """The flags that the products get: fprop, dgrad, wgrad."""
    x = torch.randn(128, 256, dtype=torch.bfloat16, requires_grad=True)
    with GemmCalls("power_of_2_scales") as calls:
        with te.autocast(recipe=recipe):
            out = layer(x)
        out.float().sum().backward()
    return calls.values


def linear(**options):
    return te.Linear(256, 128, params_dtype=torch.bfloat16, device="cpu", **options)


@pytest.mark.parametrize(
    ("recipe", "known"),
    [
        (Float8BlockScaling(), [True] * 3),
        (Float8BlockScaling(use_f32_scales=True), [False] * 3),
        (Float8BlockScaling(fp8_quant_bwd_grad=QParams()), [True, False, False]),
        (Float8BlockScaling(fp8_quant_fwd_weight=QParams()), [False, False, True]),
        # Recipes without 128-blocks need no flag.
        (MXFP8BlockScaling(), [False] * 3),
        (NVFP4BlockScaling(), [False] * 3),
        (Float8CurrentScaling(use_power_2_scales=True), [False] * 3),
    ],
)
def test_layer_gemms_get_the_power_of_2_flag(recipe, known):
    assert train(linear(), recipe) == known
    fused = linear(fuse_wgrad_accumulation=True)
    fused.weight.main_grad = torch.zeros(128, 256)
    assert train(fused, recipe) == known


def test_reused_weight_keeps_the_power_of_2_flag():
    layer, x = linear(), torch.randn(128, 256, dtype=torch.bfloat16)
    with GemmCalls("power_of_2_scales") as calls:
        for first in (True, False, False):
            with te.autocast(recipe=Float8BlockScaling()):
                layer(x, is_first_microbatch=first)
    assert calls.values == [True] * 3


def block_quantizer(power_of_2: bool = True, dim: int = 2):
    return te.Float8BlockQuantizer(E4M3, force_pow_2_scales=power_of_2, block_scaling_dim=dim)


def is_known(tensor: te.QuantizedTensor) -> bool:
    return tensor._storage.blocks[KNOWN]


def saved_and_loaded(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


COPIES = {
    "detach": lambda t: t.detach(),
    "clone": lambda t: t.clone(),
    "deepcopy": copy.deepcopy,
    "save and load": saved_and_loaded,
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("power_of_2", [True, False])
def test_copies_keep_the_power_of_2_flag(how, power_of_2):
    made = block_quantizer(power_of_2)(torch.randn(128, 256))
    assert is_known(made) == power_of_2
    assert is_known(COPIES[how](made)) == power_of_2


def test_refilled_storage_takes_the_new_flag():
    made = block_quantizer()(torch.randn(128, 256))
    block_quantizer(power_of_2=False).update_quantized(torch.randn(128, 256), made)
    assert not is_known(made)
    block_quantizer().update_quantized(torch.randn(128, 256), made)
    assert is_known(made)


def by_hand(made):
    storage = made._storage
    return wrap(
        _C.QuantizedStorage(
            storage.rowwise_data,
            storage.rowwise_scale_inv,
            storage.columnwise_data,
            storage.columnwise_scale_inv,
            storage.fp8_dtype,
            storage.mode,
            storage.dtype,
            storage.sizes,
        )
    )


def test_foreign_codes_do_not_claim_power_of_2_scales():
    made = by_hand(block_quantizer()(torch.randn(128, 256, dtype=torch.bfloat16)))
    assert not is_known(made)
    layer = linear(bias=False)
    layer.weight = torch.nn.Parameter(made)
    assert train(layer, Float8BlockScaling()) == [False, False, True]


def test_old_pickles_do_not_claim_power_of_2_scales():
    made = block_quantizer()(torch.randn(128, 256))
    rebuild, (state, *rest) = made.__reduce_ex__(2)
    *tensors, blocks = state
    assert is_known(rebuild(state, *rest))
    assert not is_known(rebuild((*tensors, blocks[:KNOWN]), *rest))


# From FP32's smallest subnormal to its largest number, and values without a logarithm.
AMAXES = [0.0, 1e-45, 2.0**-149, 2.0**-127, 1e-38, 1e-30, 1e-7, 1.0, 448.0, 3e4, 1e30, 3.4e38]
AMAXES += [math.inf, math.nan]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("format_id", [E4M3, E5M2])
@pytest.mark.parametrize("epsilon", [0.0, 1e-30, 1e-4, 3e38])
@pytest.mark.parametrize("dim", [1, 2])
def test_power_of_2_flag_holds_for_every_amax(dtype, format_id, epsilon, dim):
    """All scales are powers of two that E8M0 has, so an expanded scale is never NaN."""
    quantizer = te.Float8BlockQuantizer(format_id, amax_epsilon=epsilon, block_scaling_dim=dim)
    for amax in AMAXES:
        made = quantizer(torch.full((128, 128), amax).to(dtype))
        assert is_known(made)
        for scales in (made._rowwise_scale_inv, made._columnwise_scale_inv):
            mantissas, exponents = torch.frexp(scales.double())
            assert (mantissas == 0.5).all(), amax
            assert (exponents >= -126).all(), amax  # 2^-127 is 0.5 x 2^-126
            assert (exponents <= 121).all(), amax
