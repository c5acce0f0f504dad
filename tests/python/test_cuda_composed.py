"""What is composed of LibTorch's operators, on a GPU: rotary embeddings, cross entropy, activations
and caches of keys and values. Skipped where there is no GPU; `make gpu-check` runs them.
TELENS_TEST_DEVICE=cpu runs the code of these tests on the CPU, against itself."""

import pytest
import test_cross_entropy
import test_inference_params
import torch
from activation_names import ACTIVATIONS
from cuda_beside import RECIPES, WIDTH, assert_beside, build, needs_gpu, normal, train
from cuda_helpers import DEVICE

import telens.pytorch as te
from telens.pytorch.attention import apply_rotary_pos_emb

pytestmark = [needs_gpu, pytest.mark.usefixtures("ops")]

TOLERANCES = {torch.bfloat16: 2**-7, torch.float32: 2e-6, torch.float64: 2e-6}


SUMS = torch.tensor([0, 3, 3, 4, 9], dtype=torch.int32)
LAYOUTS = {
    "sbhd": {"sizes": (9, 2, 3, 8)},
    "sbhd, starts": {"sizes": (5, 2, 3, 8), "start_positions": torch.tensor([0, 4])},
    "bshd": {"sizes": (2, 9, 3, 8)},
    "bshd, starts": {"sizes": (2, 5, 3, 8), "start_positions": torch.tensor([3, 1])},
    "thd": {"sizes": (9, 3, 8), "cu_seqlens": SUMS},
}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("channels", [8, 4])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotary_embeddings_match_cpu(layout, interleaved, channels, dtype):
    options = dict(LAYOUTS[layout])
    x = normal(*options.pop("sizes"), dtype=dtype)
    grad = normal(*x.shape, dtype=dtype, seed=2)

    def rotated(device):
        angles = te.RotaryPositionEmbedding(channels, interleaved=interleaved).to(device)(9)
        placed = {name: value.to(device) for name, value in options.items()}
        leaf = x.clone().to(device).requires_grad_()
        out = apply_rotary_pos_emb(
            leaf, angles.to(device), layout[:4].strip(","), interleaved=interleaved, **placed
        )
        out.backward(grad.to(device))
        return out.detach().cpu(), leaf.grad.cpu()

    for ours, theirs in zip(rotated(DEVICE), rotated("cpu"), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@pytest.mark.parametrize("layout", ["thd", "sbhd"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_layers_rotate_packed_and_padded_sequences_as_on_the_cpu(layout, interleaved):
    options = {"attn_input_format": layout, "rotary_pos_interleaved": interleaved}
    if layout == "thd":
        options["self_attn_mask_type"] = "padding_causal"
    sums = torch.tensor([0, 20, 20, 64], dtype=torch.int32)

    def results(device):
        layer = build("TransformerLayer", device, torch.float32, **options)
        x = normal(64, *(() if layout == "thd" else (1,)), WIDTH).to(device).requires_grad_()
        arguments = {"rotary_pos_emb": te.RotaryPositionEmbedding(WIDTH // 4)(64).to(device)}
        if layout == "thd":
            arguments |= {f"cu_seqlens_{name}": sums.to(device) for name in ("q", "kv")}
        y = layer(x, **arguments)
        y.square().sum().backward()
        found = {"y": y, "dx": x.grad} | {n: p.grad for n, p in layer.named_parameters()}
        return {name: value.detach().cpu().double() for name, value in found.items()}

    assert_beside(results(DEVICE), results("cpu"), dtype=torch.float32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("smoothing", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("reduce_loss", [False, True])
def test_cross_entropies_and_their_gradients_match_fp64(dtype, smoothing, reduce_loss):
    logits, target = test_cross_entropy.drawn(dtype)
    wanted, wanted_grad = test_cross_entropy.expected(
        logits, target, smoothing, "mean" if reduce_loss else "none"
    )
    x = logits.clone().to(DEVICE).requires_grad_()
    loss = te.parallel_cross_entropy(x, target.to(DEVICE), smoothing, reduce_loss)
    weights = 1 if reduce_loss else torch.arange(1.0, 16, device=DEVICE).view(loss.shape)
    (loss * weights).sum().backward()
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    close = {"rtol": tolerance, "atol": tolerance, "check_dtype": False}
    torch.testing.assert_close(loss.detach().cpu(), wanted, **close)
    close = {"rtol": 15 * tolerance + torch.finfo(dtype).eps, "atol": 15 * tolerance}
    torch.testing.assert_close(x.grad.cpu(), wanted_grad, **close, check_dtype=False)


@pytest.mark.skipif(DEVICE == "cpu", reason="an error there")
def test_a_class_that_is_not_in_the_vocabulary_has_an_infinite_loss():
    logits, target = test_cross_entropy.drawn(torch.float32)
    target[0, 0] = 24
    loss = te.parallel_cross_entropy(logits.to(DEVICE), target.to(DEVICE))
    assert loss[0, 0].item() == float("inf")
    assert loss.isinf().sum().item() == 1


COMPOSED = {
    "glu": {},
    "clamped_swiglu": {},
    "clamped_swiglu, low": {"activation_params": {"limit": 0.5}},
    "clamped_swiglu, shifted": {
        "activation_params": {"limit": 0.5, "alpha": 1.0, "glu_linear_offset": 0.0}
    },
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("activation", [*ACTIVATIONS, *COMPOSED])
def test_layers_with_every_activation_match_cpu(activation, dtype):
    options = {"activation": activation.split(",")[0], **COMPOSED.get(activation, {})}
    expected = train(build("LayerNormMLP", "cpu", dtype, **options), "cpu", None, dtype)
    actual = train(build("LayerNormMLP", DEVICE, dtype, **options), DEVICE, None, dtype)
    assert_beside(actual, expected, dtype=dtype)


@pytest.mark.parametrize("recipe", ["delayed", "MXFP8", "NVFP4"])
@pytest.mark.parametrize("activation", COMPOSED)
def test_composed_activations_train_under_a_recipe_as_on_the_cpu(activation, recipe):
    options = {"activation": activation.split(",")[0], **COMPOSED[activation]}

    def trained(device, make, dtype=torch.bfloat16):
        return train(build("LayerNormMLP", device, dtype, **options), device, make(), dtype)

    exact = trained("cpu", lambda: None, torch.float32)
    assert_beside(trained(DEVICE, RECIPES[recipe]), trained("cpu", RECIPES[recipe]), exact)


@pytest.mark.parametrize("is_paged", [False, True])
@pytest.mark.parametrize("layout", ["sbhd", "bshd"])
def test_tokens_from_caches_match_cpu(layout, is_paged):
    tokens = normal(len(test_inference_params.STEPS), 5, 3, test_inference_params.HIDDEN)

    def generated(device):
        torch.manual_seed(1)
        model = test_inference_params.Model(layout).to(device).eval()
        params = test_inference_params.caches(is_paged)
        outputs = []
        for step, batch in zip(test_inference_params.STEPS, tokens, strict=True):
            params.pre_step(step)
            x = batch[: max(step.values()), : len(step)].to(device)
            x = x if layout == "sbhd" else x.transpose(0, 1)
            with torch.no_grad():
                out = model(x, inference_params=params).cpu()
            out = out if layout == "sbhd" else out.transpose(0, 1)
            # The values at padding do not matter.
            outputs += [out[:count, b] for b, count in enumerate(step.values())]
        return outputs

    for ours, theirs in zip(generated(DEVICE), generated("cpu"), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
