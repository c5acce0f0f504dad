"""The operators of block formats on a GPU against the same operators on the CPU. Skipped where
there is no GPU or the library was built without CUDA; `make gpu-check` runs them."""

import itertools

import pytest
import torch
from cuda_helpers import (
    E4M3,
    E5M2,
    FORMATS,
    HIGH_PRECISION,
    assert_same_bits,
    block_matrix,
    to_gpu,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

BLOCK_SHAPES = ((256, 384), (37, 70), (130, 264), (0, 64), (1, 1))
SIGNS = 0xD7E8  # signs of the Hadamard transform, as in Transformer Engine
RANDOM_STATE = torch.tensor([0x123456789ABCDEF0, 7])
AMAXES = torch.tensor(
    [123, 0.01]
)  # one for each orientation, neither the largest magnitude of any x
ORIENTATIONS = {"both": (True, True), "rowwise": (True, False), "columnwise": (False, True)}
MXFP8, BLOCK_1D, BLOCK_2D, NVFP4 = range(1, 5)
E2M1 = 2


def assert_same_copies(actual, expected) -> None:
    """Codes and scales of both orientations, and their strides in memory; None if not requested."""
    for got, want in zip(actual, expected, strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            assert_same_bits(got, want)
            assert got.stride() == want.stride() or want.numel() <= 1


def copies_on_both(operator, x, arguments, view=lambda t: t) -> list:
    """The copies that an operator makes of a view of x, asserted to be equal on the GPU and the
    CPU.
    """
    expected = operator(view(x), *arguments)
    assert_same_copies(operator(view(x.cuda()), *to_gpu(arguments)), expected)
    return expected


def block_quantizations(ops, x, orientations):
    """Operators with their arguments except x: every code path that one of them has."""
    for squares in (False, True):
        yield ops.quantize_mxfp8, (E4M3, 0, squares, *orientations)
        yield ops.quantize_fp8_blocks, (E5M2, squares, False, 0.0, *orientations)
        for chance in (None, RANDOM_STATE):
            for signs in transforms_of(x, squares):
                yield ops.quantize_nvfp4, (squares, signs, chance, *orientations)


def transforms_of(x, squares: bool) -> list:
    return [None] if squares or x.size(0) % 16 else [None, SIGNS]


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("shape", BLOCK_SHAPES)
@pytest.mark.parametrize("squares", [False, True])
def test_fp8_blocks_match_cpu(ops, dtype, shape, squares):
    x = block_matrix(shape, dtype)
    for format_id in FORMATS.values():
        for rounding in range(3):
            arguments = (format_id, rounding, squares, True, True)
            expected = ops.quantize_mxfp8(x, *arguments)
            assert_same_copies(ops.quantize_mxfp8(x.cuda(), *arguments), expected)
        for power_of_2_scales in (False, True):
            arguments = (format_id, squares, power_of_2_scales, 0.0, True, True)
            expected = ops.quantize_fp8_blocks(x, *arguments)
            assert_same_copies(ops.quantize_fp8_blocks(x.cuda(), *arguments), expected)


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("shape", BLOCK_SHAPES)
@pytest.mark.parametrize("squares", [False, True])
@pytest.mark.parametrize("infinities", [False, True])
def test_nvfp4_blocks_match_cpu(ops, dtype, shape, squares, infinities):
    x = block_matrix(shape, dtype, infinities)
    for signs in transforms_of(x, squares):
        for chance in (None, RANDOM_STATE):
            copies = copies_on_both(ops.quantize_nvfp4, x, (squares, signs, chance, True, True))
            assert_tensor_scales_scale(copies, x, infinities)


def assert_tensor_scales_scale(copies, x, infinities: bool) -> None:
    """NVFP4's second level of scales is only tested if its scales are not 1."""
    tensor_scales = [copies[2].item(), copies[5].item()]
    assert infinities or x.numel() == 0 or 1 not in tensor_scales, tensor_scales


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("orientations", ["rowwise", "columnwise"])
def test_single_orientation_blocks_match_cpu(ops, dtype, orientations):
    asked = ORIENTATIONS[orientations]
    x = block_matrix((80, 264), dtype, infinities=False)
    for operator, arguments in block_quantizations(ops, x, asked):
        copies = copies_on_both(operator, x, arguments)
        half = len(copies) // 2
        assert [copies[0] is not None, copies[half] is not None] == list(asked)


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("squares", [False, True])
@pytest.mark.parametrize("orientations", ORIENTATIONS)
def test_nvfp4_scales_for_given_amaxes_match_cpu(ops, dtype, squares, orientations):
    """The columnwise amax is used where x is not quantized together with the rowwise
    orientation.
    """
    rowwise, columnwise = ORIENTATIONS[orientations]
    x = block_matrix((80, 264), dtype, infinities=False)
    of_rows, of_columns = (AMAXES / (448 * 6)).tolist()
    for signs in transforms_of(x, squares):
        for chance in (None, RANDOM_STATE):
            arguments = (squares, signs, chance, rowwise, columnwise, AMAXES)
            copies = copies_on_both(ops.quantize_nvfp4, x, arguments)
            apart = not squares and (signs is not None or chance is not None)
            if rowwise:
                assert copies[2].item() == pytest.approx(of_rows, rel=1e-6)
            if columnwise:
                expected = of_columns if apart else of_rows
                assert copies[5].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("shape", BLOCK_SHAPES)
@pytest.mark.parametrize("squares", [False, True])
@pytest.mark.parametrize("orientations", ORIENTATIONS)
def test_four_over_six_blocks_match_cpu(ops, dtype, shape, squares, orientations):
    for infinities in (False, True):
        x = block_matrix(shape, dtype, infinities)
        for squared_error, largest_scale in ((False, 256.0), (True, 448.0)):
            choice = (squares, squared_error, largest_scale, *ORIENTATIONS[orientations])
            copies_on_both(ops.quantize_four_over_six, x, choice)
            copies_on_both(ops.quantize_four_over_six, x, (*choice, AMAXES))


def misaligned(x: torch.Tensor) -> torch.Tensor:
    """Contiguous rows of whole packs of 8, of which none has an address at which a pack may be
    loaded or stored.
    """
    rows, columns = x.shape
    view = x.view(-1)[1 : 1 + (rows - 16) * columns].view(rows - 16, columns)
    assert view.is_contiguous()
    assert view.data_ptr() % 16 != 0
    return view


VIEWS = {"transposed": lambda t: t.t(), "columns": lambda t: t[:, 1:], "misaligned": misaligned}


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("view", VIEWS)
def test_blocks_of_strided_and_misaligned_views_match_cpu(ops, dtype, view):
    x = block_matrix((80, 272), dtype, infinities=False)
    for operator, arguments in block_quantizations(ops, VIEWS[view](x), (True, True)):
        copies_on_both(operator, x, arguments, VIEWS[view])


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("shape", BLOCK_SHAPES)
@pytest.mark.parametrize("infinities", [False, True])
def test_values_of_blocks_match_cpu(ops, dtype, shape, infinities):
    x = block_matrix(shape, dtype, infinities)
    rowwise, columnwise = slice(0, 2), slice(2, 4)
    copies = [
        (*ops.quantize_mxfp8(x, E4M3, 0, False, True, True)[orientation], None, E4M3, MXFP8)
        for orientation in (rowwise, columnwise)
    ]
    for squares, mode in ((False, BLOCK_1D), (True, BLOCK_2D)):
        both = ops.quantize_fp8_blocks(x, E5M2, squares, False, 0.0, True, True)
        copies += [(*both[orientation], None, E5M2, mode) for orientation in (rowwise, columnwise)]
    both = ops.quantize_nvfp4(x, False, None, None, True, True)
    assert_tensor_scales_scale(both, x, infinities)
    copies += [(*both[:3], E2M1, NVFP4), (*both[3:], E2M1, NVFP4)]
    for codes, scale_inv, tensor_scale, format_id, mode in copies:
        arguments = (codes, scale_inv, tensor_scale, format_id, mode, dtype)
        expected = ops.dequantize_blocks(*arguments)
        assert_same_copies([ops.dequantize_blocks(*to_gpu(arguments))], [expected])


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
def test_hadamard_transforms_match_cpu(ops, dtype):
    """Sums that overflow or meet a NaN are NaN on both devices; the bits of a NaN are not
    promised.
    """
    for shape, infinities in itertools.product(((256, 384), (16, 71)), (False, True)):
        x = block_matrix(shape, dtype, infinities)
        for inverse in (False, True):
            expected = ops.hadamard_transform(x, SIGNS, inverse)
            assert infinities or not expected.isinf().any(), "a sum that overflows"
            actual = ops.hadamard_transform(x.cuda(), SIGNS, inverse).cpu()
            assert torch.equal(actual.isnan(), expected.isnan())
            numbers = ~expected.isnan()
            assert_same_bits(actual[numbers], expected[numbers])
