"""BF16 parameters with FP32 master weights: amp level O2 with AdamW's multi_precision.

On the CPU paddle.amp.decorate returns models as they are, and no kernel of AdamW takes BF16. So the
model is converted by what decorate calls on a GPU, and the update of one parameter, which a GPU's
kernel makes of the master weight, is made here of the same master weight by the CPU's kernel for
FP32. All else is Paddle's: which parameters get master weights, their state and its names.
"""

import numpy as np
import paddle
import paddle_helpers as helpers
import pytest
from paddle import _C_ops
from paddle.amp.auto_cast import amp_initialize
from paddle.base import core
from paddle.base.framework import _dygraph_tracer

import telens.paddle as te

MASTER, FIND_MASTER = 8, 18  # places among adamw_'s arguments


@pytest.fixture(autouse=True)
def adamw_for_bf16(monkeypatch):
    made_for_fp32 = _C_ops.adamw_

    def update(parameter, gradient, *rest):
        rest = list(rest)
        master, rest[MASTER - 2], rest[FIND_MASTER - 2] = rest[MASTER - 2], None, False
        found = made_for_fp32(master, gradient.astype("float32"), *rest)
        parameter.copy_(master.astype("bfloat16"), False)
        return found

    monkeypatch.setattr(_C_ops, "adamw_", update)


@pytest.fixture
def level_o2():
    """Sets what paddle.amp.auto_cast(level="O2") sets on a GPU; on the CPU Paddle ignores it."""
    tracer = _dygraph_tracer()
    former = tracer._amp_level, tracer._amp_dtype
    tracer._amp_level, tracer._amp_dtype = core.AmpLevel.O2, "bfloat16"
    yield
    tracer._amp_level, tracer._amp_dtype = former


def make_model(rate=1e-2):
    paddle.seed(1)
    model = paddle.nn.Sequential(te.LayerNormMLP(32, 64), te.Linear(32, 32))
    amp_initialize([model], "bfloat16", None)
    optimizer = paddle.optimizer.AdamW(rate, parameters=model.parameters(), multi_precision=True)
    return model, optimizer


def train(model, optimizer, steps, in_fp8=True):
    x = helpers.randoms(16, 32, dtype="bfloat16").detach()
    losses = []
    for _ in range(steps):
        with te.fp8_autocast(enabled=in_fp8):
            loss = (model(x) - x).astype("float32").square().mean()
        loss.backward()
        assert {each.grad.dtype for each in model.parameters()} == {paddle.bfloat16}
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return losses


@pytest.mark.parametrize("in_fp8", [True, False])
def test_master_weights_keep_updates_that_bf16_loses(level_o2, in_fp8):
    # An update of 1e-5 is less than half a last place of most BF16 weights, which would not change
    # without master weights.
    model, optimizer = make_model(rate=1e-5)
    before = [each.astype("float32").numpy() for each in model.parameters()]
    train(model, optimizer, 20, in_fp8)
    masters = optimizer._master_weights
    assert set(masters) == {each.name for each in model.parameters()}
    for parameter, first in zip(model.parameters(), before, strict=True):
        master = masters[parameter.name]
        assert parameter.dtype == paddle.bfloat16
        assert master.dtype == paddle.float32
        moved = np.abs(master.numpy() - first)
        assert moved.max() > 1e-4  # 20 steps of 1e-5 add up
        assert helpers.bits(parameter) == helpers.bits(master.astype("bfloat16"))


def test_the_next_forward_computes_with_the_updated_weights(level_o2):
    model, optimizer = make_model()
    losses = train(model, optimizer, 30)
    assert losses[-1] < losses[0] / 2
    fresh, _ = make_model()
    fresh.set_state_dict(model.state_dict())
    x = helpers.randoms(16, 32, dtype="bfloat16").detach()
    assert helpers.bits(fresh(x)) == helpers.bits(model(x))


def test_a_checkpoint_carries_master_weights(level_o2, tmp_path):
    # An optimizer's state is keyed by parameter names, which each process numbers from the first.
    with paddle.utils.unique_name.guard():
        model, optimizer = make_model()
        train(model, optimizer, 3)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        paddle.save(state, str(tmp_path / "checkpoint"))
        whole = train(model, optimizer, 3)
    with paddle.utils.unique_name.guard():
        resumed, resumed_optimizer = make_model()
        state = paddle.load(str(tmp_path / "checkpoint"))
        resumed.set_state_dict(state["model"])
        resumed_optimizer.set_state_dict(state["optimizer"])
        assert train(resumed, resumed_optimizer, 3) == whole


def test_paddle_rejects_an_update_without_bf16_support(monkeypatch, level_o2):
    """The error that the stand-in avoids. If this test fails, Paddle has the kernel."""
    monkeypatch.undo()
    model, optimizer = make_model()
    with pytest.raises(Exception, match=r"(?s)bfloat16.*adamw"):
        train(model, optimizer, 1)
