"""telens.paddle is imported only on request, and says what it needs."""

import subprocess
import sys

import pytest

import telens.paddle
from telens.paddle._version import TRIED, check_paddle_version

SEED = {
    "Linear",
    "LayerNorm",
    "LayerNormLinear",
    "LayerNormMLP",
    "FusedScaleMaskSoftmax",
    "DotProductAttention",
    "MultiHeadAttention",
    "TransformerLayer",
    "fp8_autocast",
    "recompute",
}


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_every_name_is_there():
    assert set(telens.paddle.__all__) >= SEED
    for name in telens.paddle.__all__:
        assert getattr(telens.paddle, name).__doc__


def test_the_rest_of_the_package_imports_no_paddle():
    code = "import sys, telens.pytorch, telens.debug; print('paddle' in sys.modules)"
    done = run(f"import sys; sys.path = {sys.path!r}; {code}")
    assert done.stdout.strip() == "False", done.stderr


def test_error_without_paddle_explains_installation():
    hide = "import importlib.util as u; found = u.find_spec; "
    hide += "u.find_spec = lambda name, *a: None if name == 'paddle' else found(name, *a); "
    done = run(f"import sys; sys.path = {sys.path!r}; {hide}import telens.paddle")
    assert "ImportError: telens.paddle needs PaddlePaddle" in done.stderr
    assert "pip install" in done.stderr


@pytest.mark.parametrize("found", ["2.6.1", "3.4.0", "4.0.0-beta"])
def test_rejects_untested_versions(found):
    with pytest.raises(ImportError, match=f"tested with paddlepaddle {TRIED[0]}, not"):
        check_paddle_version(found)
    check_paddle_version("3.3.9")


@pytest.mark.parametrize(
    "make",
    [
        lambda **more: telens.paddle.Linear(16, 16, **more),
        lambda **more: telens.paddle.LayerNorm(16, **more),
        lambda **more: telens.paddle.LayerNormLinear(16, 16, **more),
        lambda **more: telens.paddle.LayerNormMLP(16, 16, **more),
        lambda **more: telens.paddle.FusedScaleMaskSoftmax("causal", None, **more),
        lambda **more: telens.paddle.DotProductAttention(4, 16, **more),
        lambda **more: telens.paddle.MultiHeadAttention(32, 4, **more),
        lambda **more: telens.paddle.TransformerLayer(32, 64, 4, **more),
    ],
)
def test_an_unknown_backend_is_refused_by_name(make):
    with pytest.raises(ValueError, match="backend must be one of"):
        make(backend="tensorflow")
