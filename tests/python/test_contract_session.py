"""Parts of the contract's session API that no other test covers."""

import inspect

import nvdlfw_inspect.api as peer
import pytest
import torch
from debug_helpers import Scalars, logging_of, section, train

import telens
import telens.debug as debug
import telens.pytorch as te

MAX_OF_ACTIVATION = logging_of("activation", ["max"])

FEATURE_FILE = """
from telens.debug.features.api import TEConfigAPIMapper
from telens.debug.registry import Registry

@Registry.register_feature(namespace="transformer_engine")
class {name}(TEConfigAPIMapper):
    '''Does nothing.'''
"""


def defaults_of(function) -> dict:
    """The arguments in order, with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters}


def test_the_session_functions_take_the_peers_arguments():
    # nvdlfw-inspect takes the first two among its keywords; `recording` is ours.
    extra = {"tb_writer": None, "default_logging_enabled": False, "recording": None}
    theirs = {key: value for key, value in defaults_of(peer.initialize).items() if key != "kwargs"}
    assert list(defaults_of(debug.initialize).items()) == list((theirs | extra).items())
    for name in ("initialize_training_step", "set_tensor_reduction_group", "log_message"):
        assert defaults_of(getattr(debug, name)) == defaults_of(getattr(peer, name))
    # Keywords of any name are `scalars`.
    assert defaults_of(debug.step) == {"loss": None, "scalars": inspect.Parameter.empty}
    assert defaults_of(debug.end_debug) == {}
    assert defaults_of(debug.log_tensor_stats) == {
        "layer_name": inspect.Parameter.empty,
        "tensor_name": inspect.Parameter.empty,
        "tensor": inspect.Parameter.empty,
        "skip_reduction": False,
        "reduction_group": None,
        "iteration": None,
    }


@pytest.mark.parametrize("config", ["", {}])
def test_session_without_configuration_records_nothing(tmp_path, config):
    with debug.session(config, log_dir=tmp_path):
        train(te.Linear(16, 16, name="fc"), torch.ones(16, 16))
        debug.record("kept", 2.0)
    run = telens.open_run(tmp_path)
    assert run.records().empty
    assert run.scalars["name"].tolist() == ["kept"]


def test_all_sections_disabled_is_valid(tmp_path):
    disabled = {"section": MAX_OF_ACTIVATION["section"] | {"enabled": False}}
    with debug.session(disabled, log_dir=tmp_path):
        train(te.Linear(16, 16, name="fc"), torch.ones(16, 16))
    assert telens.open_run(tmp_path).records().empty


def test_a_layer_that_was_built_before_the_session_is_watched(tmp_path):
    layer, scalars = te.Linear(16, 16, name="fc"), Scalars()
    train(layer, torch.ones(16, 16))
    with debug.session(MAX_OF_ACTIVATION, statistics_logger=scalars, log_dir=tmp_path):
        train(layer, torch.ones(16, 16))
    assert scalars.rows == [("fc_activation_max", 1.0, 0)]


@pytest.mark.parametrize("given", ["one string", "one path", "a list"])
def test_feature_dirs_are_walked_recursively(tmp_path, given):
    folder = tmp_path / "features"
    (folder / "deep" / "deeper").mkdir(parents=True)
    (folder / "Outer.py").write_text(FEATURE_FILE.format(name="Outer"))
    (folder / "deep" / "deeper" / "Inner.py").write_text(FEATURE_FILE.format(name="Inner"))
    # Two files with the same name are both run.
    (folder / "deep" / "Outer.py").write_text(FEATURE_FILE.format(name="Middle"))
    feature_dirs = {"one string": str(folder), "one path": folder, "a list": [str(folder)]}[given]
    with debug.session("", feature_dirs=feature_dirs, log_dir=tmp_path / "log"):
        names = {name.removeprefix("transformer_engine.") for name in debug.list_features()}
    assert {"Outer", "Middle", "Inner", "FakeQuant", "LogTensorStats"} <= names


def test_a_failed_initialize_forgets_the_features_of_its_folders(tmp_path):
    (tmp_path / "Mine.py").write_text(FEATURE_FILE.format(name="Mine"))
    with pytest.raises(telens.ConfigError):
        debug.initialize(section({"Missing": {"enabled": True}}), tmp_path, log_dir=tmp_path)
    with debug.session("", log_dir=tmp_path):
        assert "transformer_engine.Mine" not in debug.list_features()


def test_features_are_explained_on_rank_0_only(tmp_path, monkeypatch, capsys):
    with debug.session("", log_dir=tmp_path):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        for rank, prints in ((0, True), (1, False)):
            monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
            debug.list_features()
            assert bool(capsys.readouterr().out) == prints
            debug.explain_features("all")
            assert bool(capsys.readouterr().out) == prints
        monkeypatch.undo()


def test_max_size_ends_the_recording_and_not_the_training(tmp_path):
    layer = te.Linear(16, 16, name="fc")
    everything = logging_of(
        ["activation", "weight", "gradient", "output", "wgrad"], ["min", "max", "mean", "std"]
    )
    for name, recording in (("whole", {}), ("cut", {"max_size": 600_000})):
        with debug.session(everything, log_dir=tmp_path / name, recording=recording):
            for _ in range(2500):
                train(layer, torch.randn(16, 16))  # numbers that cannot be packed
    whole, cut = (telens.open_run(tmp_path / name) for name in ("whole", "cut"))
    assert len(cut.records()) < len(whole.records())
    assert cut.segments["bytes"].item() < whole.segments["bytes"].item()


def test_recording_may_wait_for_the_disk_instead_of_dropping(tmp_path):
    with debug.session("", log_dir=tmp_path, recording={"on_full": "block"}):
        for _ in range(1000):
            debug.record("x", 1.0)
    assert len(telens.open_run(tmp_path).scalars) == 1000


def test_the_losses_of_step_are_kept_by_iteration(tmp_path):
    with debug.session("", log_dir=tmp_path, init_training_step=5):
        debug.step(torch.tensor(2.5))
        debug.step()
        debug.step(1.5)
    losses = telens.open_run(tmp_path).losses
    assert losses.to_dict() == {5: 2.5, 7: 1.5}
