"""Random states by name, and which operations draw from them."""

import copy
import subprocess
import sys

import pytest
import torch

import telens
import telens.pytorch as te


@pytest.fixture
def tracker() -> te.CudaRNGStatesTracker:
    torch.manual_seed(1)
    tracker = te.CudaRNGStatesTracker("cpu")
    tracker.add("model-parallel-rng", 123)
    return tracker


def test_forks_continue_their_stream_and_keep_the_default(tracker):
    default = torch.get_rng_state()
    parts = []
    for _ in range(2):
        with tracker.fork():
            parts.append(torch.randn(5))
    assert torch.equal(torch.get_rng_state(), default)
    whole = torch.randn(5, generator=torch.Generator().manual_seed(123)), parts[0]
    assert torch.equal(*whole)
    assert not torch.equal(*parts)


def test_states_survive_get_and_set_and_an_exception(tracker):
    states = tracker.get_states()
    default = torch.get_rng_state()
    first = []

    def draw_and_fail():
        with tracker.fork():
            first.append(torch.randn(3))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        draw_and_fail()
    assert torch.equal(torch.get_rng_state(), default)
    tracker.set_states(states)
    with tracker.fork():
        assert torch.equal(torch.randn(3), first[0])
    tracker.reset()
    assert tracker.get_states() == {}


def test_a_name_or_seed_twice_and_an_unknown_name_are_errors(tracker):
    with pytest.raises(telens.UsageError, match="the name 'model-parallel-rng' exists already"):
        tracker.add("model-parallel-rng", 5)
    with pytest.raises(telens.UsageError, match="the seed 123 exists already"):
        tracker.add("other", 123)
    with (
        pytest.raises(KeyError, match=r"unknown state 'model-paralel-rng' \(did you mean"),
        tracker.fork("model-paralel-rng"),
    ):
        pass


@pytest.mark.parametrize("name", ["Linear", "LayerNormMLP", "TransformerLayer"])
def test_weights_are_drawn_inside_the_fork(tracker, name):
    sizes = {"Linear": (16, 32), "LayerNormMLP": (16, 32), "TransformerLayer": (16, 32, 2)}[name]
    default = torch.get_rng_state()
    layer = getattr(te, name)(*sizes, get_rng_state_tracker=lambda: tracker, device="cpu")
    assert torch.equal(torch.get_rng_state(), default)
    torch.manual_seed(123)
    other = getattr(te, name)(*sizes, device="cpu")
    for one, two in zip(layer.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_layer_may_name_its_state(tracker):
    tracker.add("experts", 7)
    layer = te.Linear(
        16, 16, get_rng_state_tracker=lambda: tracker, rng_tracker_name="experts", device="cpu"
    )
    torch.manual_seed(7)
    assert torch.equal(layer.weight, te.Linear(16, 16, device="cpu").weight)


def attention(tracker, **arguments) -> te.DotProductAttention:
    return te.DotProductAttention(
        2,
        16,
        attention_dropout=0.5,
        attn_mask_type="no_mask",
        get_rng_state_tracker=lambda: tracker,
        **arguments,
    )


def test_the_dropout_of_attention_draws_inside_the_fork(tracker):
    layer, q = attention(tracker), torch.randn(8, 1, 2, 16)
    states, default = tracker.get_states(), torch.get_rng_state()
    first, second = layer(q, q, q), layer(q, q, q)
    assert not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), default)
    tracker.set_states(states)
    assert torch.equal(layer(q, q, q), first)
    layer.eval()
    states = tracker.get_states()
    layer(q, q, q)
    assert torch.equal(tracker.get_states()["model-parallel-rng"], states["model-parallel-rng"])


def test_caller_forks_under_sequence_parallelism(tracker):
    layer, q = attention(tracker, sequence_parallel=True), torch.randn(8, 1, 2, 16)
    before = tracker.get_states()["model-parallel-rng"]
    layer(q, q, q)
    assert torch.equal(tracker.get_states()["model-parallel-rng"], before)


def test_only_attention_forks_inside_a_transformer_layer(tracker):
    options = {"attention_dropout": 0.5, "get_rng_state_tracker": lambda: tracker, "device": "cpu"}
    layer = te.TransformerLayer(16, 32, 2, hidden_dropout=0, **options)
    x, default = torch.randn(8, 1, 16), torch.get_rng_state()
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(torch.get_rng_state(), default)
    layer = te.TransformerLayer(16, 32, 2, hidden_dropout=0.5, **options)
    default = torch.get_rng_state()
    layer(x)
    assert not torch.equal(torch.get_rng_state(), default)
    copy.deepcopy(layer)(x)


