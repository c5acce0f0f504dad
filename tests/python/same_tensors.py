"""Results that are to have the same bits."""

import torch


def assert_same(found, expected, case="") -> None:
    """Tensors one by one; a failure names the case and the number of the first that differs."""
    for number, (one, two) in enumerate(zip(found, expected, strict=True)):
        assert torch.equal(one, two), f"{case}: tensor {number} of {len(expected)} differs"
