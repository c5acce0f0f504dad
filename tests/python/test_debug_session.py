"""The session API from Python, and reading what was recorded."""

import json
import logging
import pathlib
import subprocess
import sys

import pytest
import torch
from debug_helpers import Scalars, train

import telens
import telens.debug as debug
import telens.pytorch as te

CONFIG = {
    "all_layers": {
        "enabled": True,
        "layers": {"layer_types": "all"},
        "transformer_engine": {
            "LogTensorStats": {
                "enabled": True,
                "stats": ["min", "max", "mean", "l1_norm"],
                "tensors": ["activation", "weight", "gradient"],
            }
        },
    }
}


@pytest.fixture
def layer() -> te.Linear:
    torch.manual_seed(1)
    return te.Linear(32, 16, name="fc")


def test_logger_receives_statistics_with_iteration(tmp_path, layer, x):
    scalars = Scalars()
    debug.initialize(CONFIG, statistics_logger=scalars, log_dir=tmp_path, init_training_step=7)
    train(layer, x, steps=2)
    debug.end_debug()
    values = {(name, step): value for name, value, step in scalars.rows}
    assert {step for _, step in values} == {7, 8}
    assert values["fc_activation_max", 7] == x.max().item()
    assert values["fc_weight_min", 8] == layer.weight.min().item()
    assert values["fc_activation_l1_norm", 7] == pytest.approx(x.abs().sum().item(), rel=1e-6)


def test_a_tensorboard_writer_gets_add_scalar(tmp_path, layer, x):
    class Writer:
        rows = []  # noqa: RUF012

        def add_scalar(self, name, value, iteration):
            self.rows.append(name)

    with debug.session(CONFIG, tb_writer=Writer(), log_dir=tmp_path):
        train(layer, x)
    assert "fc_activation_max" in Writer.rows


def test_the_run_is_read_back_as_tables(tmp_path, layer, x):
    with debug.session(CONFIG, log_dir=tmp_path):
        debug.record("learning_rate", 0.25)
        for _ in range(3):
            layer(x).sum().backward()
            debug.step(0.5)
    run = telens.open_run(tmp_path)
    records = run.records(layer="^fc$", tensor="activation", statistic="max")
    assert list(records["iteration"]) == [0, 1, 2]
    assert list(records["value"]) == [x.max().item()] * 3
    assert set(run.records(statistic="nonfinite")["value"]) <= {0.0}
    assert list(run.losses) == [0.5, 0.5, 0.5]
    assert run.losses.index.tolist() == [0, 1, 2]
    scalars = run.scalars
    assert scalars[scalars["name"] == "learning_rate"]["value"].tolist() == [0.25]
    assert "LogTensorStats" in run.config
    assert run.segments["ended"].all()
    assert set(run.names("layer")) == {"fc"}
    assert len(run.records(iterations=(1, 1))) * 3 == len(run.records())


def test_a_run_that_is_not_there_is_a_record_error(tmp_path):
    with pytest.raises(telens.RecordError):
        telens.open_run(tmp_path / "nowhere")


def test_looking_changes_no_bit(tmp_path, x):
    def steps():
        torch.manual_seed(1)
        layer = te.TransformerLayer(32, 64, 2)
        for _ in range(3):
            with te.autocast():
                out = layer(x.view(16, 1, 32))
            out.sum().backward()
            debug.step()
        return [out.detach(), *(p.grad for p in layer.parameters())]

    plain = steps()
    with debug.session(CONFIG, log_dir=tmp_path):
        watched = steps()
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert len(telens.open_run(tmp_path).records()) > 100


def test_a_yaml_file_may_be_given_as_str_or_path(tmp_path, layer, x):
    file = tmp_path / "debug.yaml"
    file.write_text(
        "section:\n"
        "  enabled: True\n"
        "  layers: {layer_name_regex_pattern: fc}\n"
        "  transformer_engine:\n"
        "    LogTensorStats: {enabled: True, stats: [max], tensors: activation}\n"
    )
    for given in (str(file), file):
        scalars = Scalars()
        with debug.session(
            given, statistics_logger=scalars, log_dir=tmp_path / type(given).__name__
        ):
            train(layer, x)
        assert [name for name, _, _ in scalars.rows] == ["fc_activation_max"]


