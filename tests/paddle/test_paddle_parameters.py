"""Parameters are Paddle's own: attributes, optimizers, clipping, hooks, checkpoints, copies."""

import copy
import pickle

import numpy as np
import paddle
import paddle_helpers as helpers
import pytest

import telens.paddle as te
from telens.common.recipe import DelayedScaling


def loss_of(layer, x):
    out = layer(x)
    return (out * out).mean()


# ---------------------------------------------------------------------- attributes


def test_weight_follows_its_attribute():
    attribute = paddle.ParamAttr(
        name="my_weight",
        initializer=paddle.nn.initializer.Constant(0.5),
        learning_rate=0.25,
        regularizer=paddle.regularizer.L2Decay(0.1),
        trainable=False,
        need_clip=False,
    )
    weight = te.Linear(16, 32, weight_attr=attribute).weight
    assert weight.name == "my_weight"
    assert weight.shape == [32, 16]
    assert (weight.numpy() == 0.5).all()
    assert weight.optimize_attr == {"learning_rate": 0.25}
    assert weight.regularizer is not None
    assert weight.stop_gradient
    assert not weight.need_clip


@pytest.mark.parametrize("make", [te.Linear, te.LayerNormLinear, te.LayerNormMLP])
def test_bias_attr_false_omits_the_bias(make):
    layer = make(16, 16, bias_attr=False)
    assert not [n for n, _ in layer.named_parameters() if n.endswith("bias") and "ln" not in n]
    layer(helpers.randoms(4, 16)).sum().backward()


def test_a_norms_bias_attr_false_is_zeros_that_are_not_trained():
    layer = te.LayerNorm(16, bias_attr=False)
    assert layer.bias.stop_gradient
    assert not layer.bias.any()
    layer(helpers.randoms(4, 16)).sum().backward()
    assert layer.bias.grad is None
    assert layer.weight.grad is not None


def test_bias_follows_its_attribute():
    attribute = paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(2.0))
    assert (te.Linear(16, 16, bias_attr=attribute).bias.numpy() == 2).all()


def test_a_frozen_weight_gets_no_gradient():
    layer = te.Linear(16, 16)
    layer.weight.stop_gradient = True
    x = helpers.randoms(4, 16)
    layer(x).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None
    assert x.grad is not None
    layer.weight.stop_gradient = False
    layer(x).sum().backward()
    assert layer.weight.grad is not None


def test_nothing_is_copied_on_the_way_to_the_core():
    layer = te.Linear(16, 16)
    weight = layer.weight
    layer(helpers.randoms(4, 16))
    weight.set_value(paddle.zeros([16, 16]))  # in place: the core sees it
    layer.bias.set_value(paddle.ones([16]))
    assert (layer(helpers.randoms(4, 16)).numpy() == 1).all()


# ---------------------------------------------------------------------- autograd


def test_no_grad_and_stop_gradient_make_no_graph():
    layer = te.Linear(16, 16)
    with paddle.no_grad():
        assert layer(helpers.randoms(4, 16)).stop_gradient
    for parameter in layer.parameters():
        parameter.stop_gradient = True
    assert layer(helpers.randoms(4, 16).detach()).stop_gradient
    assert not layer(helpers.randoms(4, 16)).stop_gradient


def test_a_layer_may_be_used_twice():
    layer = te.Linear(16, 16)
    x = helpers.randoms(4, 16)
    layer(layer(x)).sum().backward()
    w = layer.weight.detach().clone()
    w.stop_gradient = False
    y = x.detach()
    hidden = paddle.matmul(y, w, transpose_y=True) + layer.bias.detach()
    (paddle.matmul(hidden, w, transpose_y=True) + layer.bias.detach()).sum().backward()
    np.testing.assert_allclose(layer.weight.grad.numpy(), w.grad.numpy(), rtol=1e-5, atol=1e-5)


def test_gradients_accumulate_over_backwards():
    layer = te.Linear(16, 16)
    x = helpers.randoms(4, 16)
    loss_of(layer, x).backward()
    once = layer.weight.grad.numpy().copy()
    loss_of(layer, x).backward()
    np.testing.assert_array_equal(layer.weight.grad.numpy(), once + once)


def test_one_of_two_outputs_may_be_unused():
    layer = te.LayerNormLinear(16, 16, return_layernorm_output=True)
    for used in range(2):
        x = helpers.randoms(4, 16)
        layer(x)[used].sum().backward()
        assert x.grad is not None


def test_layer_hooks_and_gradient_hooks_run():
    layer = te.Linear(16, 16)
    seen = []
    layer.register_forward_pre_hook(lambda *_: seen.append("pre"))
    layer.register_forward_post_hook(lambda *_: seen.append("post"))
    layer.weight.register_hook(lambda gradient: seen.append("gradient") or gradient * 2)
    x = helpers.randoms(4, 16)
    loss_of(layer, x).backward()
    assert seen == ["pre", "post", "gradient"]
    doubled = layer.weight.grad.numpy().copy()
    plain = copy.deepcopy(layer)
    plain.clear_gradients(set_to_zero=False)
    loss_of(plain, x).backward()
    np.testing.assert_array_equal(doubled, 2 * plain.weight.grad.numpy())


def test_a_sublayer_may_be_replaced():
    model = te.TransformerLayer(32, 64, 4, attention_dropout=0.0, hidden_dropout=0.0)
    model.self_attention.proj = paddle.nn.Linear(32, 32)

    class Plain(paddle.nn.Layer):
        def forward(self, x, is_first_microbatch=None):
            return x * 2

    model.layernorm_mlp = Plain()
    with pytest.raises(TypeError):  # Paddle's layer knows no is_first_microbatch
        model(helpers.randoms(2, 4, 32))
    model.self_attention.proj = Plain()
    out = model(helpers.randoms(2, 4, 32))
    out.sum().backward()
    assert model.self_attention.layernorm_qkv.weight.grad is not None


