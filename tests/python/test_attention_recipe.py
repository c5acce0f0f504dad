"""NVTE_DPA_FP8_RECIPE and similar variables give attention another recipe than the autocast's."""

import pytest
import torch

import telens
import telens.pytorch as te
from telens.common.recipe import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    Format,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)

VARIABLES = ("RECIPE", "FORMAT")
OF_DELAYED = ("AMAX_ALGO", "AMAX_HISTLEN", "REDUCE_AMAX")
# In the sixth step the largest amaxes leave a history of two steps.
HEADS, SIZE, STEPS = 2, 16, 6


@pytest.fixture(autouse=True)
def without_variables(monkeypatch):
    for name in (
        *(f"NVTE_DPA_FP8_{name}" for name in VARIABLES),
        *(f"NVTE_DPA_FP8DS_{name}" for name in OF_DELAYED),
        "NVTE_FP8_DPA_BWD",
        "NVTE_DPA_FP8CS_O_in_F16",
    ):
        monkeypatch.delenv(name, raising=False)


def steps(recipe):
    """Returns outputs and gradients of some steps, whose amaxes fall and rise."""
    attention = te.DotProductAttention(HEADS, SIZE, qkv_format="bshd")
    found = []
    for number in range(STEPS):
        torch.manual_seed(number)
        tensors = [
            (torch.randn(2, 12, HEADS, SIZE) * 2.0 ** (number % 3)).bfloat16().requires_grad_()
            for _ in range(3)
        ]
        with te.autocast(enabled=recipe is not None, recipe=recipe):
            out = attention(*tensors)
        out.float().square().sum().backward()
        found += [out.detach(), *(t.grad for t in tensors)]
    return found


def same(one, other):
    return all(map(torch.equal, one, other))


