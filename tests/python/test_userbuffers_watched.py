"""Overlaps in a debug session: a watched GEMM runs in one part, and no rank waits in vain."""

import pathlib

import torch
import torch.distributed as dist
from debug_helpers import config_of, section
from distributed_workers import run_ranks
from overlap_helpers import COLUMN, OVERLAPS, ROW, Counts, data_of, fill, linear, userbuffers
from parallel_helpers import region

import telens
import telens.debug as debug

LEDGER = section({"PrecisionLedger": {"enabled": True}}, namespace="telens")
NOTHING = section(
    {"PrecisionLedger": {"enabled": True}}, namespace="telens", layer_name_regex_pattern="nothing"
)
CHECK = config_of("CollectiveCheck", "telens", timeout=30, gradients=False)


def one_step(layer, precision, x, gradient) -> tuple[dict, Counts]:
    x = x.detach().requires_grad_()
    before = Counts.now()
    with region(precision, dist.group.WORLD):
        out = layer(x)
    out.backward(gradient)
    counts = Counts.now() - before
    grads = {name: each.grad for name, each in layer.named_parameters()}
    layer.zero_grad()
    return {"output": out.detach(), "dgrad": x.grad} | grads, counts


def layers_of(rank: int, folder: pathlib.Path):
    """Yields each overlap, and one with codes, with its name."""
    cases = [(name, "FP32") for name in OVERLAPS] + [("ring gather", "current")]
    for name, precision in cases:
        mode, switches, settings = OVERLAPS[name]
        with userbuffers(2, settings):
            layer = linear(
                mode, precision, ub_name=COLUMN if mode == "column" else ROW, name=name, **switches
            )
            fill(layer, precision, True, seed=rank)
            yield name, precision, layer, folder / f"{name}.{precision}".replace(" ", "_")


def watch(rank: int, folder: str) -> None:
    folder = pathlib.Path(folder)
    for name, precision, layer, log_dir in layers_of(rank, folder):
        x, gradient = data_of(layer, precision, 128, True, seed=rank)
        expected, alone = one_step(layer, precision, x, gradient)
        with debug.session(LEDGER, log_dir=log_dir):
            watched, counts = one_step(layer, precision, x, gradient)
            debug.step()
        # The second rank watches nothing; the first one nevertheless sends what the second waits
        # for.
        with debug.session(LEDGER if rank == 0 else NOTHING, log_dir=log_dir / "one"):
            on_one, _ = one_step(layer, precision, x, gradient)
            debug.step()
        with debug.session(CHECK, log_dir=log_dir / "check"):
            checked, _ = one_step(layer, precision, x, gradient)
            debug.step()
        for what, tensor in expected.items():
            for found in (watched, on_one, checked):
                assert torch.equal(found[what], tensor), (name, precision, what)
        assert counts.gemms == 3 < alone.gemms, (name, precision)
        assert (counts.messages, counts.sent) == (alone.messages, alone.sent), (name, precision)


def overlap_rows(run) -> dict[str, str]:
    rows = run.table("ledger")
    rows = rows[(rows["entry"] == "overlap") & (rows["rank"] == 0)]
    return dict(zip(rows["gemm"], rows["detail"], strict=True))


# Bytes of a rank's rows, or elements: 64 tokens with a batch of 4 and 64 features in FP32; those of
# both ranks are twice as many.
OWN, WHOLE = 64 * 4 * 64, 2 * 64 * 4 * 64
EXPECTED = {
    "ring_gather.FP32": {
        "fprop": f"ring_exchange: all-gather of the activation in 2 parts, not now: it is "
        f"watched; at first {4 * OWN} bytes sent",
        "dgrad": f"bulk: all-gather of the activation; at first {4 * OWN} bytes sent",
        "wgrad": f"bulk: reduce-scatter of dgrad; at first {4 * WHOLE} bytes sent",
    },
    "ring_gather.current": {
        "fprop": f"ring_exchange: all-gather of the activation in 2 parts, not now: it is "
        f"watched; at first {OWN} bytes sent",
        "dgrad": f"bulk: all-gather of the activation; at first {OWN} bytes sent",
        "wgrad": f"bulk: reduce-scatter of dgrad; at first {4 * WHOLE} bytes sent",
    },
    "pipelined_dgrad.FP32": {
        "dgrad": f"pipeline: reduce-scatter of dgrad in 3 parts, not now: it is watched; at "
        f"first {4 * WHOLE} bytes sent",
    },
    "pipeline.FP32": {
        "fprop": f"pipeline: reduce-scatter of the output in 4 parts, not now: it is "
        f"watched; at first {4 * WHOLE} bytes sent",
        "dgrad": f"ring_exchange: all-gather of the gradient in 2 parts, not now: it is "
        f"watched; at first {4 * OWN} bytes sent",
        "wgrad": f"external: all-gather of the gradient; at first {4 * OWN} bytes sent",
    },
    "ring_scatter.FP32": {
        "fprop": f"ring_exchange: reduce-scatter of the output in 2 parts, not now: it is "
        f"watched; at first {4 * OWN} bytes sent",
    },
}  # fmt: skip


def test_observed_gemm_runs_whole_with_same_bits(tmp_path):
    run_ranks(watch, str(tmp_path))
    for name, expected in EXPECTED.items():
        assert overlap_rows(telens.open_run(tmp_path / name)) == expected, name
    for name in EXPECTED:
        run = telens.open_run(tmp_path / name / "check")
        assert (run.records()["statistic"] == "collectives_wrong").any(), name
        assert not (run.events["kind"] == "collective_wrong").any(), name
