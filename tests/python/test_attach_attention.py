"""telens.watch on scaled_dot_product_attention: bits, tensors, gradients, scores."""

import math
from contextlib import nullcontext

import pytest
import torch
from attach_helpers import amax, config, recorded
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention as imported_attention
from torch.utils.checkpoint import checkpoint

import telens

FORWARD = ["query", "key", "value", "attention_output"]
TENSORS = [*FORWARD, *(f"{name}_gradient" for name in FORWARD)]


AMAX = config(["cur_amax", "numel"], TENSORS)


def causal(tokens=6):
    return torch.ones(tokens, tokens, dtype=torch.bool).tril()


# The arguments after query, key and value.
CALLS = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "boolean_mask": {"attn_mask": causal()},
    "added_mask": {"attn_mask": torch.zeros(6, 6).masked_fill(~causal(), -math.inf)},
    "causal_bias": {"attn_mask": causal_lower_right(6, 6)},
}


class Block(nn.Module):
    """Attention with 4 heads and 2 key heads, which keeps the tensors of its latest call."""

    def __init__(self, call, repeat, attend=None):
        super().__init__()
        self.query = nn.Linear(16, 16)
        self.key = nn.Linear(16, 8)
        self.value = nn.Linear(16, 8)
        self.call = call
        self.repeat = repeat
        self.attend = attend
        self.kept = {}

    def heads(self, x, count):
        return x.unflatten(-1, (count, 4)).transpose(1, 2)

    def forward(self, x):
        q, k, v = (
            self.heads(self.query(x), 4),
            *(self.heads(f(x), 2) for f in (self.key, self.value)),
        )
        call = dict(self.call)
        if self.repeat:
            k, v = (each.repeat_interleave(2, dim=1) for each in (k, v))
        else:
            call["enable_gqa"] = True
        attend = self.attend or functional.scaled_dot_product_attention
        output = attend(q, k, v, **call)
        if not torch.compiler.is_compiling():
            self.keep(q, k, v, output)
        return output.transpose(1, 2).flatten(2)

    def keep(self, *tensors):
        self.kept = dict(zip(FORWARD, tensors, strict=True))
        for each in tensors:
            if each.requires_grad:
                each.retain_grad()


class Model(nn.Module):
    def __init__(self, call=None, repeat=True, kind=None, attend=None):
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(4, 16)
        self.blocks = nn.ModuleList(Block(call or {}, repeat, attend) for _ in range(2))
        self.kind = kind

    def forward(self, x):
        x = self.up(x)
        for block in self.blocks:
            if self.kind is None:
                x = x + block(x)
            else:
                x = x + checkpoint(block, x, use_reentrant=self.kind == "reentrant")
        return x


def train(model, autocast=False, steps=2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        x = torch.randn(3, 6, 4, generator=generator)
        with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
            loss = model(x).float().square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def check_bits_and_amaxes(folder, **options):
    """Trains with and without a watch, and compares the last step's rows with the kept tensors."""
    autocast = options.pop("autocast", False)
    plain, watched = Model(**options), Model(**options)
    losses = train(plain, autocast)
    with telens.watch(watched, AMAX, folder):
        assert train(watched, autocast) == losses
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, other)
    rows = recorded(folder, "cur_amax")
    assert {layer for layer, _, _ in rows} == {f"blocks.{i}.core_attention" for i in (0, 1)}
    for index, block in enumerate(watched.blocks):
        for name, tensor in block.kept.items():
            layer = f"blocks.{index}.core_attention"
            expected = {name: tensor, f"{name}_gradient": tensor.grad}
            for tensor_name, values in expected.items():
                assert rows[layer, tensor_name, 1] == amax(values), (layer, tensor_name)


@pytest.mark.parametrize("repeat", [True, False], ids=["repeated", "grouped"])
@pytest.mark.parametrize("call", CALLS)
def test_amaxes_are_those_of_the_call(tmp_path, call, repeat):
    check_bits_and_amaxes(tmp_path, call=CALLS[call], repeat=repeat)


@pytest.mark.parametrize("repeat", [True, False], ids=["repeated", "grouped"])
def test_the_math_kernel_is_seen_through(tmp_path, repeat):
    with sdpa_kernel(SDPBackend.MATH):
        check_bits_and_amaxes(tmp_path, repeat=repeat)


def test_autocast_keeps_bits_and_amaxes(tmp_path):
    check_bits_and_amaxes(tmp_path, autocast=True)


def test_a_function_imported_by_name_is_watched(tmp_path, monkeypatch):
    def attend(*args, **kwargs):
        return imported_attention(*args, **kwargs)

    check_bits_and_amaxes(tmp_path, attend=attend)


