"""Activations that are offloaded to the host, tested by which tensors are alive when."""

import contextlib
import gc
import weakref

import numpy
import pytest
import torch

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.pytorch.cpu_offload import _Saved, get_cpu_offload_context, mark_not_offload

WIDE = 512  # 512 x 512 elements are 256 Ki: the smallest that move


class Square(torch.autograd.Function):
    """Saves its input, which nothing else holds."""

    @staticmethod
    def forward(ctx, x):
        memory = numpy.empty(x.shape, numpy.float32)
        alive.append(weakref.ref(memory))
        kept = torch.from_numpy(memory).copy_(x)
        ctx.save_for_backward(kept)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        order.append(("backward", len(alive)))
        return 2 * ctx.saved_tensors[0] * gradient


alive: list[weakref.ref] = []
order: list[tuple] = []


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    alive.clear()
    order.clear()
    for name in ("copy_to_host", "free", "copy_back"):
        original = getattr(_Saved, name)

        def noted(self, *args, original=original, name=name):
            had = self.tensor is not None
            original(self, *args)
            if name != "copy_back" or not had:
                order.append((name,))

        monkeypatch.setattr(_Saved, name, noted)


def run(layers: int, context, synchronize, x=None, with_output=True):
    """Returns input, output, and which layers' saved tensors were alive when each layer began."""
    x = torch.full((WIDE, WIDE), 1.01, requires_grad=True) if x is None else x
    out, lived = x, []
    for _ in range(layers):
        with context:
            gc.collect()
            lived.append([i for i, each in enumerate(alive) if each() is not None])
            out = Square.apply(out)
        out = synchronize(out) if with_output else (synchronize(), out)[1]
    return x, out, lived


def test_places_are_free_when_the_schedule_says():
    # 4 layers, of which 2 are offloaded: layer i is freed when layer 4 - 2 + i begins.
    _, _, lived = run(4, *get_cpu_offload_context(True, 2, 4))
    assert lived == [[], [0], [1], [2]]
    alive.clear()
    _, _, lived = run(4, *get_cpu_offload_context(True, 1, 4))
    assert lived == [[], [0], [0, 1], [1, 2]]


def test_copies_back_start_in_the_scheduled_layer():
    _, out, _ = run(4, *get_cpu_offload_context(True, 2, 4))
    order.clear()
    out.sum().backward()
    names = [each[0] for each in order]
    # Layer 1 is loaded in the backward of layer 4 - 1 - 2 + 1 = 2, layer 0 in that of layer 1.
    assert names == ["backward", "copy_back", "backward", "copy_back", "backward", "backward"]


@pytest.mark.parametrize("with_output", [True, False])
@pytest.mark.parametrize("arguments", [(2, 4), (3, 4), (2, 1), (12, 1)], ids=str)
def test_gradients_have_the_same_bits_step_after_step(arguments, with_output):
    context, synchronize = get_cpu_offload_context(True, *arguments)
    expected, out, _ = run(4, contextlib.nullcontext(), lambda output=None: output)
    out.sum().backward()
    for _ in range(2):
        x, out, _ = run(4, context, synchronize, with_output=with_output)
        out.sum().backward()
        assert torch.equal(x.grad, expected.grad)
    assert ("free",) in order


def test_double_buffering_changes_no_step():
    seen = []
    for double_buffering in (False, True):
        order.clear()
        options = {"double_buffering": double_buffering}
        context, synchronize = get_cpu_offload_context(True, 2, 4, **options)
        x, out, _ = run(4, context, synchronize)
        out.sum().backward()
        seen.append(([name for name, *_ in order], x.grad))
    (without, expected), (with_it, found) = seen
    assert with_it == without
    assert torch.equal(found, expected)


def test_our_layers_train_as_without_it():
    def gradients(context, synchronize):
        torch.manual_seed(1)
        layers = [te.LayerNormMLP(WIDE, 2 * WIDE, device="cpu") for _ in range(3)]
        x = torch.randn(WIDE, WIDE, requires_grad=True)
        with te.autocast():
            out = x
            for layer in layers:
                with context:
                    out = layer(out)
                out = synchronize(out)
        out.sum().backward()
        return [x.grad, *(p.grad for layer in layers for p in layer.parameters())]

    plain = gradients(contextlib.nullcontext(), lambda output: output)
    offloaded = gradients(*get_cpu_offload_context(True, 2, 3))
    for one, two in zip(plain, offloaded, strict=True):
        assert torch.equal(one, two)


def test_parameters_small_and_marked_tensors_stay():
    context, synchronize = get_cpu_offload_context(True, 1, 2)
    weight = torch.nn.Parameter(torch.ones(WIDE, WIDE))
    small = torch.ones(WIDE, WIDE // 2, requires_grad=True)
    marked = torch.ones(WIDE, WIDE, requires_grad=True) * 1
    mark_not_offload(marked)
    with context:
        out = weight.square().sum() + small.square().sum() + marked.square().sum()
    synchronize(out)
    with context:
        pass
    assert order == []


def test_context_knows_whether_a_forward_is_inside():
    context, _ = get_cpu_offload_context(True, 1, 2)
    assert not context.inside_context
    with context:
        with context:
            pass
        assert context.inside_context
    assert not context.inside_context


def test_tensor_with_gaps_stays_and_a_transposed_one_moves():
    context, _ = get_cpu_offload_context(True, 1, 2)
    x = torch.rand(WIDE, 2 * WIDE, requires_grad=True)
    with context, pytest.warns(UserWarning, match="has gaps between its elements and is not moved"):
        out = (x * 1)[:, ::2].square().sum() + (x * 1).t().square().sum()
    with context:
        pass
    assert order.count(("copy_to_host",)) == 1
    out.backward()
    expected = 2 * x.detach()
    expected[:, ::2] *= 2
    assert torch.equal(x.grad, expected)


def test_tensor_saved_twice_moves_once():
    context, _ = get_cpu_offload_context(True, 1, 2)
    x = torch.ones(WIDE, WIDE, requires_grad=True) * 1
    with context:
        out = x.square() + x.exp().detach() * x.square()
    with context:
        pass
    # x, which both squares save, and the result of exp, which the product saves.
    assert order.count(("copy_to_host",)) == 2
    out.sum().backward()


def test_switched_off_it_does_nothing():
    # Frameworks pass 0 layers while it is off.
    context, synchronize = get_cpu_offload_context(
        False, 0, 2, True, False, False, manual_synchronization=True, offload_stream="none"
    )
    _, out, _ = run(2, context, synchronize)
    assert order == []
    assert synchronize(out) is out


def test_invalid_options_are_rejected(tmp_path):
    for arguments, message in (
        ({"num_layers": 4, "model_layers": 4}, "num_layers is 4; expected at most 3"),
        ({"offload_activations": False}, "offload_activations must be True"),
        ({"num_layers": 0}, "num_layers must be an integer from 1 on"),
        ({"manual_synchronization": True}, "manual_synchronization is given; expected its default"),
    ):
        with pytest.raises(telens.UsageError, match=message):
            get_cpu_offload_context(True, **arguments)
    with pytest.warns(UserWarning, match="offload_weights has no effect"):
        _, synchronize = get_cpu_offload_context(True, offload_weights=True)
    with pytest.raises(telens.UsageError, match="output that requires a gradient"):
        synchronize(torch.ones(2))
    with (
        debug.session(log_dir=tmp_path),
        pytest.raises(telens.UsageError, match="a debug session looks at tensors"),
    ):
        get_cpu_offload_context(True)