def warnings_in(folder) -> list[str]:
    log = folder / "nvdlfw_inspect_logs" / "nvdlfw_inspect_globalrank-0.log"
    return [line for line in log.read_text().splitlines() if " - WARNING - " in line]


def test_session_without_layers_describes_the_model(tmp_path):
    def run():
        model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
        debug.infer_and_assign_layer_names(model)
        model(torch.ones(2, 16)).sum().backward()
        debug.step()

    with debug.session(CONFIG, log_dir=tmp_path):
        run()
    (line,) = warnings_in(tmp_path)
    assert "no layer of TELens ran" in line
    assert "the named model has 2 torch.nn.Linear; call telens.pytorch.convert(model)" in line


def test_no_layer_note_without_sections_or_after_failure(tmp_path):
    with debug.session("", log_dir=tmp_path / "a"):
        debug.step()
    with (
        pytest.raises(ValueError, match="on purpose"),
        debug.session(CONFIG, log_dir=tmp_path / "b"),
    ):
        raise ValueError("on purpose")
    assert warnings_in(tmp_path / "a") == warnings_in(tmp_path / "b") == []


def test_a_refused_layer_does_not_blame_other_sections(tmp_path, layer, x):
    one = CONFIG["all_layers"] | {"layers": {"layer_types": ["fc"]}}
    config = {"first": one, "second": one, "third": one | {"layers": {"layer_types": ["later"]}}}
    refused = pytest.raises(telens.ConfigError, match="first")
    with refused, debug.session(config, log_dir=tmp_path):
        te.Linear(32, 32, name="other")(x)
        layer(x)
    log = tmp_path / "nvdlfw_inspect_logs" / "nvdlfw_inspect_globalrank-0.log"
    assert "selects none of the layers" not in log.read_text()


@pytest.mark.parametrize("config", ["", None])
def test_a_session_without_a_configuration_records_losses(tmp_path, layer, x, config):
    debug.initialize(config, log_dir=tmp_path)
    layer(x).sum().backward()
    debug.step(0.5)
    debug.end_debug()
    run = telens.open_run(tmp_path)
    assert run.config == ""
    assert list(run.losses) == [0.5]


def test_none_lets_the_environment_name_the_configuration(tmp_path, layer, x, monkeypatch):
    (tmp_path / "debug.json").write_text(json.dumps(CONFIG))
    monkeypatch.setenv("TELENS_CONFIG", str(tmp_path / "debug.json"))
    with debug.session(None, log_dir=tmp_path):
        layer(x).sum().backward()
        debug.step()
    assert set(telens.open_run(tmp_path).names("layer")) == {"fc"}


def test_all_configuration_errors_have_positions(tmp_path):
    file = tmp_path / "debug.yaml"
    file.write_text(
        "section:\n"
        "  enabled: True\n"
        "  layers: {layer_types: all}\n"
        "  transformer_engine:\n"
        "    LogTensorStats: {enabled: True, stats: [maxx], tensors: activation}\n"
        "    FakeQant: {enabled: True}\n"
    )
    with pytest.raises(telens.ConfigError) as caught:
        debug.initialize(file, log_dir=tmp_path)
    message = str(caught.value)
    assert "debug.yaml:5:" in message
    assert "debug.yaml:6:" in message
    assert "FakeQuant" in message
    debug.initialize("", log_dir=tmp_path)  # the failed one left no session


def test_a_second_initialize_is_an_error(tmp_path):
    with debug.session("", log_dir=tmp_path), pytest.raises(telens.UsageError, match="already"):
        debug.initialize("", log_dir=tmp_path)


