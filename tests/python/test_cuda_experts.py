"""Layers of experts on a GPU and on the CPU: routing, grouped layers with every recipe, and rows
that are padded or written into given memory. Skipped where there is no GPU; `make gpu-check` runs
them. TELENS_TEST_DEVICE=cpu runs the code of these tests on the CPU, against itself.
"""

import pytest
import torch
from cuda_beside import HIDDEN, RECIPES, WIDTH, assert_beside, draw, needs_gpu
from cuda_helpers import DEVICE, assert_same_bits

import telens.pytorch as te

pytestmark = [needs_gpu, pytest.mark.usefixtures("ops")]

EXPERTS, TOKENS = 4, 96


def routing() -> tuple[torch.Tensor, torch.Tensor]:
    """Two experts of each token, never the last one, and their weights."""
    generator = torch.Generator().manual_seed(3)
    scores = torch.rand(TOKENS, EXPERTS - 1, generator=generator)
    chosen = torch.zeros(TOKENS, EXPERTS, dtype=torch.bool)
    chosen.scatter_(1, scores.topk(2).indices, True)
    probs = torch.rand(TOKENS, EXPERTS, generator=generator) * chosen
    return chosen, probs


class Experts(torch.nn.Module):
    def __init__(self, device, dtype, padded, **options) -> None:
        super().__init__()
        torch.manual_seed(4)
        made = {"params_dtype": dtype, "device": device, "init_method": draw, **options}
        self.first = te.GroupedLinear(EXPERTS, WIDTH, HIDDEN, **made)
        self.second = te.GroupedLinear(EXPERTS, HIDDEN, WIDTH, **made)
        self.padded = padded

    def forward(self, x, chosen, probs, recipe):
        counts = chosen.sum(0).tolist()
        rows, row_probs, row_id_map = te.moe_permute_with_probs(x, probs, chosen)
        if self.padded:
            padding, unpadding = te.Fp8Padding(EXPERTS), te.Fp8Unpadding(EXPERTS)
            rows, splits = padding(rows, counts)
        else:
            splits = counts
        with te.autocast(enabled=recipe is not None, recipe=recipe):
            hidden = torch.nn.functional.silu(self.first(rows, splits))
            out = self.second(hidden, splits)
        if self.padded:
            out = unpadding(out, counts)
        weighted = out * row_probs[:, None].to(out.dtype)
        return te.moe_unpermute(weighted, row_id_map, restore_shape=x.shape)


def trained(device, recipe, dtype=torch.bfloat16, padded=False, **options):
    experts = Experts(device, dtype, padded, **options)
    chosen, probs = (each.to(device) for each in routing())
    generator = torch.Generator().manual_seed(5)
    for _ in range(2):
        experts.zero_grad()
        x, grad = torch.randn(2, TOKENS, WIDTH, generator=generator).to(device, dtype)
        x, weights = x.requires_grad_(), probs.clone().requires_grad_()
        y = experts(x, chosen, weights, recipe)
        y.backward(grad)
    found = {"y": y, "dx": x.grad, "dprobs": weights.grad}
    found |= {name: p.grad for name, p in experts.named_parameters()}
    return {name: value.detach().cpu().double() for name, value in found.items()}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("recipe", [None, *RECIPES])
def test_experts_train_as_on_the_cpu(recipe, padded):
    make = RECIPES.get(recipe, lambda: None)
    exact = None if recipe is None else trained("cpu", None, torch.float32, padded)
    ours, theirs = (trained(device, make(), padded=padded) for device in (DEVICE, "cpu"))
    assert_beside(ours, theirs, exact)


@pytest.mark.parametrize("recipe", [None, "delayed", "MXFP8"])
def test_grouped_parameters_train_as_on_the_cpu(recipe):
    options = {"single_grouped_weight": True, "single_grouped_bias": True}
    make = RECIPES.get(recipe, lambda: None)
    exact = None if recipe is None else trained("cpu", None, torch.float32, **options)
    ours, theirs = (trained(device, make(), **options) for device in (DEVICE, "cpu"))
    assert_beside(ours, theirs, exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_with_probabilities_and_padding_match_cpu(dtype):
    chosen, probs = routing()
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(TOKENS, WIDTH, generator=generator).to(dtype)
    counts = chosen.sum(0)

    def permuted(device):
        leaf = x.clone().to(device).requires_grad_()
        weights = probs.clone().to(device).requires_grad_()
        placed = [each.to(device) for each in (chosen, counts)]
        out, out_probs, *others = te.moe_permute_and_pad_with_probs(
            leaf, weights, placed[0], placed[1], 16
        )
        (out.float().square().sum() + out_probs.square().sum()).backward()
        maps = [each for each in others if isinstance(each, torch.Tensor)]
        return [out.detach(), out_probs.detach(), *maps, leaf.grad, weights.grad]

    for ours, theirs in zip(permuted(DEVICE), permuted("cpu"), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=2**-6, atol=1e-6)


def test_sorted_chunks_with_probabilities_have_the_bits_of_the_cpu():
    generator = torch.Generator().manual_seed(7)
    x, probs = torch.randn(60, 16, generator=generator), torch.rand(60, generator=generator)
    sizes, order = torch.tensor([10, 0, 30, 20]), torch.tensor([2, 3, 1, 0])
    here = te.moe_sort_chunks_by_index_with_probs(
        *(each.to(DEVICE) for each in (x, probs, sizes, order))
    )
    for ours, theirs in zip(
        here, te.moe_sort_chunks_by_index_with_probs(x, probs, sizes, order), strict=True
    ):
        assert_same_bits(ours, theirs)


@pytest.mark.parametrize("recipe", [None, "delayed", "MXFP8"])
def test_grouped_layer_writes_rows_into_the_given_output(recipe):
    make = RECIPES.get(recipe, lambda: None)
    x = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(8))
    x = x.bfloat16().to(DEVICE)
    splits = [48, 0, 32, 16]
    results = []
    for given in (False, True):
        layer = Experts(DEVICE, torch.bfloat16, False).first
        leaf = x.clone().requires_grad_()
        places = {}
        if given:
            places["out"] = torch.zeros(TOKENS, HIDDEN, dtype=x.dtype, device=DEVICE)
            places["dgrad_out"] = torch.zeros_like(x)
        with te.autocast(enabled=recipe is not None, recipe=make()):
            y = layer(leaf, splits, **places)
        y.backward(torch.ones_like(y))
        results.append([y, leaf.grad])
        if given:
            assert y.data_ptr() == places["out"].data_ptr()
    for ours, theirs in zip(*results, strict=True):
        assert_same_bits(ours.detach(), theirs.detach())