# ---------------------------------------------------------------------- optimizers


# In FP32, because on the CPU neither Paddle's AdamW nor its norm of gradients supports BF16.
def test_a_layer_trains_with_adamw_and_clipping():
    paddle.seed(1)
    layer = te.LayerNormMLP(32, 64)
    optimizer = paddle.optimizer.AdamW(
        1e-2,
        parameters=layer.parameters(),
        multi_precision=True,
        grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0),
    )
    x = helpers.randoms(16, 32).detach()
    losses = []
    for _ in range(20):
        with te.fp8_autocast(enabled=True):
            loss = (layer(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 2


def test_wgrad_is_added_to_main_grad():
    layer, plain = te.Linear(16, 32, fuse_wgrad_accumulation=True), te.Linear(16, 32)
    plain.set_state_dict(layer.state_dict())
    x = helpers.randoms(4, 16)
    loss_of(plain, x).backward()
    with pytest.raises(Exception, match="main_grad"):
        loss_of(layer, x).backward()
    layer.clear_gradients(set_to_zero=False)
    layer.weight.main_grad = paddle.ones([32, 16])
    for _ in range(2):
        loss_of(layer, x).backward()
    assert layer.weight.grad is None
    np.testing.assert_allclose(
        layer.weight.main_grad.numpy(), 1 + 2 * plain.weight.grad.numpy(), rtol=1e-6, atol=1e-6
    )
    assert layer.bias.grad is not None


def test_the_first_microbatchs_weight_is_kept_for_the_others():
    layer = te.Linear(16, 16)
    x = helpers.randoms(16, 16)
    with te.fp8_autocast(enabled=True):
        first = layer(x, is_first_microbatch=True).numpy()
    layer.weight.set_value(paddle.zeros([16, 16]))
    with te.fp8_autocast(enabled=True):
        second = layer(x, is_first_microbatch=False).numpy()
        fresh = layer(x, is_first_microbatch=None).numpy()
    np.testing.assert_allclose(first, second, atol=0.5)
    assert np.abs(second).max() > 0
    assert (fresh == layer.bias.numpy()).all()


# ---------------------------------------------------------------------- checkpoints


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.first = te.LayerNormLinear(16, 32)
        self.second = te.Linear(32, 16)

    def forward(self, x):
        return self.second(self.first(x))


def train(net, optimizer, steps, seed):
    recipe = DelayedScaling(amax_history_len=4)
    losses = []
    for step in range(steps):
        x = helpers.randoms(16, 16, seed=seed + step).detach()
        with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
            loss = loss_of(net, x)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return losses


def test_a_checkpoint_restores_weights_optimizer_and_scales(tmp_path):
    net = Net()
    optimizer = paddle.optimizer.AdamW(1e-2, parameters=net.parameters())
    train(net, optimizer, 5, seed=0)
    paddle.save(net.state_dict(), str(tmp_path / "net.pdparams"))
    paddle.save(optimizer.state_dict(), str(tmp_path / "net.pdopt"))
    expected = train(net, optimizer, 5, seed=100)

    for with_scales in (True, False):
        restored = Net()
        state = paddle.load(str(tmp_path / "net.pdparams"))
        assert {"first.fp8_state", "second.fp8_state"} <= state.keys()
        if not with_scales:
            state = {key: value for key, value in state.items() if "fp8_state" not in key}
            with pytest.warns(UserWarning, match="fp8_state"):
                missing, unexpected = restored.set_state_dict(state)
            assert missing == ["first.fp8_state", "second.fp8_state"]
        else:
            missing, unexpected = restored.set_state_dict(state)
            assert missing == []
        assert unexpected == []
        again = paddle.optimizer.AdamW(1e-2, parameters=restored.parameters())
        saved = paddle.load(str(tmp_path / "net.pdopt"))
        again.set_state_dict(_renamed(saved, net, restored))
        losses = train(restored, again, 5, seed=100)
        assert (losses == expected) == with_scales


def _renamed(state, source, target):
    """Paddle keys an optimizer's state by parameter names, which are numbered within a process."""
    names = {a.name: b.name for a, b in zip(source.parameters(), target.parameters(), strict=True)}
    found = {}
    for key, value in state.items():
        old = max((n for n in names if key.startswith(n + "_")), key=len, default=None)
        found[key if old is None else names[old] + key[len(old) :]] = value
    return found


def test_a_layer_that_never_ran_in_fp8_has_an_empty_state():
    state = te.Linear(16, 16).state_dict()
    assert list(state) == ["weight", "bias", "fp8_state"]
    assert state["fp8_state"][0].shape == [0]
    other = te.Linear(16, 16)
    assert other.set_state_dict(state) == ([], [])


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_have_separate_weights_and_scales(clone):
    layer = te.Linear(16, 16)
    x = helpers.randoms(16, 16)
    for _ in range(3):
        with te.fp8_autocast(enabled=True):
            loss_of(layer, x).backward()
    other = clone(layer)
    outputs = []
    for each in (layer, other):
        with te.fp8_autocast(enabled=True):
            outputs.append(each(x).numpy())
    np.testing.assert_array_equal(*outputs)
    other.weight.set_value(paddle.zeros([16, 16]))
    assert layer.weight.any()
