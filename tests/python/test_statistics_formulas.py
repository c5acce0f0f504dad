"""Statistics that other tools have as well, against their formulas in torch and NumPy."""

import math

import numpy as np
import pytest
import torch
from debug_helpers import Scalars, logging_of

import telens.debug as debug
import telens.pytorch as te


def rms(x: torch.Tensor) -> float:
    return x.double().square().mean().sqrt().item()


def share_of_zeros(x: torch.Tensor) -> float:
    return 100 * float(np.mean(x.float().numpy() == 0))


def kurtosis(x: torch.Tensor) -> float:
    """scipy.stats.kurtosis(x, fisher=False), but NaN if all elements are equal."""
    distance = x.double() - x.double().mean()
    return (distance.pow(4).mean() / distance.square().mean().square()).item()


FORMULAS = {"rms": rms, "zeros%": share_of_zeros, "kurtosis": kurtosis}


def logged(tmp_path, *batches: torch.Tensor) -> dict[str, float]:
    """The statistics of a layer's input, over all micro-batches of one iteration."""
    scalars = Scalars()
    config = logging_of(["activation"], list(FORMULAS))
    layer = te.Linear(16, 16, name="fc", params_dtype=batches[0].dtype)
    with debug.session(config, statistics_logger=scalars, log_dir=tmp_path):
        for x in batches:
            layer(x.requires_grad_())
        debug.step()
    prefix = "fc_activation_"
    return {name.removeprefix(prefix): value for name, value, _ in scalars.rows}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_match_the_formula(tmp_path, dtype):
    torch.manual_seed(3)
    x = torch.randn(64, 16).relu().add(0).to(dtype)
    values = logged(tmp_path, x)
    for name, formula in FORMULAS.items():
        assert values[name] == pytest.approx(formula(x.detach()), rel=1e-5), name


def test_shifted_micro_batches_match_the_whole(tmp_path):
    torch.manual_seed(4)
    parts = [torch.randn(8 * (i + 1), 16) + 1000 * i for i in range(3)]
    parts[0][0] = 0
    values = logged(tmp_path, *parts)
    whole = torch.cat([part.detach() for part in parts])
    for name, formula in FORMULAS.items():
        assert values[name] == pytest.approx(formula(whole), rel=1e-5), name


@pytest.mark.parametrize("value", [0.0, -0.0, 3.0, math.inf, -math.inf, math.nan, 1e-40])
def test_a_constant_has_the_value_of_the_formula(tmp_path, value):
    x = torch.full((8, 16), value)
    values = logged(tmp_path, x)
    for name, formula in FORMULAS.items():
        assert values[name] == pytest.approx(formula(x.detach()), rel=1e-5, nan_ok=True), name


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_one_element_that_is_not_finite_counts_as_in_the_formula(tmp_path, bad):
    x = torch.ones(8, 16)
    x[3, 5] = bad
    x[4] = 0
    values = logged(tmp_path, x)
    for name, formula in FORMULAS.items():
        assert values[name] == pytest.approx(formula(x.detach()), rel=1e-5, nan_ok=True), name


def test_empty_tensor_has_missing_values(tmp_path):
    assert logged(tmp_path, torch.empty(0, 16)) == {}


@pytest.mark.parametrize("mean", [0, 100, 1e4, 1e6])
def test_kurtosis_is_accurate_with_a_large_mean(tmp_path, mean):
    """At a mean of 1e6 a sum of x^4 would have no digit of the result: the deviations are 2^-20 of
    the mean, and their fourth powers 2^-80.
    """
    torch.manual_seed(5)
    parts = [torch.randn(64, 16).pow(3) + mean for _ in range(3)]
    values = logged(tmp_path, *parts)
    whole = torch.cat([part.detach() for part in parts])
    assert values["kurtosis"] == pytest.approx(kurtosis(whole), rel=1e-8)
