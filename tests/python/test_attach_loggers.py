"""telens.watch(logger=...): the trackers receive the numbers that the run has."""

import pytest
import torch
from attach_helpers import config
from torch import nn

import telens

AMAX = config(["cur_amax"], ["activation"])
NAMES = ["loss", "lr", "grad_norm", "update_to_weight", "lost_updates%"]


def train(logger, folder, steps=3):
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with telens.watch(model, AMAX, folder, logger=logger, every=1):
        for _ in range(steps):
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    rows = telens.open_run(folder).scalars
    return {
        name: rows[rows["name"] == name].set_index("iteration")["value"].to_dict() for name in NAMES
    }


def test_tensorboard_receives_the_numbers_of_the_run(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "board")) as writer:
        expected = train(writer, tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    for name, values in expected.items():
        found = {each.step: each.value for each in events.Scalars(f"telens/{name}")}
        assert found == pytest.approx(values)
        assert [*found] == [0, 1, 2]


def test_two_trackers_and_a_broken_one(tmp_path):
    class Writer:
        def __init__(self):
            self.seen = []

        def add_scalar(self, name, value, step):
            self.seen.append((name, step))

    class Broken(Writer):
        def add_scalar(self, name, value, step):
            raise OSError("disk full")

    writer = Writer()
    with pytest.warns(UserWarning, match="not used any more after an error: disk full"):
        train([Broken(), writer], tmp_path)
    assert ("telens/loss", 2) in writer.seen


def test_an_unknown_tracker_is_refused(tmp_path):
    with pytest.raises(telens.UsageError, match=r"logger .*a SummaryWriter"):
        telens.watch(nn.Linear(2, 2), log_dir=tmp_path, logger=object())


def test_findings_are_alerts(tmp_path):
    from telens.attach.loggers import Trackers, _TensorBoard

    class Writer:
        def add_text(self, name, text, step):
            self.text = name, text, step

    writer = Writer()
    finding = {
        "cause": "wrong_scale",
        "summary": "the scale is wrong",
        "layer": "fc1",
        "tensor": "activation",
        "first_iteration": 13,
    }
    Trackers([_TensorBoard(writer)]).alert(finding)
    text = "**TELens: wrong_scale**\n\nfc1 activation: the scale is wrong"
    assert writer.text == ("telens/findings", text, 13)
