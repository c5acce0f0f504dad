"""The recipe that ``run_as_te --recipe`` applies to every outermost forward."""

import threading

import pytest
import torch
import torch.utils.checkpoint
import transformers
from torch.utils.checkpoint import checkpoint

import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling
from telens.run_as_te.converting import converting

TORCHS = checkpoint


@pytest.fixture
def hooks():
    with converting(DelayedScaling(), converts=False):
        yield


class Reporting(torch.nn.Module):
    """Notes the FP8 state that its forward sees."""

    def forward(self, wait=lambda: None):
        manager = te.fp8.FP8GlobalStateManager
        self.seen = manager.is_fp8_enabled(), type(manager.get_fp8_recipe())
        wait()


@pytest.mark.usefixtures("hooks")
def test_a_forward_outside_of_regions_gets_the_recipe():
    model = Reporting()
    model()
    assert model.seen == (True, DelayedScaling)


@pytest.mark.usefixtures("hooks")
def test_a_region_of_the_script_decides():
    model = Reporting()
    with te.autocast(enabled=False):
        model()
    assert not model.seen[0]
    with te.autocast(recipe=Float8CurrentScaling()):
        model()
    assert model.seen == (True, Float8CurrentScaling)


@pytest.mark.usefixtures("hooks")
def test_each_thread_has_its_own_outermost_forward():
    entered, leave = threading.Event(), threading.Event()

    def wait():
        entered.set()
        leave.wait(60)

    other = Reporting()
    thread = threading.Thread(target=other, args=(wait,))
    thread.start()
    assert entered.wait(60)
    model = Reporting()
    model()
    leave.set()
    thread.join()
    assert model.seen == other.seen == (True, DelayedScaling)


# ---------------------------------------------------------------------- recomputed forwards


class Checkpointed(torch.nn.Module):
    """Two blocks of two layers; each block may be recomputed in the backward."""

    def __init__(self, **keywords):
        super().__init__()
        torch.manual_seed(1)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.Linear(32, 32))
            for _ in range(2)
        )
        self.keywords = keywords

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, **self.keywords) if self.keywords else block(x)
        return x


def losses(model, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(2)).requires_grad_()
    found = []
    for _ in range(steps):
        loss = torch.nn.functional.mse_loss(model(x), x.detach())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("recipe", [DelayedScaling(), Float8CurrentScaling()])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_of_torch_keep_recipe_and_scales(recipe, reentrant):
    with converting(recipe, converts=True):
        expected = losses(Checkpointed())
        assert losses(Checkpointed(use_reentrant=reentrant)) == expected
    assert torch.utils.checkpoint.checkpoint is TORCHS


def test_gradient_checkpointing_of_hugging_face_keeps_its_losses():
    def train(checkpointed):
        torch.manual_seed(1)
        config = transformers.LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
        )
        model = transformers.LlamaForCausalLM(config)
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tokens = torch.arange(32).view(2, 16)
        found = []
        for _ in range(3):
            loss = model.train()(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found

    with converting(DelayedScaling(), converts=True):
        assert train(True) == train(False)
