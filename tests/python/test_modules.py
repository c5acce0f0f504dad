"""The modules of the C++ core as torch.nn modules: arguments, names, values, gradients."""

import inspect

import pytest
import torch

import telens
import telens.pytorch as te

FP32_TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def test_linear_matches_torch_forward_and_backward():
    torch.manual_seed(1)
    ours, reference = te.Linear(32, 48), torch.nn.Linear(32, 48)
    reference.load_state_dict(ours.state_dict(), strict=False)
    x = torch.randn(4, 8, 32, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    ours(x).square().sum().backward()
    reference(y).square().sum().backward()
    torch.testing.assert_close(ours(x), reference(y), **FP32_TOLERANCE)
    torch.testing.assert_close(x.grad, y.grad, **FP32_TOLERANCE)
    torch.testing.assert_close(ours.weight.grad, reference.weight.grad, **FP32_TOLERANCE)
    torch.testing.assert_close(ours.bias.grad, reference.bias.grad, **FP32_TOLERANCE)


@pytest.mark.parametrize("shape", [(0, 32), (16, 32), (2, 3, 32), (2, 3, 4, 32), (32,)])
def test_linear_accepts_any_number_of_dimensions_and_empty_inputs(shape):
    layer = te.Linear(32, 16)
    x = torch.randn(shape, requires_grad=True)
    out = layer(x)
    assert out.shape == (*shape[:-1], 16)
    out.sum().backward()
    assert x.grad.shape == x.shape
    assert layer.weight.grad.shape == layer.weight.shape


def test_linear_takes_an_input_that_is_not_contiguous():
    layer = te.Linear(32, 16)
    x = torch.randn(32, 8).t()
    torch.testing.assert_close(layer(x), layer(x.contiguous()))


def test_norms_match_torch():
    x = torch.randn(4, 64)
    for ours, reference in (
        (te.LayerNorm(64), torch.nn.LayerNorm(64)),
        (te.RMSNorm(64, eps=1e-5), torch.nn.RMSNorm(64, eps=1e-5)),
    ):
        torch.testing.assert_close(ours(x), reference(x), **FP32_TOLERANCE)


@pytest.mark.parametrize("eps", [-1.0, float("nan"), float("inf")])
def test_an_epsilon_is_finite_and_not_below_0(eps):
    for make, option in (
        (lambda **e: te.LayerNorm(32, **e), "eps"),
        (lambda **e: te.RMSNorm(32, **e), "eps"),
        (lambda **e: te.LayerNormLinear(32, 32, **e), "eps"),
        (lambda **e: te.LayerNormMLP(32, 32, **e), "eps"),
        (lambda **e: te.MultiheadAttention(32, 4, **e), "layernorm_epsilon"),
        (lambda **e: te.MultiheadAttention(32, 4, **e), "qk_norm_eps"),
        (lambda **e: te.TransformerLayer(32, 64, 4, **e), "layernorm_epsilon"),
        (lambda **e: te.TransformerLayer(32, 64, 4, **e), "qk_norm_eps"),
    ):
        with pytest.raises(telens.UsageError, match=f": {option} is .*; expected a finite number"):
            make(**{option: eps}, device="cpu")
        make(**{option: 0.0}, device="cpu")


def test_parameters_have_the_names_of_transformer_engine():
    names = [
        (te.Linear(16, 16), {"weight", "bias"}),
        (te.LayerNorm(16), {"weight", "bias"}),
        (te.RMSNorm(16), {"weight"}),
        (
            te.LayerNormLinear(16, 16),
            {"layer_norm_weight", "layer_norm_bias", "weight", "bias"},
        ),
        (
            te.LayerNormMLP(16, 32),
            {
                "layer_norm_weight",
                "layer_norm_bias",
                "fc1_weight",
                "fc1_bias",
                "fc2_weight",
                "fc2_bias",
            },
        ),
    ]
    for module, expected in names:
        assert set(module.state_dict()) == expected
        if not isinstance(module, te.LayerNorm | te.RMSNorm):
            with te.autocast():
                module(torch.randn(16, 16)).sum().backward()
            assert set(module.state_dict()) == expected | {"_extra_state"}


def test_transformer_layer_has_typed_children():
    layer = te.TransformerLayer(32, 64, 2)
    assert isinstance(layer.self_attention, te.MultiheadAttention)
    assert isinstance(layer.self_attention.proj, te.Linear)
    assert isinstance(layer.layernorm_mlp, te.LayerNormMLP)
    assert "self_attention.layernorm_qkv.query_weight" in dict(layer.named_parameters())


def test_parameters_are_genuine_and_trainable():
    layer = te.TransformerLayer(32, 64, 2, hidden_dropout=0, attention_dropout=0)
    assert all(type(p) is torch.nn.Parameter and p.is_leaf for p in layer.parameters())
    layer(torch.randn(8, 2, 32)).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_a_frozen_weight_gets_no_gradient():
    layer = te.Linear(16, 16)
    layer.weight.requires_grad_(False)
    x = torch.randn(16, 16, requires_grad=True)
    layer(x).sum().backward()
    assert layer.weight.grad is None
    assert x.grad is not None


def test_dropout_follows_train_and_eval_of_the_python_module():
    layer = te.TransformerLayer(32, 64, 2, hidden_dropout=0.5, attention_dropout=0.5)
    x = torch.randn(8, 2, 32)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    layer.self_attention.train()
    assert not torch.equal(layer(x), layer(x))


def test_a_missing_argument_is_named():
    with pytest.raises(TypeError, match="Linear: argument 'out_features' is missing"):
        te.Linear(16)


def test_a_misspelt_argument_is_answered_with_the_nearest_name():
    with pytest.raises(TypeError, match="unknown argument 'bais'; did you mean 'bias'"):
        te.Linear(16, 16, bais=False)
    with pytest.raises(TypeError, match="unknown argument 'fp8_outptu'; did you mean 'fp8_output'"):
        te.Linear(16, 16)(torch.ones(16, 16), fp8_outptu=True)


def test_an_argument_of_the_wrong_type_is_named():
    group = "must be a torch.distributed.ProcessGroup or None, not int"
    with pytest.raises(TypeError, match=f"argument 'tp_group' {group}"):
        te.Linear(16, 16, device="cpu", tp_group=3)
    with pytest.raises(TypeError, match=f"argument 'tp_group' {group}"):
        te.Linear(16, 16, device="cpu").set_tensor_parallel_group(3)
    with pytest.raises(TypeError, match=f"argument 'amax_reduction_group' {group}"):
        te.autocast(amax_reduction_group=3).__enter__()
    with pytest.raises(TypeError, match=f"fp8_autocast: fp8_group {group}"):
        te.fp8_autocast(fp8_group=3)
    with pytest.raises(TypeError, match=r"'window_size' must be Sequence\[int\] \| None, not int"):
        te.DotProductAttention(2, 8, window_size=8)
    with pytest.raises(TypeError, match="argument 'in_features' must be int, not str"):
        te.Linear("a", 16)
    with pytest.raises(TypeError, match=r"argument 'inp' must be torch\.Tensor, not list"):
        te.Linear(16, 16)([1.0])


def test_too_many_and_doubled_arguments_are_errors():
    x = torch.ones(16, 16)
    with pytest.raises(TypeError, match="takes at most"):
        te.LayerNorm(16)(x, x)
    with pytest.raises(TypeError, match="two values for argument 'inp'"):
        te.Linear(16, 16)(x, inp=x)


def test_a_wrong_shape_is_a_shape_error_that_is_a_value_error_too():
    with pytest.raises(telens.ShapeError, match="expected"):
        te.Linear(16, 16)(torch.ones(4, 8))
    assert issubclass(telens.ShapeError, ValueError)
    assert issubclass(telens.ShapeError, RuntimeError)


def test_the_signature_and_the_documentation_come_from_the_core():
    signature = inspect.signature(te.Linear)
    assert list(signature.parameters)[:3] == ["in_features", "out_features", "bias"]
    assert signature.parameters["bias"].default is True
    assert "size of an input sample" in te.Linear.__doc__
    assert "is_first_microbatch" in te.Linear.__doc__


def test_dtype_device_and_initialization_are_options():
    layer = te.Linear(
        16, 16, params_dtype=torch.bfloat16, device="cpu", init_method=torch.nn.init.ones_
    )
    assert layer.weight.dtype == torch.bfloat16
    assert torch.equal(layer.weight, torch.ones(16, 16, dtype=torch.bfloat16))
    assert te.Linear(16, 16, device="meta").weight.is_meta


def test_a_device_context_decides_where_parameters_are_made():
    with torch.device("meta"):
        assert all(p.is_meta for p in te.TransformerLayer(32, 64, 2).parameters())
        assert not te.Linear(16, 16, device="cpu").weight.is_meta


def test_a_module_of_the_meta_device_can_be_materialized():
    layer = te.LayerNormLinear(16, 16, device="meta").to_empty(device="cpu")
    layer.reset_parameters()
    assert torch.equal(layer.layer_norm_weight, torch.ones(16))
    assert layer.weight.std() > 0
    assert layer(torch.randn(4, 16)).isfinite().all()


def test_return_bias_returns_a_pair():
    layer = te.Linear(16, 16, return_bias=True)
    torch.nn.init.ones_(layer.bias)
    x = torch.randn(4, 16)
    out, bias = layer(x)
    torch.testing.assert_close(out, x @ layer.weight.t(), **FP32_TOLERANCE)
    assert torch.equal(bias, layer.bias)


def test_a_layer_without_bias_has_none():
    layer = te.Linear(16, 16, bias=False)
    assert layer.bias is None
    assert "bias" not in layer.state_dict()
    assert layer(torch.ones(4, 16)).shape == (4, 16)


def test_the_bias_can_be_taken_away_later():
    layer = te.Linear(16, 16)
    torch.nn.init.ones_(layer.bias)
    x = torch.randn(4, 16)
    with_bias = layer(x)
    layer.bias = None
    torch.testing.assert_close(layer(x), with_bias - 1, **FP32_TOLERANCE)


@pytest.mark.parametrize("dim", [0, 3])
def test_rotary_embedding_rejects_odd_channels_at_construction(dim):
    with pytest.raises(telens.UsageError, match="even number"):
        te.RotaryPositionEmbedding(dim)
