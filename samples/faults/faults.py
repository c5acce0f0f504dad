"""Faults that are planted in a training from outside, and the expected diagnosis of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from training import Training

import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Format

DELAYED = ("delayed", "delayed_recent")
FP8 = (*DELAYED, "current", "mxfp8")


@dataclasses.dataclass(frozen=True)
class Truth:
    """The expected finding: one of several causes, its place and its first iteration.

    ``layer`` and ``tensor`` are None if the finding may be about any.
    """

    causes: tuple[str, ...]  # any of them is right
    layer: str | None
    tensor: str | tuple[str, ...] | None  # any of these is right
    first: int


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault that can be planted in a training.

    ``plant(training, layer, at)`` plants it in a layer from iteration ``at`` on and returns the
    expected diagnosis.
    """

    name: str
    plant: Callable[[Training, str, int], Truth]
    recipes: tuple[str, ...] = FP8
    layers: tuple[str, ...] = ("layers.1.self_attention.proj", "layers.0.layernorm_mlp", "head")
    model: str = "gpt"


def module_of(training: Training, layer: str) -> torch.nn.Module:
    return training.model.get_submodule(layer)


def watched_name(layer: str) -> str:
    """Returns the name of the layer whose GEMM uses the module's input."""
    return {"layernorm_mlp": f"{layer}.fc1"}.get(layer.rpartition(".")[2], layer)


def change_input(training: Training, layer: str, at: int, change: Callable) -> None:
    """Changes a module's input, starting at an iteration."""

    def hook(module, inputs):
        if training.step < at:
            return None
        return (change(inputs[0]), *inputs[1:])

    module_of(training, layer).register_forward_pre_hook(hook)


def change_gradient(training: Training, layer: str, at: int, change: Callable) -> None:
    """Changes the gradient of a module's output, starting at an iteration."""

    def hook(module, inputs, output):
        first = output[0] if isinstance(output, tuple) else output
        if training.step >= at and first.requires_grad:
            first.register_hook(change)

    module_of(training, layer).register_forward_hook(hook)


def weight_name(layer: str) -> str:
    return "fc1_weight" if layer.endswith("layernorm_mlp") else "weight"


def weight_of(training: Training, layer: str) -> torch.nn.Parameter:
    return getattr(module_of(training, layer), weight_name(layer))


def in_step(training: Training, at: int, do: Callable[[], None]) -> None:
    """Calls ``do`` before the forward of a single iteration."""
    training.before_step.append(lambda t: do() if t.step == at else None)


def from_step(training: Training, at: int, do: Callable[[], None]) -> None:
    training.before_step.append(lambda t: do() if t.step >= at else None)


