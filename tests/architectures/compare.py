"""Trains a model with and without telens.watch and compares the results.

The plain training has forward hooks that do not use TELens. They count the calls of each module and
the elements of its output, and compute the amax of its tensors. The watched training does not have
these hooks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

import telens

STEPS = 2
EXACT = 3  # number of layers of each kind whose amaxes are compared, in all steps

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d,
                 nn.ConvTranspose3d)  # fmt: skip
_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_LINEAR = ["activation", "weight", "output", "gradient", "dgrad", "wgrad"]
_ATTENTION = ["query", "key", "value", "attention_output"]
_TENSORS = [*_LINEAR, *_ATTENTION, *(f"{name}_gradient" for name in _ATTENTION)]
CONFIG = {
    "all": {
        "enabled": True,
        "layers": {"layer_types": ["all"]},
        "transformer_engine": {
            "LogTensorStats": {
                "enabled": True,
                "stats": ["cur_amax", "numel"],
                "freq": 1,
                "tensors": _TENSORS,
            }
        },
    }
}


def kind_of(module: nn.Module) -> str | None:
    """Returns linear, embedding, convolution or norm; None for other modules."""
    name = type(module).__name__
    if isinstance(module, nn.Linear) or name == "Conv1D":
        return "linear"
    if isinstance(module, nn.Embedding):
        return "embedding"
    if isinstance(module, _CONVOLUTIONS):
        return "convolution"
    weighted = isinstance(getattr(module, "weight", None), torch.Tensor)
    own = name.endswith(("RMSNorm", "LayerNorm")) and weighted and not [*module.children()]
    return "norm" if isinstance(module, _NORMS) or own else None


def float_tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yields the floating-point tensors in nested results."""
    if isinstance(values, torch.Tensor):
        if values.is_floating_point():
            yield values
    elif isinstance(values, (list, tuple)):
        for each in values:
            yield from float_tensors(each)
    elif isinstance(values, dict):
        for each in values.values():
            yield from float_tensors(each)


def amax(tensor: torch.Tensor) -> float:
    return tensor.detach().abs().max().item() if tensor.numel() else 0.0


@dataclass
class Seen:
    """The calls, elements and amaxes of one module in one step, as the hooks count them."""

    kind: str
    calls: int = 0
    numel: int = 0
    amaxes: dict[str, float] = field(default_factory=dict)

    def note(self, tensor_name: str, tensor: torch.Tensor) -> None:
        self.amaxes[tensor_name] = max(self.amaxes.get(tensor_name, 0.0), amax(tensor))


