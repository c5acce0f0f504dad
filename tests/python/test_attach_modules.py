"""telens.watch on modules of any class, parametrized and tied weights, repeated calls, LoRA."""

import gc
import weakref

import pytest
import torch
from attach_helpers import TENSORS, amax, config, recorded
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import telens

AMAX = config(["cur_amax", "numel"], TENSORS)


class Gate(nn.Module):
    """Uses its input twice, and changes it in place."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x):
        gate = torch.sigmoid(x) * self.weight
        return {"gated": gate * x.mul_(2.0)}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(4, 8)
        self.gate = Gate()
        self.down = nn.Linear(8, 4)

    def forward(self, x):
        return self.down(self.gate(self.up(x) * 1.0)["gated"])


def train(model, steps=2, shape=(3,)):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(*shape, 4, generator=generator)).square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def check_bits(make, folder, steps=2, shape=(3,), **options):
    """Trains with and without a watch and compares the parameters and buffers, which must be
    equal.
    """
    plain, watched = make(), make()
    losses = train(plain, steps, shape)
    with telens.watch(watched, AMAX, folder, **options) as watch:
        assert train(watched, steps, shape) == losses
    states = plain.state_dict(), watched.state_dict()
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name
    return watch


@pytest.mark.parametrize("pattern", ["Gate", "gate", "g.*e"])
def test_a_pattern_names_a_module_of_any_class(tmp_path, pattern):
    watch = check_bits(Model, tmp_path, modules=[pattern])
    assert watch.layers == ["up", "gate", "down"]


def test_tensors_of_a_named_module_are_exact(tmp_path):
    model = Model()
    x = torch.randn(3, 4)
    # Computes the same steps one by one, with the gate's input as a leaf.
    given = (model.up(x) * 1.0).detach().requires_grad_()
    output = Model().gate(given * 1.0)["gated"]
    leaf = output.detach().requires_grad_()
    model.down(leaf).square().mean().backward()
    gate = Gate()
    gate.load_state_dict(model.gate.state_dict())
    gate(given * 1.0)["gated"].backward(leaf.grad)
    expected = {
        "activation": given,
        "weight": gate.weight,
        "output": output,
        "gradient": leaf.grad,
        "dgrad": given.grad,
        "wgrad": gate.weight.grad,
    }
    model.zero_grad()
    with telens.watch(model, AMAX, tmp_path, modules=["gate"]):
        model(x).square().mean().backward()
        telens.step()
    rows = recorded(tmp_path, "cur_amax")
    for tensor, values in expected.items():
        assert rows["gate", tensor, 0] == pytest.approx(amax(values), rel=1e-6), tensor


def test_a_pattern_without_a_module_is_refused(tmp_path):
    with pytest.raises(telens.UsageError, match=r"no module of Model has the name or class 'gaet'"):
        telens.watch(Model(), AMAX, tmp_path, modules=["gaet"])
    for wrong in ("gate", ["("], [1]):
        with pytest.raises(telens.UsageError, match=r"modules .*a list of regular expressions"):
            telens.watch(Model(), AMAX, tmp_path, modules=wrong)


class Normalized(nn.Module):
    """A weight with spectral_norm, which changes a buffer each time it computes the weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up = parametrizations.spectral_norm(nn.Linear(4, 8))
        self.down = nn.Linear(8, 4)
        self.kept = []

    def forward(self, x):
        return self.down(self.up(x))


def test_parametrized_weights_are_read_and_not_recomputed(tmp_path):
    watch = check_bits(Normalized, tmp_path, steps=3)
    model = watch.model
    kept = []

    def keep(module, args, output):
        output.retain_grad()
        kept.append(output)

    model.up.parametrizations.weight.register_forward_hook(keep)
    with telens.watch(model, AMAX, tmp_path / "second"):
        train(model, steps=1)
    (weight,) = kept
    rows = recorded(tmp_path / "second", "cur_amax")
    assert rows["up", "weight", 0] == amax(weight)
    assert rows["up", "wgrad", 0] == pytest.approx(amax(weight.grad), rel=1e-6)


def test_a_cached_parametrization_is_read(tmp_path):
    model = Normalized().eval()
    weight = amax(model.up.weight)
    with telens.watch(model, AMAX, tmp_path):
        for _ in range(2):
            with parametrize.cached():
                (model(torch.ones(1, 4)) + model(torch.ones(1, 4))).sum().backward()
            telens.step()
    rows = recorded(tmp_path, "cur_amax")
    assert rows["up", "weight", 0] == rows["up", "weight", 1] == weight
    assert ("up", "wgrad", 1) in rows


