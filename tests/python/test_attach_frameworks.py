"""Frameworks with their own training loop: Hugging Face's Trainer, accelerate, Lightning, TRL."""

import json
import os
import subprocess
import sys

import pytest
from conftest import PROJECT_ROOT, report_missing_client

import telens

TELENS = PROJECT_ROOT / "build/bin/telens"
CLIENTS = PROJECT_ROOT / "build/clients"

TRAINER = """
import json, torch
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainerCallback
from transformers import TrainingArguments
torch.manual_seed(1)
config = LlamaConfig(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                     num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32)
tokens = torch.randint(0, 96, (64, 16))
arguments = TrainingArguments("out", max_steps=4, per_device_train_batch_size=4,
    gradient_accumulation_steps=2, logging_steps=1, use_cpu=True, report_to=[],
    save_strategy="no", disable_tqdm=True)
losses = []
class Keep(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            losses.append(logs["loss"])
Trainer(model=AutoModelForCausalLM.from_config(config), args=arguments, callbacks=[Keep()],
        train_dataset=[{"input_ids": each, "labels": each} for each in tokens]).train()
print("losses", json.dumps(losses))
"""

ACCELERATE = """
import json, torch
from accelerate import Accelerator
torch.manual_seed(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
data = torch.utils.data.DataLoader(torch.randn(32, 8), batch_size=4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
losses, parts = [], []
for x in data:
    with accelerator.accumulate(model):
        loss = torch.nn.functional.mse_loss(model(x), x)
        accelerator.backward(loss)
        parts.append(loss.item())
        if accelerator.sync_gradients:
            losses.append(sum(parts) / len(parts))
            parts = []
        optimizer.step()
        optimizer.zero_grad()
print("losses", json.dumps(losses))
"""

LIGHTNING = """
import json, torch
from lightning.pytorch import LightningModule, Trainer
class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
        self.parts = []
    def training_step(self, x, index):
        loss = torch.nn.functional.mse_loss(self.net(x), x)
        self.parts.append(loss.item())
        return loss
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)
torch.manual_seed(1)
model = Net()
Trainer(accelerator="cpu", max_epochs=1, accumulate_grad_batches=2, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
).fit(model, torch.utils.data.DataLoader(torch.randn(32, 8), batch_size=4))
pairs = zip(model.parts[::2], model.parts[1::2])
print("losses", json.dumps([(one + two) / 2 for one, two in pairs]))
"""

# Two backward passes in each step; Lightning does not divide their losses.
MANUAL = """
import json, torch
from lightning.pytorch import LightningModule, Trainer
class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
        self.losses = []
    def training_step(self, x, index):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        losses = [torch.nn.functional.mse_loss(self.net(part), part) for part in x.chunk(2)]
        for loss in losses:
            self.manual_backward(loss)
        self.losses.append(sum(losses).item() / 2)
        optimizer.step()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)
torch.manual_seed(1)
model = Net()
Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
).fit(model, torch.utils.data.DataLoader(torch.randn(32, 8), batch_size=8))
print("losses", json.dumps(model.losses))
"""

TRL = """
import json, torch
from datasets import Dataset
from datasets.table import InMemoryTable
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast
from transformers import TrainerCallback
from trl import SFTConfig, SFTTrainer
torch.manual_seed(1)
words = Tokenizer(models.WordLevel({"a": 0, "<pad>": 94, "<eos>": 95}, unk_token="a"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
config = LlamaConfig(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                     num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64)
# Texts of different lengths: the loss is the mean over all tokens of a step.
texts = [torch.randint(0, 94, (length,)).tolist() for length in torch.randint(3, 20, (64,))]
arguments = SFTConfig("out", max_steps=4, per_device_train_batch_size=4,
    gradient_accumulation_steps=2, logging_steps=1, use_cpu=True, bf16=False, report_to=[],
    save_strategy="no", disable_tqdm=True, dataset_kwargs={"skip_prepare_dataset": True})
losses = []
class Keep(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            losses.append(logs["loss"])
data = Dataset(InMemoryTable.from_pydict({"input_ids": texts}), fingerprint="texts")
SFTTrainer(model=AutoModelForCausalLM.from_config(config), args=arguments, callbacks=[Keep()],
           processing_class=tokenizer, train_dataset=data).train()
print("losses", json.dumps(losses))
"""


def run(folder, program, *packages):
    """Runs a program with `telens run`; returns the losses that it prints, and the run."""
    (folder / "train.py").write_text(program)
    paths = os.pathsep.join([os.environ["PYTHONPATH"], *map(str, packages)])
    result = subprocess.run(
        [TELENS, "run", "--log-dir", folder / "run", "--", sys.executable, "train.py"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    assert "telens" not in result.stderr
    (line,) = (each for each in result.stdout.splitlines() if each.startswith("losses"))
    return json.loads(line.removeprefix("losses")), telens.open_run(folder / "run")


def test_losses_of_the_hugging_face_trainer(tmp_path):
    losses, recorded = run(tmp_path, TRAINER)
    assert recorded.losses.tolist() == pytest.approx(losses, rel=1e-4)
    layers = {*recorded.names("layer")}
    assert {"model.layers.1.mlp.up_proj", "model.layers.1.self_attn.core_attention"} < layers


def test_losses_of_accelerate(tmp_path):
    losses, recorded = run(tmp_path, ACCELERATE)
    assert recorded.losses.tolist() == pytest.approx(losses, rel=1e-6)
    assert {*recorded.records(statistic="numel")["iteration"]} == {0, 1, 2, 3}


def test_losses_of_lightning(tmp_path):
    if not (CLIENTS / "lightning").is_dir():
        report_missing_client("Lightning")
    losses, recorded = run(tmp_path, LIGHTNING, CLIENTS)
    assert recorded.losses.tolist() == pytest.approx(losses, rel=1e-6)
    assert len(losses) == 4


def test_losses_of_manual_optimization_in_lightning(tmp_path):
    if not (CLIENTS / "lightning").is_dir():
        report_missing_client("Lightning")
    losses, recorded = run(tmp_path, MANUAL, CLIENTS)
    assert recorded.losses.tolist() == pytest.approx(losses, rel=1e-6)


def test_losses_of_trl(tmp_path):
    if not (CLIENTS / "trl").is_dir():
        report_missing_client("TRL")
    losses, recorded = run(tmp_path, TRL, CLIENTS / "trl")
    assert recorded.losses.tolist() == pytest.approx(losses, rel=1e-3)
