"""GemmError: the error of GEMMs against FP64, on a sample of their outputs."""

import numpy as np
import pytest
import torch
from debug_helpers import Backward, section, train

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import Float8CurrentScaling

GEMMS = ["fprop", "dgrad", "wgrad"]
OUTPUTS = {"fprop": "output", "dgrad": "dgrad", "wgrad": "wgrad"}


def measuring(gemms=GEMMS, **keys) -> dict:
    return section({"GemmError": {"enabled": True, "gemms": gemms, **keys}}, namespace="telens")


def measured(log_dir, statistic="gemm_relative_error") -> dict[tuple[int, str], float]:
    records = telens.open_run(log_dir).records(statistic=statistic)
    assert list(records.tensor) == [OUTPUTS[gemm] for gemm in records.gemm]
    return {(row.iteration, row.gemm): row.value for row in records.itertuples()}


def integers(*sizes, largest=4, dtype=torch.bfloat16) -> torch.Tensor:
    return torch.randint(-largest, largest + 1, sizes).to(dtype)


def linear(rows, columns, dtype=torch.float32, **options) -> te.Linear:
    return te.Linear(columns, rows, params_dtype=dtype, name="fc", **options)


def test_gemms_whose_sums_are_exact_have_no_error_at_all(tmp_path):
    torch.manual_seed(3)
    layer = linear(48, 64)
    with torch.no_grad():
        layer.weight.copy_(integers(48, 64))
        layer.bias.copy_(integers(48))
    with debug.session(measuring(), log_dir=tmp_path):
        for _ in range(2):
            x = integers(32, 64, dtype=torch.float32).requires_grad_()
            Backward.apply(layer(x), integers(32, 48, dtype=torch.float32)).backward()
            debug.step()
    expected = {(i, gemm) for i in range(2) for gemm in GEMMS}
    assert measured(tmp_path) == dict.fromkeys(expected, 0.0)
    assert measured(tmp_path, "gemm_mean_error") == dict.fromkeys(expected, 0.0)
    cosines = measured(tmp_path, "gemm_cosine")
    assert cosines.keys() == expected
    assert all(value == pytest.approx(1, abs=1e-15) for value in cosines.values())


def test_full_sample_gives_the_exact_error(tmp_path):
    torch.manual_seed(4)
    layer = linear(32, 64, torch.bfloat16)
    x = torch.randn(48, 64, dtype=torch.bfloat16)
    with debug.session(measuring(["fprop"], samples=1 << 20), log_dir=tmp_path):
        out = train(layer, x, fp8=True, recipe=Float8CurrentScaling())
    exact = x.double() @ layer.weight.detach().double().T + layer.bias.detach().double()
    error = out.detach().double() - exact
    assert measured(tmp_path)[0, "fprop"] == pytest.approx((error.norm() / exact.norm()).item())
    mean = (error.mean() / exact.abs().mean()).item()
    assert measured(tmp_path, "gemm_mean_error")[0, "fprop"] == pytest.approx(mean)
    cosine = torch.nn.functional.cosine_similarity(
        out.detach().double().flatten(), exact.flatten(), dim=0
    )
    assert measured(tmp_path, "gemm_cosine")[0, "fprop"] == pytest.approx(cosine.item())


def test_fp8_error_matches_its_formats(tmp_path):
    torch.manual_seed(5)
    layer = linear(128, 256, torch.bfloat16)
    x = torch.randn(128, 256, dtype=torch.bfloat16).requires_grad_()
    with debug.session(measuring(), log_dir=tmp_path / "fp8"):
        train(layer, x, fp8=True, recipe=Float8CurrentScaling())
    with debug.session(measuring(), log_dir=tmp_path / "bf16"):
        train(layer, x)
    # Half a unit of the last place of each operand at most; E4M3 has 3 bits of mantissa, E5M2 2.
    bounds = {"fprop": 2 * 2**-4, "dgrad": 2**-3 + 2**-4, "wgrad": 2**-3 + 2**-4}
    for (_, gemm), error in measured(tmp_path / "fp8").items():
        assert 2**-7 < error < bounds[gemm], gemm
    assert all(0 < error < 2**-7 for error in measured(tmp_path / "bf16").values())
    assert all(0.98 < c < 1 for c in measured(tmp_path / "fp8", "gemm_cosine").values())