def test_unknown_arguments_and_options_are_errors(tmp_path):
    with pytest.raises(TypeError):
        debug.initialize("", log_directory=tmp_path)
    with pytest.raises(telens.UsageError, match="on_full"):
        debug.initialize("", log_dir=tmp_path, recording={"on_fulll": "drop"})
    with pytest.raises(telens.UsageError, match="no such folder"):
        debug.initialize("", log_dir=tmp_path, feature_dirs=tmp_path / "nowhere")


def test_step_ignores_loss_outside_a_session():
    debug.step(loss=torch.empty(3, device="meta"))  # to read it would raise


def test_calls_outside_a_session_raise_except_step():
    debug.step()
    debug.end_debug()
    debug.initialize_training_step(3)
    for call in (
        lambda: debug.record("x", 1.0),
        lambda: debug.log_message("x"),
        lambda: debug.list_features(),
        lambda: debug.get_tensor_reduction_group(),
        lambda: debug.log_tensor_stats("l", tensor_name="t", tensor=torch.ones(2)),
        lambda: debug.transformer_engine.inspect_tensor_enabled(
            layer_name="l", tensor_name="activation"
        ),
    ):
        with pytest.raises(telens.UsageError, match="no session is open"):
            call()


def test_features_are_listed_and_explained(tmp_path, capsys):
    with debug.session("", log_dir=tmp_path):
        names = debug.list_features()
        assert "transformer_engine.FakeQuant" in names
        assert "transformer_engine.FakeQuant" in capsys.readouterr().out
        assert "quant_format" in debug.explain_features("FakeQuant")
        assert debug.explain_features(["transformer_engine.FakeQuant"]) in capsys.readouterr().out
        with pytest.raises(telens.UsageError, match="FakeQuant"):
            debug.explain_features("FakeQunat")


def test_messages_are_written_once(tmp_path):
    with debug.session("", log_dir=tmp_path):
        for _ in range(3):
            debug.log_message("something happened", "fc", logging.INFO)
        debug.log_message("something happened", "fc", extra_cachable_args=(1, 2))
    logs = list((tmp_path / "nvdlfw_inspect_logs").glob("*_globalrank-0.log"))
    assert logs[0].read_text().count("something happened") == 2


def test_script_logs_statistics_of_its_tensors(tmp_path):
    config = {
        "section": {
            "enabled": True,
            "layers": {"layer_types": "all"},
            "LogTensorStats": {"enabled": True, "stats": ["max", "mean"], "tensors": ["hidden"]},
        }
    }
    x = torch.arange(6.0).view(2, 3)
    with debug.session(config, log_dir=tmp_path):
        values = debug.log_tensor_stats("block", tensor_name="hidden", tensor=x)
        assert {name: value.item() for name, value in values.items()} == {"max": 5.0, "mean": 2.5}
        assert values["max"].dtype == torch.float32
        assert debug.log_tensor_stats("block", tensor_name="other", tensor=x) == {}


def test_the_base_feature_is_a_class_to_build_on(tmp_path):
    from telens.debug.debug_features.log_tensor_stats import LogTensorStats

    class Mine(LogTensorStats):
        pass

    config = {
        "section": {
            "enabled": True,
            "layers": {"layer_types": "all"},
            "LogTensorStats": {"enabled": True, "stats": ["max"], "tensors": ["hidden"]},
        }
    }
    feature = Mine()
    selected, matched = feature.parse_config_and_api(
        {"enabled": True, "tensors": ["hidden"], "stats": ["max"]}, tensor_name="hidden"
    )
    assert (selected, matched) == (True, {"tensor": "hidden", "stats": ["max"]})
    with debug.session(config, log_dir=tmp_path):
        values = feature.log_tensor_stats(
            matched, "block", tensor_name="hidden", tensor=torch.tensor([1.0, 3.0])
        )
    assert values["max"].item() == 3.0


