"""telens.watch on ordinary torch models: bits, rows, gradients, losses, lost updates."""

import json
import subprocess
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch
from distributed_workers import run_ranks
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

import telens
from telens import debug

PAGES = Path(__file__).resolve().parents[2] / "docs"
LAYERS = ["embed", "norm", "query", "key", "conv", "up", "head"]
TENSORS = ["activation", "weight", "output", "gradient", "dgrad", "wgrad"]
AMAX = {
    "amax": {
        "enabled": True,
        "layers": {"layer_types": ["all"]},
        "transformer_engine": {
            "LogTensorStats": {
                "enabled": True,
                "stats": ["cur_amax", "numel"],
                "freq": 1,
                "tensors": TENSORS,
            }
        },
    }
}


class Model(nn.Module):
    """A model with one module of each kind. Two Linears share one input, and a ReLU works in
    place.
    """

    def __init__(self, checkpointed=None):
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.norm = nn.LayerNorm(16)
        self.query = nn.Linear(16, 16, bias=False)
        self.key = nn.Linear(16, 16)
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.up = nn.Linear(16, 32)
        self.head = nn.Linear(32, 40)
        self.checkpointed = checkpointed

    def block(self, x):
        x = self.norm(x)
        scores = torch.softmax(self.query(x) @ self.key(x).transpose(-1, -2), dim=-1)
        x = self.conv((scores @ x).transpose(-1, -2)).transpose(-1, -2)
        return functional.relu(self.up(x), inplace=True)

    def forward(self, tokens):
        x = self.embed(tokens)
        if self.checkpointed is None:
            return self.head(self.block(x))
        return self.head(checkpoint(self.block, x, use_reentrant=self.checkpointed == "reentrant"))


def new_model(**options):
    torch.manual_seed(0)
    return Model(**options)


def train(model, steps=3, parts=1, optimizer=torch.optim.AdamW, lr=1e-3):
    """Trains and returns the losses; each step has ``parts`` micro-batches."""
    generator = torch.Generator().manual_seed(1)
    optimizer = optimizer(model.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        for _ in range(parts):
            tokens = torch.randint(40, (2, 8), generator=generator)
            logits = model(tokens)
            logits = getattr(logits, "logits", logits)
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def recorded(folder, statistic, **selection):
    """The values of a statistic by (layer, tensor, iteration)."""
    rows = telens.open_run(folder).records(statistic=statistic, **selection)
    return {(row.layer, row.tensor, row.iteration): row.value for row in rows.itertuples()}


def scalars(folder, name):
    rows = telens.open_run(folder).scalars
    return list(rows[rows["name"] == name]["value"])


def test_watching_changes_no_bit(tmp_path):
    plain, watched = new_model(), new_model()
    losses = train(plain)
    with telens.watch(watched, log_dir=tmp_path, every=1) as watch:
        assert watch.layers == LAYERS
        assert train(watched) == losses
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, other)


def test_each_call_records_rows_for_all_its_tensors(tmp_path):
    model = new_model()
    calls = Counter()
    for name in LAYERS:
        getattr(model, name).register_forward_hook(lambda *_, name=name: calls.update([name]))
    with telens.watch(model, AMAX, tmp_path):
        train(model, steps=3, parts=2)
    assert set(calls.values()) == {6}
    rows = recorded(tmp_path, "numel")
    for name in LAYERS:
        for tensor in TENSORS:
            # Indices are not floating-point and have no gradient.
            expected = name != "embed" or tensor not in ("activation", "dgrad")
            for iteration in range(3):
                assert ((name, tensor, iteration) in rows) == expected, (name, tensor, iteration)
    # Micro-batches are merged; a weight is the same in both.
    assert rows["up", "activation", 0] == 2 * 2 * 8 * 16
    assert rows["up", "weight", 0] == 32 * 16


