"""For the clients of model libraries: recipes, trainings, packed sequences, weight names."""

import re
from collections.abc import Callable

import torch
import transformer_engine.pytorch as te
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling, Format

STEPS = 6
RECIPES = {
    "fp32": None,
    "delayed": DelayedScaling(
        fp8_format=Format.HYBRID, amax_history_len=4, amax_compute_algo="max"
    ),
    "current": Float8CurrentScaling(fp8_format=Format.HYBRID),
}


def randomize(model: torch.nn.Module, scale: float = 0.1) -> torch.nn.Module:
    """Adds noise to all parameters. Norms are ones and biases zeros at first, which would hide
    swaps.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return model


def train(
    model: torch.nn.Module, loss_of: Callable[[torch.nn.Module], torch.Tensor], recipe: str
) -> list[float]:
    """Returns the loss of each step."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(STEPS):
        with te.fp8_autocast(enabled=RECIPES[recipe] is not None, fp8_recipe=RECIPES[recipe]):
            loss = loss_of(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def compare(
    reference: torch.nn.Module,
    models: dict[str, Callable[[], torch.nn.Module]],
    logits_of: Callable[[torch.nn.Module], torch.Tensor],
    labels: torch.Tensor,
) -> dict:
    """Trains the reference in FP32, and each model with each recipe.

    Each function of ``models`` builds a model with the weights of the reference. Labels of -100
    have no loss, as in transformers. Returns

    - ``losses``: {model: {recipe: losses}}, and ``reference``: the losses of the reference
    - ``differences``: {model: the largest difference of its logits before the training, in units
      of the RMS of the reference's logits}
    """

    def loss_of(model: torch.nn.Module) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits_of(model).flatten(0, -2), labels.flatten())

    differences, losses = {}, {}
    with torch.no_grad():
        expected = logits_of(reference)
    for name, build in models.items():
        with torch.no_grad():
            distance = (logits_of(build()) - expected)[labels != -100].abs().max()
        differences[name] = (distance / expected.square().mean().sqrt()).item()
        losses[name] = {recipe: train(build(), loss_of, recipe) for recipe in RECIPES}
    reference_losses = train(reference, loss_of, "fp32")
    return {"losses": losses, "reference": reference_losses, "differences": differences}


class Packing:
    """The tokens of padded sequences, one after another (format thd).

    ``mask`` [batch, seq] is 1 at tokens and 0 at padding.
    """

    def __init__(self, mask: torch.Tensor) -> None:
        lengths = mask.sum(dim=1, dtype=torch.int32)
        self.max_length = int(lengths.max())
        self.cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        self._shape = mask.shape
        self._tokens = mask.flatten().nonzero().flatten()

    def pack(self, padded: torch.Tensor) -> torch.Tensor:
        """[batch, seq, ...] to [tokens, ...]."""
        return padded.flatten(0, 1)[self._tokens]

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """[tokens, ...] to [batch, seq, ...], with zeros at padding."""
        padded = packed.new_zeros((self._shape.numel(), *packed.shape[1:]))
        return padded.index_copy(0, self._tokens, packed).unflatten(0, self._shape)


# Layers with the separate projections of fuse_qkv_params=False. The rows of fc1 are gate, then up.
_OF_DECODER = {
    "input_layernorm.weight": "self_attention.layernorm_qkv.layer_norm_weight",
    "self_attn.q_proj.weight": "self_attention.layernorm_qkv.query_weight",
    "self_attn.k_proj.weight": "self_attention.layernorm_qkv.key_weight",
    "self_attn.v_proj.weight": "self_attention.layernorm_qkv.value_weight",
    "self_attn.o_proj.weight": "self_attention.proj.weight",
    "post_attention_layernorm.weight": "layernorm_mlp.layer_norm_weight",
    "mlp.down_proj.weight": "layernorm_mlp.fc2_weight",
}


def decoder_weights(source: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the weights of a Hugging Face decoder by te.TransformerLayer's names."""
    found = {}
    for name, weight in source.items():
        layer = re.match(r"model\.layers\.\d+\.", name)
        if layer is None:
            found[name] = weight
            continue
        prefix, part = layer.group(), name.removeprefix(layer.group())
        if part == "mlp.gate_proj.weight":
            joined = torch.cat([weight, source[f"{prefix}mlp.up_proj.weight"]])
            found[f"{prefix}layernorm_mlp.fc1_weight"] = joined
        elif part != "mlp.up_proj.weight":
            found[prefix + _OF_DECODER[part]] = weight
    return found


def load(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Loads weights, which must be all parameters of the model."""
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    assert all(name.endswith("_extra_state") for name in missing), missing