def test_layer_names_follow_the_structure_of_the_model(tmp_path):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(
                te.TransformerLayer(32, 64, 2, layer_number=number, fuse_qkv_params=True)
                for number in (4, 5)
            )
            self.head = te.Linear(32, 16)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    model, scalars = Model(), Scalars()
    debug.infer_and_assign_layer_names(model)
    assert model.head.name == "model.head"
    with debug.session(CONFIG, statistics_logger=scalars, log_dir=tmp_path):
        train(model, torch.randn(16, 1, 32))
    layers = {
        name.split("_activation_")[0] for name, _, _ in scalars.rows if "_activation_" in name
    }
    assert layers == {
        *(
            f"model.layers.{number}.{suffix}"
            for number in (4, 5)
            for suffix in (
                "self_attention.layernorm_qkv",
                "self_attention.proj",
                "layernorm_mlp.fc1",
                "layernorm_mlp.fc2",
            )
        ),
        "model.head",
    }


def test_a_named_transformer_layer_passes_its_name_on(tmp_path):
    layer, scalars = te.TransformerLayer(32, 64, 2, name="block", fuse_qkv_params=True), Scalars()
    with debug.session(CONFIG, statistics_logger=scalars, log_dir=tmp_path):
        train(layer, torch.randn(16, 1, 32))
    assert {
        name.split("_activation_")[0] for name, _, _ in scalars.rows if "_activation_" in name
    } == {
        "block.self_attention.layernorm_linear_qkv",
        "block.self_attention.proj",
        "block.layernorm_mlp.fc1",
        "block.layernorm_mlp.fc2",
    }


def test_a_copied_layer_keeps_its_name_in_configurations(tmp_path, layer, x):
    import copy

    scalars = Scalars()
    with debug.session(CONFIG, statistics_logger=scalars, log_dir=tmp_path):
        train(copy.deepcopy(layer), x)
    assert scalars.rows
    assert all(name.startswith("fc_") for name, _, _ in scalars.rows)


class WatchedInWorker(torch.utils.data.Dataset):
    """Runs a layer for each sample. In a forked worker the session does not watch it."""

    def __init__(self, layer):
        self.layer = layer

    def __len__(self):
        return 4

    def __getitem__(self, index):
        with torch.no_grad():
            return self.layer(torch.full((16, 32), 100.0)).sum()


def test_layers_in_workers_of_a_data_loader_record_nothing(tmp_path, layer, x):
    loader = torch.utils.data.DataLoader(
        WatchedInWorker(layer), num_workers=2, multiprocessing_context="fork", timeout=60
    )
    with debug.session(CONFIG, log_dir=tmp_path):
        train(layer, x)
        assert len(list(loader)) == 4
        train(layer, x)
    records = telens.open_run(tmp_path).records(tensor="activation", statistic="max")
    assert records["value"].tolist() == [x.max().item()] * 2


def test_a_session_left_open_is_closed_at_exit_with_python_loggers(tmp_path):
    program = f"""
import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import telens.debug as debug, telens.pytorch as te, torch
class Printer(debug.BaseLogger):
    def log_scalar(self, name, value, iteration, **kwargs): print(name)
debug.initialize({CONFIG!r}, statistics_logger=Printer(), log_dir={str(tmp_path)!r})
te.Linear(16, 16, name="fc")(torch.ones(16, 16)).sum().backward()
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100
    )
    assert result.returncode == 0, result.stderr
    assert "fc_activation_max" in result.stdout
    assert telens.open_run(tmp_path).segments["ended"].all()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("argument", ["log_dir", "config_file"])
def test_a_path_with_a_nul_character_is_refused(tmp_path, argument):
    arguments = {"config_file": "", "log_dir": tmp_path} | {argument: f"{tmp_path}/a\0b"}
    with pytest.raises(telens.UsageError, match=rf"{argument} must be a path, .*/a' with a NUL"):
        debug.initialize(**arguments)
    assert list(tmp_path.iterdir()) == []
