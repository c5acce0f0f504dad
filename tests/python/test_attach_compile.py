"""telens.watch with torch.compile: one graph, no recompilation, and the tensors of eager mode."""

import subprocess
import sys

import pytest
import torch
from attach_helpers import TENSORS, config, recorded
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import telens


def every(freq):
    made = config(["cur_amax", "numel"], TENSORS)
    made["section"]["transformer_engine"]["LogTensorStats"]["freq"] = freq
    return made


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.relu_(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 20)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(model, steps=6, parts=1):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        for _ in range(parts):
            tokens = torch.randint(20, (2, 5), generator=generator)
            logits = model(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def values_of(folder):
    return {s: recorded(folder, s) for s in ("numel", "cur_amax")}


@pytest.mark.parametrize(
    "backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.long)]
)
def test_rows_match_the_eager_model(tmp_path, backend):
    with telens.watch(Model(), every(2), tmp_path / "eager") as watch:
        expected_losses = train(watch.model)
    counter = CompileCounterWithBackend(backend)
    model = Model()
    with telens.watch(model, every(2), tmp_path / "compiled"):
        losses = train(torch.compile(model, backend=counter, fullgraph=True))
    # There is one graph, although features ran only in every second iteration.
    assert counter.frame_count == 1
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    expected, found = values_of(tmp_path / "eager"), values_of(tmp_path / "compiled")
    assert found["numel"] == expected["numel"]
    assert found["cur_amax"] == pytest.approx(expected["cur_amax"], rel=1e-4)
    assert {iteration for _, _, iteration in found["numel"]} == {0, 2, 4}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_watching_a_compiled_model_changes_no_bit(tmp_path, backend):
    plain, watched = Model(), Model()
    losses = train(torch.compile(plain, backend=backend))
    torch._dynamo.reset()
    with telens.watch(watched, every(1), tmp_path):
        assert train(torch.compile(watched, backend=backend)) == losses
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, other)


def test_blocks_that_are_compiled_one_by_one_share_a_graph(tmp_path):
    with telens.watch(Model(), every(1), tmp_path / "eager") as watch:
        train(watch.model, steps=2)
    counter = CompileCounterWithBackend("aot_eager")
    model = Model()
    for block in model.blocks:
        block.compile(backend=counter, fullgraph=True)
    with telens.watch(model, every(1), tmp_path / "compiled"):
        train(model, steps=2)
    assert counter.frame_count == 1
    expected, found = values_of(tmp_path / "eager"), values_of(tmp_path / "compiled")
    assert found["numel"] == expected["numel"]
    assert found["cur_amax"] == pytest.approx(expected["cur_amax"], rel=1e-5)


def test_micro_batches_of_a_compiled_model_are_merged(tmp_path):
    model = Model()
    with telens.watch(model, every(1), tmp_path):
        train(torch.compile(model, backend="aot_eager"), steps=2, parts=2)
    numel = recorded(tmp_path, "numel")
    assert numel["head", "activation", 1] == 2 * 2 * 5 * 8
    assert numel["head", "gradient", 1] == 2 * 2 * 5 * 20


def test_graphs_are_silent_after_stop(tmp_path):
    model = Model()
    compiled = torch.compile(model, backend="aot_eager")
    with telens.watch(model, every(1), tmp_path):
        train(compiled, steps=1)
    train(compiled, steps=2)
    assert {iteration for _, _, iteration in recorded(tmp_path, "numel")} == {0}


def test_compiled_module_inside_a_model_is_warned_about(tmp_path):
    model = nn.Sequential(torch.compile(nn.Linear(8, 8)), nn.Linear(8, 8))
    with pytest.warns(UserWarning, match="torch.compile compiles this model"):
        telens.watch(model, log_dir=tmp_path).stop()


def test_watch_does_not_import_the_compiler(tmp_path):
    code = (
        "import sys, torch, telens\n"
        "telens.watch(torch.nn.Linear(2, 2), log_dir='run').stop()\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
