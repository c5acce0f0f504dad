"""Forwards in eval mode between two steps are left out or recorded separately."""

import h5py
import pytest
import torch
from debug_helpers import Scalars, logging_of, message_log, section, train

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling


def config(mode: str | None = None, **keys) -> dict:
    made = logging_of(["activation", "weight", "output"], ["max"], **keys)
    if mode:
        made["section"]["mode"] = mode
    return made


def evaluate(layer: torch.nn.Module, x: torch.Tensor, graph: bool = False) -> None:
    was_training = layer.training
    layer.eval()
    with torch.set_grad_enabled(graph):
        layer(100 * x)
    layer.train(was_training)


def recorded(log_dir, tensor: str = "activation") -> dict[str, list[float]]:
    rows = telens.open_run(log_dir).records(tensor=tensor)
    rows = rows[rows["statistic"].astype(str).str.startswith("max")]
    return {
        str(name): list(each["value"]) for name, each in rows.groupby("statistic", observed=True)
    }


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("fp8", [False, True])
def test_evaluation_keeps_training_statistics(tmp_path, layer, x, graph, fp8):
    with debug.session(config(), log_dir=tmp_path):
        for _ in range(2):
            with te.autocast(enabled=fp8, recipe=DelayedScaling()):
                out = layer(x)
                evaluate(layer, x, graph)
            out.sum().backward()
            debug.step()
    assert recorded(tmp_path) == {"max": [pytest.approx(x.max().item())] * 2}
    assert "eval mode alone" not in message_log(tmp_path)


def test_mode_both_names_evaluations_separately(tmp_path, layer, x):
    logger = Scalars()
    with debug.session(config("both"), log_dir=tmp_path, statistics_logger=logger):
        evaluate(layer, x)
        evaluate(layer, 2 * x)
        train(layer, x)
    largest = x.max().item()
    assert recorded(tmp_path) == {
        "max": [pytest.approx(largest)],
        "max_eval": [pytest.approx(200 * largest)],
    }
    # Of a weight, only the first read of each mode counts.
    assert recorded(tmp_path, "weight").keys() == {"max", "max_eval"}
    assert {"fc1_activation_max", "fc1_activation_max_eval"} <= logger.names()
    # The counters that are recorded with any statistic are separate, too.
    run = telens.open_run(tmp_path)
    assert len(run.records(statistic="zeros_eval")) == 3


def test_mode_eval_records_only_evaluations(tmp_path, layer, x):
    with debug.session(config("eval"), log_dir=tmp_path):
        train(layer, x, steps=2)
        evaluate(layer, x)
        train(layer, x)
    rows = telens.open_run(tmp_path).records()
    assert set(rows["iteration"]) == {2}
    assert all(str(name).endswith("_eval") for name in rows["statistic"])


def test_frozen_eval_part_counts_as_training(tmp_path, x):
    frozen = te.Linear(32, 32, name="frozen").requires_grad_(False).eval()
    trained = te.Linear(32, 32, name="trained")
    with debug.session(config(), log_dir=tmp_path):
        trained(frozen(x)).sum().backward()
        debug.step()
    assert set(telens.open_run(tmp_path).records()["layer"]) == {"frozen", "trained"}


def test_a_training_that_is_in_eval_mode_throughout_is_recorded(tmp_path, layer, x):
    layer.eval()
    with debug.session(config(), log_dir=tmp_path):
        train(layer, x, steps=2)
    assert recorded(tmp_path) == {"max": [pytest.approx(x.max().item())] * 2}


@pytest.mark.parametrize("training", [True, False])
def test_a_checkpoints_first_forward_is_training(tmp_path, layer, x, training):
    layer.train(training)
    with debug.session(config(), log_dir=tmp_path):
        for _ in range(2):
            te.checkpoint(layer, x).sum().backward()
            debug.step()
    assert recorded(tmp_path) == {"max": [pytest.approx(x.max().item())] * 2}


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_in_an_evaluation_is_evaluation(tmp_path, layer, x, reentrant):
    layer.eval()
    histories = []
    with debug.session(config("both"), log_dir=tmp_path):
        for training in (True, False):
            with torch.set_grad_enabled(training), te.autocast(recipe=DelayedScaling()):
                out = te.checkpoint(layer, x, use_reentrant=reentrant)
            if training:
                out.sum().backward()
                debug.step()
            histories.append(layer.fp8_meta["scaling_fwd"].amax_history.clone())
    assert torch.equal(*histories)
    assert recorded(tmp_path).keys() == {"max", "max_eval"}


def test_evaluation_only_model_is_reported_once(tmp_path, layer, x):
    with debug.session(config(), log_dir=tmp_path):
        for _ in range(3):
            evaluate(layer, x)
            debug.step()
    log = message_log(tmp_path)
    assert log.count("layer 'fc1' has only run in eval mode") == 1
    assert "write 'mode: both'" in log
    assert len(telens.open_run(tmp_path).records()) == 0


def test_early_validation_does_not_warn(tmp_path, layer, x):
    with debug.session(config(), log_dir=tmp_path):
        evaluate(layer, x)
        train(layer, x)
    assert "eval mode alone" not in message_log(tmp_path)


def test_altering_features_run_in_evaluations(tmp_path, layer, x):
    fake = {"enabled": True, "gemms": ["fprop"], "tensors": ["weight"], "quant_format": "FP8E4M3"}
    layer.eval()
    with torch.no_grad():
        plain = layer(x)
        with debug.session(section({"FakeQuant": fake}), log_dir=tmp_path):
            altered = layer(x)
    assert not torch.equal(plain, altered)


def test_classes_in_python_are_called_in_evaluations_too(tmp_path, layer, x, register):
    seen = []

    class Looking(debug.TEConfigAPIMapper):
        @debug.api_method
        def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
            return True

        @debug.api_method
        def inspect_tensor(self, config, layer_name, tensor, **_):
            seen.append(tensor.max().item())

    register(Looking)
    looking = {"enabled": True, "tensors": ["activation"]}
    with debug.session(section({"Looking": looking}), log_dir=tmp_path):
        evaluate(layer, x)
    assert seen == [pytest.approx(100 * x.max().item())]


def test_evaluation_dumps_have_separate_names(tmp_path, layer, x):
    dump = {"enabled": True, "tensors": ["activation"], "high_precision_tensor": True}
    made = section({"DumpTensors": dump})
    made["section"]["mode"] = "both"
    with debug.session(made, log_dir=tmp_path):
        evaluate(layer, x)
        train(layer, x)
    folder = tmp_path / "tensor_dumps/rank_0/iter_000000"
    assert {path.name for path in folder.iterdir()} == {
        "fc1_activation.h5",
        "fc1_activation_eval.h5",
    }
    with h5py.File(folder / "fc1_activation_eval.h5") as file:
        assert file.attrs["mode"].decode() == "eval"
        assert torch.equal(torch.from_numpy(file["high_precision"][:]), 100 * x.detach())


def test_looking_at_evaluations_changes_no_bit(tmp_path, x):
    def outputs() -> list[torch.Tensor]:
        torch.manual_seed(1)
        layer = te.Linear(32, 32, name="fc1")
        with te.autocast(recipe=DelayedScaling()):
            trained = layer(x)
            with torch.no_grad():
                evaluated = layer.eval()(x)
        trained.sum().backward()
        return [trained.detach(), evaluated, layer.weight.grad]

    plain = outputs()
    with debug.session(config("both"), log_dir=tmp_path):
        watched = outputs()
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
