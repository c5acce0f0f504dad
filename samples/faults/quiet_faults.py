"""Faults that do not break a training: it only learns less than it could."""

from __future__ import annotations

import torch
from faults import IN_BLOCKS, NORMED, Fault, Truth, from_step, module_of, watched_name
from training import Training


def detached_output(training: Training, layer: str, at: int) -> Truth:
    """Removes the gradient of a layer, as a forgotten detach() does."""

    def hook(module, inputs, output):
        if training.step < at:
            return None
        if isinstance(output, tuple):
            return tuple(each if each is None else each.detach() for each in output)
        return output.detach()

    module_of(training, layer).register_forward_hook(hook)
    name = layer.replace("layernorm_mlp", "layernorm_mlp.fc2")
    return Truth(("detached_layer",), name, "gradient", at)


def detached_from_start(training: Training, layer: str, at: int) -> Truth:
    return detached_output(training, layer, 0)


def gain_with_weight_decay(training: Training, layer: str, at: int) -> Truth:
    """Applies a weight decay to a norm's gain that is stronger than its gradients, from step 0
    on."""

    @torch.no_grad()
    def decay() -> None:
        module_of(training, layer).layer_norm_weight.mul_(0.97)

    from_step(training, 1, decay)
    return Truth(("dead_gain",), watched_name(layer), "activation", 1)


def loss_times_eight(training: Training, layer: str, at: int) -> Truth:
    training.before_step.append(lambda t: setattr(t, "loss_factor", 8.0 if t.step >= at else 1.0))
    return Truth(("loss_scale",), None, None, at)


QUIET_FAULTS = (
    Fault("detached_output", detached_output, layers=IN_BLOCKS),
    Fault("detached_from_start", detached_from_start, layers=IN_BLOCKS),
    Fault("gain_with_weight_decay", gain_with_weight_decay, layers=NORMED[:2]),
    Fault("loss_times_eight", loss_times_eight),
)
