"""Features that change what a layer multiplies, on a GPU and on the CPU; dumps of a session on a
GPU, and their replay. Skipped where there is no GPU; `make gpu-check` runs them.
TELENS_TEST_DEVICE=cpu runs the code of these tests on the CPU, against itself.
"""

import h5py
import numpy
import pytest
import torch
from cuda_beside import RECIPES, WIDTH, assert_beside, build, needs_gpu, train, without_casts
from cuda_helpers import DEVICE
from debug_helpers import section

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.pytorch.cpu_offload import get_cpu_offload_context

pytestmark = [needs_gpu, pytest.mark.usefixtures("ops")]

GEMMS = ["fprop", "dgrad", "wgrad"]
OPERANDS = ["activation", "weight", "gradient"]
FORMATS = [
    *("FP8E4M3", "FP8E5M2", "MXFP8E4M3", "MXFP8E5M2", "FP8BLOCKE4M3", "FP8BLOCKE5M2", "NVFP4"),
]
ALTERATIONS = {
    **{
        name: ("FakeQuant", {"quant_format": name, "gemms": GEMMS, "tensors": OPERANDS})
        for name in FORMATS
    },
    "results": (
        "FakeQuant",
        {"quant_format": "FP8E5M2", "gemms": GEMMS, "tensors": ["output", "wgrad", "dgrad"]},
    ),
    "scaling": ("PerTensorScaling", {"gemms": GEMMS, "tensors": OPERANDS}),
    "one GEMM": ("DisableFP8GEMM", {"gemms": ["dgrad"]}),
    "all": ("DisableFP8Layer", {}),
}


def altered(module, device, name, recipe, folder) -> dict[str, torch.Tensor]:
    feature, keys = ALTERATIONS[name]
    with debug.session(section({feature: {"enabled": True, **keys}}), log_dir=folder):
        return train(
            build(module, device, name="layer"),
            device,
            RECIPES[recipe]() if recipe else None,
            after_backward=lambda _: debug.step(),
        )


@pytest.mark.parametrize("module", ["Linear", "LayerNormMLP"])
@pytest.mark.parametrize("recipe", ["delayed", "MXFP8"])
@pytest.mark.parametrize("name", ALTERATIONS)
def test_altered_layers_train_as_on_the_cpu(name, recipe, module, tmp_path):
    if name == "scaling" and recipe != "delayed":
        pytest.skip("it is for delayed scaling")
    ours = altered(module, DEVICE, name, recipe, tmp_path / "ours")
    theirs = altered(module, "cpu", name, recipe, tmp_path / "theirs")
    assert_beside(ours, theirs, without_casts(module))
    if name == "all":  # it ran without any cast
        assert_beside(ours, without_casts(module))


DUMPS = section(
    {
        "DumpTensors": {
            "enabled": True,
            "tensors": ["activation", "weight", "gradient", "output"],
            "high_precision_tensor": True,
            "quantized_tensor": True,
        }
    }
)


def dumped(device, recipe, folder) -> dict[str, dict[str, numpy.ndarray]]:
    with debug.session(DUMPS, log_dir=folder):
        train(
            *(build("Linear", device, name="layer"), device, RECIPES[recipe]()),
            after_backward=lambda _: debug.step(),
        )
    files = {}
    for path in sorted((folder / "tensor_dumps").rglob("*.h5")):
        contents: dict[str, numpy.ndarray] = {}

        def keep(name, item, contents=contents):
            if isinstance(item, h5py.Dataset):
                contents[name] = item[()]

        with h5py.File(path) as file:
            file.visititems(keep)
        files[str(path.relative_to(folder))] = contents
    return files


@pytest.mark.parametrize("recipe", ["delayed", "current", "MXFP8", "128-blocks", "NVFP4"])
def test_dumped_values_codes_and_scales_match_cpu(recipe, tmp_path):
    ours, theirs = (
        dumped(device, recipe, tmp_path / name) for device, name in ((DEVICE, "a"), ("cpu", "b"))
    )
    assert ours.keys() == theirs.keys()
    assert len(theirs) == 8  # four tensors, two iterations
    for name, expected in theirs.items():
        assert ours[name].keys() == expected.keys(), name
        assert expected, name
        for key, value in expected.items():
            actual = ours[name][key]
            assert actual.shape == value.shape
            if "output" not in name:
                assert actual.tobytes() == value.tobytes(), f"{name}: {key}"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="copies of a GPU's memory")
def test_offloaded_activations_return_with_unchanged_bits():
    layers = torch.nn.ModuleList(build("LayerNormMLP", "cuda") for _ in range(4))

    def run(enabled):
        context, synchronize = get_cpu_offload_context(enabled, 2, len(layers))
        x = torch.randn(8192, WIDTH, generator=torch.Generator().manual_seed(1)).bfloat16().cuda()
        leaf = x.requires_grad_()
        torch.cuda.synchronize()
        for layer in layers:
            layer.zero_grad()
        before, out = torch.cuda.memory_allocated(), leaf
        for layer in layers:
            with context:
                out = layer(out)
            out = synchronize(out)
        torch.cuda.synchronize()
        kept = torch.cuda.memory_allocated() - before
        out.float().square().sum().backward()
        gradients = [p.grad.clone() for p in layers.parameters()]
        return [out.detach(), leaf.grad, *gradients], kept

    run(False)  # cuBLASLt's workspace stays
    plain, of_plain = run(False)
    offloaded, of_offloaded = run(True)
    for ours, theirs in zip(offloaded, plain, strict=True):
        assert torch.equal(ours, theirs)
    assert of_offloaded < 0.8 * of_plain


def test_offloaded_activations_have_the_bits_of_kept_ones():
    layers = torch.nn.ModuleList(build("LayerNormMLP", DEVICE) for _ in range(3))

    def run(enabled):
        context, synchronize = get_cpu_offload_context(enabled, 2, len(layers))
        layers.zero_grad()
        x = torch.randn(2048, WIDTH, generator=torch.Generator().manual_seed(1))
        out = leaf = x.bfloat16().to(DEVICE).requires_grad_()
        for layer in layers:
            with context, te.autocast(recipe=RECIPES["current"]()):
                out = layer(out)
            out = synchronize(out)
        out.float().square().sum().backward()
        return [out.detach(), leaf.grad, *(p.grad.clone() for p in layers.parameters())]

    for ours, theirs in zip(run(True), run(False), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_optimizer_numbers_match_cpu(kind, tmp_path):
    def recorded(device, folder):
        layer = build("Linear", device, torch.float32)
        optimizer = kind(layer.parameters(), lr=2**-8)
        with debug.session({}, log_dir=folder):
            debug.watch_optimizer(optimizer)
            for step in range(3):
                optimizer.zero_grad()
                x = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(step))
                layer(x.to(device)).square().mean().backward()
                optimizer.step()
                debug.step()
        return telens.open_run(folder).scalars

    ours, theirs = recorded(DEVICE, tmp_path / "a"), recorded("cpu", tmp_path / "b")
    assert len(theirs) > 3
    assert ours["name"].astype(str).tolist() == theirs["name"].astype(str).tolist()
    for actual, expected in zip(ours["value"], theirs["value"], strict=True):
        assert actual == pytest.approx(expected, rel=1e-3, abs=1e-6)