def test_an_error_in_the_attention_gives_the_device_its_state_back(tracker):
    layer, q, default = attention(tracker), torch.ones(8, 1, 2, 16), torch.get_rng_state()
    with pytest.raises(RuntimeError):
        layer(q, torch.ones(8, 1, 2, 8), q)
    assert torch.equal(torch.get_rng_state(), default)


# ---------------------------------------------------------------------- recomputation


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("tracked", [False, True])
def test_recomputation_drops_the_same_elements_and_changes_no_state(reentrant, tracked):
    def gradients(call):
        torch.manual_seed(1)
        tracker = te.CudaRNGStatesTracker("cpu")
        tracker.add("model-parallel-rng", 123)
        get_tracker = (lambda: tracker) if tracked else None
        layer = te.TransformerLayer(
            32, 64, 2, attention_dropout=0.5, hidden_dropout=0.5, get_rng_state_tracker=get_tracker
        )
        x = torch.randn(16, 2, 32, requires_grad=True)
        for _ in range(2):
            with te.autocast():
                out = call(layer, x, get_tracker)
            out.square().sum().backward()
        states = [tracker.get_states()["model-parallel-rng"], torch.get_rng_state()]
        return [x.grad, *(p.grad for p in layer.parameters()), *states]

    plain = gradients(lambda layer, x, get_tracker: layer(x))
    recomputed = gradients(
        lambda layer, x, get_tracker: te.checkpoint(
            layer, x, use_reentrant=reentrant, get_rng_state_tracker=get_tracker
        )
    )
    for one, two in zip(plain, recomputed, strict=True):
        assert torch.equal(one, two)


def test_a_reentrant_checkpoint_runs_its_forward_without_a_graph():
    seen = []

    def function(x, factor=1):
        seen.append(torch.is_grad_enabled())
        return x * x * factor

    x = torch.ones(2, requires_grad=True)
    te.checkpoint(function, x, use_reentrant=True, factor=3).sum().backward()
    assert seen == [False, True]
    assert x.grad.tolist() == [6, 6]
    te.checkpoint(function, x, use_reentrant=False).sum().backward()
    assert seen[2:] == [True, True]
    with pytest.raises(telens.UsageError, match="context_fn needs use_reentrant=False"):
        te.checkpoint(function, x, use_reentrant=True, context_fn=te.checkpoint_context_fn)


def test_a_context_fn_of_ones_own_is_entered_inside_ours():
    entered = []

    class Noted:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            entered.append(self.name)

        def __exit__(self, *exception):
            pass

    layer, x = te.Linear(16, 16), torch.ones(16, 16, requires_grad=True)
    with te.autocast():
        out = te.checkpoint(layer, x, context_fn=lambda: (Noted("forward"), Noted("again")))
    out.sum().backward()
    assert entered == ["forward", "again"]


def test_a_deep_copy_draws_from_the_tracker_too(tracker):
    layer, q = attention(tracker), torch.randn(8, 1, 2, 16)
    states = tracker.get_states()
    first = layer(q, q, q)
    tracker.set_states(states)
    assert torch.equal(copy.deepcopy(layer)(q, q, q), first)


def test_weights_on_a_gpu_initialize_torch_cuda_before_they_are_drawn(monkeypatch):
    class Initialized(Exception):
        pass

    def init():
        raise Initialized

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", init)
    for device in ("cuda", "cuda:0", torch.device("cuda")):
        with pytest.raises(Initialized):
            te.Linear(8, 8, device=device)
    with pytest.raises(Initialized):
        te.LayerNorm(8, 1e-5, device="cuda")
    for device in ("cpu", "meta"):
        te.Linear(8, 8, device=device)


FIRST_WEIGHTS = """
import hashlib, torch, telens.pytorch as te
torch.manual_seed(5)
weight = te.Linear(64, 32, device="cuda").weight
print(hashlib.sha256(weight.detach().cpu().numpy().tobytes()).hexdigest())
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_seed_set_before_cuda_init_affects_the_first_weights(ops):
    """Processes that only set the seed draw the same weights."""
    command = [sys.executable, "-c", FIRST_WEIGHTS]
    first, second = (subprocess.check_output(command, timeout=300) for _ in range(2))
    assert len(first.strip()) == 64
    assert first == second
