"""Quantizers that use the amax of a whole group: parts of a tensor get the codes of the whole."""

import pytest
import torch
import torch.distributed as dist
from distributed_workers import run_ranks

import telens
from telens.pytorch import DType, Float8CurrentScalingQuantizer, NVFP4Quantizer

E4M3 = DType.kFloat8E4M3
KINDS = {
    "current": (Float8CurrentScalingQuantizer, {"fp8_dtype": E4M3}),
    "powers of two": (
        Float8CurrentScalingQuantizer,
        {"fp8_dtype": E4M3, "force_pow_2_scales": True},
    ),
    "NVFP4": (NVFP4Quantizer, {}),
    "NVFP4 in squares": (NVFP4Quantizer, {"with_2d_quantization": True}),
    "NVFP4 rotated": (NVFP4Quantizer, {"with_rht": True}),
}


def whole_tensor() -> torch.Tensor:
    """The rows of the second rank have larger values."""
    x = torch.randn(64, 48, generator=torch.Generator().manual_seed(1))
    x[32:] *= 11
    return x


def assert_part(part, whole, rank: int) -> None:
    """Asserts that ``part`` is this rank's half of ``whole``: codes and scales in both
    orientations.
    """
    mine, all_of_it = part._storage, whole._storage
    for orientation, dim in (("rowwise", 0), ("columnwise", 1)):
        for piece in ("data", "scale_inv", "tensor_scale"):
            name = f"{orientation}_{piece}"
            expected = getattr(all_of_it, name)
            if expected is not None and expected.numel() > 1:
                expected = expected.chunk(2, dim)[rank]
            found = getattr(mine, name)
            assert found is expected is None or torch.equal(found, expected), name
    assert torch.equal(part.dequantize(), whole.dequantize().chunk(2)[rank])


def parts(rank: int, kind: str) -> None:
    quantizer_class, options = KINDS[kind]
    whole = quantizer_class(**options)(whole_tensor())
    quantizer = quantizer_class(**options, with_amax_reduction=True)
    mine = whole_tensor().chunk(2)[rank]
    assert_part(quantizer(mine), whole, rank)
    target = quantizer.copy()(torch.zeros_like(mine))
    assert_part(quantizer.copy().update_quantized(mine, target), whole, rank)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_tensor_get_the_codes_of_the_whole(kind):
    run_ranks(parts, kind)


def not_a_number(rank: int) -> None:
    x = whole_tensor()
    x[40, 3] = float("nan")  # on the second rank alone
    for quantizer_class, options in KINDS.values():
        whole = quantizer_class(**options)(x)
        quantizer = quantizer_class(**options, with_amax_reduction=True)
        assert torch.equal(
            quantizer(x.chunk(2)[rank])._storage.rowwise_data,
            whole._storage.rowwise_data.chunk(2)[rank],
        )


def test_a_nan_on_one_rank_counts_as_it_does_in_the_whole():
    run_ranks(not_a_number)


def groups(rank: int) -> None:
    alone = [dist.new_group([each]) for each in range(2)][rank]
    both = dist.new_group([0, 1])
    mine = whole_tensor().chunk(2)[rank]
    for quantizer_class, options in KINDS.values():
        plain = quantizer_class(**options)(mine).dequantize()
        reduced = {"with_amax_reduction": True}
        of_one = quantizer_class(**options, **reduced, amax_reduction_group=alone)
        of_both = quantizer_class(**options, **reduced, amax_reduction_group=both)
        assert torch.equal(of_one(mine).dequantize(), plain)
        # If only one rank makes a tensor, it must not wait for the other.
        if rank == 0:
            of_both.make_empty((32, 48))
        assert torch.equal(of_both(mine).dequantize(), plain) == (rank == 1)
        unasked = quantizer_class(**options, amax_reduction_group=both)
        assert torch.equal(unasked(mine).dequantize(), plain)


def test_the_group_is_the_one_that_is_named():
    run_ranks(groups)


@pytest.mark.parametrize("kind", KINDS)
def test_missing_group_error_names_the_call(kind):
    quantizer_class, options = KINDS[kind]
    with pytest.raises(telens.UsageError, match=r"call torch\.distributed\.init_process_group"):
        quantizer_class(**options, with_amax_reduction=True)
    with pytest.raises(TypeError, match=r"must be a torch\.distributed\.ProcessGroup"):
        quantizer_class(**options, with_amax_reduction=True, amax_reduction_group="tp")
