"""Transformer Engine's ``_extra_state`` is read without executing it, converted, and written."""

import base64
import enum
import io
import json
import pickle
import sys
import types
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import telens
import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Format, MXFP8BlockScaling

# Dictionaries with recipes of Transformer Engine's own common/recipe (commit d0067d0 and tag v2.0),
# pickled as in its get_extra_state; that of 1.13 is a file of torch.save.
FILE = Path(__file__).parent / "data" / "transformer_engine_states.json"
STATES = {name: base64.b64decode(text) for name, text in json.loads(FILE.read_text()).items()}


def expected(gemms: int) -> dict[str, torch.Tensor]:
    """The content of those files: consecutive numbers, so that every place has another value."""
    return {
        "scale_fwd": torch.arange(1.0, 3 * gemms + 1) * 2,
        "amax_history_fwd": torch.arange(1.0, 12 * gemms + 1).view(4, -1) / 8,
        "scale_bwd": torch.arange(1.0, 2 * gemms + 1) * 4,
        "amax_history_bwd": torch.arange(1.0, 8 * gemms + 1).view(4, -1) / 16,
    }


def as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


@pytest.mark.parametrize("name", [name for name in STATES if name.startswith("delayed")])
def test_scales_and_histories_are_read(name):
    state = te.read_transformer_engine_state(as_tensor(STATES[name]))
    values = expected(int(name.split("_")[1]))
    for direction in ("fwd", "bwd"):
        assert torch.equal(state.scale[direction], values[f"scale_{direction}"])
        assert torch.equal(state.amax_history[direction], values[f"amax_history_{direction}"])
    assert state.recipe == "DelayedScaling"
    assert state.left_out == []
    if "1.13" not in name:
        assert state.recipe_values["margin"] == 1
        assert state.recipe_values["amax_compute_algo"] == "most_recent"


