"""telens.debug in a training with Paddle: names, rows, and that no bit changes."""

import csv
import os
import subprocess
from pathlib import Path

import paddle
import paddle_helpers as helpers
import pytest

import telens
import telens.debug as debug
import telens.paddle as te
from telens.common.recipe import DelayedScaling

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(os.environ.get("TELENS_COMMAND", ROOT / "build/bin/telens"))
STEPS = 30
EVERYTHING = {
    "all": {
        "enabled": True,
        "layers": {"layer_types": "all"},
        "transformer_engine": {
            "LogFp8TensorStats": {
                "enabled": True,
                "tensors": ["activation", "weight", "gradient"],
                "stats": ["underflows%", "mse"],
            },
            "LogTensorStats": {
                "enabled": True,
                "tensors": ["activation", "gradient", "output", "wgrad", "dgrad"],
                "stats": ["max", "l2_norm"],
            },
        },
    }
}


class Model(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.blocks = paddle.nn.LayerList(
            te.TransformerLayer(32, 64, 4, attention_dropout=0.0) for _ in range(1)
        )
        self.head = te.Linear(32, 32, bias_attr=False)
        self.own = paddle.nn.Linear(32, 32)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.own(self.head(x))


def train(recompute=False):
    """Returns the bits of 30 losses and of the final weights."""
    paddle.seed(1)
    model = Model()
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=model.parameters())
    debug.infer_and_assign_layer_names(model)
    recipe = DelayedScaling(amax_history_len=8)
    found = []
    for step in range(STEPS):
        x = helpers.randoms(2, 16, 32, seed=step)
        with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
            out = te.recompute(model, x) if recompute else model(x)
            loss = (out - x.detach()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        debug.step(loss)
        found.append(helpers.bits(loss))
    return found + [helpers.bits(each) for each in model.parameters()]


def test_looking_changes_no_bit(tmp_path):
    plain = train()
    with debug.session(EVERYTHING, log_dir=tmp_path):
        watched = train()
    assert watched == plain
    records = telens.open_run(tmp_path).records()
    blocks = [
        f"model.blocks.{i}.{layer}"
        for i in range(1)
        for layer in (
            "self_attention.layernorm_qkv",
            "self_attention.proj",
            "layernorm_mlp.fc1",
            "layernorm_mlp.fc2",
        )
    ]
    assert {*blocks, "model.head"} <= set(records["layer"])
    assert records["iteration"].max() == STEPS - 1


def test_recomputation_changes_no_bit_and_logs_nothing_twice(tmp_path):
    plain = train()
    counts = []
    for again in (False, True):
        with debug.session(EVERYTHING, log_dir=tmp_path / str(again)):
            assert train(recompute=again) == plain
        counts.append(len(telens.open_run(tmp_path / str(again)).records()))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "configs").glob("*.yaml")))
def test_every_ready_configuration_runs(tmp_path, name):
    paddle.seed(1)
    model = Model()
    debug.initialize(str(ROOT / "configs" / name), log_dir=tmp_path)
    try:
        debug.infer_and_assign_layer_names(model)
        for step in range(2):
            x = helpers.randoms(2, 16, 32, seed=step)
            with te.fp8_autocast(enabled=True):
                loss = model(x).square().mean()
            loss.backward()
            model.clear_gradients()
            debug.step(float(loss))
    finally:
        debug.end_debug()
    assert telens.open_run(tmp_path) is not None


def test_ledger_lists_paddle_linear_layers_and_replacements(tmp_path):
    feature = {"PrecisionLedger": {"enabled": True}}
    config = {"all": {"enabled": True, "layers": {"layer_types": "all"}, "telens": feature}}
    with debug.session(config, log_dir=tmp_path):
        train()
    done = subprocess.run(
        [COMMAND, "ledger", "--format", "csv", tmp_path], capture_output=True, text=True, check=True
    )
    (row,) = [row for row in csv.DictReader(done.stdout.splitlines()) if row["gemm"] == "all"]
    assert (row["layer"], row["ran"]) == ("model.own", "not seen: paddle's Linear")
    message = "".join(path.read_text() for path in tmp_path.rglob("*.log"))
    assert "a linear layer of the model (model.own) is not a TELens layer" in message
    for text in (row["why"], message):
        assert "replace it by a telens.paddle.Linear" in text
        assert "telens.pytorch" not in text


def test_a_loss_that_is_a_tensor_of_paddle_is_recorded(tmp_path):
    with debug.session({}, log_dir=tmp_path):
        debug.step(paddle.to_tensor(0.25))
        debug.record("twice", paddle.to_tensor([0.5]))
        debug.step(0.5)
    run = telens.open_run(tmp_path)
    assert list(run.losses) == [0.25, 0.5]
    assert "twice" in set(run.scalars["name"])


@pytest.mark.parametrize("mode", ["train", "eval", "no_grad", "with steps"])
def test_training_without_steps_warns_at_its_end(tmp_path, mode):
    layer = te.Linear(16, 16)
    if mode == "eval":
        layer.eval()
    with debug.session(EVERYTHING, log_dir=tmp_path), paddle.set_grad_enabled(mode != "no_grad"):
        for _ in range(3):
            out = layer(helpers.randoms(4, 16))
            if mode in ("train", "with steps"):
                out.sum().backward()
            if mode == "with steps":
                debug.step()
    message = "".join(path.read_text() for path in tmp_path.rglob("*.log"))
    assert ("debug.step() was never called: layers ran forward 3 times" in message) == (
        mode == "train"
    )


def test_only_a_model_has_layers_to_name():
    words = "model must be a torch.nn.Module or paddle.nn.Layer or several of them"
    for value in (3, None, ["fc"]):
        with pytest.raises(ValueError, match=words):
            debug.infer_and_assign_layer_names(value)
