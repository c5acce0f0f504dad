"""Importing the package: the torch that it was built with, its errors, its stubs."""

import importlib
import subprocess
import sys

import pytest

import telens
from telens._load import check_torch_version


def test_another_minor_version_of_torch_is_refused_naming_both():
    with pytest.raises(ImportError, match=r"built with torch 2\.11\.0, but torch 2\.9\.1\+cpu"):
        check_torch_version("2.11.0", "2.9.1+cpu")


def test_another_patch_or_build_of_the_same_minor_version_is_taken():
    check_torch_version("2.11.0", "2.11.3+cpu")


def test_torch_is_checked_before_the_core_is_loaded():
    program = (
        "import sys, torch; torch.__version__ = '9.9.9'; "
        "sys.modules['telens._observer'] = None; import telens"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode != 0
    assert "but torch 9.9.9 is installed here" in result.stderr
    assert "telens._C" not in result.stderr.split("ImportError")[-1]


def test_importing_debug_does_not_import_the_modules():
    program = "import telens.debug, sys; sys.exit('telens.pytorch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_importing_does_not_import_the_compiler():
    program = "import telens.pytorch, telens.debug, sys; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_errors_are_a_tree_that_python_knows():
    assert issubclass(telens.Error, RuntimeError)
    assert issubclass(telens.UsageError, (telens.Error, ValueError))
    assert issubclass(telens.ShapeError, telens.UsageError)
    assert issubclass(telens.ConfigError, telens.UsageError)
    assert issubclass(telens.RecordError, telens.Error)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("telens.pytorch.attention", ["DotProductAttention", "MultiheadAttention"]),
        ("telens.pytorch.attention.rope", ["RotaryPositionEmbedding"]),
        ("telens.pytorch.attention.dot_product_attention", ["DotProductAttention"]),
        ("telens.pytorch.attention.multi_head_attention", ["MultiheadAttention"]),
        ("telens.pytorch.transformer", ["TransformerLayer"]),
        ("telens.pytorch.distributed", ["checkpoint"]),
        ("telens.pytorch.fp8", ["FP8GlobalStateManager", "fp8_autocast"]),
    ],
)
def test_te_module_imports_resolve(path, names):
    import telens.pytorch as te

    module = importlib.import_module(path)
    for name in names:
        assert getattr(module, name) is getattr(te, name)
    if path.count(".") == 2:  # te.attention, te.fp8, ...
        assert getattr(te, path.rsplit(".", 1)[1]) is module


def test_package_attributes_match_transformer_engine():
    program = (
        "import telens; telens.pytorch.Linear, telens.common.recipe.DelayedScaling; "
        "telens.debug.step(); telens.nothing"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "module 'telens' has no attribute 'nothing'" in result.stderr


def test_the_former_name_of_the_quantization_module_is_importable():
    from telens.pytorch import fp8, quantization

    assert fp8.FP8GlobalStateManager is quantization.FP8GlobalStateManager
    assert fp8.fp8_autocast is quantization.fp8_autocast
