"""The committed type stub of the modules equals the one that the core generates."""

import ast
from pathlib import Path

import telens
import telens.pytorch as te
from telens._stubs import stub_of_modules

STUB = Path(__file__).resolve().parents[2] / "python/telens/pytorch/modules.pyi"


def test_the_stub_is_up_to_date():
    assert STUB.read_text() == stub_of_modules(), f"run: python -m telens._stubs {STUB}"


def test_the_stub_is_python_and_declares_every_module():
    classes = {
        node.name for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.ClassDef)
    }
    assert classes == set(te.modules.__all__)


def test_packed_tensor_makes_qkv_optional():
    (attention,) = (
        each
        for each in ast.parse(STUB.read_text()).body
        if isinstance(each, ast.ClassDef) and each.name == "DotProductAttention"
    )
    calls = {each.name: each.args for each in attention.body if isinstance(each, ast.FunctionDef)}
    for name in ("forward", "__call__"):
        required = len(calls[name].args) - len(calls[name].defaults)
        assert [each.arg for each in calls[name].args[:required]] == ["self"]
        assert "qkv_layer" in [each.arg for each in calls[name].kwonlyargs]


def test_the_package_says_that_it_is_typed():
    assert (Path(telens.__file__).parent / "py.typed").exists()


def test_everything_public_is_documented():
    import telens.common.recipe
    import telens.debug

    for module in (te, telens.debug, telens.common.recipe):
        for name in module.__all__:
            thing = getattr(module, name)
            if callable(thing):
                assert thing.__doc__, f"{module.__name__}.{name}"
