"""Weights that are stored as codes (fp8_model_init) on a GPU: the codes and scales of the CPU, and
training steps with them. Skipped where there is no GPU; `make gpu-check` runs them.
TELENS_TEST_DEVICE=cpu runs the code of these tests on the CPU, against itself."""

import pytest
import torch
from cuda_beside import (
    MODULES,
    RECIPES,
    assert_beside,
    build,
    needs_gpu,
    part_of_casts,
    train,
)
from cuda_helpers import DEVICE, assert_same_bits
from stored_tensors import stored_tensors

import telens.pytorch as te

pytestmark = [needs_gpu, pytest.mark.usefixtures("ops")]

STORED = [name for name in RECIPES if not name.startswith("custom")]


def stored(module: str, device: str, recipe: str, **options) -> torch.nn.Module:
    with te.fp8_model_init(recipe=RECIPES[recipe]()):
        return build(module, device, **options)


@pytest.mark.parametrize("recipe", STORED)
def test_codes_and_scales_match_cpu(recipe):
    ours, theirs = (stored("Linear", device, recipe).weight for device in (DEVICE, "cpu"))
    for _ in range(2):
        actual, expected = (stored_tensors(each.detach()._storage) for each in (ours, theirs))
        assert len(actual) >= 2
        assert actual.keys() == expected.keys()
        for name, each in expected.items():
            assert actual[name].device.type == torch.device(DEVICE).type
            assert_same_bits(actual[name], each)
        assert_same_bits(ours.dequantize(), theirs.dequantize())
        values = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(8)).bfloat16()
        ours.detach().quantize_(values.to(DEVICE))
        theirs.detach().quantize_(values)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("recipe", STORED)
def test_layers_of_stored_weights_train_as_on_the_cpu(recipe, module):
    """Two steps, each followed by a step of SGD, which casts the new weights."""

    def trained(device):
        layer = stored(module, device, recipe)
        optimizer = torch.optim.SGD(layer.parameters(), lr=2**-6)
        results = train(layer, device, RECIPES[recipe](), after_backward=lambda _: optimizer.step())
        for name, parameter in layer.named_parameters():
            is_stored = isinstance(parameter, te.QuantizedTensor)
            value = parameter.detach()
            results[name] = (value.dequantize() if is_stored else value).cpu().double()
        return results

    layer = build(module, "cpu", torch.float32)
    optimizer = torch.optim.SGD(layer.parameters(), lr=2**-6)
    exact = train(layer, "cpu", None, torch.float32, after_backward=lambda _: optimizer.step())
    exact |= {name: p.detach().double() for name, p in layer.named_parameters()}
    assert_beside(trained(DEVICE), trained("cpu"), exact, part=part_of_casts(module))


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("recipe", ["delayed", "current", "MXFP8"])
def test_main_weights_in_fp32_update_the_codes_as_on_the_cpu(recipe, kind):
    """An optimizer with FP32 copies, whose values are cast into the stored weights."""

    def trained(layer, device, form, dtype):
        weight = layer.weight.detach()
        values = weight.dequantize() if form else weight
        main = values.float().clone().requires_grad_()
        optimizer = kind([main], lr=2**-7)

        def step(_):
            main.grad = layer.weight.grad.float()
            optimizer.step()
            with torch.no_grad():
                layer.weight.copy_(main)

        results = train(layer, device, form, dtype, after_backward=step)
        return results | {"updated": main.detach().cpu().double()}

    actual, expected = (
        trained(stored("Linear", device, recipe), device, RECIPES[recipe](), torch.bfloat16)
        for device in (DEVICE, "cpu")
    )
    exact = trained(build("Linear", "cpu", torch.float32), "cpu", None, torch.float32)
    assert_beside(actual, expected, exact, part=part_of_casts("Linear"))


@pytest.mark.parametrize("recipe", STORED)
def test_a_layer_that_moves_to_the_device_takes_its_codes_along(recipe):
    made = stored("Linear", "cpu", recipe)
    before, values = stored_tensors(made.weight.detach()._storage), made.weight.dequantize()
    moved = made.to(DEVICE).weight
    there = stored_tensors(moved.detach()._storage)
    assert there.keys() == before.keys()
    for name, each in before.items():
        assert there[name].device.type == torch.device(DEVICE).type
        assert_same_bits(there[name], each)
    x = torch.eye(values.shape[1], dtype=values.dtype, device=DEVICE)
    for factor in (1, 3):  # the product takes what the weight has from now on
        moved.detach().quantize_((values * factor).to(DEVICE))
        with torch.no_grad():
            y = made(x) - made.bias
        torch.testing.assert_close(y, moved.dequantize().t(), rtol=2**-6, atol=2**-4)
