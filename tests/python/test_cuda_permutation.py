"""Rows to experts and back on a GPU against the CPU: copies bit for bit, sums within rounding.
Skipped where there is no GPU; `make gpu-check` runs them."""

import pytest
import torch
from cuda_helpers import DEVICE, HIGH_PRECISION, assert_same_bits, inputs_of

import telens.pytorch as te

pytestmark = pytest.mark.skipif(
    DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a GPU"
)

TOKENS, EXPERTS = 300, 16


def routing_of(seed: int) -> torch.Tensor:
    routing = torch.rand(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(seed)) < 0.2
    routing[:, 3] = False
    routing[17] = False
    return routing


@pytest.mark.parametrize("width", [8, 77, 1024])
@pytest.mark.parametrize("dtype", HIGH_PRECISION)
def test_rows_match_cpu(dtype, width):
    values = inputs_of(dtype)
    inp = values.repeat(TOKENS * width // values.numel() + 1)[: TOKENS * width].view(TOKENS, width)
    routing = routing_of(1)
    rows, row_id_map = te.moe_permute(inp, routing)
    made, made_map = te.moe_permute(inp.to(DEVICE), routing.to(DEVICE))
    assert torch.equal(made_map.cpu(), row_id_map)
    assert_same_bits(made, rows)
    sizes, order = torch.tensor([100, 0, 150, 50]), torch.tensor([3, 2, 1, 0])
    sorted_rows = te.moe_sort_chunks_by_index(inp.to(DEVICE), sizes.to(DEVICE), order.to(DEVICE))
    assert_same_bits(sorted_rows, te.moe_sort_chunks_by_index(inp, sizes, order))


@pytest.mark.parametrize("width", [8, 77, 1024])
@pytest.mark.parametrize("dtype", [*HIGH_PRECISION, torch.float64])
def test_sums_and_gradients_match_cpu(dtype, width):
    routing = routing_of(2)

    def results(device):
        torch.manual_seed(1)
        inp = torch.randn(TOKENS, width, dtype=dtype).to(device).requires_grad_()
        probs = torch.rand(TOKENS, EXPERTS, dtype=torch.float64)
        probs = probs.to(device, summed_dtype(dtype)).requires_grad_()
        rows, row_probs, row_id_map = te.moe_permute_with_probs(inp, probs, routing.to(device))
        out = te.moe_unpermute(rows * row_probs.unsqueeze(1).to(dtype), row_id_map, probs)
        out.backward(torch.randn(TOKENS, width, dtype=dtype).to(device))
        return out.detach(), inp.grad, probs.grad

    here, there = results(DEVICE), results("cpu")
    # Sums of at most 16 rows in another order, rounded once.
    for actual, expected in zip(here[:2], there[:2], strict=True):
        tolerance = 4 * torch.finfo(actual.dtype).eps
        torch.testing.assert_close(actual.cpu(), expected, rtol=tolerance, atol=tolerance)
    # Sums of a row's products, each of about 1: at most this many roundings of partial sums.
    tolerance = width * torch.finfo(summed_dtype(dtype)).eps
    torch.testing.assert_close(here[2].cpu(), there[2], rtol=tolerance, atol=tolerance * width**0.5)


def summed_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