def test_amaxes_and_gradients_per_module_are_exact(tmp_path):
    model = new_model()
    seen = {}

    def keep(module, args, output):
        output.retain_grad()
        seen[module] = (args[0].detach().clone(), output, output.detach().clone())

    for name in LAYERS:
        getattr(model, name).register_forward_hook(keep)
    weights = {name: getattr(model, name).weight.detach().clone() for name in LAYERS}
    with telens.watch(model, AMAX, tmp_path):
        tokens = torch.arange(16).reshape(2, 8)
        model(tokens).square().mean().backward()
        telens.step()
    rows = recorded(tmp_path, "cur_amax")
    for name in ("query", "key", "up", "head"):
        module = getattr(model, name)
        activation, output, result = seen[module]
        gradient = output.grad
        expected = {
            "activation": activation,
            "weight": weights[name],
            "output": result,
            "wgrad": module.weight.grad,
            "dgrad": gradient @ weights[name],
        }
        if name != "up":  # whose output is changed in place: retain_grad() sees the result's
            expected["gradient"] = gradient
        else:
            del expected["dgrad"]
        for tensor, values in expected.items():
            amax = values.abs().max().item()
            assert rows[name, tensor, 0] == pytest.approx(amax, rel=1e-6), (name, tensor)


@pytest.mark.parametrize("checkpointed", ["reentrant", "saved_tensors"])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_checkpoints_record_nothing_twice(tmp_path, checkpointed):
    with telens.watch(new_model(), AMAX, tmp_path / "plain") as watch:
        losses = train(watch.model)
    with telens.watch(new_model(checkpointed=checkpointed), AMAX, tmp_path / "kept") as watch:
        assert train(watch.model) == losses
    for statistic in ("numel", "cur_amax"):
        plain = recorded(tmp_path / "plain", statistic)
        assert recorded(tmp_path / "kept", statistic) == plain


def test_loss_is_the_mean_over_the_backwards_of_a_step(tmp_path):
    model = new_model()
    with telens.watch(model, AMAX, tmp_path):
        losses = train(model, steps=3, parts=2)
    means = [sum(losses[i : i + 2]) / 2 for i in (0, 2, 4)]
    assert scalars(tmp_path, "loss") == pytest.approx(means, rel=1e-6)


def test_stated_loss_replaces_the_seen_one(tmp_path):
    model = new_model()
    with telens.watch(model, AMAX, tmp_path):
        model(torch.arange(8)[None]).mean().backward()
        telens.step(loss=2.5)
    assert scalars(tmp_path, "loss") == [2.5]


def test_scaled_loss_is_recorded_unscaled(tmp_path):
    model = new_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with telens.watch(model, AMAX, tmp_path):
        loss = model(torch.arange(8)[None]).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scalars(tmp_path, "loss") == [loss.item()]


def test_two_optimizers_end_one_iteration(tmp_path):
    model = new_model()
    first = torch.optim.SGD(model.head.parameters(), lr=1e-3)
    second = torch.optim.AdamW(model.up.parameters(), lr=1e-3)
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1e-3)
    with telens.watch(model, AMAX, tmp_path):
        for _ in range(2):
            model(torch.arange(8)[None]).square().mean().backward()
            first.step()
            second.step()
        other.step()
    assert {iteration for _, _, iteration in recorded(tmp_path, "numel")} == {0, 1}


def test_evaluation_is_not_recorded(tmp_path):
    model = new_model()
    with telens.watch(model, AMAX, tmp_path):
        train(model, steps=1)
        model.eval()
        with torch.no_grad():
            model(torch.arange(8)[None])
    assert {iteration for _, _, iteration in recorded(tmp_path, "numel")} == {0}


@pytest.mark.parametrize(("dtype", "lost"), [(torch.bfloat16, True), (torch.float32, False)])
def test_updates_that_bf16_weights_lose_are_measured(tmp_path, dtype, lost):
    # An update of 1e-6 is below half an ulp of BF16 (2^-9 relative) for weights above 5e-4.
    model = new_model().to(dtype)
    with telens.watch(model, AMAX, tmp_path, every=1):
        train(model, steps=1, lr=1e-6)
    (share,) = scalars(tmp_path, "lost_updates%")
    head = recorded(tmp_path, "lost_updates%")["head", "weight", 0]
    if lost:
        assert share > 90
        assert head > 90
    else:
        assert share < 1
        assert head < 1


def test_autocast_casts_are_seen_through(tmp_path):
    model = new_model()
    with telens.watch(model, AMAX, tmp_path), torch.autocast("cpu", torch.bfloat16):
        model(torch.arange(8)[None]).float().square().mean().backward()
        telens.step()
    rows = recorded(tmp_path, "cur_amax")
    for name in ("query", "up", "head"):
        for tensor in TENSORS:
            assert (name, tensor, 0) in rows
    assert rows["head", "wgrad", 0] == pytest.approx(model.head.weight.grad.abs().max().item())


