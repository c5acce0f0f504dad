"""Sessions with threads, and what of them remains when the interpreter ends."""

import subprocess
import sys
import textwrap
import threading

import h5py
import pytest
import torch
from debug_helpers import logging_of, message_log, section, stopping

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling
from telens.debug import TEConfigAPIMapper, api_method


def run(program: str, *arguments: str, expected: int = 0) -> subprocess.CompletedProcess:
    """Runs a program in a new process, which must end with this exit code."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == expected, result.stderr
    return result


# ---------------------------------------------------------------------- the interpreter's end

DAEMON = """
    import sys, threading, time, torch
    import telens.debug as debug, telens.pytorch as te
    torch.set_num_threads(1)
    config = {"section": {"enabled": True, "layers": {"layer_types": "all"},
        "transformer_engine": {"LogTensorStats": {"enabled": True, "tensors": ["activation"],
                                                  "stats": ["max"]}}}}
    debug.initialize(config, log_dir=sys.argv[1])
    layer = te.Linear(32, 32, name="layer", params_dtype=torch.float32)
    x = torch.ones(16, 32)
    layer(x)
    def forwards():
        while True:
            layer(x).sum().backward()
    for _ in range(3):
        threading.Thread(target=forwards, daemon=True).start()
    time.sleep(0.05 * int(sys.argv[2]))
    sys.exit(7)
