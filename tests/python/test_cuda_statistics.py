"""Statistics of block formats on a GPU against the same operators on the CPU, and every built-in
feature in a layer on a GPU and in the same layer on the CPU. Skipped where there is no GPU or the
library was built without CUDA; `make gpu-check` runs them.
"""

import math

import pytest
import torch
from cuda_helpers import E4M3, E5M2, HIGH_PRECISION, block_matrix, to_gpu
from debug_helpers import section
from every_feature import FEATURES

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling, MXFP8BlockScaling

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

MXFP8, BLOCK_1D, BLOCK_2D, NVFP4 = range(1, 5)
E2M1 = 2
SIGNS = 0xD7E8  # signs of the Hadamard transform, as in Transformer Engine
SHAPES = ((256, 384), (37, 70), (130, 264), (0, 64), (1, 1))

# core/ops/statistics_layout.h: words of CastSums.
CAST_COUNTS = slice(0, 4)
CAST_ERROR = 4
CAST_EXTREMES = slice(5, 7)
NO_CAST = (0, 0, 0, 0, 0.0, math.inf, -math.inf)
SUMS = 2**-16  # how far sums may differ between devices, of the sum of magnitudes


def accumulator() -> torch.Tensor:
    counts = torch.tensor(NO_CAST[:4], dtype=torch.int64)
    sums = torch.tensor(NO_CAST[4:], dtype=torch.float64).view(torch.int64)
    return torch.cat([counts, sums])


def close(a: float, b: float) -> bool:
    return a == pytest.approx(b, rel=SUMS, nan_ok=True)


def assert_same_cast(actual: torch.Tensor, expected: torch.Tensor) -> None:
    actual = actual.cpu()
    assert torch.equal(actual[CAST_COUNTS], expected[CAST_COUNTS])
    ours, theirs = actual.view(torch.float64), expected.view(torch.float64)
    assert ours[CAST_EXTREMES].tolist() == pytest.approx(
        theirs[CAST_EXTREMES].tolist(), nan_ok=True
    )
    assert close(ours[CAST_ERROR].item(), theirs[CAST_ERROR].item())


def copies_of(ops, x):
    """Every kind of copy of x, as (x in the orientation of the codes, codes, scales, format,
    mode).
    """
    for squares in (False, True):
        mxfp8 = ops.quantize_mxfp8(x, E4M3, 0, squares, True, True)
        blocks = ops.quantize_fp8_blocks(x, E5M2, squares, True, 0.0, True, True)
        nvfp4 = ops.quantize_nvfp4(x, squares, None, None, True, True)
        for copies, kind in (
            ((mxfp8[:2], mxfp8[2:]), (E4M3, MXFP8)),
            ((blocks[:2], blocks[2:]), (E5M2, BLOCK_2D if squares else BLOCK_1D)),
            ((nvfp4[:3], nvfp4[3:]), (E2M1, NVFP4)),
        ):
            for matrix, copy in zip((x, x.t()), copies, strict=True):
                codes, scales, *tensor_scale = copy
                yield matrix, codes, scales, (tensor_scale or [None])[0], *kind


def what_if_casts() -> list[tuple[int, int, int, int]]:
    """(format, mode, squares, columnwise) of every what-if cast in blocks."""
    kinds = [(f, m, 0) for f in (E4M3, E5M2) for m in (MXFP8, BLOCK_1D, BLOCK_2D)]
    kinds += [(f, MXFP8, 1) for f in (E4M3, E5M2)] + [(E2M1, NVFP4, 0), (E2M1, NVFP4, 1)]
    return [(*kind, columnwise) for columnwise in (0, 1) for kind in kinds]