def test_names_do_not_depend_on_wrappers(tmp_path):
    wrapped = nn.Module()
    wrapped.module = new_model()
    with telens.watch(wrapped, AMAX, tmp_path) as watch:
        assert watch.layers == LAYERS


def test_error_while_watching_does_not_affect_training(tmp_path, monkeypatch):
    model = new_model()
    losses = train(new_model())

    def fail(*_):
        raise RuntimeError("planted")

    with telens.watch(model, AMAX, tmp_path):
        monkeypatch.setattr("telens.attach.layers.Layer.show", fail)
        with pytest.warns(UserWarning, match="stopped watching after an error: planted"):
            assert train(model) == losses


def test_gaps_under_torch_compile_are_warned_of(tmp_path):
    model = torch.compile(new_model(), backend="eager")
    with pytest.warns(UserWarning, match="attention and routers are not recorded"):
        watch = telens.watch(model, AMAX, tmp_path)
    losses = train(model)
    watch.stop()
    assert losses == pytest.approx(train(new_model()), rel=1e-5)
    assert ("query", "dgrad", 2) in recorded(tmp_path, "numel")


def test_hooks_are_gone_after_stop(tmp_path):
    model = new_model()
    backward = torch.autograd.backward
    watch = telens.watch(model, AMAX, tmp_path)
    watch.stop()
    watch.stop()
    assert not any(module._forward_hooks for module in model.modules())
    assert torch.autograd.backward is backward


def test_a_model_without_layers_is_refused(tmp_path):
    with pytest.raises(telens.UsageError, match="ReLU does not contain a Linear"):
        telens.watch(nn.ReLU(), log_dir=tmp_path)
    with pytest.raises(telens.UsageError, match=r"model .*torch\.nn\.Module"):
        telens.watch([1], log_dir=tmp_path)


def test_llama_of_transformers_is_recorded_and_judged_healthy(tmp_path, build_folder):
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    )

    def llama():
        torch.manual_seed(0)
        return LlamaForCausalLM(config)

    losses = train(llama(), steps=12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with telens.watch(llama(), log_dir=tmp_path) as watch:
            assert train(watch.model, steps=12) == losses
    # Embedding, head, last norm; per block two norms and seven Linears.
    assert len(watch.layers) == 3 + 3 * 9
    rows = recorded(tmp_path, "cur_amax")
    attentions = {f"model.layers.{index}.self_attn.core_attention" for index in range(3)}
    assert {layer for layer, _, _ in rows} == {*watch.layers, *attentions}
    assert ("model.layers.1.mlp.down_proj", "dgrad", 11) in rows
    result = subprocess.run(
        [build_folder / "bin/telens", "diagnose", tmp_path, "--format", "json"],
        capture_output=True,
        text=True,
    )
    assert json.loads(result.stdout)["findings"] == []


def test_program_of_the_page_loses_the_updates_that_it_shows(tmp_path, monkeypatch):
    page = (PAGES / "attach.md").read_text()
    program = page.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(program, "attach.md", "exec"), {})
    debug.end_debug()
    assert "More than 93 % of the updates" in page
    assert min(recorded("run", "lost_updates%").values()) > 93


def train_wrapped(wrap, folder):
    """Trains with and without a watch; returns the watched names."""
    plain, watched = wrap(new_model()), wrap(new_model())
    losses = train(plain)
    with telens.watch(watched, AMAX, folder) as watch:
        assert train(watched) == losses
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        one, other = (getattr(each, "to_local", lambda each=each: each)() for each in (one, other))
        assert torch.equal(one, other)
    return watch.layers


def train_on_ranks(rank, folder):
    def fully_shard(model):
        from torch.distributed.fsdp import fully_shard

        mesh = torch.distributed.init_device_mesh("cpu", (2,))
        return fully_shard(model, mesh=mesh)

    wraps = {"ddp": nn.parallel.DistributedDataParallel, "fsdp2": fully_shard}
    for name, wrap in wraps.items():
        assert train_wrapped(wrap, f"{folder}/{name}") == LAYERS


def test_ddp_and_fsdp2_keep_their_bits_on_2_ranks(tmp_path):
    run_ranks(train_on_ranks, str(tmp_path))
    for wrapper in ("ddp", "fsdp2"):
        rows = telens.open_run(tmp_path / wrapper).records(statistic="numel")
        for tensor in TENSORS:
            found = rows[(rows["layer"] == "up") & (rows["tensor"] == tensor)]
            assert {*found["iteration"]} == {0, 1, 2}, (wrapper, tensor)
