"""Sessions, logs and the base feature, compared with nvdlfw-inspect 0.2.2: equal calls, equal
lines.

Where the contract says that ours is better, the peer's behaviour is shown, too.
"""

import contextlib
import logging
import os
import re
import subprocess
import sys

import nvdlfw_inspect.api as peer
import nvdlfw_inspect.utils
import pytest
import torch
from debug_helpers import message_log, section, statistics_log

import telens
import telens.debug as debug

STATISTICS = ["min", "max", "mean", "std", "l1_norm", "l2_norm"]
VARIABLES = ["LOG_LEVEL", "ENABLE_LOG_OVERWRITE", "ENABLE_LOG_TIMESTAMP", "LOG_TIMESTAMP"]


def forget_peers_session():
    peer.end_debug()
    for name in ("nvdlfw_inspect", "Default Statistics"):
        logging.getLogger(name).handlers.clear()
    nvdlfw_inspect.utils.SingleMessageLogger.logged_messages.clear()


@pytest.fixture(autouse=True)
def _clean_peer():
    """The log handlers and message sets of nvdlfw-inspect outlive its sessions."""
    yield
    forget_peers_session()


@contextlib.contextmanager
def peer_session(config, log_dir, **arguments):
    peer.initialize(config_file=config, log_dir=str(log_dir), **arguments)
    try:
        yield
    finally:
        peer.end_debug()


def both_sessions(config, tmp_path, **arguments):
    """Returns (API module, log_dir, session) of telens and of nvdlfw-inspect."""
    return [
        (debug, tmp_path / "ours", debug.session(config, log_dir=tmp_path / "ours", **arguments)),
        (peer, tmp_path / "peer", peer_session(config, tmp_path / "peer", **arguments)),
    ]


def base_config(stats=STATISTICS, **keys) -> dict:
    feature = {"enabled": True, "tensors": ["hidden", "logits"], "stats": stats, **keys}
    return section({"LogTensorStats": feature}, namespace=None, layer_types=["block", "head"])


def without_times(log: str) -> list[str]:
    return [re.sub(r"^[\d-]+ [\d:]+,\d{3} - ", "", line) for line in log.splitlines()]


def test_script_tensor_statistics_match_the_peer(tmp_path):
    torch.manual_seed(1)
    tensors = [torch.randn(7, 5) * 10.0**exponent for exponent in range(-6, 6, 2)]
    logs, returned = {}, {}
    for api, log_dir, session in both_sessions(base_config(freq=2), tmp_path, init_training_step=3):
        returned[api] = []
        with session:
            for tensor in tensors:
                for name in ("hidden", "other"):
                    values = api.log_tensor_stats("block.1", tensor_name=name, tensor=tensor)
                    returned[api].append(values)
                api.step()
            values = api.log_tensor_stats(
                "head", tensor_name="logits", tensor=tensors[0], iteration=8
            )
            returned[api].append(values)
        logs[api] = without_times(statistics_log(log_dir))
    assert len(logs[debug]) == len(logs[peer]) == (3 + 1) * len(STATISTICS)
    for ours, theirs in zip(logs[debug], logs[peer], strict=True):
        # The peer computes in the tensor's own FP32, so the last digits differ.
        value = re.compile(r"value=(.*)$")
        assert value.sub("", ours) == value.sub("", theirs)
        decimals = [len(value.search(line)[1].partition(".")[2]) for line in (ours, theirs)]
        assert decimals == [4, 4]
        assert float(value.search(ours)[1]) == pytest.approx(
            float(value.search(theirs)[1]), rel=1e-5, abs=1.01e-4
        )
    for ours, theirs in zip(returned[debug], returned[peer], strict=True):
        assert list(ours) == list(theirs)
        for name, tensor in ours.items():
            assert tensor.shape == theirs[name].shape == ()
            assert tensor.dtype == theirs[name].dtype == torch.float32
            torch.testing.assert_close(tensor, theirs[name], rtol=1e-5, atol=0)
    assert returned[debug].count({}) == returned[peer].count({}) > 0


def test_base_statistic_names_ignore_case(tmp_path):
    x = torch.tensor([1.0, 3.0])
    for api, _, session in both_sessions(base_config(stats=["MAX", "L2_Norm"]), tmp_path):
        with session:
            values = api.log_tensor_stats("head", tensor_name="logits", tensor=x)
        assert list(values) == ["max", "l2_norm"]
        assert values["max"].item() == 3.0


def test_an_empty_tensor_of_a_script_counts_for_nothing(tmp_path):
    with debug.session(base_config(), log_dir=tmp_path):
        assert debug.log_tensor_stats("a", tensor_name="logits", tensor=torch.empty(0, 4)) == {}
    assert statistics_log(tmp_path) == ""


