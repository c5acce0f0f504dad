"""One of two ranks: compares layers that are divided between them with whole layers. Raises if they
differ.

python -m paddle.distributed.launch --nproc_per_node 2 --backend gloo parallel_worker.py
"""

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel import get_rng_state_tracker

import telens.paddle as te
from telens.common.recipe import DelayedScaling

RANKS = 2


def randoms(*shape, seed):
    values = np.random.default_rng(seed).standard_normal(shape).astype("float32")
    tensor = paddle.to_tensor(values)
    tensor.stop_gradient = False
    return tensor


def part(value, axis):
    return np.split(value, RANKS, axis)[dist.get_rank()]


def own_part(parameter, value):
    if not getattr(parameter, "is_distributed", False):
        return value
    return part(value, parameter.split_axis)


def copy_parts(whole, divided):
    values = {name: each.numpy() for name, each in whole.named_parameters()}
    for name, parameter in divided.named_parameters():
        parameter.set_value(own_part(parameter, values[name]))


def near(mine, other, what):
    # FP32 sums may have another order.
    np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5, err_msg=what)


def sum_marked(layer, group):
    """Does what fleet's hooks do for parameters that see only a part of the sequence."""
    for parameter in layer.parameters():
        if getattr(parameter, "sequence_parallel", False):
            dist.all_reduce(parameter.grad, group=group)


def compare(what, make, shape, *, sequence=False, in_parts=None, out_parts=None):
    """``in_parts``, ``out_parts``: the axes of input and output along which this rank has a
    part.
    """
    paddle.seed(5)
    whole, divided = make(False), make(True)
    copy_parts(whole, divided)
    x, out_gradient = randoms(*shape, seed=1), None
    mine = paddle.to_tensor(x.numpy() if in_parts is None else part(x.numpy(), in_parts))
    mine.stop_gradient = False
    expected, found = whole(x), divided(mine)
    out_gradient = randoms(*expected.shape, seed=2).detach().numpy()
    expected.backward(paddle.to_tensor(out_gradient))
    own = out_gradient if out_parts is None else part(out_gradient, out_parts)
    found.backward(paddle.to_tensor(own))
    if sequence:
        sum_marked(divided, None)
    wanted = expected.numpy() if out_parts is None else part(expected.numpy(), out_parts)
    near(found.numpy(), wanted, f"{what}: output")
    gradient = x.grad.numpy() if in_parts is None else part(x.grad.numpy(), in_parts)
    near(mine.grad.numpy(), gradient, f"{what}: gradient of the input")
    values = {name: each.grad.numpy() for name, each in whole.named_parameters()}
    for name, parameter in divided.named_parameters():
        near(parameter.grad.numpy(), own_part(parameter, values[name]), f"{what}: {name}")


def compare_layers():
    def linear(mode, **more):
        return lambda divided: te.Linear(32, 48, parallel_mode=mode if divided else None, **more)

    compare("column", linear("Column"), (4, 8, 32), out_parts=-1)
    compare("gathered", linear("Column", gather_output=True), (4, 8, 32))
    compare("row", linear("Row"), (4, 8, 32), in_parts=-1)
    both = {"sequence_parallel": True}
    compare("column of a sequence", linear("column", **both), (4, 8, 32), in_parts=1, out_parts=-1)
    compare(
        "row of a sequence",
        linear("row", **both),
        (4, 8, 32),
        in_parts=-1,
        out_parts=1,
        sequence=True,
    )
    compare(
        "norm and column",
        lambda divided: te.LayerNormLinear(32, 48, parallel_mode="Column" if divided else None),
        (4, 8, 32),
        out_parts=-1,
    )
    for backend in ("transformer_engine", "paddle"):
        for sequence in (False, True):
            where = 1 if sequence else None

            def layers(kind, *sizes, _backend=backend, _sequence=sequence, **more):
                return lambda divided: kind(
                    *sizes,
                    set_parallel_mode=divided,
                    sequence_parallel=_sequence,
                    backend=_backend,
                    **more,
                )

            for what, make in {
                "MLP": layers(te.LayerNormMLP, 32, 64),
                "attention": layers(te.MultiHeadAttention, 32, 4, 0.0, num_gqa_groups=2),
                "layer": layers(
                    te.TransformerLayer, 32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0
                ),
            }.items():
                name = f"{what} by {backend}, sequence {sequence}"
                compare(name, make, (4, 8, 32), in_parts=where, out_parts=where, sequence=sequence)


def check_amaxes(group):
    """The scales of a replicated layer follow the largest amax of both ranks if reduce_amax is
    set.
    """
    for reduce_amax in (True, False):
        paddle.seed(5)
        layer = te.Linear(32, 32)
        x = (randoms(16, 32, seed=1) * float(1 + 7 * dist.get_rank())).detach()
        recipe = DelayedScaling(reduce_amax=reduce_amax, amax_history_len=2)
        for _ in range(2):
            with te.fp8_autocast(enabled=True, fp8_recipe=recipe, fp8_group=group):
                layer(x).sum().backward()
        states: list = []
        dist.all_gather(states, layer.state_dict()["fp8_state"][0].astype("int32"), group=group)
        assert bool((states[0] == states[1]).all()) == reduce_amax


def check_random_states():
    """Dropout of attention differs between ranks; dropout of hidden states is the same on both."""
    tracker = get_rng_state_tracker()
    tracker.reset()
    tracker.add("global_seed", 77)
    tracker.add("local_seed", 100 + dist.get_rank())
    tracker.add("model_parallel_rng", 200 + dist.get_rank())
    layer = te.TransformerLayer(32, 64, 4, set_parallel_mode=True)
    out = layer(randoms(2, 8, 32, seed=1).detach())
    found: list = []
    dist.all_gather(found, out)
    # The sums are equal on both ranks, so each element was dropped on both or on neither.
    near(found[0].numpy(), found[1].numpy(), "outputs of both ranks")


def check_names_of_random_states():
    tracker = get_rng_state_tracker()
    tracker.add("of attention", 1)
    tracker.add("of hidden states", 2)
    layer = te.TransformerLayer(
        *(32, 64, 4),
        set_parallel_mode=True,
        attention_dropout_rng_state_name="of attention",
        hidden_dropout_rng_state_name="of hidden states",
    )
    heads = te.MultiHeadAttention(32, 4, set_parallel_mode=True, rng_state_name="of attention")
    used = []
    original = tracker.rng_state
    tracker.rng_state = lambda name: used.append(name) or original(name)
    x = randoms(2, 8, 32, seed=1).detach()
    layer(x)
    heads(x)
    del tracker.rng_state
    assert used == ["of attention", *["of hidden states"] * 2, "of attention"], used


def main():
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": RANKS, "pp_degree": 1}
    fleet.init(is_collective=True, strategy=strategy)
    group = fleet.get_hybrid_communicate_group().get_model_parallel_group()
    tracker = get_rng_state_tracker()
    tracker.reset()
    tracker.add("model_parallel_rng", 200 + dist.get_rank())
    tracker.add("local_seed", 100 + dist.get_rank())
    tracker.add("global_seed", 77)
    compare_layers()
    check_amaxes(group)
    check_random_states()
    check_names_of_random_states()
    print("both ranks agree", flush=True)


if __name__ == "__main__":
    main()
