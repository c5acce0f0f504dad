"""The comparison of bits that other tests rely on."""

import pytest
import torch
from same_tensors import assert_same

NAN = float("nan")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_equal_bits_are_equal(dtype):
    for values in ([1.0, NAN, -0.0], [], 2.0):
        assert_same([torch.tensor(values).to(dtype)], [torch.tensor(values).to(dtype)])


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (torch.tensor([1.0]), torch.tensor([NAN])),
        (torch.tensor([1.0]), torch.tensor([[1.0]])),
        (torch.tensor([0], dtype=torch.int32), torch.tensor([0.0])),
    ],
)
def test_differences_are_reported_by_case_and_number(one, two):
    same = torch.ones(2)
    with pytest.raises(AssertionError, match="the case: tensor 1 of 2 differs"):
        assert_same([same, one], [same, two], "the case")


def test_missing_tensor_is_reported():
    with pytest.raises(ValueError, match="longer"):
        assert_same([torch.ones(1)], [torch.ones(1), torch.ones(1)])