def test_forwards_before_their_backwards_do_not_mix(tmp_path):
    torch.manual_seed(6)
    layer = linear(32, 32)
    with torch.no_grad():
        layer.weight.copy_(integers(32, 32))
        layer.bias.zero_()
    inputs = [integers(32, 32, dtype=torch.float32).requires_grad_() for _ in range(3)]
    with debug.session(measuring(), log_dir=tmp_path):
        outputs = [layer(x) for x in inputs]
        for output in (outputs[1], outputs[0], outputs[2]):
            Backward.apply(output, integers(32, 32, dtype=torch.float32)).backward()
        debug.step()
    assert measured(tmp_path) == {(0, gemm): 0.0 for gemm in GEMMS}


def test_forward_without_backward_records_only_fprop(tmp_path):
    layer = linear(16, 16)
    with debug.session(measuring(freq=2), log_dir=tmp_path):
        for _ in range(3):
            with torch.no_grad():
                layer(torch.randn(16, 16))
            debug.step()
    assert set(measured(tmp_path)) == {(0, "fprop"), (2, "fprop")}


def test_gemms_have_separate_schedules_and_samples(tmp_path):
    layer = linear(16, 16)
    struct = [{"gemm": "fprop", "freq": 2}, {"gemm": "wgrad", "freq": 3, "samples": 4}]
    config = section({"GemmError": {"enabled": True, "gemms_struct": struct}}, namespace="telens")
    with debug.session(config, log_dir=tmp_path):
        train(layer, torch.randn(16, 16), steps=6)
    assert set(measured(tmp_path)) == {
        (0, "fprop"), (2, "fprop"), (4, "fprop"), (0, "wgrad"), (3, "wgrad"),
    }  # fmt: skip


def test_sample_repeats_without_torch_generator(tmp_path):
    results = []
    for name in ("first", "second", "unwatched"):
        torch.manual_seed(7)
        layer = linear(64, 64, torch.bfloat16)
        config = measuring(samples=9) if name != "unwatched" else {}
        with debug.session(config, log_dir=tmp_path / name):
            train(layer, torch.randn(64, 64, dtype=torch.bfloat16), steps=3)
        results.append(torch.rand(8))
    assert torch.equal(results[0], results[2])
    first, second = measured(tmp_path / "first"), measured(tmp_path / "second")
    assert first == second
    assert len(set(first.values())) == len(first)  # another sample in each iteration


def test_an_empty_input_records_nothing_and_nan_is_seen(tmp_path):
    layer = linear(16, 16)
    with debug.session(measuring(["fprop"], samples=1 << 10), log_dir=tmp_path):
        train(layer, torch.zeros(0, 16))
        train(layer, torch.full((16, 16), float("nan")))
    values = measured(tmp_path)
    assert list(values) == [(1, "fprop")]
    assert np.isnan(values[1, "fprop"])


@pytest.mark.parametrize("samples", [0, 1 << 21])
def test_a_number_of_samples_without_sense_is_an_error_at_load(tmp_path, samples):
    with pytest.raises(telens.ConfigError, match="'samples' must be from 1 to 1048576"):
        debug.initialize(measuring(samples=samples), log_dir=tmp_path)


def test_recomputed_forward_uses_its_own_operands(tmp_path):
    torch.manual_seed(8)
    layer = linear(32, 32)
    with torch.no_grad():
        layer.weight.copy_(integers(32, 32))
        layer.bias.zero_()
    x = integers(32, 32, dtype=torch.float32).requires_grad_()
    with debug.session(measuring(), log_dir=tmp_path):
        output = te.checkpoint(layer, x)
        Backward.apply(output, integers(32, 32, dtype=torch.float32)).backward()
        debug.step()
    assert measured(tmp_path) == {(0, gemm): 0.0 for gemm in GEMMS}
