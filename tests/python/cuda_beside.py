"""Layers on a GPU and on the CPU with the same weights, inputs and recipe, and how far the two
devices may differ.
"""

import functools
from collections.abc import Callable

import pytest
import torch
from cuda_helpers import DEVICE

import telens.pytorch as te
from telens.common import recipe as recipes

needs_gpu = pytest.mark.skipif(
    DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a GPU"
)

E4M3 = te.DType.kFloat8E4M3
WIDTH, HIDDEN, HEADS, TOKENS, BATCH = 128, 256, 4, 32, 2


class Clipped(te.Float8CurrentScalingQuantizer):
    """A quantizer class in Python. It clips first, so its codes differ from those of its base
    class.
    """

    def quantize(self, tensor):
        return super().quantize(tensor.clamp(-2, 2))


def in_python(role):
    return Clipped(E4M3) if role.tensor_type == "input" else te.Float8CurrentScalingQuantizer(E4M3)


def blocks_of_weights_and_inputs(role):
    if role.tensor_type.startswith("grad"):
        return recipes.IdentityQuantizer()
    dimensions = 2 if role.tensor_type == "weight" else 1
    return te.Float8BlockQuantizer(E4M3, block_scaling_dim=dimensions)


# Stochastic rounding would draw other random numbers on each device.
NVFP4 = {"disable_stochastic_rounding": True}
PLAIN_NVFP4 = {"disable_rht": True, **NVFP4}
RECIPES: dict[str, Callable] = {
    "delayed": lambda: recipes.DelayedScaling(amax_history_len=4),
    "current": recipes.Float8CurrentScaling,
    "current, E4M3": lambda: recipes.Float8CurrentScaling(fp8_format=recipes.Format.E4M3),
    "MXFP8": recipes.MXFP8BlockScaling,
    "MXFP8 in squares": lambda: recipes.MXFP8BlockScaling(enable_2d_quantization=True),
    "128-blocks": recipes.Float8BlockScaling,
    "128-blocks, any scale": lambda: recipes.Float8BlockScaling(use_f32_scales=True),
    "NVFP4": lambda: recipes.NVFP4BlockScaling(**NVFP4),
    "NVFP4, no transform": lambda: recipes.NVFP4BlockScaling(**PLAIN_NVFP4),
    "NVFP4, scales of rows": lambda: recipes.NVFP4BlockScaling(
        row_scaled_activation=True, **PLAIN_NVFP4
    ),
    "NVFP4, four over six": lambda: recipes.NVFP4BlockScaling(nvfp4_4over6="all", **PLAIN_NVFP4),
    "custom": lambda: recipes.CustomRecipe(qfactory=blocks_of_weights_and_inputs),
    "custom, in Python": lambda: recipes.CustomRecipe(qfactory=in_python),
}


def draw(weight: torch.Tensor) -> None:
    """The numbers for every device are drawn on the CPU."""
    with torch.no_grad():
        weight.copy_(torch.randn(weight.shape) * 0.1)


def linear(**options):
    return te.Linear(WIDTH, HIDDEN, init_method=draw, **options)


def norm_linear(**options):
    return te.LayerNormLinear(WIDTH, HIDDEN, init_method=draw, **options)


def mlp(**options):
    return te.LayerNormMLP(
        WIDTH, HIDDEN, init_method=draw, output_layer_init_method=draw, **options
    )


def attention(**options):
    return te.MultiheadAttention(
        WIDTH, HEADS, attention_dropout=0, input_layernorm=True, init_method=draw,
        output_layer_init_method=draw, **options,
    )  # fmt: skip


def transformer_layer(**options):
    return te.TransformerLayer(
        WIDTH, HIDDEN, HEADS, attention_dropout=0, hidden_dropout=0, init_method=draw,
        output_layer_init_method=draw, **options,
    )  # fmt: skip


def grouped(**options):
    return te.GroupedLinear(3, WIDTH, HIDDEN, init_method=draw, **options)


MODULES: dict[str, Callable] = {
    "Linear": linear,
    "LayerNormLinear": norm_linear,
    "LayerNormMLP": mlp,
    "MultiheadAttention": attention,
    "TransformerLayer": transformer_layer,
    "GroupedLinear": grouped,
}


def build(kind: str, device: str, dtype=torch.bfloat16, **options) -> torch.nn.Module:
    torch.manual_seed(5)
    module = MODULES[kind](params_dtype=dtype, device=device, **options)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter += torch.randn(parameter.shape).to(parameter) * 0.1
    return module


