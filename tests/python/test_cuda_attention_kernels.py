"""PrecisionLedger on a GPU names the kernel of LibTorch that an attention ran. Skipped where there
is no GPU; `make gpu-check` runs them. TELENS_TEST_DEVICE=cpu asks for the kernels of the CPU."""

import pytest
import test_attention_ledger
import torch
from attention_on_device import on_device  # noqa: F401
from cuda_beside import needs_gpu
from cuda_helpers import DEVICE
from test_attention_ledger import HEADS, LEDGER, TOKENS, attend, states

import telens.debug as debug
import telens.pytorch as te

pytestmark = [needs_gpu, pytest.mark.usefixtures("on_device")]

KERNELS = {
    "flash attention": "aten::_scaled_dot_product_flash_attention",
    "memory-efficient attention": "aten::_scaled_dot_product_efficient_attention",
    "cuDNN attention": "aten::_scaled_dot_product_cudnn_attention",
    "math attention": "aten::_scaled_dot_product_attention_math",
}
if DEVICE == "cpu":
    KERNELS = test_attention_ledger.KERNELS
SIZE = 64
BIAS = torch.randn(1, HEADS, TOKENS, TOKENS, generator=torch.Generator().manual_seed(2))
HIDDEN = torch.arange(TOKENS).expand(2, 1, 1, TOKENS) >= TOKENS - 3
CASES = {
    "plain": ({}, {}),
    "no mask": ({"attn_mask_type": "no_mask"}, {}),
    "padding": ({"attn_mask_type": "padding"}, {"attention_mask": HIDDEN}),
    "bias": ({}, {"core_attention_bias_type": "post_scale_bias", "core_attention_bias": BIAS}),
    "groups": ({"num_gqa_groups": 1}, {}),
    "dropout": ({"attention_dropout": 0.1}, {}),
    "window": ({"window_size": (4, 0)}, {}),
    "sink": ({"softmax_type": "learnable"}, {}),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_in_the_ledger_is_the_one_that_ran(case, dtype, tmp_path):
    options, arguments = CASES[case]
    torch.manual_seed(1)
    groups = options.get("num_gqa_groups", HEADS)
    tensors = [
        torch.randn(2, TOKENS, heads, SIZE).to(dtype).requires_grad_()
        for heads in (HEADS, groups, groups)
    ]
    module = te.DotProductAttention(
        HEADS, SIZE, **({"attention_dropout": 0.0, "qkv_format": "bshd"} | options)
    )
    module.set_debug_name("attn")
    with debug.session(LEDGER, log_dir=tmp_path):
        _, ran = attend(module, tensors, **arguments)
        debug.step()
    (state,) = states(tmp_path)
    assert state["kernel"] in KERNELS
    assert ran.keys() & set(KERNELS.values()) == {KERNELS[state["kernel"]]}
