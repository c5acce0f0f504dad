"""For tests of debug sessions: configurations, loggers, a layer that is trained."""

from __future__ import annotations

import pathlib

import torch

import telens.debug as debug
import telens.pytorch as te


def section(features: dict, namespace: str | None = "transformer_engine", **layers) -> dict:
    """A configuration of one section, which is for all layers unless ``layers`` is given."""
    return {
        "section": {
            "enabled": True,
            "layers": layers or {"layer_types": "all"},
            **({namespace: features} if namespace else features),
        }
    }


def config_of(feature: str, namespace: str = "transformer_engine", **keys) -> dict:
    """A configuration of one feature, for all layers."""
    return section({feature: {"enabled": True, **keys}}, namespace=namespace)


def logging_of(tensors, stats, feature: str = "LogTensorStats", **keys) -> dict:
    """A configuration that logs statistics of all layers."""
    return section({feature: {"enabled": True, "tensors": tensors, "stats": stats, **keys}})


class Scalars(debug.BaseLogger):
    """A logger that keeps the values that it gets."""

    def __init__(self):
        self.rows = []

    def log_scalar(self, name, value, iteration, **kwargs):
        self.rows.append((name, value, iteration))

    def values(self, name: str) -> dict[int, float]:
        """By iteration."""
        return {step: value for known, value, step in self.rows if known == name}

    def names(self) -> set[str]:
        return {name for name, _, _ in self.rows}


def stopping() -> dict:
    """A configuration that stops the run at the first output that is not finite."""
    trigger = {"enabled": True, "when": "nonfinite of output > 0", "stop": True}
    return section({"Trigger": trigger}, namespace="telens")


def mean_square(out: torch.Tensor) -> torch.Tensor:
    return out.square().mean()


def train(layer, x: torch.Tensor, steps: int = 1, fp8: bool = False, loss=mean_square, **region):
    """Runs ``steps`` iterations; returns the last output."""
    for _ in range(steps):
        with te.autocast(enabled=fp8, **region):
            out = layer(x)
        loss(out).backward()
        debug.step()
    return out


def statistics_log(log_dir: pathlib.Path, rank: int = 0) -> str:
    """Returns the text log of statistics."""
    name = f"nvdlfw_inspect_globalrank-{rank}.log"
    return (log_dir / "nvdlfw_inspect_statistics_logs" / name).read_text()


def message_log(log_dir: pathlib.Path, rank: int = 0) -> str:
    """Returns the text log of messages."""
    name = f"nvdlfw_inspect_globalrank-{rank}.log"
    return (log_dir / "nvdlfw_inspect_logs" / name).read_text()


class Backward(torch.autograd.Function):
    """Sums the output. Its backward gives the layer `gradient` instead of ones."""

    @staticmethod
    def forward(ctx, output, gradient):
        ctx.save_for_backward(gradient)
        return output.sum()

    @staticmethod
    def backward(ctx, _):
        return ctx.saved_tensors[0], None
