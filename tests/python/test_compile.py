"""torch.compile around our modules: documented graph breaks, and the bits of eager mode."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import telens.pytorch as te


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = te.TransformerLayer(32, 64, 2, hidden_dropout=0, attention_dropout=0)
        self.head = torch.nn.Linear(32, 16)

    def forward(self, x):
        y = torch.sin(x) + 1
        y = self.layer(y)
        return self.head(y) * 2


def test_compiled_model_matches_eager_bits_with_graph_breaks():
    model, x = Model(), torch.randn(16, 2, 32)
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter)
    assert torch.equal(compiled(x), model(x))
    assert counter.frame_count == 2  # before and after the layer
    compiled(x).sum().backward()
    assert model.layer.self_attention.proj.weight.grad is not None


def test_hooks_inside_a_compiled_model_run_as_in_eager_mode():
    model, x, seen = Model(), torch.randn(16, 2, 32), []
    model.layer.self_attention.proj.register_forward_hook(lambda *_: seen.append(1))
    compiled = torch.compile(model, backend="eager")
    assert torch.equal(compiled(x), model(x))
    assert len(seen) == 2


def test_fullgraph_error_suggests_a_fix():
    compiled = torch.compile(Model(), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="compile without fullgraph"):
        compiled(torch.randn(16, 2, 32))
