"""telens diagnose on gains, losses and weights that are wrong from the start."""

import math

import pytest
from recorded_training import LAYERS, STEPS, where

HIDDEN = 64


def put_norm(training, layer, gain, output, mean=None, deviation=0.0):
    """A norm of 64 channels in all steps; its gain changes slowly."""
    for step in range(STEPS):
        drift = 1 + 1e-4 * step
        values = training.values
        values[step, layer, "weight", "l2_norm"] = gain * drift * math.sqrt(HIDDEN)
        values[step, layer, "weight", "numel"] = HIDDEN
        values[step, layer, "weight", "mean"] = (gain if mean is None else mean) * drift
        values[step, layer, "weight", "std"] = deviation + 1e-4 * step
        for tensor, rms in (("activation", 1.7), ("output", output)):
            values[step, layer, tensor, "l2_norm"] = rms * math.sqrt(4096)
            values[step, layer, tensor, "numel"] = 4096
            values[step, layer, tensor, "mean"] = 0.0
            values[step, layer, tensor, "std"] = rms


@pytest.mark.parametrize(
    ("gain", "output", "mean", "deviation", "found"),
    [
        (1.0, 1.0, None, 0.0, False),
        (1.0, 2.0, None, 0.0, True),  # adds one to weights of one
        (0.05, 1.0, 0.001, 0.05, False),  # adds one to weights around zero
        (0.05, 0.05, 0.001, 0.05, True),  # does not
        (0.2, 0.2, 0.19, 0.06, False),  # small gains of a trained model
    ],
)
def test_gains_have_to_fit_their_norm(findings, training, gain, output, mean, deviation, found):
    put_norm(training, "layers.0.input_layernorm", gain, output, mean, deviation)
    expected = [("weight_initialization", "layers.0.input_layernorm", "weight", 0)]
    assert [where(each) for each in findings(training)] == (expected if found else [])


CLASSES, ROWS = 256, 512


def put_head(training, ratio, passes=4):
    """A head whose first gradient is `ratio` times the gradient of a mean cross entropy."""
    tokens = ROWS * passes
    divisor = tokens / ratio
    for step in range(STEPS):
        learned = 1 if step == 0 else 0.8
        values = training.values
        values[step, "head", "weight", "numel"] = CLASSES * HIDDEN
        values[step, "head", "weight", "l2_norm"] = 0.02 * math.sqrt(CLASSES * HIDDEN)
        values[step, "head", "wgrad", "numel"] = CLASSES * HIDDEN * passes
        values[step, "head", "activation", "numel"] = tokens * HIDDEN
        values[step, "head", "activation", "l2_norm"] = math.sqrt(tokens * HIDDEN)
        values[step, "head", "output", "numel"] = tokens * CLASSES
        values[step, "head", "output", "std"] = 0.2
        values[step, "head", "output", "l2_norm"] = 0.2 * math.sqrt(tokens * CLASSES)
        values[step, "head", "gradient", "numel"] = tokens * CLASSES
        norm = learned * math.sqrt(tokens * (1 - 1 / CLASSES)) / divisor
        values[step, "head", "gradient", "l2_norm"] = norm
        values[step, "head", "gradient", "min"] = -(1 - 1 / CLASSES) / divisor
        values[step, "head", "gradient", "max"] = 1.4 / CLASSES / divisor
        values[step, "head", "gradient", "mean"] = 1e-9 * norm


@pytest.mark.parametrize(
    ("ratio", "found"), [(1, False), (4, True), (1 / 4, True), (1 / 256, True), (1.5, False)]
)
def test_first_gradient_of_logits_matches_a_mean_loss(findings, training, ratio, found):
    put_head(training, ratio)
    expected = [("loss_scale", "head", "gradient", 0)]
    assert [where(each) for each in findings(training)] == (expected if found else [])


def test_summed_loss_with_a_single_batch_is_silent(findings, training):
    put_head(training, ratio=ROWS, passes=1)
    assert findings(training) == []


def put_experts(training, shares, first=0):
    for step in range(STEPS):
        for expert, share in enumerate(shares):
            even = 1 / len(shares)
            part = share if step >= first else even
            layer = f"layers.0.mlp.experts.{expert}.up_proj"
            training.values[step, layer, "activation", "numel"] = round(part * 512) * HIDDEN
            training.values[step, layer, "activation", "nonfinite"] = 0


@pytest.mark.parametrize(
    ("shares", "found"),
    [
        ((0.25, 0.25, 0.25, 0.25), False),
        ((0.5, 0.3, 0.1, 0.1), False),
        ((0.8, 0.1, 0.05, 0.05), True),
    ],
)
def test_an_expert_that_takes_most_tokens_is_found(findings, training, shares, found):
    put_experts(training, shares, first=8)
    expected = [("expert_imbalance", "layers.0.mlp.experts.0.up_proj", "activation", 8)]
    assert [where(each) for each in findings(training)] == (expected if found else [])


def test_experts_that_lead_in_turn_are_not_reported(findings, training):
    put_experts(training, [1 / 4] * 4)
    for step in range(STEPS):
        for expert in range(4):
            layer = f"layers.0.mlp.experts.{expert}.up_proj"
            tokens = 416 if expert == step % 4 else 32
            training.values[step, layer, "activation", "numel"] = tokens * HIDDEN
    assert findings(training) == []


def test_a_kind_that_begins_far_larger_is_found(findings, training):
    for step in range(STEPS):
        for kind in ("q_proj", "up_proj", "down_proj"):
            for block in range(3):
                size = 0.1 * (30 if kind == "q_proj" else 1)
                training.put(step, f"blocks.{block}.{kind}", "weight", size * (1 + 1e-4 * step))
                training.put(step, f"blocks.{block}.{kind}", "activation", 1.0)
    found = findings(training)
    assert where(found[0]) == ("weight_initialization", "blocks.0.q_proj", "weight", 0)


def test_embeddings_and_gains_are_not_compared_with_products(findings, training):
    put_norm(training, "norm", 1.0, 1.0, deviation=0.01)
    for step in range(STEPS):
        training.put(step, "embed_tokens", "weight", 3.0 * (1 + 1e-4 * step))  # no input
    assert LAYERS
    assert findings(training) == []


@pytest.mark.parametrize("records_inputs_of", [("1", "3", "5"), ("0", "1", "3", "5")])
def test_an_embedding_in_a_sequential_keeps_its_size(findings, training, records_inputs_of):
    """torch initializes embeddings with a deviation of 1, and linear weights with far less."""
    sizes = {"0": 1.0, "1": 0.1, "3": 0.1, "5": 0.1}
    for step in range(STEPS):
        for layer, size in sizes.items():
            training.put(step, layer, "weight", size * (1 + 1e-4 * step))
            if layer in records_inputs_of:
                training.put(step, layer, "activation", 1.0)
    found = [where(each) for each in findings(training)]
    is_linear = "0" in records_inputs_of
    assert found == ([("weight_initialization", "0", "weight", 0)] if is_linear else [])
