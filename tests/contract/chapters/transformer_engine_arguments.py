"""Functions and arguments of Transformer Engine's modules on one device."""

from statement import Statement

CROSS_ENTROPY = "test_cross_entropy.py::"
LOSSES = "python/telens/pytorch/cross_entropy.py"

STATEMENTS = (
    Statement(
        "`parallel_cross_entropy` gives losses and gradients of torch's cross entropy, with "
        "`label_smoothing`, `reduce_loss` and `ignore_idx`, and leaves the logits as they are "
        "*(ours)*.",
        CROSS_ENTROPY + "test_losses_and_gradients_are_those_of_torch",
        LOSSES,
        "return losses.sum() / counts.sum()",
        "return losses.mean()",
    ),
    Statement(
        "With `dist_process_group` each rank has its part of the vocabulary.",
        CROSS_ENTROPY + "test_a_divided_vocabulary_gives_the_loss_of_the_whole",
        LOSSES,
        "        _reduce(sums, dist.ReduceOp.SUM, group)\n",
        "",
    ),
    Statement(
        "A target that is ignored gives no gradient, also where its logits are NaN *(ours)*.",
        CROSS_ENTROPY + "test_ignored_rows_have_no_loss_and_no_gradient_whatever_they_hold",
        LOSSES,
        "block.masked_fill_(~counts[rows].unsqueeze(1), 0).to(result.dtype)",
        "block.to(result.dtype)",
    ),
)
