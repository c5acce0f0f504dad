"""The callback that records the values that a Trainer of Hugging Face's transformers computes."""

import types

import pytest
import torch

transformers = pytest.importorskip("transformers")

import telens  # noqa: E402
import telens.debug as debug  # noqa: E402
from telens.pytorch.hugging_face.trainer import RecordingCallback  # noqa: E402


class Scaled(torch.nn.Module):
    """A linear layer that returns its loss, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.fc = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict:
        return {"loss": (self.fc(x) - labels).square().mean()}


class Kept(transformers.TrainerCallback):
    def __init__(self) -> None:
        self.logs = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.logs.append(logs)


def make_trainer(tmp_path, *callbacks, **options) -> transformers.Trainer:
    torch.manual_seed(2)
    data = [{"x": torch.randn(16), "labels": torch.randn(16)} for _ in range(32)]
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"),
        max_steps=3,
        per_device_train_batch_size=4,
        logging_steps=1,
        learning_rate=0.01,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **options,
    )
    return transformers.Trainer(
        model=Scaled(), args=arguments, train_dataset=data, callbacks=list(callbacks)
    )


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_each_step_records_the_trainers_numbers(tmp_path, micro_batches):
    kept = Kept()
    trainer = make_trainer(
        tmp_path, RecordingCallback(), kept, gradient_accumulation_steps=micro_batches
    )
    with debug.session("", log_dir=tmp_path):
        trainer.train()
    run = telens.open_run(tmp_path)
    assert run.losses.index.tolist() == [0, 1, 2]
    scalars = run.scalars
    names = {"loss": "loss", "grad_norm": "grad_norm", "lr": "learning_rate"}
    for name, logged in names.items():
        values = scalars["value"][scalars["name"] == name].tolist()
        assert values == pytest.approx([each[logged] for each in kept.logs], rel=1e-6)


def test_the_callback_can_leave_iterations_to_the_script(tmp_path):
    trainer = make_trainer(tmp_path, RecordingCallback(ends_iterations=False))
    with debug.session("", log_dir=tmp_path):
        trainer.train()
    assert set(telens.open_run(tmp_path).scalars["iteration"]) == {0}


def test_trainer_is_patched_only_while_it_trains(tmp_path):
    original = transformers.Trainer.training_step
    seen = []

    class Looking(transformers.TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            seen.append(transformers.Trainer.training_step is original)

    trainer = make_trainer(tmp_path, RecordingCallback(), Looking())
    assert transformers.Trainer.training_step is original
    trainer.train()
    assert seen == [False] * 3
    assert transformers.Trainer.training_step is original
    assert "clip_grad_norm_" not in vars(trainer.accelerator)


def test_failed_training_restores_the_trainer(tmp_path):
    original = transformers.Trainer.training_step
    trainer = make_trainer(tmp_path, RecordingCallback())
    trainer.model.fc = None
    with pytest.raises(TypeError):
        trainer.train()
    assert transformers.Trainer.training_step is original


def test_a_resumed_training_continues_the_iterations(tmp_path):
    with debug.session("", log_dir=tmp_path):
        callback = RecordingCallback()
        callback.on_train_begin(None, types.SimpleNamespace(global_step=7), None)
        callback.note_loss(torch.tensor(0.5))
        callback.on_pre_optimizer_step(None, None, None)
        callback.on_step_end(None, None, None)
    assert telens.open_run(tmp_path).losses.to_dict() == {7: 0.5}


def test_callback_records_nothing_outside_of_a_session(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("recorded")

    monkeypatch.setattr(debug, "record", refuse)
    make_trainer(tmp_path, RecordingCallback()).train()
    assert not list(tmp_path.rglob("*.h5"))