def forward(module, x: torch.Tensor, recipe=None):
    is_grouped = isinstance(module, te.GroupedLinear)
    given = (x.flatten(0, 1), [48, 0, 16]) if is_grouped else (x,)
    with te.autocast(enabled=recipe is not None, recipe=recipe):
        return module(*given)


def normal(*sizes: int, dtype=torch.float32, seed: int = 1) -> torch.Tensor:
    """Drawn on the CPU, so that every device gets the same numbers."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def drawn(device: str, dtype, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the input and the numbers of which the gradient of the output is made."""
    generator = torch.Generator().manual_seed(100 + step)
    x, grad = torch.randn(2, TOKENS, BATCH, HIDDEN, generator=generator)
    x = x[..., :WIDTH].to(dtype).contiguous().to(device).requires_grad_()
    return x, grad.to(dtype).to(device)


def train(
    module, device: str, recipe=None, dtype=torch.bfloat16, steps=2, after_backward=None
) -> dict[str, torch.Tensor]:
    """The results of the last of several steps: delayed scaling takes its scales from earlier
    ones.
    """
    for step in range(steps):
        module.zero_grad()
        x, grad = drawn(device, dtype, step)
        y = forward(module, x, recipe)
        y.backward(grad.view(-1)[: y.numel()].view(y.shape))
        if after_backward:
            after_backward(module)
    results = {"y": y, "dx": x.grad}
    for name, parameter in module.named_parameters():
        main_grad = getattr(parameter, "main_grad", None)
        results[f"d{name}"] = parameter.grad if main_grad is None else main_grad
    return {name: value.detach().cpu().double() for name, value in results.items()}


def distance(a: torch.Tensor, b: torch.Tensor, size: float) -> float:
    return ((a - b).norm() / max(size, 1e-30)).item()


def size_of(name: str, results: dict[str, torch.Tensor]) -> float:
    """The size to which distances are relative. A bias of keys moves all scores of a query alike,
    so its gradient is zero except for rounding.
    """
    others = (name.replace("key_bias", other) for other in ("query_bias", "value_bias"))
    return next(results[other] for other in others if other in results).norm().item()


# Two devices add in different orders, so a rounded result may differ by a unit of BF16. The deepest
# layer has ten products between its input and its gradients.
ROUNDINGS = {torch.bfloat16: 2**-6, torch.float32: 2**-14}
# If a number is rounded differently before a cast, it may get another code, which differs by a step
# of the format; few numbers are. Measured with units of BF16 added to a tenth of all inputs: for
# layers of one product at most 0.37 of the change that the casts make, for a TransformerLayer 0.86.
PARTS = {"MultiheadAttention": 0.8, "LayerNormMLP": 0.8, "TransformerLayer": 1.0}
PART_OF_ONE_PRODUCT = 0.5


def part_of_casts(module: str) -> float:
    return PARTS.get(module, PART_OF_ONE_PRODUCT)


def assert_beside(
    actual: dict, expected: dict, exact: dict | None = None, dtype=torch.bfloat16, part=0.8
) -> None:
    """Compares two devices. `exact` has the results without casts: the devices must be nearer to
    each other than to it, and both must differ from it.
    """
    assert actual.keys() == expected.keys()
    wrong = []
    for name, theirs in expected.items():
        ours, size = actual[name], size_of(name, expected)
        assert ours.shape == theirs.shape, name
        assert ours.isfinite().all(), name
        casts = 0.0 if exact is None else distance(exact[name], theirs, size)
        apart, allowed = distance(ours, theirs, size), ROUNDINGS[dtype] + part * casts
        if not apart <= allowed:
            wrong.append(f"{name}: {apart:.3g} apart, {allowed:.3g} allowed ({casts:.3g} of casts)")
        if casts > 2 * ROUNDINGS[dtype] and distance(ours, exact[name], size) < casts / 2:
            wrong.append(f"{name}: hardly any casts, which change {casts:.3g}")
    if wrong:
        pytest.fail("\n".join(wrong))


@functools.cache
def without_casts(module: str, steps: int = 2) -> dict[str, torch.Tensor]:
    """The same training on the CPU in FP32, without a recipe."""
    return train(build(module, "cpu", torch.float32), "cpu", None, torch.float32, steps)
