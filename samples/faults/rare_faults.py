"""Faults that are rarer, or visible later, than those in faults.py."""

from __future__ import annotations

import torch
from faults import (
    DELAYED,
    IN_BLOCKS,
    NORMED,
    Fault,
    Truth,
    change_gradient,
    change_input,
    from_step,
    in_step,
    module_of,
    watched_name,
    weight_of,
    with_element,
)
from training import Training

from telens.common.recipe import DelayedScaling, Float8CurrentScaling, Format

# ------------------------------------------------------------------ values


def query_scaled(training: Training, layer: str, at: int) -> Truth:
    """Attention logits explode."""

    @torch.no_grad()
    def scale() -> None:
        for name, parameter in module_of(training, layer).named_parameters():
            if name in ("weight", "query_weight"):
                parameter[: max(1, parameter.size(0) // 3)].mul_(25)
                return
        raise KeyError(name)

    in_step(training, at, scale)
    name = layer.replace("layernorm_qkv", "layernorm_linear_qkv")
    return Truth(("weight_jump",), name, "weight", at)


def gain_decays(training: Training, layer: str, at: int) -> Truth:
    @torch.no_grad()
    def decay() -> None:
        module_of(training, layer).layer_norm_weight.mul_(0.85)

    from_step(training, at, decay)
    return Truth(("dead_gain",), watched_name(layer), "activation", at)


def gain_zero(training: Training, layer: str, at: int) -> Truth:
    @torch.no_grad()
    def kill() -> None:
        module_of(training, layer).layer_norm_weight.zero_()

    from_step(training, at, kill)
    return Truth(("dead_gain", "collapsed_activation"), watched_name(layer), "activation", at)


def mean_drifts(training: Training, layer: str, at: int) -> Truth:
    def shift(x: torch.Tensor) -> torch.Tensor:
        return x + 0.4 * (training.step - at + 1) * x.detach().std()

    change_input(training, layer, at, shift)
    return Truth(("drifting_mean",), watched_name(layer), "activation", at)


def units_die(training: Training, layer: str, at: int) -> Truth:
    @torch.no_grad()
    def kill() -> None:
        bias = module_of(training, layer).fc1_bias
        bias[: bias.numel() * 2 // 3] = -100

    from_step(training, at, kill)
    return Truth(("dead_units",), f"{layer}.fc2", "activation", at)


def relu_dies(training: Training, layer: str, at: int) -> Truth:
    @torch.no_grad()
    def kill() -> None:
        bias = module_of(training, "layers.0").bias
        bias[: bias.numel() * 2 // 3] = -100

    from_step(training, at, kill)
    return Truth(("dead_units",), "layers.1", "activation", at)


def outlier_token(training: Training, layer: str, at: int) -> Truth:
    def change(x: torch.Tensor) -> torch.Tensor:
        changed = x.clone()
        changed[5] *= 200
        return changed

    change_input(training, layer, at, change)
    return Truth(("outliers", "activation_jump"), watched_name(layer), "activation", at)


def grows_everywhere(training: Training, layer: str, at: int) -> Truth:
    """Grows in every recipe. growing_input grows faster than delayed scaling can follow."""
    change_input(training, layer, at, lambda x: x * 1.5 ** min(training.step - at + 1, 14))
    causes = ("activation_jump", "overflow")
    return Truth(causes, watched_name(layer), "activation", at)


# ------------------------------------------------------------------ scales


def other_scale(name: str, slot: int, factor: float):
    def write_from(training: Training, layer: str, at: int) -> Truth:
        @torch.no_grad()
        def write() -> None:
            state = module_of(training, layer).fp8_meta[name]
            scale = state.scale.clone()
            scale[slot] = scale[slot] * factor
            state.scale = scale

        from_step(training, at, write)
        tensor = "gradient" if name == "scaling_bwd" else ("activation", "weight")[slot]
        return Truth(("wrong_scale",), layer, tensor, at)

    return write_from


def margin_later(training: Training, layer: str, at: int) -> Truth:
    def set_recipe(t: Training) -> None:
        margin = 6 if t.step >= at else 0
        t.recipe = lambda: DelayedScaling(
            margin=margin, amax_history_len=16, amax_compute_algo="max"
        )

    training.before_step.append(set_recipe)
    # The scale of an iteration is computed at the end of the previous one.
    return Truth(("wrong_margin", "wrong_scale"), None, None, at)


def recipe_swapped(training: Training, layer: str, at: int) -> Truth:
    def set_recipe(t: Training) -> None:
        if t.step == at:
            t.recipe = lambda: DelayedScaling(
                fp8_format=Format.E4M3, amax_history_len=16, amax_compute_algo="max"
            )

    training.before_step.append(set_recipe)
    return Truth(("wrong_format",), None, "gradient", at)


def block_recipe_swapped(training: Training, layer: str, at: int) -> Truth:
    def set_recipe(t: Training) -> None:
        if t.step == at:
            t.recipe = Float8CurrentScaling

    training.before_step.append(set_recipe)
    return Truth(("wrong_format",), None, None, at)


# ------------------------------------------------------------------ weights and updates


def rate_ten_times(training: Training, layer: str, at: int) -> Truth:
    training.before_step.append(lambda t: setattr(t, "rate_factor", 10.0 if t.step >= at else 1.0))
    return Truth(("weight_jump",), None, None, at + 1)


def rate_for_good(training: Training, layer: str, at: int) -> Truth:
    training.before_step.append(lambda t: setattr(t, "rate_factor", 100.0 if t.step >= at else 1.0))
    return Truth(("weight_jump",), None, None, at + 1)


def bit_flip(training: Training, layer: str, at: int) -> Truth:
    @torch.no_grad()
    def flip() -> None:
        weight_of(training, layer)[3, 5] = 500

    in_step(training, at, flip)
    return Truth(("outliers", "weight_jump"), watched_name(layer), "weight", at)


def weight_zero(training: Training, layer: str, at: int) -> Truth:
    in_step(training, at, lambda: weight_of(training, layer).detach().zero_())
    return Truth(("weight_jump",), watched_name(layer), "weight", at)


def weight_constant(training: Training, layer: str, at: int) -> Truth:
    with torch.no_grad():
        weight_of(training, layer).fill_(0.02)
    return Truth(("weight_initialization",), watched_name(layer), "weight", 0)


def oscillates(training: Training, layer: str, at: int) -> Truth:
    @torch.no_grad()
    def push() -> None:
        sign = 1 if training.step % 2 else -1
        weight_of(training, layer).add_(0.004 * sign * (1 if training.step == at else 2))

    from_step(training, at, push)
    return Truth(("oscillating_weights",), watched_name(layer), "weight", at)


def nan_in_weight_gradient(training: Training, layer: str, at: int) -> Truth:
    def hook(gradient: torch.Tensor) -> torch.Tensor:
        return with_element(gradient, float("nan")) if training.step == at else gradient

    weight_of(training, layer).register_hook(hook)
    return Truth(("nonfinite",), watched_name(layer), "weight", at + 1)


# ------------------------------------------------------------------ gradients and loss


def gradient_cut(training: Training, layer: str, at: int) -> Truth:
    change_gradient(training, layer, at, lambda g: g * 0)
    name = layer.replace("layernorm_mlp", "layernorm_mlp.fc2")
    return Truth(("vanishing_gradients",), name, "gradient", at)


def gradient_outlier(training: Training, layer: str, at: int) -> Truth:
    def change(g: torch.Tensor) -> torch.Tensor:
        return with_element(g, 3000 * g.float().square().mean().sqrt().item())

    change_gradient(training, layer, at, change)
    name = layer.replace("layernorm_mlp", "layernorm_mlp.fc2")
    return Truth(("outliers", "exploding_gradients"), name, "gradient", at)


def exploding_little(training: Training, layer: str, at: int) -> Truth:
    change_gradient(training, layer, at, lambda g: g * 16)
    name = layer.replace("layernorm_mlp", "layernorm_mlp.fc2")
    return Truth(("exploding_gradients",), name, "gradient", at)


def small_loss_scale(training: Training, layer: str, at: int) -> Truth:
    training.before_step.append(
        lambda t: setattr(t, "loss_factor", 2.0**-10 if t.step >= at else 1.0)
    )
    return Truth(("loss_scale",), None, None, at)


def infinite_loss(training: Training, layer: str, at: int) -> Truth:
    training.before_step.append(
        lambda t: setattr(t, "loss_factor", float("inf") if t.step == at else 1.0)
    )
    return Truth(("nonfinite",), "head", "gradient", at)


def random_tokens(training: Training, layer: str, at: int) -> Truth:
    def change(t: Training, batch):
        inputs, targets = batch
        if t.step == at:
            targets = torch.randint_like(targets, 256)
        return inputs, targets

    training.change_batch = change
    return Truth(("loss_spike",), None, None, at)


QKV = ("layers.0.self_attention.layernorm_qkv", "layers.1.self_attention.layernorm_qkv")
MLP = ("layers.0.layernorm_mlp", "layers.1.layernorm_mlp")
PLAIN = ("layers.1.self_attention.proj", "head")
RARE_FAULTS = (
    Fault("query_scaled", query_scaled, layers=QKV),
    Fault("gain_decays", gain_decays, layers=NORMED[:2]),
    Fault("gain_zero", gain_zero, layers=NORMED[:2]),
    Fault("mean_drifts", mean_drifts, layers=PLAIN),
    Fault("units_die", units_die, layers=MLP),
    Fault("relu_dies", relu_dies, layers=("layers.1",), model="regression"),
    Fault("outlier_token", outlier_token, layers=PLAIN),
    Fault("grows_everywhere", grows_everywhere, layers=PLAIN),
    Fault("scale_eighth", other_scale("scaling_fwd", 0, 1 / 8), DELAYED, layers=PLAIN),
    Fault("scale_of_weight", other_scale("scaling_fwd", 1, 4), DELAYED, layers=PLAIN),
    Fault("scale_of_gradient", other_scale("scaling_bwd", 0, 16), DELAYED, layers=PLAIN),
    Fault("margin_later", margin_later, ("delayed",)),
    Fault("recipe_swapped", recipe_swapped, ("delayed",)),
    Fault("block_recipe_swapped", block_recipe_swapped, ("mxfp8",)),
    Fault("rate_ten_times", rate_ten_times),
    Fault("rate_for_good", rate_for_good),
    Fault("bit_flip", bit_flip),
    Fault("weight_zero", weight_zero),
    Fault("weight_constant", weight_constant),
    Fault("oscillates", oscillates),
    Fault("nan_in_weight_gradient", nan_in_weight_gradient, layers=PLAIN),
    Fault("gradient_cut", gradient_cut, layers=IN_BLOCKS),
    Fault("gradient_outlier", gradient_outlier, layers=IN_BLOCKS),
    Fault("exploding_little", exploding_little, layers=IN_BLOCKS),
    Fault("small_loss_scale", small_loss_scale),
    Fault("infinite_loss", infinite_loss),
    Fault("random_tokens", random_tokens),
)
