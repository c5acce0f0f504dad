"""The values that a TensorBoard writer gets from a session: names, values and steps."""

import pytest
import torch

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling

CONFIG = {
    "fc1": {
        "enabled": True,
        "layers": {"layer_types": ["fc1"]},
        "transformer_engine": {
            "LogTensorStats": {
                "enabled": True,
                "stats": ["min", "max", "l2_norm"],
                "tensors": ["activation", "gradient"],
                "freq": 2,
            },
            "LogFp8TensorStats": {
                "enabled": True,
                "stats": ["underflows%"],
                "tensors": ["weight"],
            },
        },
    }
}


class Writer:
    """SummaryWriter.add_scalar, which keeps what it is given."""

    def __init__(self):
        self.rows = []

    def add_scalar(
        self,
        tag,
        scalar_value,
        global_step=None,
        walltime=None,
        new_style=False,
        double_precision=False,
    ):
        assert isinstance(tag, str)
        assert isinstance(scalar_value, float)
        assert isinstance(global_step, int)
        assert (walltime, new_style, double_precision) == (None, False, False)
        self.rows.append((tag, global_step, scalar_value))


def train(writer, log_dir, **options):
    torch.manual_seed(3)
    model = torch.nn.Sequential(te.Linear(32, 64, name="fc1"), te.Linear(64, 32, name="fc2"))
    with debug.session(CONFIG, tb_writer=writer, log_dir=log_dir, init_training_step=10, **options):
        for _ in range(4):
            with te.fp8_autocast(fp8_recipe=DelayedScaling()):
                loss = model(torch.randn(16, 32)).square().mean()
            loss.backward()
            debug.step(loss)
    return telens.open_run(log_dir)


def recorded(run):
    """The records of the requested statistics, under the names that loggers get."""
    return {
        (f"{row.layer}_{row.tensor}_{row.statistic}", row.iteration): row.value
        for row in run.records().itertuples()
    }


def test_every_statistic_comes_once_under_its_layer_tensor_and_step(tmp_path):
    writer = Writer()
    records = recorded(train(writer, tmp_path))
    got = {(tag, step): value for tag, step, value in writer.rows}
    assert len(got) == len(writer.rows)
    asked = {
        *(
            (f"fc1_{tensor}_{statistic}", step)
            for tensor in ("activation", "gradient")
            for statistic in ("min", "max", "l2_norm")
            for step in (10, 12)
        ),
        *(("fc1_weight_underflows%", step) for step in (10, 11, 12, 13)),
    }
    assert asked <= set(got)
    assert {key: got[key] for key in asked} == {key: records[key] for key in asked}
    assert {tag.split("_")[0] for tag, _ in got} == {"fc1"}


@pytest.mark.filterwarnings("error")
def test_the_loss_may_be_the_tensor_that_went_backward(tmp_path):
    losses = train(Writer(), tmp_path).losses
    assert losses.index.tolist() == [10, 11, 12, 13]
    assert (losses > 0).all()


def test_steps_come_in_their_order(tmp_path):
    writer = Writer()
    train(writer, tmp_path)
    steps = [step for _, step, _ in writer.rows]
    assert steps == sorted(steps)
    assert steps[0] == 10


def text_log(log_dir):
    return list((log_dir / "nvdlfw_inspect_statistics_logs").glob("*.log"))


def test_it_takes_the_place_of_the_text_file_unless_that_is_asked_for(tmp_path):
    train(Writer(), tmp_path / "alone")
    assert text_log(tmp_path / "alone") == []
    writer = Writer()
    train(writer, tmp_path / "both", default_logging_enabled=True)
    (path,) = text_log(tmp_path / "both")
    assert len(path.read_text().splitlines()) == len(writer.rows)


def test_tensorboard_itself_reads_them(tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path / "tb") as writer:
        records = recorded(train(writer, tmp_path))
    events = accumulators.EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    scalars = events.Scalars("fc1_activation_l2_norm")
    assert [event.step for event in scalars] == [10, 12]
    for event in scalars:  # TensorBoard keeps FP32
        expected = records["fc1_activation_l2_norm", event.step]
        assert event.value == pytest.approx(expected, rel=2**-23)
