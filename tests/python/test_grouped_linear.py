"""GroupedLinear: several linear maps in one module, each of which is a layer for sessions."""

import copy
import itertools
import pickle

import pytest
import torch
from debug_helpers import Scalars, logging_of

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling

SPLITS = [32, 0, 16]
ROWS = sum(SPLITS)


def grouped(**options) -> te.GroupedLinear:
    torch.manual_seed(1)
    layer = te.GroupedLinear(3, 64, 32, device="cpu", **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.dim() == 1:
                parameter.normal_()
    return layer


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(ROWS, 64, generator=generator, requires_grad=True)
    return x, torch.randn(ROWS, 32, generator=generator)


def separate(layer: te.GroupedLinear, kind) -> list[torch.nn.Module]:
    """Makes a module for each map, with its weight and bias."""
    alone = [kind(64, 32) for _ in SPLITS]
    for i, each in enumerate(alone):
        each.load_state_dict({k: getattr(layer, f"{k}{i}") for k in ("weight", "bias")})
    return alone


def through(modules, x: torch.Tensor, splits=SPLITS) -> torch.Tensor:
    parts = x.split(splits)
    return torch.cat([module(part) for module, part in zip(modules, parts, strict=True)])


def test_matches_separate_torch_linears():
    layer, (x, grad) = grouped(), inputs()
    alone, y = separate(layer, torch.nn.Linear), x.detach().clone().requires_grad_()
    out, expected = layer(x, SPLITS), through(alone, y)
    out.backward(grad)
    expected.backward(grad)
    tolerance = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(out, expected, **tolerance)
    torch.testing.assert_close(x.grad, y.grad, **tolerance)
    for i, each in enumerate(alone):
        for name, parameter in each.named_parameters():
            torch.testing.assert_close(
                getattr(layer, f"{name}{i}").grad, parameter.grad, **tolerance
            )


@pytest.mark.parametrize("splits", [SPLITS, [35, 0, 13]], ids=["aligned", "padded"])
@pytest.mark.parametrize("recipe", [DelayedScaling(), Float8CurrentScaling()])
def test_in_fp8_it_has_the_bits_of_separate_linears(recipe, splits):
    layer, (x, grad) = grouped(), inputs()
    alone, y = separate(layer, te.Linear), x.detach().clone().requires_grad_()
    for _ in range(3):
        with te.autocast(recipe=recipe):
            out = layer(x, splits)
        with te.autocast(recipe=recipe):
            expected = through(alone, y, splits)
        out.backward(grad)
        expected.backward(grad)
        assert torch.equal(out, expected)
    assert torch.equal(x.grad, y.grad)
    for i, each in enumerate(alone):
        for name, parameter in each.named_parameters():
            assert torch.equal(getattr(layer, f"{name}{i}").grad, parameter.grad)
    assert not layer.weight1.grad.any()


def test_its_parameters_have_the_names_of_transformer_engine():
    pairs = itertools.product(("weight", "bias"), range(3))
    names = {f"{name}{i}" for name, i in pairs}
    assert set(grouped().state_dict()) == names
    without = {name for name in names if name.startswith("weight")}
    assert set(grouped(bias=False).state_dict()) == without
    assert grouped().weight2.shape == (32, 64)


def test_return_bias_gives_a_list_of_biases():
    layer, (x, _) = grouped(return_bias=True), inputs()
    out, biases = layer(x, SPLITS)
    assert isinstance(biases, list)
    assert all(a is b for a, b in zip(biases, (layer.bias0, layer.bias1, layer.bias2), strict=True))
    added = torch.cat([o + b for o, b in zip(out.split(SPLITS), biases, strict=True)])
    torch.testing.assert_close(added, grouped()(x, SPLITS))


def test_its_splits_may_be_any_sequence_of_whole_numbers():
    layer, (x, _) = grouped(), inputs()
    assert torch.equal(layer(x, m_splits=tuple(SPLITS)), layer(x, SPLITS))
    with pytest.raises(TypeError, match="argument 'm_splits' must be"):
        layer(x, [16.5, 0, 31.5])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_m_splits_may_be_a_tensor(dtype):
    layer, (x, _) = grouped(), inputs()
    assert torch.equal(layer(x, torch.tensor(SPLITS, dtype=dtype)), layer(x, SPLITS))
    with pytest.raises(TypeError, match="argument 'm_splits' must be"):
        layer(x, torch.tensor(SPLITS, dtype=torch.float32))


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ([48], r"moe: m_splits has 1 numbers; expected one for each of 3 GEMMs"),
        ([64, 0, -16], r"moe: m_splits\[2\] is -16"),
        ([16, 0, 16], r"moe: m_splits \[16, 0, 16\] are 32 rows in all; inp .* has 48"),
    ],
)
def test_each_kind_of_wrong_splits_has_a_message(splits, message):
    with pytest.raises(telens.ShapeError, match=message):
        grouped(name="moe")(inputs()[0], splits)