"""


@pytest.mark.parametrize("attempt", range(6))
def test_daemon_threads_keep_the_exit_code(tmp_path, attempt):
    result = run(DAEMON, str(tmp_path), str(attempt), expected=7)
    assert "terminate called" not in result.stderr
    [records] = [telens.open_run(tmp_path).records()]
    assert (records.query("statistic == 'max'").value == 1).all()
    assert len(records) > 0


# ---------------------------------------------------------------------- exceptions that end things


class Looks(TEConfigAPIMapper):
    """Calls its `look` with every tensor."""

    look = staticmethod(lambda tensor: None)

    @api_method
    def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
        return True

    @api_method
    def inspect_tensor(self, config, layer_name, *, tensor, **kwargs):
        type(self).look(tensor)


def looking(register, look, tensor="activation", name="Looker") -> dict:
    register(type(name, (Looks,), {"look": staticmethod(look)}))
    return section({name: {"enabled": True, "tensors": [tensor]}})


def raising(error: BaseException):
    def look(tensor):
        raise error

    return look


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("tensor", ["activation", "gradient"])
def test_exit_exceptions_pass_observing_features(tmp_path, register, layer, x, error, tensor):
    config = looking(register, raising(error("enough")), tensor)
    with debug.session(config, log_dir=tmp_path):
        for _ in range(2):  # the feature stays on
            with pytest.raises(error, match="enough"):
                layer(x).sum().backward()
    assert "is disabled" not in message_log(tmp_path)


def test_exit_exceptions_pass_altering_features(tmp_path, register, layer, x):
    class Alters(TEConfigAPIMapper):
        @api_method
        def modify_tensor_enabled(self, config, layer_name, gemm, tensor_name, iteration):
            return True

        @api_method
        def modify_tensor(self, config, layer_name, *, tensor, **kwargs):
            raise KeyboardInterrupt

    register(Alters)
    config = section({"Alters": {"enabled": True, "gemms": ["dgrad"], "tensors": ["gradient"]}})
    with debug.session(config, log_dir=tmp_path), pytest.raises(KeyboardInterrupt):
        layer(x).sum().backward()


def test_exit_exceptions_pass_loggers(tmp_path, layer, x):
    class Logger(debug.BaseLogger):
        def log_scalar(self, name, value, iteration, **kwargs):
            if iteration == 0:
                raise SystemExit(3)

    with debug.session(
        logging_of(["activation"], ["max"]), log_dir=tmp_path, statistics_logger=Logger()
    ):
        layer(x)
        with pytest.raises(SystemExit):
            debug.step()
        layer(x)  # the session goes on


def test_raising_logger_is_reported_and_removed(tmp_path, layer, x, capfd):
    class Logger(debug.BaseLogger):
        calls = 0

        def log_scalar(self, name, value, iteration, **kwargs):
            Logger.calls += 1
            raise ConnectionError("no server")

    with debug.session(
        logging_of(["activation"], ["max"]), log_dir=tmp_path, statistics_logger=Logger()
    ):
        for _ in range(3):
            layer(x)
            debug.step()
    assert Logger.calls == 1
    assert capfd.readouterr().err.count("no server") == 1
    run = telens.open_run(tmp_path)
    assert len(run.records().query("statistic == 'max'")) == 3
    assert "logger_off" in set(run.events["kind"])


# ---------------------------------------------------------------------- errors in a backward


def test_backward_error_keeps_type_cause_and_layer(tmp_path, register, layer, x):
    class Fails(TEConfigAPIMapper):
        @api_method
        def modify_tensor_enabled(self, config, layer_name, gemm, tensor_name, iteration):
            return True

        @api_method
        def modify_tensor(self, config, layer_name, *, tensor, **kwargs):
            raise ValueError("cannot do it")

    register(Fails)
    config = section({"Fails": {"enabled": True, "gemms": ["dgrad"], "tensors": ["gradient"]}})
    with debug.session(config, log_dir=tmp_path):
        with pytest.raises(telens.Error, match=r"Fails.*fc1.*cannot do it") as caught:
            layer(x).sum().backward()
        assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    "module",
    [
        lambda: te.Linear(32, 32, params_dtype=torch.float32),
        lambda: te.LayerNorm(32),
        lambda: te.LayerNormMLP(32, 64, params_dtype=torch.float32),
    ],
    ids=["linear", "norm", "mlp"],
)
def test_a_second_derivative_is_refused_with_a_usage_error(module):
    x = torch.ones(16, 32, requires_grad=True)
    with pytest.raises(telens.UsageError, match="second derivative"):
        torch.autograd.grad(module()(x).sum(), x, create_graph=True)


def test_an_error_in_a_backward_on_another_thread_keeps_its_type(layer):
    x = torch.ones(16, 32, requires_grad=True)
    caught = []

    def backward():
        try:
            torch.autograd.grad(layer(x).sum(), x, create_graph=True)
        except Exception as error:
            caught.append(type(error))

    thread = threading.Thread(target=backward)
    thread.start()
    thread.join()
    assert caught == [telens.UsageError]


# ---------------------------------------------------------------------- a backward after the end


@pytest.mark.parametrize(
    "feature",
    [
        {"DisableFP8GEMM": {"enabled": True, "gemms": ["fprop", "dgrad", "wgrad"]}},
        {
            "FakeQuant": {
                "enabled": True,
                "gemms": ["dgrad", "wgrad"],
                "tensors": ["activation", "weight", "gradient"],
                "quant_format": "FP8E4M3",
            }
        },
    ],
    ids=["DisableFP8GEMM", "FakeQuant"],
)
def test_backward_runs_after_session_end(tmp_path, layer, x, feature):
    debug.initialize(section(feature), log_dir=tmp_path)
    with te.autocast(enabled=True, recipe=DelayedScaling()):
        out = layer(x)
    debug.end_debug()
    out.sum().backward()
    assert torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


# ---------------------------------------------------------------------- looking changes nothing


def test_writing_observer_is_disabled(tmp_path, register, layer, x):
    written = []

    def look(tensor):
        written.append(1)
        tensor.mul_(2)

    with debug.session(looking(register, look, "output"), log_dir=tmp_path):
        for _ in range(3):
            layer(x)
            debug.step()
    assert written == [1]
    assert "it wrote to a tensor that it may only read" in message_log(tmp_path)
    assert set(telens.open_run(tmp_path).events["kind"]) == {"feature_off"}


def test_writes_through_detached_tensors_are_detected(tmp_path, register, layer, x):
    with debug.session(looking(register, lambda t: t.detach().zero_(), "weight"), log_dir=tmp_path):
        layer(x)
    assert "it wrote to a tensor" in message_log(tmp_path)


def test_observer_random_numbers_keep_training_bits(tmp_path, register, layer, x):
    def numbers(watched: bool) -> torch.Tensor:
        torch.manual_seed(3)
        config = looking(register, lambda tensor: torch.rand(5)) if watched else ""
        with debug.session(config, log_dir=tmp_path / str(watched)):
            for _ in range(2):
                layer(x).sum().backward()
                debug.step()
        return torch.rand(8)

    assert torch.equal(numbers(True), numbers(False))
    log = message_log(tmp_path / "True")
    assert log.count("it drew from torch's random number generator") == 1
    assert "is disabled" not in log


# ---------------------------------------------------------------------- told once


def test_stop_is_reported_once(tmp_path, layer, x, capfd):
    with debug.session(stopping(), log_dir=tmp_path):
        layer(x.detach() * torch.nan)
        with pytest.raises(telens.RunStopped) as stopped:
            debug.step()
    assert capfd.readouterr().err == ""  # the exception tells it
    assert message_log(tmp_path).count(str(stopped.value)) == 1
    assert list(telens.open_run(tmp_path).events["kind"]) == ["stopped"]


# ---------------------------------------------------------------------- run ids and ranks


@pytest.mark.parametrize("run_id", ["../..", "a/b", ".hidden", "a b", "x" * 129, "a\x1b[1m"])
def test_rejects_run_id_that_is_not_a_plain_name(tmp_path, monkeypatch, run_id):
    monkeypatch.setenv("TELENS_RUN_ID", run_id)
    with pytest.raises(telens.UsageError, match=r"TELENS_RUN_ID .* expected at most 128 letters"):
        debug.initialize("", log_dir=tmp_path / "logs")
    assert not (tmp_path / "logs").exists()
    debug.step()  # nothing without a session


SECOND = """
    import sys, torch
    import telens.debug as debug
    debug.initialize("", log_dir=sys.argv[1])
    debug.record("who", 2.0)
    debug.step()
    debug.end_debug()
