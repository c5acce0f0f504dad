"""Products of BF16 operands on processors without BF16 instructions, against torch in FP32."""

import os
import subprocess
import sys

import pytest
import torch

import telens.pytorch as te

BF16 = torch.bfloat16


def values(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


def assert_same_bits(given: torch.Tensor, expected: torch.Tensor) -> None:
    assert given.dtype == expected.dtype
    assert torch.equal(given.view(torch.int16), expected.view(torch.int16))


def check_linear() -> None:
    x, gradient = values(40, 96, seed=0), values(40, 64, seed=1)
    x[0, 0], x[1, 1], x[2] = float("inf"), float("nan"), -0.0
    x.requires_grad_()
    layer = te.Linear(96, 64, params_dtype=BF16)
    y = layer(x)
    y.backward(gradient)
    weight, bias = layer.weight.detach().float(), layer.bias.detach().float()
    expected = torch.addmm(bias, x.detach().float(), weight.t())
    nan = expected.isnan()
    assert torch.equal(y.isnan(), nan)
    assert_same_bits(y.detach()[~nan], expected.to(BF16)[~nan])
    assert_same_bits(x.grad, (gradient.float() @ weight).to(BF16))


def check_empty() -> None:
    layer = te.Linear(96, 64, params_dtype=BF16)
    assert layer(torch.zeros(0, 96, dtype=BF16)).shape == (0, 64)


def check_grouped_linear() -> None:
    x, rows = values(48, 32, seed=2), [16, 0, 32]
    layer = te.GroupedLinear(3, 32, 64, params_dtype=BF16)
    y = layer(x, rows)
    parts = []
    for i, part in enumerate(x.split(rows)):
        weight, bias = getattr(layer, f"weight{i}"), getattr(layer, f"bias{i}")
        parts.append(torch.addmm(bias.float(), part.float(), weight.float().t()).to(BF16))
    assert_same_bits(y.detach(), torch.cat(parts).detach())


def check_attention() -> None:
    query, key, value = (values(16, 2, 4, 32, seed=seed).requires_grad_() for seed in (3, 4, 5))
    attention = te.DotProductAttention(4, 32, attn_mask_type="causal")
    y = attention(query, key, value)
    heads = [x.detach().float().permute(1, 2, 0, 3) for x in (query, key, value)]
    expected = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
    assert_same_bits(y.detach(), expected.permute(2, 0, 1, 3).reshape(16, 2, 128).to(BF16))


CHECKS = [check_linear, check_empty, check_grouped_linear, check_attention]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_bf16_products_are_rounded_once_from_fp32(check):
    code = f"import test_products_without_bf16 as own; own.{check.__name__}()"
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "avx2"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=os.path.dirname(__file__),
                   env=environment)  # fmt: skip