class HookCount:
    """Installs forward hooks on all modules, and wraps scaled_dot_product_attention."""

    def __init__(self, model: nn.Module) -> None:
        self.step = 0
        self.seen: dict[tuple[str, int], Seen] = {}
        self._names = {module: name for name, module in model.named_modules()}
        self._running: list[nn.Module] = []
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        for name, module in model.named_modules():
            kind = kind_of(module)
            if kind is not None:
                hook = self._hook(name or type(module).__name__, kind)
                self._handles.append(module.register_forward_hook(hook))
        self._attention = nn.functional.scaled_dot_product_attention
        nn.functional.scaled_dot_product_attention = self._attend

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        nn.functional.scaled_dot_product_attention = self._attention

    def at(self, name: str, kind: str) -> Seen:
        return self.seen.setdefault((name, self.step), Seen(kind))

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._running.append(module)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._running.pop()

    def _hook(self, name: str, kind: str) -> Callable:
        def hook(module: nn.Module, args: Any, outputs: Any) -> None:
            seen = self.at(name, kind)
            output = next(float_tensors(outputs))
            seen.calls += 1
            seen.numel += output.numel()
            for each in [*float_tensors(args)][:1]:
                seen.note("activation", each)
            seen.note("output", output)
            if isinstance(getattr(module, "weight", None), torch.Tensor):
                seen.note("weight", module.weight)
            if output.requires_grad:
                output.register_hook(lambda gradient: seen.note("gradient", gradient))

        return hook

    def _attend(self, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        output = self._attention(query, key, value, *args, **kwargs)
        name = ".".join(filter(None, [self._names[self._running[-1]], "core_attention"]))
        seen = self.at(name, "attention")
        seen.calls += 1
        seen.numel += output.numel()
        for tensor_name, tensor in zip(_ATTENTION, (query, key, value, output), strict=True):
            seen.note(tensor_name, tensor)
        if output.requires_grad:
            name = "attention_output_gradient"
            output.register_hook(lambda gradient: seen.note(name, gradient))
        return output


@dataclass
class Training:
    """The losses, and the gradients and parameters after each step."""

    losses: list[float] = field(default_factory=list)
    tensors: list[torch.Tensor | None] = field(default_factory=list)

    def difference(self, other: Training) -> str | None:
        if self.losses != other.losses:
            return f"losses {self.losses} and {other.losses}"
        for one, two in zip(self.tensors, other.tensors, strict=True):
            if (one is None) != (two is None) or (one is not None and not same_bits(one, two)):
                return "a gradient, parameter or buffer"
        return None


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.is_floating_point() and one.dtype in (torch.float32, torch.float64):
        integer = torch.int32 if one.dtype == torch.float32 else torch.int64
        return torch.equal(one.contiguous().view(integer), other.contiguous().view(integer))
    return torch.equal(one, other)


def train(
    model: nn.Module,
    inputs: Callable[[nn.Module, torch.Generator], dict[str, Any]],
    on_step: Callable[[int], None] = lambda step: None,
) -> Training:
    """Trains for STEPS steps. The loss is the mean square of all outputs."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    result = Training()
    for step in range(STEPS):
        on_step(step)
        torch.manual_seed(step)  # of dropout
        outputs = [*float_tensors(model(**inputs(model, generator)))]
        parts = [each.float().square().mean() for each in outputs if each.requires_grad]
        if not parts:
            raise RuntimeError("no output needs a gradient")
        loss = torch.stack(parts).sum()
        loss.backward()
        result.losses.append(loss.item())
        result.tensors += [None if p.grad is None else p.grad.clone() for p in trained]
        optimizer.step()
        result.tensors += [each.detach().clone() for each in (*trained, *model.buffers())]
        optimizer.zero_grad()
    return result


def recorded(folder: str, statistic: str) -> dict[tuple[str, str, int], float]:
    rows = telens.open_run(folder).records(statistic=statistic)
    return {(row.layer, row.tensor, row.iteration): row.value for row in rows.itertuples()}


def missing_rows(folder: str, seen: dict[tuple[str, int], Seen]) -> str | None:
    """Returns the first difference between the recorded rows and the hooks' counts, or None."""
    numel = recorded(folder, "numel")
    amaxes = recorded(folder, "cur_amax")
    for (layer, step), module in seen.items():
        output = "attention_output" if module.kind == "attention" else "output"
        if numel.get((layer, output, step)) != module.numel:
            return (
                f"{layer} ({module.kind}), step {step}: {module.calls} calls with {module.numel} "
                f"elements, and {numel.get((layer, output, step))} recorded"
            )
    exact: dict[str, set[str]] = {}  # kind -> layers
    for (layer, step), module in seen.items():
        layers = exact.setdefault(module.kind, set())
        if layer not in layers and len(layers) == EXACT:
            continue
        layers.add(layer)
        for tensor_name, value in module.amaxes.items():
            found = amaxes.get((layer, tensor_name, step))
            if found != value and not (found != found and value != value):
                return f"{layer}, {tensor_name}, step {step}: amax {value}, recorded {found}"
    watched = {layer for layer, _, _ in numel}
    more = watched - {layer for layer, _ in seen}
    return f"recorded without a call: {sorted(more)}" if more else None


def check(
    build: Callable[[], nn.Module],
    inputs: Callable[[nn.Module, torch.Generator], dict[str, Any]],
) -> dict[str, int]:
    """Compares a plain and a watched training of two equal models.

    Returns the numbers of modules and calls by kind. Raises AssertionError with the first
    difference.
    """
    plain = build()
    count = HookCount(plain)
    try:
        expected = train(plain, inputs, lambda step: setattr(count, "step", step))
    finally:
        count.remove()
    with tempfile.TemporaryDirectory() as folder:
        watched = build()
        with telens.watch(watched, CONFIG, folder, every=1):
            found = train(watched, inputs)
        difference = expected.difference(found)
        if difference is not None and train(build(), inputs).difference(expected) is not None:
            raise RuntimeError("the training itself is not deterministic")
        assert difference is None, f"the watched training differs: {difference}"
        difference = missing_rows(folder, count.seen)
    assert difference is None, difference
    kinds: dict[str, int] = {}
    for (_, step), module in count.seen.items():
        if step == 0:
            kinds[module.kind] = kinds.get(module.kind, 0) + 1
            kinds["calls"] = kinds.get("calls", 0) + module.calls
    return kinds
