"""Faults of a training program: in its optimizer, checkpoints, data or GEMMs."""

from __future__ import annotations

import torch
from faults import (
    DELAYED,
    IN_BLOCKS,
    Fault,
    Truth,
    change_gradient,
    change_input,
    from_step,
    in_step,
    module_of,
    scale_slot,
    watched_name,
    weight_of,
    with_element,
)
from training import RECIPES, Training

from telens.common.recipe import DelayedScaling, Format
from telens.debug import Registry, TEConfigAPIMapper, api_method

# ------------------------------------------------------------------ the optimizer


def rate_one(training: Training, layer: str, at: int) -> Truth:
    """Sets the learning rate to 1 from the first step on, as if a schedule's factor were used as
    the rate."""
    training.rate_factor = 1 / training.options.learning_rate
    return Truth(("weight_jump",), None, None, 1)


def rate_tenth(training: Training, layer: str, at: int) -> Truth:
    training.rate_factor = 0.2 / training.options.learning_rate
    return Truth(("weight_jump",), None, None, 1)


def without_gradient(training: Training, layer: str, at: int) -> None:
    """Hides the gradient of a weight from the optimizer."""

    def drop(t: Training) -> None:
        if t.step >= at:
            weight_of(t, layer).grad = None

    training.before_update.append(drop)


def step_missing(training: Training, layer: str, at: int) -> Truth:
    without_gradient(training, layer, at)
    return Truth(("frozen_weight",), watched_name(layer), "weight", at)


def never_optimized(training: Training, layer: str, at: int) -> Truth:
    without_gradient(training, layer, 0)
    return Truth(("frozen_weight",), watched_name(layer), "weight", 0)


def large_steps(training: Training, layer: str, at: int) -> Truth:
    """Multiplies the step of one weight by 30, as a separate parameter group could."""
    before: list[torch.Tensor] = []

    def keep(t: Training) -> None:
        before[:] = [weight_of(t, layer).detach().clone()]

    @torch.no_grad()
    def extend(t: Training) -> None:
        if t.step >= at:
            weight_of(t, layer).add_(29 * (weight_of(t, layer) - before[0]))

    training.before_update.append(keep)
    training.after_update.append(extend)
    return Truth(("weight_jump",), watched_name(layer), "weight", at + 1)


# ------------------------------------------------------------------ weights


def zero_at_start(training: Training, layer: str, at: int) -> Truth:
    weight_of(training, layer).detach().zero_()
    return Truth(("weight_initialization",), watched_name(layer), "weight", 0)


def weight_anew(training: Training, layer: str, at: int) -> Truth:
    """Initializes a weight again, as if it were missing in a checkpoint."""

    @torch.no_grad()
    def initialize() -> None:
        torch.nn.init.kaiming_uniform_(weight_of(training, layer))

    in_step(training, at, initialize)
    return Truth(("weight_jump", "weight_initialization"), watched_name(layer), "weight", at)


def bias_drifts(training: Training, layer: str, at: int) -> Truth:
    @torch.no_grad()
    def push() -> None:
        module_of(training, layer).bias.add_(0.1)

    from_step(training, at, push)
    return Truth(("drifting_mean",), layer, "output", at)


# ------------------------------------------------------------------ values


def inf_in_activation(training: Training, layer: str, at: int) -> Truth:
    change_input(training, layer, at, lambda x: with_element(x, float("-inf")))
    return Truth(("nonfinite",), watched_name(layer), "activation", at)


def nan_once(training: Training, layer: str, at: int) -> Truth:
    """Puts a NaN into the input in one iteration, whose optimizer step is skipped."""
    change_input(
        training,
        layer,
        at,
        lambda x: with_element(x, float("nan")) if training.step == at else x,
    )

    def skip(t: Training) -> None:
        if t.step == at:
            t.optimizer.zero_grad()

    training.before_update.append(skip)
    return Truth(("nonfinite",), watched_name(layer), "activation", at)


def activation_vanishes(training: Training, layer: str, at: int) -> Truth:
    change_input(training, layer, at, lambda x: x * 1e-3)
    causes = ("collapsed_activation", "dead_gain")
    return Truth(causes, watched_name(layer), "activation", at)


def vanishes_slowly(training: Training, layer: str, at: int) -> Truth:
    change_gradient(training, layer, at, lambda g: g * 0.5 ** (training.step - at + 1))
    name = layer.replace("layernorm_mlp", "layernorm_mlp.fc2")
    return Truth(("vanishing_gradients",), name, "gradient", at)


def explodes_slowly(training: Training, layer: str, at: int) -> Truth:
    change_gradient(training, layer, at, lambda g: g * 2.0 ** (training.step - at + 1))
    name = layer.replace("layernorm_mlp", "layernorm_mlp.fc2")
    return Truth(("exploding_gradients",), name, "gradient", at)


# ------------------------------------------------------------------ scales and formats


def scale_lost_once(training: Training, layer: str, at: int) -> Truth:
    """Sets the scale to 1, as a resume does that loads the amax history but not the scale."""
    in_step(training, at, scale_slot(training, layer, lambda s: 1.0))
    return Truth(("wrong_scale",), watched_name(layer), "activation", at)


