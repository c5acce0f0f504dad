"""is_fp8_available and similar functions: what this machine runs natively or emulated, and how."""

import pytest
import torch

import telens
import telens.pytorch as te
from telens import _C
from telens.common.recipe import DelayedScaling, MXFP8BlockScaling, NVFP4BlockScaling

ASKED = {
    "FP8": te.is_fp8_available,
    "MXFP8": te.is_mxfp8_available,
    "NVFP4": te.is_nvfp4_available,
    "FP8 block scaling": te.is_fp8_block_scaling_available,
    "BF16": te.is_bf16_available,
}
CHECKED = {
    "FP8": te.check_fp8_support,
    "MXFP8": te.check_mxfp8_support,
    "NVFP4": te.check_nvfp4_support,
    "FP8 block scaling": te.check_fp8_block_scaling_support,
}


def pretend_gpu(monkeypatch, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(_C, "default_device", lambda has_gpu: torch.device("cuda", 0))


@pytest.mark.parametrize("what", ASKED)
def test_emulated_formats_are_available_with_a_reason(what, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert ASKED[what]() is True
    available, reason = ASKED[what](return_reason=True)
    assert available is True
    assert reason == f"{what} runs emulated exactly on the CPU: no GPU was found"


@pytest.mark.parametrize(
    ("capability", "native"),
    [((8, 0), {"BF16"}), ((8, 9), {"BF16", "FP8"}), ((9, 0), set(ASKED) - {"MXFP8", "NVFP4"}),
     ((10, 0), set(ASKED))],
)  # fmt: skip
def test_reason_distinguishes_native_and_emulated(capability, native, monkeypatch):
    pretend_gpu(monkeypatch, capability)
    version = f"{capability[0]}.{capability[1]}"
    for what, ask in ASKED.items():
        available, reason = ask(return_reason=True)
        assert available
        if what in native:
            assert reason == f"{what} runs natively on this GPU, of compute capability {version}"
        else:
            assert reason.startswith(f"{what} runs emulated exactly on this GPU: native products")
            assert reason.endswith(f"but it has {version}")


def test_a_gpu_without_kernels_of_this_build_is_none(monkeypatch):
    pretend_gpu(monkeypatch, (10, 0))
    monkeypatch.setattr(_C, "default_device", lambda has_gpu: torch.device("cpu"))
    assert te.check_fp8_support()[1].endswith(
        "on the CPU: this build does not contain CUDA kernels"
    )


def test_availability_functions_of_every_version_exist():
    for what, check in CHECKED.items():
        assert check() == ASKED[what](return_reason=True)
    manager = te.fp8.FP8GlobalStateManager
    available, _ = manager.is_fp8_available()  # a pair, always
    assert available
    assert manager.is_mxfp8_available() == te.fp8.check_mxfp8_support()
    assert manager.is_nvfp4_available() == te.check_nvfp4_support()
    assert manager.is_fp8_block_scaling_available() == te.check_fp8_block_scaling_support()


def test_every_recipe_is_supported_and_others_rejected():
    for recipe in (DelayedScaling(), MXFP8BlockScaling(), NVFP4BlockScaling()):
        te.check_recipe_support(recipe)
    with pytest.raises(TypeError, match="check_recipe_support: recipe must be one of"):
        te.check_recipe_support(3)
    wrong = DelayedScaling()
    wrong.amax_history_len = 0
    with pytest.raises(telens.UsageError, match="amax_history_len must be at least 1"):
        te.check_recipe_support(wrong)


def test_the_manager_knows_the_region_and_how_weights_are_made():
    manager, recipe = te.FP8GlobalStateManager, MXFP8BlockScaling()
    assert manager.get_fp8_recipe() == te.get_default_recipe()
    assert not manager.with_fp8_parameters()
    with te.autocast(recipe=recipe), te.fp8_model_init(preserve_high_precision_init_val=True):
        assert manager.get_fp8_recipe() is recipe
        assert manager.get_fp8_group() is None
        assert manager.with_fp8_parameters()
        assert manager.with_high_precision_init_val()
    assert not manager.with_high_precision_init_val()
    assert manager.get_meta_tensor_key(forward=False) == "scaling_bwd"
