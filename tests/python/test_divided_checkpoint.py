"""checkpoint(distribute_saved_activations=True): each rank keeps a part of the hidden state."""

import contextlib
import gc
import itertools
import math

import pytest
import torch
import torch.distributed as dist
from distributed_workers import DEVICES, rank_device, run_ranks
from torch.multiprocessing.reductions import StorageWeakRef

import telens
import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling
from telens.pytorch.parallel.divided_activation import DividedActivation

RECIPES = (None, DelayedScaling, Float8CurrentScaling)


def draw(*sizes: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(math.prod(sizes))
    return torch.randn(sizes, generator=generator).to(rank_device(), dtype)


def through_torch(x, scale=1.0):
    return (x.sin() * x).cos() * scale


def with_mask(flag, x, other, mask):
    return torch.where(mask, x.exp() * other.sigmoid(), x.tanh())


def in_place(x):
    x.mul_(2)
    return x.sin()


def of_tokens(ids, table):
    return table[ids].square()


# The function, its arguments as (sizes, dtype), keywords. A first tensor of three dimensions is in
# memory as [batch, sequence, hidden] and passed as [sequence, batch, hidden].
CASES = {
    "even": (through_torch, [(6, 4)], {"scale": 3.0}),
    "odd": (through_torch, [(7, 3)], {}),
    "one element": (through_torch, [(1,)], {}),
    "a number": (through_torch, [()], {}),
    "nothing": (through_torch, [(0, 4)], {}),
    "transposed": (through_torch, [(3, 5, 2)], {}),
    "BF16": (through_torch, [((5, 3), torch.bfloat16)], {}),
    "FP64": (through_torch, [((5, 3), torch.float64)], {}),
    "several": (with_mask, [True, (5, 3), (5, 3), ((5, 3), torch.bool)], {}),
    "in place": (in_place, [(5, 3)], {}),
    "integers": (of_tokens, [((7,), torch.int64), (9, 4)], {}),
}


def arguments_of(kinds: list) -> list:
    made = []
    for kind in kinds:
        if isinstance(kind, bool):
            made.append(kind)
            continue
        sizes, dtype = kind if len(kind) == 2 and isinstance(kind[0], tuple) else (kind, None)
        x = draw(*sizes, dtype=None if dtype == torch.bool else dtype)
        if dtype == torch.int64:
            x = x.abs().mul(2)
        if dtype == torch.bool:
            x = x > 0
        if x.is_floating_point():
            x = (x.transpose(0, 1) if x.dim() == 3 else x).requires_grad_()
        made.append(x)
    return made


def results(name: str, run) -> list[torch.Tensor]:
    """Returns the output and the gradients. The tensors that the function gets are not leaves."""
    function, kinds, keywords = CASES[name]
    given = arguments_of(kinds)
    inner = [x * 1 if isinstance(x, torch.Tensor) and x.requires_grad else x for x in given]
    out = run(function, inner, keywords)
    out.backward(draw(*out.shape, dtype=out.dtype))
    leaves = [x.grad for x in given if isinstance(x, torch.Tensor) and x.requires_grad]
    return [out.detach(), *leaves]


def bits_of_torch_functions() -> None:
    for name, reentrant in itertools.product(CASES, (False, True)):
        plain = results(name, lambda function, given, keywords: function(*given, **keywords))
        found = results(
            name,
            lambda function, given, keywords, reentrant=reentrant: te.checkpoint(
                function, *given, use_reentrant=reentrant, distribute_saved_activations=True,
                tp_group=dist.group.WORLD, **keywords,
            ),
        )  # fmt: skip
        for one, other in zip(found, plain, strict=True):
            assert torch.equal(one, other), (name, reentrant)
            assert one.stride() == other.stride(), (name, reentrant)


def trained_layers(recipe, reentrant: bool, distributes: bool) -> list[torch.Tensor]:
    """Two steps of two checkpointed layers with dropout and a recipe."""
    torch.manual_seed(1)
    options = {"set_parallel_mode": True, "tp_group": dist.group.WORLD, "device": rank_device()}
    layers = [te.LayerNormMLP(32, 64, **options) for _ in range(2)]
    x = draw(16, 2, 32).requires_grad_()
    for _ in range(2):
        hidden = x
        for layer in layers:
            with region(recipe):
                hidden = te.checkpoint(
                    lambda h, layer=layer: layer(torch.nn.functional.dropout(h, 0.25)), hidden,
                    use_reentrant=reentrant, distribute_saved_activations=distributes,
                )  # fmt: skip
        hidden.square().sum().backward()
    weights = [parameter.grad for layer in layers for parameter in layer.parameters()]
    return [hidden.detach(), x.grad, *weights]


def region(recipe) -> contextlib.AbstractContextManager:
    if recipe is None:
        return contextlib.nullcontext()
    return te.fp8_autocast(fp8_recipe=recipe(), fp8_group=dist.group.WORLD)


def bits_of_layers() -> None:
    for recipe, reentrant in itertools.product(RECIPES, (False, True)):
        plain, divided = (trained_layers(recipe, reentrant, each) for each in (False, True))
        for one, other in zip(plain, divided, strict=True):
            assert torch.equal(one, other), (recipe, reentrant)


def parts_alive() -> list[int]:
    gc.collect()
    return [each.kept_bytes for each in gc.get_objects() if type(each) is DividedActivation]


def memory(size: int) -> None:
    """After the forward a rank keeps only its part, and after the backward nothing."""
    for reentrant, distributes in itertools.product((False, True), (False, True)):
        x = draw(41, 3).requires_grad_()
        hidden = x * 2
        whole = StorageWeakRef(hidden.untyped_storage())
        out = te.checkpoint(
            through_torch, hidden, use_reentrant=reentrant, distribute_saved_activations=distributes
        )
        del hidden
        expected = [4 * -(-41 * 3 // size)] if distributes else []
        assert parts_alive() == expected, (reentrant, distributes)
        assert whole.expired() == distributes, (reentrant, distributes)
        out.sum().backward()
        del out
        assert parts_alive() == []


def two_backwards() -> None:
    x = draw(5, 3).requires_grad_()
    out = te.checkpoint(through_torch, x * 1, distribute_saved_activations=True)
    out.sum().backward(retain_graph=True)
    once = x.grad.clone()
    out.sum().backward()
    assert torch.equal(x.grad, once + once)


def without_gradients() -> None:
    with torch.no_grad():
        out = te.checkpoint(through_torch, draw(5, 3), distribute_saved_activations=True)
    assert torch.equal(out, through_torch(draw(5, 3)))
    assert parts_alive() == []


def refusals(rank: int) -> None:
    def refused(match: str, *given, **more) -> None:
        arguments = {"distribute_saved_activations": True} | more
        with pytest.raises(telens.UsageError, match=match):
            te.checkpoint(through_torch, *given, **arguments)

    refused("there is none; leave it out", 3.0)
    sparse = draw(2).to_sparse()
    refused("divides a plain strided tensor, not a Tensor of layout torch.sparse", sparse)
    refused("tp_group must be a process group of this rank, or None", draw(2), tp_group="tp")
    refused("checkpoint: distribute_saved_activations must be True", draw(2),
            distribute_saved_activations=1)  # fmt: skip
    own = "leave it out if each rank holds its own part, for example under sequence_parallel"
    refused(f"rank {rank} of tp_group .*digest .*rank {1 - rank} keeps .*{own}", draw(9, 3) + rank)
    refused(rf"\[{8 - rank}, 2\].* rank {1 - rank} keeps a part of .* \[{7 + rank}, 2\]",
            draw(8 - rank, 2))  # fmt: skip
    alone = [dist.new_group([each]) for each in range(2)][rank]
    out = te.checkpoint(through_torch, draw(4) + rank, tp_group=alone,
                        distribute_saved_activations=True)  # fmt: skip
    assert torch.equal(out, through_torch(draw(4) + rank))


def another_tensor_of_a_known_shape(rank: int) -> None:
    x = draw(7, 5).requires_grad_()
    out = te.checkpoint(through_torch, x, distribute_saved_activations=True)
    out = te.checkpoint(through_torch, out * (1 + rank), distribute_saved_activations=True)
    other = r"the tensor of rank 1 differs from rank 0, of shape \[7, 5\]"
    with pytest.raises(telens.UsageError, match=other):
        out.sum().backward()


def two_ranks(rank: int) -> None:
    bits_of_torch_functions()
    bits_of_layers()
    memory(2)
    two_backwards()
    without_gradients()
    refusals(rank)
    another_tensor_of_a_known_shape(rank)


@pytest.mark.parametrize("device", DEVICES)
def test_divided_checkpoint_matches_plain_bits(device):
    run_ranks(two_ranks, device=device)


def test_divided_checkpoint_requires_a_process_group():
    with pytest.raises(telens.UsageError, match=r"torch\.distributed is not initialized"):
        te.checkpoint(through_torch, torch.ones(3), distribute_saved_activations=True)
