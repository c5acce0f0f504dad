"""telens diff of real FP8 trainings that differ only in their seeds."""

import itertools
import json
import os
import subprocess

import torch
from conftest import PROJECT_ROOT

import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import Float8CurrentScaling

COMMAND = os.environ.get("TELENS_COMMAND", str(PROJECT_ROOT / "build/bin/telens"))
HIDDEN, WORDS, LENGTH, BATCH = 32, 64, 16, 4
CONFIG = {
    "sizes": {
        "enabled": True,
        "layers": {"layer_types": ["all"]},
        "transformer_engine": {
            "LogTensorStats": {
                "enabled": True,
                "stats": ["l2_norm", "numel", "cur_amax"],
                "tensors": ["activation", "weight", "gradient", "output", "dgrad", "wgrad"],
                "freq": 1,
            }
        },
        "telens": {"PrecisionLedger": {"enabled": True}},
    }
}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        options = {"hidden_dropout": 0, "attention_dropout": 0, "device": "cpu"}
        self.embedding = torch.nn.Embedding(WORDS, HIDDEN)
        self.layers = torch.nn.ModuleList(
            te.TransformerLayer(HIDDEN, 64, 2, layer_number=i + 1, **options) for i in range(2)
        )
        self.head = te.LayerNormLinear(HIDDEN, WORDS, device="cpu")

    def forward(self, words):
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train(seed, log_dir):
    """Predicts the next word of sequences whose sums have a period of 7."""
    torch.manual_seed(seed)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    debug.initialize(CONFIG, log_dir=str(log_dir))
    debug.infer_and_assign_layer_names(model)
    for _ in range(12):
        sums = torch.randint(0, WORDS, (LENGTH, BATCH)).cumsum(0) % 7
        words = (9 * sums + torch.randint(0, 3, (LENGTH, BATCH))) % WORDS
        with te.autocast(enabled=True, recipe=Float8CurrentScaling()):
            predicted = model(words)
        loss = torch.nn.functional.cross_entropy(
            predicted[:-1].reshape(-1, WORDS), words[1:].reshape(-1)
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        debug.step(loss.item())
    debug.end_debug()
    return log_dir


def test_trainings_with_different_seeds_do_not_diverge(tmp_path):
    runs = [train(seed, tmp_path / str(seed)) for seed in range(1, 5)]
    for a, b in itertools.combinations(runs, 2):
        command = [COMMAND, "diff", str(a), str(b), "--format", "json"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        answer = json.loads(result.stdout)
        assert answer["other_seeds"] is True
        assert answer["divergences"] == []
        assert result.returncode == 0
