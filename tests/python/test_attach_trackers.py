"""telens.watch(logger=...): trackers receive the numbers that the run contains.

wandb, trackio and mlflow are imported from build/trackers (make test-trackers).
"""

import glob
import os
import subprocess
import sys

import pytest
import torch
from attach_helpers import config
from conftest import PROJECT_ROOT
from torch import nn

import telens

TRACKERS = PROJECT_ROOT / "build/trackers"
AMAX = config(["cur_amax", "numel"], ["activation"])
OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
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
    with pytest.raises(telens.UsageError, match=r"logger .*SummaryWriter.*trackio or mlflow"):
        telens.watch(nn.Linear(2, 2), log_dir=tmp_path, logger=object())


def test_findings_are_alerts(tmp_path):
    from telens.attach.trackers import Trackers, _TensorBoard

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


def test_findings_of_one_iteration_are_two_files_of_mlflow():
    from telens.attach.trackers import Trackers, _MLflow

    files = []

    class Client:
        def log_text(self, text, file):
            files.append(file)

    trackers = Trackers([_MLflow(Client())])
    for cause in ("wrong_scale", "clipping"):
        trackers.alert({"cause": cause, "first_iteration": 3})
    assert files == ["telens/finding_3_wrong_scale.txt", "telens/finding_3_clipping.txt"]


def with_real_package(name, code, folder):
    """Runs a program with a package of build/trackers; returns its output."""
    if not (TRACKERS / name).is_dir():
        pytest.skip(f"{name} is not in build/trackers (make test-trackers)")
    paths = os.pathsep.join([os.environ["PYTHONPATH"], str(PROJECT_ROOT / "tests/python")])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([paths, str(TRACKERS)]),
        **OFFLINE,
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "TRACKIO_DIR": str(folder / "trackio"),
        "HOME": str(folder),
    }
    program = "from test_attach_trackers import train\n" + code
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=folder, env=environment
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_mlflow_receives_the_numbers_of_the_run(tmp_path):
    code = """
import mlflow
mlflow.set_tracking_uri("mlruns")
with mlflow.start_run() as run:
    expected = train(mlflow, "run")
client = mlflow.MlflowClient()
for name, values in expected.items():
    key = "telens/" + name.replace("%", "_percent")
    history = client.get_metric_history(run.info.run_id, key)
    assert {each.step: each.value for each in history} == values, (key, history, values)
print("equal")
"""
    assert "equal" in with_real_package("mlflow", code, tmp_path)


def losses_of_wandb(folder):
    """Returns the losses by iteration of the only offline run of wandb in a folder."""
    (file,) = glob.glob(str(folder / "wandb/offline-run-*/run-*.wandb"))
    # LevelDB's log format after a header of 7 bytes: blocks of 32 KiB with fragments, each with its
    # checksum, length and kind (1 whole, 2 first, 3 middle, 4 last).
    code = f"""
import pathlib, struct
from wandb.proto import wandb_internal_pb2 as pb
data, at, whole = pathlib.Path({file!r}).read_bytes(), 7, b""
while at + 7 <= len(data):
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
        continue
    _, size, kind = struct.unpack_from("<IHB", data, at)
    whole += data[at + 7 : at + 7 + size]
    at += 7 + size
    if kind not in (1, 4):
        continue
    record, part, whole = pb.Record(), whole, b""
    record.ParseFromString(part)
    if record.WhichOneof("record_type") == "history":
        row = {{i.key or "/".join(i.nested_key): i.value_json for i in record.history.item}}
        print("row", row["telens/iteration"], row["telens/loss"])
"""
    rows = [each.split() for each in with_real_package("wandb", code, folder).splitlines()]
    return {int(row[1]): float(row[2]) for row in rows if row[:1] == ["row"]}


def test_wandb_receives_the_numbers_of_the_run(tmp_path):
    code = """
import wandb
run = wandb.init(project="p", dir=".")
train(run, "run")
run.finish()
"""
    with_real_package("wandb", code, tmp_path)
    losses = telens.open_run(tmp_path / "run").losses
    assert losses_of_wandb(tmp_path) == pytest.approx(losses.to_dict())


def test_trackio_receives_the_numbers_of_the_run(tmp_path):
    code = """
import trackio
trackio.init(project="p")
train(trackio, "run")
trackio.finish()
"""
    with_real_package("trackio", code, tmp_path)
    code = """
from trackio.sqlite_storage import SQLiteStorage
(run,) = SQLiteStorage.get_runs("p")
for row in SQLiteStorage.get_logs("p", run):
    if "telens/loss" in row:
        print("row", row["step"], row["telens/loss"])
"""
    rows = with_real_package("trackio", code, tmp_path).splitlines()
    losses = telens.open_run(tmp_path / "run").losses
    found = {int(r.split()[1]): float(r.split()[2]) for r in rows if r.startswith("row")}
    assert found == pytest.approx(losses.to_dict())


def export(folder, *options, **environment):
    """Runs `telens export` on folder/run."""
    return subprocess.run(
        [PROJECT_ROOT / "build/bin/telens", "export", folder / "run", *options],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **environment},
    )


def test_export_writes_all_numbers_for_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    expected = train(None, tmp_path / "run")
    result = export(tmp_path, "--tensorboard", "board")
    assert (result.returncode, result.stderr) == (0, "")
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    for name, values in expected.items():
        found = {each.step: each.value for each in events.Scalars(f"telens/{name}")}
        assert found == pytest.approx(values)
    (amax,) = (each for each in events.Tags()["scalars"] if each.endswith("activation_cur_amax"))
    assert [each.value for each in events.Scalars(amax)] == [1, 1, 1]


def test_export_selects_a_statistic_and_names_missing_ones(tmp_path):
    train(None, tmp_path / "run")
    result = export(tmp_path, "--tensorboard", "board", "--stat", "cur_amax")
    assert result.stdout == "exported 3 numbers of 3 iterations\n"
    result = export(tmp_path, "--tensorboard", "board", "--stat", "cur_amax", "--stat", "numel")
    assert result.stdout == "exported 6 numbers of 3 iterations\n"
    result = export(tmp_path, "--tensorboard", "board", "--stat", "cur_max")
    assert result.returncode == 2
    assert "did you mean 'cur_amax'" in result.stderr


def test_export_creates_a_run_of_wandb(tmp_path):
    train(None, tmp_path / "run")
    if not (TRACKERS / "wandb").is_dir():
        pytest.skip("wandb is not in build/trackers (make test-trackers)")
    paths = os.pathsep.join([os.environ["PYTHONPATH"], str(TRACKERS)])
    result = export(tmp_path, "--wandb", "p", PYTHONPATH=paths, **OFFLINE)
    assert result.returncode == 0, result.stderr
    losses = telens.open_run(tmp_path / "run").losses
    assert losses_of_wandb(tmp_path) == pytest.approx(losses.to_dict())