@pytest.mark.parametrize("name", ["stateless_2.0", "stateless_2.20"])
def test_stateless_recipe_leaves_the_module_unchanged(name):
    assert te.read_transformer_engine_state(STATES[name]).scale == {}
    layer = te.Linear(16, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer.set_extra_state(as_tensor(STATES[name]))
    assert layer.get_extra_state().numel() == 0


@pytest.mark.parametrize("version", ["2.0", "2.20"])
def test_a_module_takes_scales_and_histories_over(version):
    layer = te.LayerNormMLP(16, 32)
    layer.set_extra_state(as_tensor(STATES[f"delayed_2_{version}"]))
    values = expected(2)
    for key, direction in (("scaling_fwd", "fwd"), ("scaling_bwd", "bwd")):
        history = values[f"amax_history_{direction}"]
        assert torch.equal(layer.fp8_meta[key].scale, values[f"scale_{direction}"])
        assert torch.equal(layer.fp8_meta[key].amax_history, history[[0, 3, 2, 1]])


def test_torch_save_file_loads_like_its_bytesio():
    layer = te.Linear(16, 16)
    layer.set_extra_state(io.BytesIO(STATES["delayed_1_1.13"]))
    assert torch.equal(layer.fp8_meta["scaling_fwd"].scale, expected(1)["scale_fwd"])


def test_the_oldest_amax_is_the_first_to_be_dropped():
    # Transformer Engine moves row i to row i - 1, and row 0 to the last: row 1 is the oldest.
    history = torch.tensor([0.0, 100.0, 5.0, 6.0]).view(4, 1)
    data = pickle.dumps(
        {
            "scale_fwd": torch.ones(3),
            "amax_history_fwd": history.expand(4, 3).contiguous(),
            "scale_bwd": torch.ones(2),
            "amax_history_bwd": history.expand(4, 2).contiguous(),
        }
    )
    layer = te.Linear(16, 16)
    layer.set_extra_state(as_tensor(data))
    with te.autocast(recipe=DelayedScaling(amax_history_len=4)):
        layer(torch.ones(16, 16))
    found = layer.fp8_meta["scaling_fwd"].amax_history[:, 0].tolist()
    assert found == [0.0, 1.0, 6.0, 5.0]


def test_old_grouped_linear_with_role_order_loads():
    # Two GEMMs: input, input, weight, weight, output, output; outputs have no amax.
    history = torch.tensor([[1.0, 2.0, 3.0, 4.0, 0.0, 0.0]]).repeat(2, 1)
    data = pickle.dumps(
        {
            "scale_fwd": torch.tensor([10.0, 20.0, 30.0, 40.0, 1.0, 1.0]),
            "amax_history_fwd": history,
            "scale_bwd": torch.tensor([50.0, 60.0, 1.0, 1.0]),
            "amax_history_bwd": torch.tensor([[5.0, 6.0, 0.0, 0.0]]).repeat(2, 1),
        }
    )
    layer = te.GroupedLinear(2, 16, 16)
    layer.set_extra_state(as_tensor(data))
    assert layer.fp8_meta["scaling_fwd"].scale.tolist() == [10, 30, 1, 20, 40, 1]
    assert layer.fp8_meta["scaling_fwd"].amax_history[0].tolist() == [1, 3, 0, 2, 4, 0]
    assert layer.fp8_meta["scaling_bwd"].scale.tolist() == [50, 1, 60, 1]


def test_warns_about_values_that_cannot_be_restored():
    layer = te.Linear(16, 16)
    with pytest.warns(UserWarning, match=r"\{'fwd': 6, 'bwd': 4\} scales, and this module has "):
        layer.set_extra_state(as_tensor(STATES["delayed_2_2.20"]))
    assert layer.get_extra_state().numel() == 0
    data = pickle.dumps(
        {
            "scale_fwd": torch.ones(3),
            "amax_history_fwd": torch.ones(1, 3),
            "scale_bwd": torch.ones(2),
            "amax_history_bwd": torch.ones(1, 2),
            "extra_fp8_variables": {"num_gemms": 1, "something": 7},
        }
    )
    with pytest.warns(UserWarning, match="checkpoint has something, which have no place here"):
        layer.set_extra_state(as_tensor(data))


# ---------------------------------------------------------------------- nothing is executed


class Calls:
    """Pickled as the call of a function."""

    def __init__(self, function, *args) -> None:
        self.call = function, args

    def __reduce__(self):
        return self.call


def hostile(path: Path) -> dict[str, object]:
    write = Calls(Path.touch, path)
    storage = io.BytesIO()
    torch.save({"scale_fwd": write}, storage)
    rebuild = torch._utils._rebuild_tensor_v2
    small = torch.storage.TypedStorage(
        wrap_storage=torch.ones(2).untyped_storage(), dtype=torch.float32, _internal=True
    )
    no_hooks = (False, {})
    return {
        "a function": pickle.dumps({"scale_fwd": write}),
        "exec": pickle.dumps(Calls(exec, f"open({str(path)!r}, 'w')")),
        "an attribute of a module": b"\x80\x04cbuiltins\ngetattr\ncos\nsystem\n\x85R.",
        "a storage that is a pickle": pickle.dumps(
            {"scale_fwd": Calls(torch.storage._load_from_bytes, pickle.dumps(write))}
        ),
        "a file of torch.save": storage.getvalue(),
        "a tensor larger than its storage": pickle.dumps(
            {"scale_fwd": Calls(rebuild, small, 0, (9,), (1,), *no_hooks)}
        ),
        "a tensor of many more elements": pickle.dumps(
            {"scale_fwd": Calls(rebuild, small, 0, (2**40,), (0,), *no_hooks)}
        ),
        "a tensor before its storage": pickle.dumps(
            {"scale_fwd": Calls(rebuild, small, -1, (1,), (1,), *no_hooks)}
        ),
        "a truncated pickle": STATES["delayed_1_2.20"][:-9],
        "no dictionary": pickle.dumps([1, 2]),
        "nothing of a state": pickle.dumps({"a": 1}),
        "half of a state": pickle.dumps({"scale_fwd": torch.ones(3)}),
        "nothing at all": b"\x80\x04",
    }


@pytest.mark.parametrize("name", hostile(Path("unused")))
def test_invalid_state_is_rejected_without_running_it(name, tmp_path):
    path = tmp_path / "executed"
    data = hostile(path)[name]
    with pytest.raises(telens.UsageError, match="no _extra_state of Transformer Engine"):
        te.read_transformer_engine_state(data)
    layer = te.Linear(16, 16)
    with pytest.warns(UserWarning, match="amax histories and scales start from their"):
        layer.set_extra_state(as_tensor(data))
    assert layer.get_extra_state().numel() == 0
    assert not path.exists()


# ---------------------------------------------------------------------- and back


class _FormatHelper(NamedTuple):
    max_fwd: float
    max_bwd: float


class TheirFormat(enum.Enum):
    """Transformer Engine's Format, with its values."""

    E4M3 = _FormatHelper(448, 448)
    HYBRID = _FormatHelper(448, 57344)


@dataclass
class TheirDelayedScaling:
    """Transformer Engine's DelayedScaling, with its fields."""

    margin: int = 0
    fp8_format: TheirFormat = TheirFormat.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: str = "max"
    reduce_amax: bool = True


@pytest.fixture
def their_recipes(monkeypatch):
    """A module in which the pickle's names are found, so that pickle itself can read it."""
    module = types.ModuleType("transformer_engine.common.recipe")
    module.DelayedScaling, module.Format = TheirDelayedScaling, TheirFormat
    module._FormatHelper = _FormatHelper
    for name in ("transformer_engine", "transformer_engine.common"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


def trained(layer: torch.nn.Module, recipe: DelayedScaling) -> torch.nn.Module:
    torch.manual_seed(1)
    for step in range(2):
        with te.autocast(recipe=recipe):
            out = layer(torch.randn(16, 16) * (step + 1))
        out.sum().backward()
    return layer


def test_transformer_engine_reads_exported_states(their_recipes):
    recipe = DelayedScaling(margin=2, fp8_format=Format.E4M3, amax_history_len=3)
    layer = trained(te.LayerNormMLP(16, 32), recipe)
    state = te.to_transformer_engine_state_dict(layer)["_extra_state"]
    assert state.dtype == torch.uint8
    found = pickle.loads(state.numpy().tobytes())
    assert found["recipe"] == TheirDelayedScaling(2, TheirFormat.E4M3, 3)
    for direction in ("fwd", "bwd"):
        meta = layer.fp8_meta[f"scaling_{direction}"]
        assert torch.equal(found[f"scale_{direction}"], meta.scale)
        history = found[f"amax_history_{direction}"]
        assert torch.equal(history[[0, 2, 1]], meta.amax_history)
        assert history.abs().sum() > 0
    assert found["extra_fp8_variables"] == {"num_gemms": 2}


def test_a_state_dict_comes_back_as_it_was():
    recipe = DelayedScaling(amax_history_len=3)
    layer, other = trained(te.Linear(16, 16), recipe), te.Linear(16, 16)
    other.load_state_dict(te.to_transformer_engine_state_dict(layer))
    assert torch.equal(other.get_extra_state(), layer.get_extra_state())
    assert torch.equal(other.weight, layer.weight)


def test_layers_without_scales_export_an_empty_state():
    model = torch.nn.Sequential(te.Linear(16, 16), te.LayerNorm(16), torch.nn.Linear(16, 16))
    state = te.to_transformer_engine_state_dict(model)
    assert [key for key in state if key.endswith("_extra_state")] == ["0._extra_state"]
    assert state["0._extra_state"].numel() == 0


def test_functions_of_a_recipe_are_not_written_and_that_is_said(their_recipes):
    recipe = DelayedScaling(amax_history_len=3, amax_compute_algo=lambda history: history[0])
    layer = trained(te.Linear(16, 16), recipe)
    with pytest.warns(UserWarning, match="the recipe's functions cannot be written"):
        state = te.to_transformer_engine_state_dict(layer)["_extra_state"]
    assert pickle.loads(state.numpy().tobytes())["recipe"].amax_compute_algo == "max"


def test_another_recipe_than_delayed_scaling_is_refused():
    with pytest.raises(telens.UsageError, match="recipe must be a DelayedScaling"):
        te.to_transformer_engine_state_dict(te.Linear(16, 16), MXFP8BlockScaling())