def what_if(ops, x) -> list[torch.Tensor]:
    casts = what_if_casts()
    sums = [accumulator().to(x.device) for _ in casts]
    ops.accumulate_what_if_statistics(
        x, *(list(column) for column in zip(*casts, strict=True)), sums
    )
    return sums


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("infinities", [False, True])
def test_statistics_of_block_casts_match_cpu(ops, dtype, shape, infinities):
    for arguments in copies_of(ops, block_matrix(shape, dtype, infinities)):
        expected, actual = accumulator(), accumulator().cuda()
        on_gpu = to_gpu(arguments)
        for _ in range(2):  # the second one adds to the first
            ops.accumulate_block_cast_statistics(*arguments, expected)
            ops.accumulate_block_cast_statistics(*on_gpu, actual)
        assert_same_cast(actual, expected)


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("infinities", [False, True])
def test_block_whatif_statistics_match_cpu(ops, dtype, shape, infinities):
    x = block_matrix(shape, dtype, infinities)
    for actual, expected in zip(what_if(ops, x.cuda()), what_if(ops, x), strict=True):
        assert_same_cast(actual, expected)


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
def test_whatif_statistics_are_deterministic(ops, dtype):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(4100, 2056, generator=generator).to(dtype)
    first, again = what_if(ops, x.cuda()), what_if(ops, x.cuda())
    for actual, same, expected in zip(first, again, what_if(ops, x), strict=True):
        assert torch.equal(actual, same)
        assert_same_cast(actual, expected)


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize(
    "view",
    [lambda t: t.t(), lambda t: t[1:, 3:131], lambda t: t[::2, :264]],
    ids=["transposed", "inner", "every second row"],
)
def test_block_statistics_of_views_match_cpu(ops, dtype, view):
    x = block_matrix((130, 273), dtype)
    for actual, expected in zip(what_if(ops, view(x.cuda())), what_if(ops, view(x)), strict=True):
        assert_same_cast(actual, expected)
    for matrix, *copy in copies_of(ops, view(x).contiguous()):
        transposed = matrix.t().contiguous().t()  # the other order of memory than the codes'
        expected, actual = accumulator(), accumulator().cuda()
        ops.accumulate_block_cast_statistics(transposed, *copy, expected)
        ops.accumulate_block_cast_statistics(transposed.cuda(), *to_gpu(copy), actual)
        assert_same_cast(actual, expected)


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("shape", SHAPES)
def test_errors_of_blocks_match_cpu(ops, dtype, shape):
    """BlockErrors: four 32-bit counts and a double."""
    for arguments in copies_of(ops, block_matrix(shape, dtype)):
        expected = ops.block_cast_errors(*arguments)
        actual = ops.block_cast_errors(*to_gpu(arguments)).cpu()
        assert actual.shape == expected.shape
        assert torch.equal(actual[..., :2], expected[..., :2])
        errors = [words[..., 2].contiguous().view(torch.float64) for words in (actual, expected)]
        torch.testing.assert_close(*errors, rtol=SUMS, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", HIGH_PRECISION)
@pytest.mark.parametrize("shape", [*SHAPES, (64, 130)])
def test_differences_of_two_copies_match_cpu(ops, dtype, shape):
    """CopiesDifference: two counts and a double."""
    x = block_matrix(shape, dtype, infinities=False)
    all_copies = list(copies_of(ops, x))
    pairs = [(a[1:], b[1:4], None) for a, b in zip(all_copies[::2], all_copies[1::2], strict=True)]
    if x.size(0) % 16 == 0:
        turned = ops.quantize_nvfp4(x, False, SIGNS, None, True, True)
        pairs.append(((*turned[:3], E2M1, NVFP4), turned[3:], SIGNS))
    for (codes, scales, tensor_scale, *kind), columnwise, signs in pairs:
        arguments = (codes, scales, tensor_scale, *columnwise, *kind, signs)
        expected = ops.block_copies_difference(*arguments)
        actual = ops.block_copies_difference(*to_gpu(arguments)).cpu()
        assert torch.equal(actual[:2], expected[:2])
        assert close(*(words.view(torch.float64)[2].item() for words in (actual, expected)))


# ---- features ----

# Sums and statistics computed from them; all others are counters and extremes.
OF_SUMS = ("mean", "std", "norm", "mse", "relative_difference")
ITERATIONS = 3


def config_of(feature: str) -> dict:
    namespace, name = feature.split(".")
    return section({name: FEATURES[feature]}, namespace=None if namespace == "base" else namespace)


def trained(log_dir, feature: str, put):
    """Returns what was recorded of a layer's training; put(x) moves x to the device. The weight
    does not change, so that all inputs of GEMMs are equal on every device.
    """
    recipe = MXFP8BlockScaling() if feature == "telens.BlockTelemetry" else DelayedScaling()
    generator = torch.Generator().manual_seed(6)
    torch.manual_seed(7)
    layer = put(te.Linear(64, 96, bias=False, params_dtype=torch.bfloat16, device="cpu", name="fc"))
    with debug.session(config_of(feature), log_dir=log_dir):
        for _ in range(ITERATIONS):
            x, grad = (
                torch.randn(32, size, generator=generator).mul(3).exp2() for size in (64, 96)
            )
            x = put(x.sub(1).to(torch.bfloat16)).requires_grad_()
            with te.autocast(enabled=True, recipe=recipe):
                out = layer(x)
            out.backward(put(grad.sub(1).to(torch.bfloat16)))
            debug.log_tensor_stats("fc", tensor_name="logits", tensor=x.detach())
            debug.step()
    return telens.open_run(log_dir)


def by_name(table, columns: list[str], values: list[str]) -> dict:
    return {
        tuple(row[column] for column in columns): [row[value] for value in values]
        for row in table.to_dict("records")
    }


RECORD = ["iteration", "layer", "tensor", "gemm", "statistic"]


@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_reports_the_same_on_gpu_and_cpu(ops, tmp_path, feature):
    pytest.importorskip("pandas")
    on_cpu = trained(tmp_path / "cpu", feature, lambda each: each)
    on_gpu = trained(tmp_path / "gpu", feature, lambda each: each.cuda())
    expected, actual = (by_name(run.records(), RECORD, ["value"]) for run in (on_cpu, on_gpu))
    assert actual.keys() == expected.keys()
    for name, (value,) in actual.items():
        of_outputs = feature == "telens.GemmError"
        if of_outputs:
            assert math.isfinite(value), name
        elif any(part in name[-1] for part in OF_SUMS):
            assert value == pytest.approx(expected[name][0], rel=2**-12, abs=2**-14), name
        else:
            assert value == pytest.approx(expected[name][0], rel=0, abs=0, nan_ok=True), name
    bins, expected_bins = (
        by_name(run.histograms(), [*RECORD, "bin"], ["count"]) for run in (on_gpu, on_cpu)
    )
    assert bins == expected_bins
    places = [*RECORD, "block_row", "block_column"]
    blocks, expected_blocks = (by_name(run.blocks(), places, ["value"]) for run in (on_gpu, on_cpu))
    assert blocks.keys() == expected_blocks.keys()
    for name, (value,) in blocks.items():
        assert value == pytest.approx(expected_blocks[name][0], rel=SUMS), name
    dumped = [
        sorted(str(path.relative_to(folder)) for path in folder.rglob("tensor_dumps/**/*"))
        for folder in (tmp_path / "gpu", tmp_path / "cpu")
    ]
    assert dumped[0] == dumped[1]


# One second at 2 GHz: a hundred times as long as the host needs for a step.
SLEEP_CYCLES = 2 * 10**9
OBSERVERS = {
    "transformer_engine": ("LogTensorStats", "LogFp8TensorStats", "LogNvfp4TensorStats"),
    "telens": ("PrecisionLedger", "GemmError", "ValueHistogram", "ScaleHealth", "BlockTelemetry"),
}


def test_no_observer_makes_the_host_wait_for_the_gpu(ops, tmp_path):
    """A long kernel runs before a step whose tensors are observed, and the host must reach the
    step's end while it still runs. DumpTensors, which writes at once, is allowed to wait.
    """
    config = {
        namespace: section(
            {name: FEATURES[f"{namespace}.{name}"] for name in names}, namespace=namespace
        )["section"]
        for namespace, names in OBSERVERS.items()
    }
    torch.manual_seed(7)
    layer = te.Linear(64, 96, bias=False, params_dtype=torch.bfloat16, device="cpu", name="fc")
    layer, x = layer.cuda(), torch.randn(32, 64).to(torch.bfloat16).cuda().requires_grad_()

    def step():
        with te.autocast(enabled=True, recipe=DelayedScaling()):
            out = layer(x)
        out.sum().backward()
        debug.step()

    with debug.session(config, log_dir=tmp_path):
        for _ in range(2):  # copies to the device are made the first time
            step()
        torch.cuda.synchronize()
        torch.cuda._sleep(SLEEP_CYCLES)
        slept = torch.cuda.Event()
        slept.record()
        step()
        assert not slept.query()
