"""With activation recomputation each tensor is logged once, as without it."""

import pytest
import torch
import torch.utils.checkpoint
from debug_helpers import logging_of

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling

TENSORS = ["activation", "weight", "gradient", "output", "wgrad", "dgrad"]
LAYERS = {"block.fc1", "block.fc2", "fc"}
CALLS = {
    "none": lambda model, x: model(x),
    "ours": te.checkpoint,
    "torch's with our context_fn": lambda model, x: torch.utils.checkpoint.checkpoint(
        model, x, use_reentrant=False, context_fn=te.checkpoint_context_fn
    ),
}
STEPS, MICRO_BATCHES, ROWS = 2, 2, 16


def records_of(log_dir, call, fp8: bool) -> list[tuple]:
    """Everything that a training logs, in an order that does not depend on the order of the
    calls.
    """
    torch.manual_seed(1)
    model = torch.nn.Sequential(te.LayerNormMLP(32, 64, name="block"), te.Linear(32, 32, name="fc"))
    config = logging_of(TENSORS, ["numel", "min", "mean", "l2_norm"])
    with debug.session(config, log_dir=log_dir):
        for _ in range(STEPS):
            for _ in range(MICRO_BATCHES):
                x = torch.randn(ROWS, 32, requires_grad=True)
                with te.autocast(enabled=fp8, recipe=DelayedScaling(amax_history_len=4)):
                    out = call(model, x)
                out.square().mean().backward()
            debug.step()
    records = telens.open_run(log_dir).records()
    columns = ["iteration", "layer", "tensor", "statistic", "value"]
    return sorted(records[columns].astype({"layer": str}).itertuples(index=False, name=None))


@pytest.mark.parametrize("fp8", [False, True], ids=["high precision", "fp8"])
@pytest.mark.parametrize("name", [name for name in CALLS if name != "none"])
def test_recomputation_logs_each_tensor_once_with_the_same_values(tmp_path, name, fp8):
    plain = records_of(tmp_path / "plain", CALLS["none"], fp8)
    recomputed = records_of(tmp_path / "recomputed", CALLS[name], fp8)
    sizes = {(i, layer, t): v for i, layer, t, statistic, v in plain if statistic == "numel"}
    assert set(sizes) == {(i, layer, t) for i in range(STEPS) for layer in LAYERS for t in TENSORS}
    assert sizes[0, "fc", "activation"] == MICRO_BATCHES * ROWS * 32
    assert len(recomputed) == len(plain)
    assert recomputed == plain
