"""Every public name of the installed nvdlfw-inspect exists in telens, and what it does there."""

import ast
import importlib
import importlib.metadata
import pathlib

import pytest
import torch
from debug_helpers import logging_of, train

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.debug import (
    BaseConfigAPIMapper,
    BaseLogger,
    BaseNamespaceAPI,
    MetricLogger,
    Registry,
    api_method,
    logging,
    utils,
)
from telens.debug.pytorch.debug_state import TEDebugState
from telens.run_as_te.table import MODULES


def peer_sources() -> dict[str, pathlib.Path]:
    """The modules of nvdlfw-inspect by name, found without importing them."""
    files = importlib.metadata.files("nvdlfw-inspect")
    sources = {}
    for file in files:
        if file.suffix == ".py" and file.parts[0] == "nvdlfw_inspect":
            parts = [part for part in file.with_suffix("").parts if part != "__init__"]
            sources[".".join(parts)] = pathlib.Path(file.locate())
    return sources


def names_in(body: list[ast.stmt]) -> list[tuple[str, ast.stmt]]:
    found = []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append((node.name, node))
        elif isinstance(node, ast.Assign):
            found += [(each.id, node) for each in node.targets if isinstance(each, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            found.append((node.target.id, node))
    return [(name, node) for name, node in found if not name.startswith("_")]


def public_names() -> list[str]:
    """module:name and module:Class.name of all functions, classes, constants and members."""
    names = []
    for module, path in sorted(peer_sources().items()):
        for name, node in names_in(ast.parse(path.read_text()).body):
            names.append(f"{module}:{name}")
            if isinstance(node, ast.ClassDef):
                names += [f"{module}:{name}.{member}" for member, _ in names_in(node.body)]
    return names


# Fields of specifications of layers, which telens does not build in Python.
WITHOUT_FIELDS = ("BaseSpec", "LayerSpec", "ConfigSpec")


@pytest.mark.parametrize("name", public_names())
def test_a_public_name_of_the_peer_resolves(name):
    module, _, path = name.partition(":")
    parts = path.split(".")
    if parts[0] in WITHOUT_FIELDS:
        parts = parts[:1]
    found = importlib.import_module(MODULES[module][0])
    for part in parts:
        if part not in getattr(found, "__dataclass_fields__", ()):
            found = getattr(found, part)


def test_the_peer_has_names_to_compare():
    assert len(public_names()) > 100


# ---------------------------------------------------------------------- loggers


class Kept(BaseLogger):
    def __init__(self):
        self.rows = []

    def log_scalar(self, name, value, iteration, **kwargs):
        self.rows.append((name, iteration))


class Writer:
    def __init__(self):
        self.rows = []

    def add_scalar(self, name, value, iteration):
        self.rows.append((name, iteration))


MAXIMA = logging_of(["activation"], ["max"])


def test_added_loggers_get_every_statistic_from_the_next_step(tmp_path, layer, x):
    early, late, writer = Kept(), Kept(), Writer()
    MetricLogger.add_logger(early)
    with debug.session(MAXIMA, log_dir=tmp_path, default_logging_enabled=True):
        train(layer, x)
        MetricLogger.add_logger(late)
        MetricLogger.add_logger(logging.wrap_tensorboard_writer(writer))
        train(layer, x)
        assert MetricLogger.enabled_loggers[:2] == [early, late]
    name = "fc1_activation_max"
    assert early.rows == [(name, 0), (name, 1)]
    assert late.rows == writer.rows == [(name, 1)]
    assert MetricLogger.enabled_loggers == []
    train(layer, x)
    assert len(early.rows) == 2
    folder = tmp_path / "nvdlfw_inspect_statistics_logs"
    assert len((folder / "nvdlfw_inspect_globalrank-0.log").read_text().splitlines()) == 2


def test_a_logger_added_before_the_session_replaces_the_text_file(tmp_path, layer, x):
    kept = Kept()
    MetricLogger.add_logger(kept)
    with debug.session(MAXIMA, log_dir=tmp_path):
        train(layer, x)
    assert kept.rows
    assert not (tmp_path / "nvdlfw_inspect_statistics_logs").exists()


def test_statistics_logger_and_added_loggers_get_each_value_once(tmp_path, layer, x):
    given, added = Kept(), Kept()
    MetricLogger.add_logger(added)
    with debug.session(MAXIMA, log_dir=tmp_path, statistics_logger=given):
        MetricLogger.enabled_loggers.append(Kept())  # as some scripts do
        MetricLogger.log_scalar("rate", 0.5, 0)
        train(layer, x)
        third = MetricLogger.enabled_loggers[2]
    assert given.rows == added.rows == third.rows
    assert len(given.rows) == len(set(given.rows)) == 2


def test_values_outside_a_session_go_to_added_loggers():
    kept = Kept()
    MetricLogger.add_logger(kept)
    try:
        MetricLogger.log_scalar("rate", 0.5, 3)
    finally:
        MetricLogger.enabled_loggers.clear()
    assert kept.rows == [("rate", 3)]
    with pytest.raises(telens.UsageError, match="no session"):
        MetricLogger.log_scalar("rate", 0.5, 3)


def test_rejects_objects_that_cannot_log():
    for wrong in (None, 3):
        with pytest.raises(telens.UsageError, match=r"add_logger: _logger must be a BaseLogger"):
            MetricLogger.add_logger(wrong)
    assert MetricLogger.enabled_loggers == []


# ---------------------------------------------------------------------- small tools


def test_custom_assert_logs_its_message_and_raises(tmp_path):
    logging.custom_assert(True, "fine")
    refused = pytest.raises(AssertionError, match="two tensors")
    with debug.session("", log_dir=tmp_path), refused:
        logging.custom_assert(False, "expected two tensors")
    log = tmp_path / "nvdlfw_inspect_logs" / "nvdlfw_inspect_globalrank-0.log"
    assert "ERROR - expected two tensors" in log.read_text()
    with pytest.raises(AssertionError):
        logging.custom_assert(False, "no session")


def test_print_rank_0_prints_on_rank_0_only(capsys, monkeypatch):
    logging.print_rank_0("a", 1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    logging.print_rank_0("b")
    assert capsys.readouterr().out == "a 1 \n"


def test_a_schedule_of_steps_has_the_peers_ends():
    due = logging.enable_logging_at_current_step
    assert [step for step in range(9) if due(step, 2, 2, 6, None)] == [2, 4, 6]
    assert [step for step in range(9) if due(step, 1, 0, -1, [(1, 3), (6, -1)])] == [1, 2, 6, 7, 8]


def test_names_without_a_function_raise_when_used():
    from telens.debug import config_manager, debug_manager

    with pytest.raises(telens.UsageError, match=r"debug\.initialize"):
        debug_manager.DebugManager("c.yaml")
    with pytest.raises(telens.UsageError, match=r"debug\.initialize"):
        logging.initialize_logger("logs")
    with pytest.raises(telens.UsageError, match="telens plan"):
        config_manager.LayerSpec()
    with pytest.raises(telens.UsageError, match="default_logging_enabled=True"):
        logging.make_default_statistics_logger()


def test_the_session_is_debug_manager_and_te_debug_state(tmp_path, layer, x):
    assert debug.DEBUG_MANAGER is None
    assert logging.LOGGER is None
    assert not TEDebugState.debug_enabled
    with debug.session(MAXIMA, log_dir=tmp_path, init_training_step=5):
        assert debug.DEBUG_MANAGER._trainer_iteration_count == 5
        assert debug.DEBUG_MANAGER.get_extension_api("base").log_tensor_stats
        assert TEDebugState.debug_enabled is True
        train(layer, x)
        assert debug.DEBUG_MANAGER._trainer_iteration_count == 6
        configs = importlib.import_module("telens.debug.config_manager").ConfigManager
        found = configs.get_config_for_layer("fc1")
        assert found["transformer_engine"]["LogTensorStats"]["stats"] == ["max"]
    assert debug.DEBUG_MANAGER is None
    with pytest.raises(telens.UsageError, match=r"it cannot be set; debug\.initialize\(\) begins"):
        TEDebugState.debug_enabled = True


def test_gathering_without_ranks_returns_the_tensor():
    tensor = torch.ones(2, 3)
    assert utils.gather_tensor_on_last_rank(tensor) == (tensor, None)
    assert (utils.get_distributed_rank(), utils.get_distributed_world_size()) == (0, 1)


# ---------------------------------------------------------------------- namespaces of one's own


class Default:
    def scale(self, config, layer_name, **call):
        return call["tensor"]


class Mine(BaseNamespaceAPI):
    def __init__(self):
        super().__init__()
        self._default_api_impl = Default()
        self.ended = []

    def input_assertions_hook(self, api_name, **call):
        assert "tensor" in call

    def step(self):
        self.ended.append("step")

    def end_debug(self):
        self.ended.append("session")


class Times(BaseConfigAPIMapper):
    def parse_config_and_api(self, config, **call):
        return call.get("tensor_name") in config["tensors"], config

    @api_method
    def scale(self, config, layer_name, **call):
        return call["tensor"] * config["by"]


class Plus(Times):
    @api_method
    def scale(self, config, layer_name, **call):
        return call["tensor"] + config["by"]

    @api_method
    def shift(self, config, layer_name, **call):
        return call["tensor"] + config["by"]


@pytest.fixture
def mine():
    Registry.register_namespace_api(namespace="mine")(Mine)
    for each in (Times, Plus):
        Registry.register_feature(namespace="mine")(each)
    yield debug.mine
    debug.end_debug()
    for each in (Times, Plus, Mine):
        Registry.forget(f"{each.__module__}.{each.__qualname__}")


def section_of(layers: str, **features) -> dict:
    common = {"enabled": True, "tensors": ["x"]}
    return {
        "enabled": True,
        "layers": {"layer_name_regex_pattern": layers},
        "mine": {name: common | {"by": by} for name, by in features.items()},
    }


def test_calls_of_an_own_namespace_go_to_the_enabled_feature(tmp_path, mine):
    config = {"a": section_of("fc1", Times=3), "b": section_of("fc2", Times=1, Plus=2)}
    one = torch.ones(2)
    with debug.session(config, log_dir=tmp_path):
        assert mine.scale("fc1", tensor=one, tensor_name="x").tolist() == [3, 3]
        assert mine.scale("fc1", tensor=one, tensor_name="y").tolist() == [1, 1]
        assert mine.scale("fc3", tensor=one, tensor_name="x").tolist() == [1, 1]
        assert mine.shift("fc2", tensor=one, tensor_name="x").tolist() == [3, 3]
        assert mine.shift("fc1", tensor=one, tensor_name="x") == {}
        with pytest.raises(telens.UsageError, match=r"mine\.scale: layer 'fc2' .*Times, Plus"):
            mine.scale("fc2", tensor=one, tensor_name="x")
        with pytest.raises(AssertionError):
            mine.scale("fc1", tensor_name="x")
        with pytest.raises(
            AttributeError, match=r"lacks the call 'scal' \(did you mean 'scale'\?\)"
        ):
            _ = mine.scal
        debug.step()
    assert mine.ended == ["step", "session"]
    log = tmp_path / "nvdlfw_inspect_logs" / "nvdlfw_inspect_globalrank-0.log"
    assert "no layer of TELens ran" not in log.read_text()


def test_a_namespace_answers_several_features_if_it_allows_them(tmp_path, mine, monkeypatch):
    config = {"b": section_of("fc2", Times=2, Plus=1)}
    monkeypatch.setattr(Mine, "is_multiple_feature_invocation_allowed", lambda self, api: True)
    monkeypatch.setattr(
        Mine, "handle_multi_feature_output", lambda self, api, outputs, features, **call: outputs
    )
    with debug.session(config, log_dir=tmp_path):
        answers = mine.scale("fc2", tensor=torch.ones(1), tensor_name="x")
    assert [each.item() for each in answers] == [2, 2]


def test_base_class_logs_configured_statistics(tmp_path):
    @Registry.register_namespace_api(namespace="theirs")
    class Theirs(BaseNamespaceAPI):
        pass

    @Registry.register_feature(namespace="theirs")
    class LogTheirs(debug.LogTensorStats):
        pass

    kept = Kept()
    feature = {"enabled": True, "tensors": ["hidden"], "stats": ["max", "l1_norm"], "freq": 2}
    config = {"a": section_of("block") | {"theirs": {"LogTheirs": feature}}}
    config["a"].pop("mine")
    try:
        with debug.session(config, log_dir=tmp_path, statistics_logger=kept):
            for _ in range(3):
                values = debug.theirs.log_tensor_stats(
                    "block", tensor=torch.tensor([1.0, -3.0]), tensor_name="hidden"
                )
                debug.step()
    finally:
        debug.end_debug()
        for each in (LogTheirs, Theirs):
            Registry.forget(f"{each.__module__}.{each.__qualname__}")
    assert {name: value.item() for name, value in values.items()} == {"max": 1.0, "l1_norm": 4.0}
    expected = [f"block_hidden_{name}" for name in ("max", "l1_norm")]
    assert kept.rows == [(name, iteration) for iteration in (0, 2) for name in expected]


def test_calls_of_a_feature_in_the_base_namespace_need_no_namespace(tmp_path, register):
    class Doubles(BaseConfigAPIMapper):
        def parse_config_and_api(self, config, **call):
            return True, config

        @api_method
        def double(self, config, layer_name, *, tensor):
            return 2 * tensor

    register(Doubles, namespace="base")
    layers = {"layer_types": "all"}
    config = {"a": {"enabled": True, "layers": layers, "Doubles": {"enabled": True}}}
    with debug.session(config, log_dir=tmp_path):
        assert debug.double("fc", tensor=2) == debug.base.double("fc", tensor=2) == 4


def test_every_named_layer_has_a_line_in_the_message_log(tmp_path):
    model = torch.nn.Sequential(te.LayerNormLinear(16, 16), torch.nn.ReLU(), te.Linear(16, 16))
    with debug.session("", log_dir=tmp_path):
        debug.infer_and_assign_layer_names(model)
    log = tmp_path / "nvdlfw_inspect_logs" / "nvdlfw_inspect_globalrank-0.log"
    named = [line.partition(": ")[2] for line in log.read_text().splitlines() if "Assigned" in line]
    assert named == ["model", "model.0", "model.1", "model.2"]