def test_compiled_attention_is_one_graph_and_changes_nothing(tmp_path):
    losses = train(torch.compile(Model(), backend="aot_eager", fullgraph=True))
    compiled = torch.compile(Model(), backend="aot_eager", fullgraph=True)
    with pytest.warns(UserWarning, match="attention and routers are not recorded"):
        watch = telens.watch(compiled, config(["numel"], ["output"]), tmp_path)
    assert train(compiled) == losses
    watch.stop()
    assert "blocks.0.query" in telens.open_run(tmp_path).names("layer")


@pytest.mark.parametrize("kind", ["reentrant", "saved_tensors"])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_checkpoints_record_nothing_twice(tmp_path, kind):
    with telens.watch(Model(), AMAX, tmp_path / "plain") as watch:
        train(watch.model)
    losses = train(Model(kind=kind))
    with telens.watch(Model(kind=kind), AMAX, tmp_path / "kept") as watch:
        assert train(watch.model) == losses
    for statistic in ("numel", "cur_amax"):
        plain = recorded(tmp_path / "plain", statistic)
        # torch's gradients themselves differ in the last bit under reentrant checkpoints.
        assert recorded(tmp_path / "kept", statistic) == pytest.approx(plain, rel=1e-6)
        assert len(plain) == 2 * 2 * len(TENSORS)


def test_equal_inputs_have_gradients_of_their_own(tmp_path):
    class Self(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(4, 4)

        def forward(self, x):
            x = self.up(x)
            self.kept = x.detach()
            return functional.scaled_dot_product_attention(x, x, x)

    torch.manual_seed(0)
    with telens.watch(Self(), AMAX, tmp_path) as watch:
        watch.model(torch.randn(1, 2, 5, 4)).square().mean().backward()
        telens.step()
    parts = [watch.model.kept.clone().requires_grad_() for _ in range(3)]
    functional.scaled_dot_product_attention(*parts).square().mean().backward()
    rows = recorded(tmp_path, "cur_amax")
    for name, part in zip(FORWARD, parts, strict=False):
        assert rows["core_attention", f"{name}_gradient", 0] == amax(part.grad)


def test_scores_have_the_statistics_of_the_formula(tmp_path):
    stats = ["max", "attention_entropy"]
    call = {"is_causal": True, "scale": 3.0}
    with telens.watch(Model(call, repeat=False), config(stats, ["scores"]), tmp_path) as watch:
        train(watch.model, steps=1)
    query, key = (watch.model.blocks[0].kept[name].detach() for name in ("query", "key"))
    scores = 3.0 * query @ key.repeat_interleave(2, dim=1).transpose(-1, -2)
    scores = scores.masked_fill(~causal(), -math.inf)
    weights = scores.double().softmax(-1)
    entropy = -torch.xlogy(weights, weights).sum(-1)[..., 1:].mean().item()  # two keys or more
    layer = "blocks.0.core_attention", "scores", 0
    assert recorded(tmp_path, "max")[layer] == pytest.approx(scores.max().item(), rel=1e-6)
    assert recorded(tmp_path, "attention_entropy")[layer] == pytest.approx(entropy, rel=1e-5)


def test_calls_outside_of_the_model_are_not_recorded(tmp_path):
    with telens.watch(Model(), AMAX, tmp_path):
        x = torch.ones(1, 1, 2, 2)
        functional.scaled_dot_product_attention(x, x, x)
    assert telens.open_run(tmp_path).names("layer") == []


def test_the_function_is_restored_after_stop(tmp_path):
    before = functional.scaled_dot_product_attention
    watch = telens.watch(Model(), AMAX, tmp_path)
    assert functional.scaled_dot_product_attention is not before
    assert imported_attention is functional.scaled_dot_product_attention
    watch.stop()
    assert functional.scaled_dot_product_attention is before
    assert imported_attention is before


def test_wrong_arguments_raise_the_error_of_torch(tmp_path):
    with telens.watch(Model(), AMAX, tmp_path), pytest.raises(TypeError, match="key"):
        functional.scaled_dot_product_attention(torch.ones(1, 1))


def test_torch_jit_compiles_watched_functions(tmp_path):
    def attend(query, label):
        output = nn.functional.scaled_dot_product_attention(query, query, query)
        return nn.functional.cross_entropy(output.flatten(0, 2), label)

    query, label = torch.randn(1, 2, 4, 8), torch.zeros(8, dtype=torch.long)
    expected = attend(query, label)
    with telens.watch(nn.Linear(4, 4), log_dir=tmp_path):
        assert torch.equal(torch.jit.script(attend)(query, label), expected)
    assert torch.equal(torch.jit.script(attend)(query, label), expected)
