"""parallel_cross_entropy against torch's, whole and divided among ranks."""

import pytest
import torch
import torch.distributed as dist
from distributed_workers import run_ranks

import telens
import telens.pytorch as te
from telens.pytorch import cross_entropy

IGNORED = -100


def drawn(dtype, seed=1):
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(3, 5, 24, generator=generator, dtype=torch.float64)
    target = torch.randint(0, 24, (3, 5), generator=generator)
    target[1, 2] = target[2, 4] = IGNORED
    return logits.to(dtype), target


def expected(logits, target, smoothing, reduction):
    """Loss and gradient by torch in FP64."""
    x = logits.detach().double().requires_grad_()
    loss = torch.nn.functional.cross_entropy(
        x.flatten(0, -2), target.flatten(), label_smoothing=smoothing, reduction=reduction
    )
    weights = 1 if reduction == "mean" else torch.arange(1.0, 1 + loss.numel())
    (loss * weights).sum().backward()
    return (loss if reduction == "mean" else loss.view(target.shape)).detach(), x.grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("smoothing", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("reduce_loss", [False, True])
@pytest.mark.parametrize("block", [1, 1 << 22])
def test_losses_and_gradients_match_torch(monkeypatch, dtype, smoothing, reduce_loss, block):
    monkeypatch.setattr(cross_entropy, "_BLOCK", block)
    logits, target = drawn(dtype)
    wanted, wanted_grad = expected(logits, target, smoothing, "mean" if reduce_loss else "none")
    x = logits.clone().requires_grad_()
    loss = te.parallel_cross_entropy(x, target, smoothing, reduce_loss)
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    weights = 1 if reduce_loss else torch.arange(1.0, 1 + loss.numel()).view(loss.shape)
    (loss * weights).sum().backward()
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(loss.double(), wanted, rtol=tolerance, atol=tolerance)
    # Rounded once to the logits' dtype; the largest weight is 15.
    grad_tolerance = 15 * tolerance + torch.finfo(dtype).eps
    torch.testing.assert_close(
        x.grad.double(), wanted_grad, rtol=grad_tolerance, atol=15 * tolerance
    )
    assert torch.equal(x.detach(), logits), "the logits stay"


def test_gradients_match_finite_differences():
    logits, target = drawn(torch.float64)

    def smoothed(x):
        return te.parallel_cross_entropy(x, target, 0.2)

    assert torch.autograd.gradcheck(smoothed, logits.requires_grad_())


def test_ignored_rows_have_no_loss_and_no_gradient_whatever_they_hold():
    logits, target = drawn(torch.float32)
    logits[1, 2], logits[2, 4] = torch.nan, torch.inf
    x = logits.requires_grad_()
    loss = te.parallel_cross_entropy(x, target)
    loss.sum().backward()
    for row in ((1, 2), (2, 4)):
        assert loss[row] == 0
        assert torch.equal(x.grad[row], torch.zeros(24))
    assert x.grad.isfinite().all()
    assert te.parallel_cross_entropy(x, target.masked_fill(target == IGNORED, 7)).isnan().sum() == 2
    none = torch.full((3, 5), IGNORED)
    assert te.parallel_cross_entropy(x, none, reduce_loss=True).isnan(), "as torch's"
    assert te.parallel_cross_entropy(x, target.clamp(min=0), ignore_idx=0).count_nonzero() <= 13


def test_large_logits_and_no_rows():
    x = torch.tensor([[1e30, 0.0, -1e30]], requires_grad=True)
    loss = te.parallel_cross_entropy(x, torch.tensor([0]))
    loss.sum().backward()
    assert loss.tolist() == [0.0]
    assert x.grad.tolist() == [[0.0, 0.0, 0.0]]
    empty = torch.empty(0, 4, requires_grad=True)
    nothing = te.parallel_cross_entropy(empty, torch.empty(0, dtype=torch.int32))
    nothing.sum().backward()
    assert nothing.shape == (0,)
    assert empty.grad.shape == (0, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": torch.tensor([[0, 4]])}, r"target must be classes from 0 to 3, or .*, not 4"),
        ({"target": torch.tensor([[0, -1]])}, "target must be classes from 0 to 3"),
        ({"target": torch.tensor([0, 1])}, r"as inp without its last dimension, .*\[2\]"),
        ({"target": torch.zeros(1, 2)}, "target must be int64 or int32"),
        ({"label_smoothing": 1.5}, "label_smoothing must be a number from 0 to 1, not 1.5"),
        ({"inp": torch.zeros(1, 2, 4, dtype=torch.int64)}, "inp must be floating-point logits"),
    ],
)
def test_invalid_arguments_are_rejected(arguments, message):
    fitting = {"inp": torch.zeros(1, 2, 4), "target": torch.zeros(1, 2, dtype=torch.int64)}
    with pytest.raises(telens.UsageError, match=message):
        te.parallel_cross_entropy(**(fitting | arguments))


def divided(rank):
    group = dist.new_group([0, 1])
    for smoothing in (0.0, 0.3):
        logits, target = drawn(torch.float32)
        wanted, wanted_grad = expected(logits, target, smoothing, "none")
        part = logits.chunk(2, -1)[rank].clone().requires_grad_()
        loss = te.parallel_cross_entropy(part, target, smoothing, dist_process_group=group)
        (loss * torch.arange(1.0, 16.0).view(3, 5)).sum().backward()
        torch.testing.assert_close(loss.double(), wanted, rtol=1e-5, atol=1e-5)
        wanted_part = wanted_grad.chunk(2, -1)[rank]
        torch.testing.assert_close(part.grad.double(), wanted_part, rtol=1e-4, atol=1e-4)
    with pytest.raises(telens.UsageError, match="classes from 0 to 23"):
        te.parallel_cross_entropy(part, target + 24, dist_process_group=group)
    # If only one rank has invalid targets, the other must not wait.
    messages = (
        "classes from 0 to 23" if rank else "target must be a class or .* another number on rank 1"
    )
    with pytest.raises(telens.UsageError, match=messages):
        te.parallel_cross_entropy(part, target + 24 * rank, dist_process_group=group)
    own = logits[..., : 12 + rank]
    with pytest.raises(telens.UsageError, match="12 classes on one and 13 on another"):
        te.parallel_cross_entropy(own, target.clamp(max=23), dist_process_group=group)


def test_a_divided_vocabulary_gives_the_loss_of_the_whole():
    run_ranks(divided)