def test_the_norm_of_large_fp16_is_finite(tmp_path):
    x = torch.full((65536,), 300.0, dtype=torch.float16)
    norms = {}
    for api, _, session in both_sessions(base_config(stats=["l2_norm"]), tmp_path):
        with session:
            values = api.log_tensor_stats("head", tensor_name="logits", tensor=x)
        norms[api] = values["l2_norm"].item()
    assert norms == {debug: 300 * 256, peer: float("inf")}


def test_second_session_logs_to_new_files(tmp_path):
    x, line = torch.ones(2), "head_logits_max"
    for number in (1, 2):
        for api, _, session in both_sessions(base_config(["max"]), tmp_path / str(number)):
            with session:
                api.log_tensor_stats("head", tensor_name="logits", tensor=x)
    for number in (1, 2):
        assert statistics_log(tmp_path / str(number) / "ours").count(line) == 1
    assert statistics_log(tmp_path / "1" / "peer").count(line) == 2


def test_messages_of_a_calling_line_are_all_written(tmp_path):
    for api, log_dir, session in both_sessions("", tmp_path):
        with session:
            for text in ("one", "two", "two"):
                api.log_message(text, layer_name="fc", level=logging.WARNING)
        lines = without_times(message_log(log_dir))
        lines = [line for line in lines if line.startswith("WARNING - LAYER=fc: ")]
        texts = ["one", "two"] if api is debug else ["one"]
        assert lines == [f"WARNING - LAYER=fc: {text}" for text in texts]


def test_a_config_file_that_is_missing_is_an_error(tmp_path):
    missing = str(tmp_path / "none.yaml")
    with peer_session(missing, tmp_path):
        pass  # goes on without a configuration
    with pytest.raises(telens.ConfigError, match=re.escape(missing)):
        debug.initialize(missing, log_dir=tmp_path)


ENVIRONMENTS = [
    {},
    {"ENABLE_LOG_OVERWRITE": "0"},
    {"ENABLE_LOG_OVERWRITE": "1"},
    {"ENABLE_LOG_TIMESTAMP": "1", "LOG_TIMESTAMP": "20200101_000000"},
    {"ENABLE_LOG_TIMESTAMP": "0", "LOG_TIMESTAMP": "20200101_000000"},
    {"LOG_LEVEL": "ERROR"},
    {"LOG_LEVEL": "warning"},
]


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=str)
def test_environment_variables_match_the_peer(tmp_path, monkeypatch, environment):
    for variable in VARIABLES:
        monkeypatch.delenv(f"NVDLFW_INSPECT_{variable}", raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(f"NVDLFW_INSPECT_{variable}", value)
    for text in ("first", "second"):  # two sessions into the same folder
        for api, _, session in both_sessions(base_config(["max"]), tmp_path):
            with session:
                for level in (logging.INFO, logging.WARNING, logging.ERROR):
                    api.log_message(f"{text} {level}", level=level, extra_cachable_args=level)
                api.log_tensor_stats("head", tensor_name="logits", tensor=torch.ones(2))
            forget_peers_session()
    ours, theirs = (
        {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.log")}
        for folder in (tmp_path / "ours", tmp_path / "peer")
    )
    assert set(ours) == set(theirs)
    for name, path in ours.items():
        kept = re.compile(r"first|second|head_logits_max")
        lines = [
            [line for line in without_times(each.read_text()) if kept.search(line)]
            for each in (path, theirs[name])
        ]
        assert lines[0] == lines[1]
        assert any(lines) or "statistics" not in name


def test_the_time_stamp_is_put_into_the_environment_for_others(tmp_path, monkeypatch):
    monkeypatch.delenv("NVDLFW_INSPECT_LOG_TIMESTAMP", raising=False)
    monkeypatch.setenv("NVDLFW_INSPECT_ENABLE_LOG_TIMESTAMP", "1")
    with debug.session("", log_dir=tmp_path / "ours"):
        pass
    (log,) = (tmp_path / "ours" / "nvdlfw_inspect_logs").iterdir()
    stamp = re.fullmatch(r"nvdlfw_inspect_(\d{8}_\d{6})_globalrank-0\.log", log.name)[1]
    # Processes of ranks that are started from here inherit the variable.
    print_stamp = "import os; print(os.environ['NVDLFW_INSPECT_LOG_TIMESTAMP'])"
    child = subprocess.run([sys.executable, "-c", print_stamp], capture_output=True, text=True)
    os.unsetenv("NVDLFW_INSPECT_LOG_TIMESTAMP")  # Python has not seen it
    assert child.stdout.strip() == stamp
