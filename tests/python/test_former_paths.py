"""Former paths of modules can still be imported."""

import importlib

import pytest

import telens.pytorch as te
from telens._aliases import FORMER_PATHS

# Libraries that the modules below a path import.
NEEDED = {
    "paddle.": "paddle",
    "pytorch.hugging_face.": "transformers",
    "te_features.": "nvdlfw_inspect",
}


@pytest.mark.parametrize("former", FORMER_PATHS)
def test_former_path_is_the_present_module(former):
    for folder, needed in NEEDED.items():
        if FORMER_PATHS[former].startswith(folder):
            pytest.importorskip(needed)
    present = importlib.import_module(f"telens.{FORMER_PATHS[former]}")
    assert importlib.import_module(f"telens.{former}") is present
    assert present.__spec__.name == present.__name__


def test_former_path_is_an_attribute_of_the_package():
    assert te.graph.make_graphed_callables is te.make_graphed_callables
    from telens.pytorch import permutation, rotary

    assert permutation.moe_permute is te.moe_permute
    assert rotary.RotaryPositionEmbedding is te.RotaryPositionEmbedding


def test_unknown_module_is_still_an_import_error():
    with pytest.raises(ImportError):
        importlib.import_module("telens.pytorch.graphics")
    with pytest.raises(AttributeError):
        te.graphics  # noqa: B018