class Tied(nn.Module):
    """An embedding and a head with one weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.embed(tokens))


def test_tied_weights_have_a_gradient_for_each_module(tmp_path):
    tokens = torch.tensor([[1, 2, 5]])
    apart = Tied()
    apart.head.weight = nn.Parameter(apart.embed.weight.detach().clone())
    apart(tokens).square().mean().backward()
    model = Tied()
    with telens.watch(model, AMAX, tmp_path):
        model(tokens).square().mean().backward()
        telens.step()
    rows = recorded(tmp_path, "cur_amax")
    assert rows["embed", "wgrad", 0] == pytest.approx(amax(apart.embed.weight.grad), rel=1e-6)
    assert rows["head", "wgrad", 0] == pytest.approx(amax(apart.head.weight.grad), rel=1e-6)


class Recurrent(nn.Module):
    """Calls one Linear three times, and changes its output, a view, in place."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell = nn.Linear(4, 4)
        self.seen = []

    def forward(self, x):
        for _ in range(3):
            self.seen.append(x.detach().clone())
            x = self.cell(x)
            self.seen.append(x.detach().clone())
            x.relu_()
        return x


def test_calls_of_the_same_module_are_merged(tmp_path):
    watch = check_bits(Recurrent, tmp_path, steps=1, shape=(3, 2))
    rows, sizes = recorded(tmp_path, "cur_amax"), recorded(tmp_path, "numel")
    for tensor, values in zip(
        ("activation", "output"), (watch.model.seen[::2], watch.model.seen[1::2]), strict=True
    ):
        assert rows["cell", tensor, 0] == max(map(amax, values))
    for tensor in ("activation", "output", "gradient"):
        assert sizes["cell", tensor, 0] == 3 * 3 * 2 * 4
    assert sizes["cell", "dgrad", 0] == 2 * 3 * 2 * 4  # the first input needs no gradient
    assert sizes["cell", "weight", 0] == 16


def test_evaluation_between_steps_adds_no_rows(tmp_path):
    model = Model()
    with telens.watch(model, AMAX, tmp_path):
        for _ in range(2):
            train(model, steps=1)
            model.eval()
            with torch.no_grad():
                model(torch.full((5, 4), 1e6))
            model.train()
    assert recorded(tmp_path, "numel")["up", "activation", 1] == 3 * 4
    assert max(recorded(tmp_path, "cur_amax").values()) < 1e5


def with_lora():
    config = LoraConfig(target_modules=["up", "down"], r=2, init_lora_weights=False)
    torch.manual_seed(2)
    return get_peft_model(Model(), config)


def test_lora_adapters_are_recorded(tmp_path):
    watch = check_bits(with_lora, tmp_path)
    rows = recorded(tmp_path, "cur_amax")
    up = "base_model.model.up"
    assert {f"{up}.base_layer", f"{up}.lora_A.default", f"{up}.lora_B.default"} < {*watch.layers}
    assert (f"{up}.lora_A.default", "wgrad", 1) in rows
    down = "base_model.model.down.base_layer"
    assert (down, "dgrad", 1) in rows
    assert (down, "wgrad", 1) not in rows  # frozen


def test_watching_keeps_no_graph(tmp_path):
    class Probe:
        pass

    model = Model()
    with telens.watch(model, AMAX, tmp_path, modules=["gate"]):
        gc.collect()
        gc.disable()
        try:
            output = model(torch.randn(3, 4))
            output.grad_fn.metadata["probe"] = Probe()
            dropped = weakref.ref(output.grad_fn.metadata["probe"])
            output.sum().backward()
            del output
            assert dropped() is None
        finally:
            gc.enable()


def test_modules_of_transformer_engine_are_recognized(tmp_path):
    class LayerNormLinear(nn.Module):
        """Stands for Transformer Engine's class of this name: no torch.nn.Linear, but with a
        weight."""

        __module__ = "transformer_engine.pytorch.module.layernorm_linear"

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            return nn.functional.linear(nn.functional.layer_norm(x, (4,)), self.weight)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), LayerNormLinear())
    with telens.watch(model, AMAX, tmp_path) as watch:
        assert watch.layers == ["0", "1"]
        train(model, steps=1)
    rows = recorded(tmp_path, "numel")
    assert {tensor for layer, tensor, _ in rows if layer == "1"} == {*TENSORS}
