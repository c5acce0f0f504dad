"""Compares results that must have the same bits."""

import torch


def assert_same(found, expected, case="") -> None:
    """Compares tensors one by one. A failure names the case and the index of the first difference.

    Bits are compared: -0 is not 0, and a NaN is the same NaN. As many must be found as expected.
    """
    for number, (one, two) in enumerate(zip(found, expected, strict=True)):
        assert _have_same_bits(one, two), f"{case}: tensor {number} of {len(expected)} differs"


def _have_same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    if (one.shape, one.dtype) != (two.shape, two.dtype):
        return False
    return torch.equal(*(each.detach().reshape(-1).view(torch.uint8) for each in (one, two)))