"""


def test_second_process_of_same_rank_gets_its_own_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TELENS_RUN_ID", "run")
    with debug.session("", log_dir=tmp_path):
        debug.record("who", 1.0)
        debug.step()
        second = run(SECOND, str(tmp_path))
    assert "rank 0 of the run 'run' is already being recorded" in second.stderr
    for run_id, who in (("run", 1.0), ("run-2", 2.0)):
        scalars = telens.open_run(tmp_path / "telens" / run_id).scalars
        assert list(scalars.query("name == 'who'").value) == [who]


def test_rank_before_init_comes_from_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("TELENS_RUN_ID", "run")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with debug.session("", log_dir=tmp_path):
        debug.step()
    assert (tmp_path / "telens" / "run" / "rank00003.h5").exists()


# ---------------------------------------------------------------------- files in log_dir


def test_a_symbolic_link_in_the_place_of_a_log_is_not_followed(tmp_path, capfd):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    logs = tmp_path / "logs" / "nvdlfw_inspect_logs"
    logs.mkdir(parents=True)
    (logs / "nvdlfw_inspect_globalrank-0.log").symlink_to(victim)
    with debug.session("", log_dir=tmp_path / "logs"):
        debug.log_message("hello")
    assert victim.read_text() == "precious"
    assert "it is a symbolic link, which is not followed" in capfd.readouterr().err


def test_a_log_without_a_folder_names_why_there_is_none(capfd):
    with debug.session("", log_dir="/sys/telens"):  # no user, not even root, makes a folder there
        debug.log_message("hello")
    (message,) = (line for line in capfd.readouterr().err.splitlines() if "inspect_logs/" in line)
    assert "is log_dir a folder that you may write to?" in message
    assert "No such file or directory" not in message


def test_a_layer_with_a_long_name_is_dumped(tmp_path, x):
    name = "layer" + "x" * 400
    layer = te.Linear(32, 32, name=name, params_dtype=torch.float32)
    config = section(
        {
            "DumpTensors": {
                "enabled": True,
                "tensors": ["activation", "output"],
                "high_precision_tensor": True,
            }
        }
    )
    with debug.session(config, log_dir=tmp_path):
        layer(x.detach().float())
        debug.step()
    names = sorted(path.name for path in tmp_path.rglob("tensor_dumps/*/*/*.h5"))
    assert [each.rsplit("_", 1)[1] for each in names] == ["activation.h5", "output.h5"]
    assert "is disabled" not in message_log(tmp_path)
    with h5py.File(next(tmp_path.rglob("*_activation.h5"))) as file:
        assert file.attrs["layer"].decode() == name


def test_recursive_configuration_is_an_error(tmp_path):
    config: dict = {"section": {"enabled": True}}
    config["section"]["layers"] = config
    with pytest.raises(telens.UsageError, match=r"more than 100 levels at 'section\.layers"):
        debug.initialize(config, log_dir=tmp_path)