def with_element(tensor: torch.Tensor, value: float) -> torch.Tensor:
    changed = tensor.clone()
    changed.view(-1)[changed.numel() // 3] = value
    return changed


# ------------------------------------------------------------------ values


def nan_in_activation(training: Training, layer: str, at: int) -> Truth:
    change_input(training, layer, at, lambda x: with_element(x, float("nan")))
    return Truth(("nonfinite",), watched_name(layer), "activation", at)


def inf_in_weight(training: Training, layer: str, at: int) -> Truth:
    @torch.no_grad()
    def damage() -> None:
        weight_of(training, layer)[1, 1] = float("inf")

    in_step(training, at, damage)
    return Truth(("nonfinite",), watched_name(layer), "weight", at)


def nan_in_gradient(training: Training, layer: str, at: int) -> Truth:
    change_gradient(training, layer, at, lambda g: with_element(g, float("nan")))
    name = layer.replace("layernorm_mlp", "layernorm_mlp.fc2")
    return Truth(("nonfinite",), name, "gradient", at)


def outlier_channel(training: Training, layer: str, at: int) -> Truth:
    def change(x: torch.Tensor) -> torch.Tensor:
        changed = x.clone()
        changed[..., 3] += 300 * x.detach().float().square().mean().sqrt()
        return changed

    change_input(training, layer, at, change)
    return Truth(("outliers", "activation_jump"), watched_name(layer), "activation", at)


def constant_activation(training: Training, layer: str, at: int) -> Truth:
    change_input(training, layer, at, lambda x: x * 0 + 0.5)
    return Truth(("collapsed_activation",), watched_name(layer), "activation", at)


def dead_gain(training: Training, layer: str, at: int) -> Truth:
    @torch.no_grad()
    def kill() -> None:
        module_of(training, layer).layer_norm_weight.mul_(0.01)

    in_step(training, at, kill)
    causes = ("dead_gain", "collapsed_activation")
    return Truth(causes, watched_name(layer), "activation", at)


def large_logits(training: Training, layer: str, at: int) -> Truth:
    change_input(training, layer, at, lambda x: x * 40)
    return Truth(("activation_jump",), watched_name(layer), "activation", at)


# ------------------------------------------------------------------ scales


def scale_slot(training: Training, layer: str, change: Callable) -> Callable[[], None]:
    """Writes the scale with which the next iteration casts the input."""

    @torch.no_grad()
    def write() -> None:
        state = module_of(training, layer).fp8_meta["scaling_fwd"]
        scale = state.scale.clone()
        scale[0] = change(scale[0])
        state.scale = scale

    return write


def scale_inverted(training: Training, layer: str, at: int) -> Truth:
    from_step(training, at, scale_slot(training, layer, lambda s: 1 / s))
    return Truth(("wrong_scale",), watched_name(layer), "activation", at)


def scale_lost(training: Training, layer: str, at: int) -> Truth:
    from_step(training, at, scale_slot(training, layer, lambda s: 1.0))
    return Truth(("wrong_scale",), watched_name(layer), "activation", at)


def scale_twice(training: Training, layer: str, at: int) -> Truth:
    from_step(training, at, scale_slot(training, layer, lambda s: s * s))
    return Truth(("wrong_scale",), watched_name(layer), "activation", at)


def scale_frozen(training: Training, layer: str, at: int) -> Truth:
    """Freezes the scales of input and weight. The input also grows; otherwise the fault would have
    no effect."""
    kept: list[torch.Tensor] = []

    @torch.no_grad()
    def freeze() -> None:
        state = module_of(training, layer).fp8_meta["scaling_fwd"]
        if not kept:
            kept.append(state.scale.clone())
        state.scale = kept[0]

    from_step(training, at, freeze)
    change_input(training, layer, at, lambda x: x * 1.15 ** (training.step - at + 1))
    return Truth(("stale_scale",), watched_name(layer), ("activation", "weight"), at)


def wide_margin(training: Training, layer: str, at: int) -> Truth:
    training.recipe = lambda: DelayedScaling(margin=8, amax_history_len=16, amax_compute_algo="max")
    return Truth(("wrong_margin",), None, None, 0)


def history_lost(training: Training, layer: str, at: int) -> Truth:
    in_step(training, at, lambda: training.resume(with_histories=False))
    return Truth(("history_lost",), None, None, at)


def growing_input(training: Training, layer: str, at: int) -> Truth:
    change_input(training, layer, at, lambda x: x * 1.6 ** min(training.step - at + 1, 15))
    causes = ("overflow", "activation_jump")
    return Truth(causes, watched_name(layer), "activation", at)


# ------------------------------------------------------------------ precision


def high_precision(training: Training, layer: str, at: int) -> Truth:
    module = module_of(training, layer)
    forward = module.forward

    def without_fp8(*arguments, **named):
        with te.autocast(enabled=training.step < at, recipe=training.recipe()):
            return forward(*arguments, **named)

    module.forward = without_fp8
    return Truth(("gemm_precision",), watched_name(layer), None, at)


def other_format(training: Training, layer: str, at: int) -> Truth:
    module = module_of(training, layer)
    forward = module.forward

    def in_e4m3(*arguments, **named):
        recipe = training.recipe()
        if training.step >= at:
            recipe = DelayedScaling(
                fp8_format=Format.E4M3, amax_history_len=16, amax_compute_algo="max"
            )
        with te.autocast(recipe=recipe):
            return forward(*arguments, **named)

    module.forward = in_e4m3
    name = layer.replace("layernorm_mlp", "layernorm_mlp.fc2")
    return Truth(("wrong_format",), None if name != layer else name, "gradient", at)


# ------------------------------------------------------------------ weights and updates


def learning_rate(training: Training, layer: str, at: int) -> Truth:
    def set_rate(t: Training) -> None:
        t.rate_factor = 100.0 if t.step == at else 1.0

    training.before_step.append(set_rate)
    return Truth(("weight_jump",), None, None, at + 1)


def weight_scaled(training: Training, layer: str, at: int) -> Truth:
    @torch.no_grad()
    def scale() -> None:
        weight_of(training, layer).mul_(4)

    in_step(training, at, scale)
    return Truth(("weight_jump",), watched_name(layer), "weight", at)


def not_initialized(training: Training, layer: str, at: int) -> Truth:
    with torch.no_grad():
        weight_of(training, layer).normal_(0, 1.5)
    return Truth(("weight_initialization",), watched_name(layer), "weight", 0)


def duplicated(training: Training, layer: str, at: int) -> Truth:
    other = (
        layer.replace("layers.1", "layers.0")
        if "layers.1" in layer
        else layer.replace("layers.0", "layers.2")
    )

    @torch.no_grad()
    def copy() -> None:
        weight_of(training, layer).copy_(weight_of(training, other))

    in_step(training, at, copy)
    return Truth(("duplicate_weights",), None, "weight", at)


# ------------------------------------------------------------------ gradients and loss


def exploding(training: Training, layer: str, at: int) -> Truth:
    change_gradient(training, layer, at, lambda g: g * 200)
    name = layer.replace("layernorm_mlp", "layernorm_mlp.fc2")
    return Truth(("exploding_gradients",), name, "gradient", at)


def vanishing(training: Training, layer: str, at: int) -> Truth:
    change_gradient(training, layer, at, lambda g: g * 1e-4)
    name = layer.replace("layernorm_mlp", "layernorm_mlp.fc2")
    return Truth(("vanishing_gradients",), name, "gradient", at)


def loss_scale(training: Training, layer: str, at: int) -> Truth:
    def set_factor(t: Training) -> None:
        t.loss_factor = 2.0**14 if t.step >= at else 1.0

    training.before_step.append(set_factor)
    return Truth(("loss_scale",), None, None, at)


def strange_data(training: Training, layer: str, at: int) -> Truth:
    def change(t: Training, batch):
        inputs, targets = batch
        if t.step == at:
            targets = torch.full_like(targets, 255)
        return inputs, targets

    training.change_batch = change
    return Truth(("loss_spike",), None, None, at)


IN_BLOCKS = ("layers.1.self_attention.proj", "layers.0.layernorm_mlp", "layers.1.layernorm_mlp")
NORMED = (
    "layers.1.layernorm_mlp",
    "layers.0.layernorm_mlp",
    "layers.1.self_attention.layernorm_qkv",
)
FAULTS = (
    Fault("nan_in_activation", nan_in_activation),
    Fault("inf_in_weight", inf_in_weight),
    Fault("nan_in_gradient", nan_in_gradient, layers=IN_BLOCKS),
    Fault("outlier_channel", outlier_channel, layers=("layers.1.self_attention.proj", "head")),
    Fault(
        "constant_activation", constant_activation, layers=("layers.1.self_attention.proj", "head")
    ),
    Fault("dead_gain", dead_gain, layers=NORMED[:2]),
    Fault("large_logits", large_logits, layers=("layers.1.self_attention.proj", "head")),
    Fault("scale_inverted", scale_inverted, DELAYED),
    Fault("scale_lost", scale_lost, DELAYED),
    Fault("scale_twice", scale_twice, DELAYED),
    Fault("scale_frozen", scale_frozen, DELAYED, layers=("layers.1.self_attention.proj", "head")),
    Fault("wide_margin", wide_margin, ("delayed",)),
    Fault("history_lost", history_lost, DELAYED),
    Fault("growing_input", growing_input, DELAYED, layers=("layers.1.self_attention.proj", "head")),
    Fault("high_precision", high_precision, layers=IN_BLOCKS),
    Fault("other_format", other_format, ("delayed",), layers=IN_BLOCKS),
    Fault("learning_rate", learning_rate),
    Fault("weight_scaled", weight_scaled),
    Fault("not_initialized", not_initialized, layers=IN_BLOCKS),
    Fault("duplicated", duplicated, layers=IN_BLOCKS),
    Fault("exploding", exploding, layers=IN_BLOCKS),
    Fault("vanishing", vanishing, layers=IN_BLOCKS),
    Fault("loss_scale", loss_scale),
    Fault("strange_data", strange_data),
)
