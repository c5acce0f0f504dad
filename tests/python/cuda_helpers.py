"""What the tests share that compare operators on a GPU with the same operators on the CPU."""

import pytest
import torch

E4M3, E5M2 = 0, 1
FORMATS = {"e4m3": E4M3, "e5m2": E5M2}
HIGH_PRECISION = (torch.bfloat16, torch.float16, torch.float32)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return tensor.cpu().contiguous().view(kinds[tensor.element_size()])


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor, inputs=None) -> None:
    actual, expected = bits(actual), bits(expected)
    assert actual.shape == expected.shape
    differs = (actual != expected).flatten()
    if differs.any():
        first = int(differs.nonzero()[0])
        given = "" if inputs is None else f" for {inputs.flatten()[first].item()!r}"
        pytest.fail(
            f"{int(differs.sum())} of {differs.numel()} differ; the first at {first}: expected "
            f"{expected.flatten()[first].item():#x}, got {actual.flatten()[first].item():#x}{given}"
        )


def to_gpu(arguments) -> list:
    return [a.cuda() if isinstance(a, torch.Tensor) else a for a in arguments]