def scales_swapped(training: Training, layer: str, at: int) -> Truth:
    """Swaps the scales of activation and weight."""

    @torch.no_grad()
    def swap() -> None:
        state = module_of(training, layer).fp8_meta["scaling_fwd"]
        scale = state.scale.clone()
        scale[0], scale[1] = state.scale[1], state.scale[0]
        state.scale = scale

    from_step(training, at, swap)
    return Truth(("wrong_scale",), watched_name(layer), None, at)


def gradient_scale_frozen(training: Training, layer: str, at: int) -> Truth:
    """The gradient also grows; otherwise the fault would have no effect."""
    kept: list[torch.Tensor] = []

    @torch.no_grad()
    def freeze() -> None:
        state = module_of(training, layer).fp8_meta["scaling_bwd"]
        if not kept:
            kept.append(state.scale.clone())
        state.scale = kept[0]

    from_step(training, at, freeze)
    change_gradient(training, layer, at, lambda g: g * 1.3 ** (training.step - at + 1))
    return Truth(("stale_scale",), layer, "gradient", at)


def gradients_in_e4m3(training: Training, layer: str, at: int) -> Truth:
    training.recipe = lambda: DelayedScaling(
        fp8_format=Format.E4M3, amax_history_len=16, amax_compute_algo="max"
    )
    return Truth(("wrong_format",), None, "gradient", 0)


def bf16_throughout(training: Training, layer: str, at: int) -> Truth:
    """Switches the recipe off in the middle of the training."""

    def leave() -> None:
        training.recipe = RECIPES["bf16"]

    in_step(training, at, leave)
    return Truth(("gemm_precision",), None, None, at)


# ------------------------------------------------------------------ products


@Registry.register_feature(namespace="telens")
class WrongOperand(TEConfigAPIMapper):
    """Replaces an operand of a GEMM by its transpose, by rows shifted by one, or by a multiple."""

    @api_method
    def modify_tensor_enabled(self, config, layer_name, gemm, tensor_name, iteration):
        return iteration >= config["first"], iteration + 1

    @api_method
    def modify_tensor(self, config, layer_name, *, tensor, default_quantizer, tensor_name, **_):
        change = config["change"] if tensor_name == config["operand"] else "none"
        changed = {
            "none": lambda: tensor,
            "transposed": lambda: tensor.t().contiguous(),
            "moved": lambda: tensor.roll(16, -1),
            "factor": lambda: tensor * 2,
        }[change]()
        return default_quantizer(changed) if default_quantizer is not None else changed


def wrong_operand(gemm: str, operand: str, change: str):
    def plant(training: Training, layer: str, at: int) -> Truth:
        other = {"fprop": "activation", "dgrad": "gradient", "wgrad": "gradient"}[gemm]
        training.sections["wrong_operand"] = {
            "enabled": True,
            "layers": {"layer_name_regex_pattern": f"^{layer}$".replace(".", "[.]")},
            "telens": {
                "WrongOperand": {
                    "enabled": True,
                    "gemms": [gemm],
                    "tensors": [operand, other],
                    "first": at,
                    "change": change,
                    "operand": operand,
                }
            },
        }
        return Truth(("gemm_error",), layer, None, at)

    return plant


def weight_cached(training: Training, layer: str, at: int) -> Truth:
    """Keeps the quantized weight of one iteration, as a wrong is_first_microbatch does."""
    module = module_of(training, layer)
    forward = module.forward

    def with_cache(*arguments, **named):
        if training.step >= at:
            named["is_first_microbatch"] = training.step == at
        return forward(*arguments, **named)

    module.forward = with_cache
    return Truth(("gemm_error",), layer, None, at)


PROJ = ("layers.1.self_attention.proj", "layers.0.self_attention.proj")
PROGRAM_FAULTS = (
    Fault("rate_one", rate_one),
    Fault("rate_tenth", rate_tenth),
    Fault("step_missing", step_missing),
    Fault("never_optimized", never_optimized),
    Fault("large_steps", large_steps),
    Fault("zero_at_start", zero_at_start, layers=IN_BLOCKS),
    Fault("weight_anew", weight_anew),
    Fault("bias_drifts", bias_drifts, layers=PROJ),
    Fault("inf_in_activation", inf_in_activation),
    Fault("nan_once", nan_once),
    Fault("activation_vanishes", activation_vanishes, layers=(*PROJ, "head")),
    Fault("vanishes_slowly", vanishes_slowly, layers=IN_BLOCKS),
    Fault("explodes_slowly", explodes_slowly, layers=IN_BLOCKS),
    Fault("scale_lost_once", scale_lost_once, DELAYED),
    Fault("scales_swapped", scales_swapped, DELAYED, layers=(*PROJ, "head")),
    Fault("gradient_scale_frozen", gradient_scale_frozen, DELAYED, layers=PROJ),
    Fault("gradients_in_e4m3", gradients_in_e4m3, ("delayed",)),
    Fault("bf16_throughout", bf16_throughout),
    Fault("operand_transposed", wrong_operand("dgrad", "weight", "transposed"), layers=PROJ),
    Fault("operand_moved", wrong_operand("fprop", "weight", "moved"), layers=(*PROJ, "head")),
    Fault("weight_cached", weight_cached, layers=(*PROJ, "head")),
    Fault("operand_doubled", wrong_operand("wgrad", "activation", "factor"), layers=PROJ),
)