def record_names(layer, tmp_path, **region) -> set[str]:
    scalars = Scalars()
    with debug.session(
        logging_of(["weight"], ["max"]), statistics_logger=scalars, log_dir=tmp_path
    ):
        with te.autocast(**region):
            layer(inputs()[0], SPLITS)
        debug.step()
    return {name.removesuffix("_weight_max") for name in scalars.names()}


def test_its_gemms_are_layers_and_one_without_rows_records_nothing(tmp_path):
    layer = grouped(name="moe")
    assert record_names(layer, tmp_path / "high", enabled=False) == {"moe.gemm_0", "moe.gemm_2"}
    assert record_names(layer, tmp_path / "fp8") == {"moe.gemm_0", "moe.gemm_2"}


def test_gemms_of_an_unnamed_one_share_its_automatic_name(tmp_path):
    assert record_names(grouped(), tmp_path) == {"Layer_1.gemm_0", "Layer_1.gemm_2"}


def test_inferred_names_reach_its_gemms(tmp_path):
    model = torch.nn.ModuleDict({"experts": grouped()})
    debug.infer_and_assign_layer_names(model)
    names = record_names(model["experts"], tmp_path)
    assert names == {"model.experts.gemm_0", "model.experts.gemm_2"}


def test_a_section_may_be_about_one_of_its_gemms(tmp_path):
    layer, (x, _) = grouped(name="moe"), inputs()
    plain = layer(x, SPLITS)

    def section_of(name, feature, **keys):
        return {
            "enabled": True,
            "layers": {"exact_layer_names": [name]},
            "transformer_engine": {feature: {"enabled": True, **keys}},
        }

    config = {
        "first": section_of("moe.gemm_0", "DisableFP8GEMM", gemms=["fprop"]),
        "last": section_of("moe.gemm_2", "LogTensorStats", tensors=["activation"], stats=["max"]),
    }
    with debug.session(config, log_dir=tmp_path):
        with te.autocast(recipe=Float8CurrentScaling()):
            out = layer(x, SPLITS)
        debug.step()
    with te.autocast(recipe=Float8CurrentScaling()):
        fp8 = layer(x, SPLITS)
    assert torch.equal(out[:32], plain[:32])
    assert torch.equal(out[32:], fp8[32:])
    assert not torch.equal(out[:32], fp8[:32])
    records = telens.open_run(tmp_path).records(statistic="max")
    assert list(records["layer"]) == ["moe.gemm_2"]
    assert records["value"][0] == x[32:].max().item()


def test_copies_and_pickles_continue_with_the_same_scales():
    layer, (x, grad) = grouped(name="moe"), inputs()

    def train(module):
        with te.autocast(recipe=DelayedScaling()):
            out = module(x, SPLITS)
        out.backward(grad)
        return out.detach()

    train(layer)
    others = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), grouped()]
    others[-1].load_state_dict(layer.state_dict())
    fresh = train(grouped())
    expected = train(layer)
    assert not torch.equal(expected, fresh)
    for other in others:
        assert torch.equal(train(other), expected)
    assert others[1].name == "moe"


def test_checkpointed_layer_has_the_same_gradients():
    layer, (x, grad) = grouped(), inputs()
    gradients = []
    for function in (layer, lambda *args: te.checkpoint(layer, *args)):
        layer.zero_grad()
        with te.autocast(recipe=Float8CurrentScaling()):
            out = function(x, SPLITS)
        out.backward(grad)
        gradients.append([parameter.grad.clone() for parameter in layer.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_its_weights_may_be_stored_in_fp8():
    with te.fp8_model_init(recipe=Float8CurrentScaling()):
        stored = grouped()
    assert isinstance(stored.weight1, te.QuantizedTensor)
    assert not isinstance(stored.bias1, te.QuantizedTensor)
    layer, (x, grad) = grouped(), inputs()
    outputs = []
    for module in (layer, stored):
        with te.autocast(recipe=Float8CurrentScaling()):
            out = module(x, SPLITS)
        out.backward(grad)
        outputs.append(out)
    assert torch.equal(*outputs)
    assert torch.equal(layer.weight0.grad, stored.weight0.grad)
    assert not stored.weight1.grad.any()