MAX = {"AMAX_ALGO": "max", "AMAX_HISTLEN": "2", "REDUCE_AMAX": "0"}
LAST = {"amax_history_len": 1, "amax_compute_algo": "most_recent"}
# The autocast's recipe, the variables, and the recipe that gives the same bits.
CASES = {
    "delayed for current": (
        Float8CurrentScaling(fp8_dpa=True), "DelayedScaling", {},
        DelayedScaling(fp8_dpa=True, **LAST),
    ),
    "delayed with its options": (
        Float8CurrentScaling(fp8_dpa=True, fp8_format=Format.E4M3), "DelayedScaling", MAX,
        DelayedScaling(fp8_dpa=True, fp8_format=Format.E4M3, amax_history_len=2,
                       amax_compute_algo="max"),
    ),
    "delayed as it is": (
        DelayedScaling(fp8_dpa=True, amax_history_len=3), "DelayedScaling", MAX,
        DelayedScaling(fp8_dpa=True, amax_history_len=3),
    ),
    "current for delayed": (
        DelayedScaling(fp8_dpa=True), "Float8CurrentScaling", {},
        Float8CurrentScaling(fp8_dpa=True),
    ),
    "delayed for blocks": (
        MXFP8BlockScaling(fp8_dpa=True), "DelayedScaling", MAX,
        DelayedScaling(fp8_dpa=True, fp8_format=Format.E4M3, amax_history_len=2,
                       amax_compute_algo="max"),
    ),
    "blocks for current": (
        Float8CurrentScaling(fp8_dpa=True), "MXFP8BlockScaling", {},
        MXFP8BlockScaling(fp8_dpa=True, fp8_format=Format.HYBRID),
    ),
    "high precision": (DelayedScaling(fp8_dpa=True), "F16", {}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_attention_has_the_bits_of_the_recipe_that_the_variable_names(name, monkeypatch):
    recipe, value, options, expected = CASES[name]
    expected = steps(expected)
    assert name == "delayed as it is" or not same(steps(recipe), expected)
    monkeypatch.setenv("NVTE_DPA_FP8_RECIPE", value)
    for option, text in options.items():
        monkeypatch.setenv(f"NVTE_DPA_FP8DS_{option}", text)
    assert same(steps(recipe), expected)


@pytest.mark.parametrize(
    ("make", "form", "expected"),
    [
        (Float8BlockScaling, "HYBRID", Format.E4M3),  # the recipe's own
        (NVFP4BlockScaling, "HYBRID", Format.HYBRID),
        (NVFP4BlockScaling, "E4M3", Format.E4M3),
    ],
)
def test_a_recipe_of_block_scales_may_have_another_for_attention(make, form, expected, monkeypatch):
    with pytest.raises(telens.UsageError, match="or set NVTE_DPA_FP8_RECIPE"):
        make(fp8_dpa=True)
    monkeypatch.setenv("NVTE_DPA_FP8_RECIPE", "DelayedScaling")
    monkeypatch.setenv("NVTE_DPA_FP8_FORMAT", form)
    recipe = make(fp8_dpa=True)
    assert same(steps(recipe), steps(DelayedScaling(fp8_dpa=True, fp8_format=expected, **LAST)))
    monkeypatch.setenv("NVTE_DPA_FP8_RECIPE", "MXFP8BlockScaling")
    assert same(steps(recipe), steps(MXFP8BlockScaling(fp8_dpa=True, fp8_format=expected)))
    monkeypatch.setenv("NVTE_DPA_FP8_RECIPE", "")
    with pytest.raises(telens.UsageError, match="needs NVTE_DPA_FP8_RECIPE=DelayedScaling"):
        steps(recipe)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("NVTE_DPA_FP8_RECIPE", "Delayed", "expected one of .*F16, DelayedScaling"),
        ("NVTE_DPA_FP8_RECIPE", "NVFP4BlockScaling", "expected one of .*F16, .*MXFP8BlockScaling"),
        ("NVTE_DPA_FP8DS_AMAX_ALGO", "mean", "expected one of most_recent, max"),
        ("NVTE_DPA_FP8DS_AMAX_HISTLEN", "0", "expected a whole number from 1 on"),
        ("NVTE_DPA_FP8DS_AMAX_HISTLEN", "3x", "expected a whole number from 1 on"),
        ("NVTE_DPA_FP8DS_REDUCE_AMAX", "yes", "expected one of 0, 1"),
        ("NVTE_FP8_DPA_BWD", "no", "expected one of 0, 1"),
        ("NVTE_DPA_FP8CS_O_in_F16", "yes", "expected one of 0, 1"),
    ],
)
def test_another_value_is_an_error_that_names_the_variable(variable, value, message, monkeypatch):
    monkeypatch.setenv("NVTE_DPA_FP8_RECIPE", "DelayedScaling")
    monkeypatch.setenv(variable, value)
    with pytest.raises(telens.UsageError, match=f"{variable}={value}.*{message}"):
        steps(Float8CurrentScaling(fp8_dpa=True))


@pytest.mark.parametrize(
    "recipe",
    [
        DelayedScaling(fp8_dpa=True),
        Float8CurrentScaling(fp8_dpa=True),
        MXFP8BlockScaling(fp8_dpa=True),
    ],
)
def test_a_backward_may_be_in_high_precision(recipe, monkeypatch):
    forward = steps(recipe)
    plain = steps(None)
    monkeypatch.setenv("NVTE_FP8_DPA_BWD", "0")
    attention = te.DotProductAttention(HEADS, SIZE, qkv_format="bshd")
    torch.manual_seed(0)
    tensors = [torch.randn(2, 12, HEADS, SIZE).bfloat16().requires_grad_() for _ in range(3)]
    with te.autocast(recipe=recipe):
        out = attention(*tensors)
    assert torch.equal(out, forward[0])
    # The gradient of the other output, so that high precision gets the same one.
    out.backward((2 * plain[0].float()).bfloat16())
    assert same([t.grad for t in tensors], plain[1:4])
    dropping = te.DotProductAttention(HEADS, SIZE, qkv_format="bshd", attention_dropout=0.1)
    refused = pytest.raises(telens.UsageError, match="NVTE_FP8_DPA_BWD=0 does not go with")
    with te.autocast(recipe=recipe), refused:
        dropping(*tensors)
