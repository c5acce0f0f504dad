"""Diagnosis during a run: reports, vetoes, stops and callbacks."""

import json
import math
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
import torch
from debug_helpers import Scalars, message_log
from distributed_workers import run_ranks

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling

NAN_AT = 6


def config_of(layers="all", **options) -> dict:
    """Diagnosis after every iteration, with the statistics that its rules read."""
    logs = {
        "LogTensorStats": {
            "enabled": True,
            "tensors": ["activation", "weight", "gradient", "output", "dgrad", "wgrad"],
            "stats": ["mean", "std", "l2_norm", "numel", "cur_amax"],
        },
    }
    scales = {"enabled": True, "tensors": ["activation", "weight", "gradient"]}
    return {
        "diagnosis": {
            "enabled": True,
            "layers": {"layer_types": layers},
            "telens": {"Diagnosis": {"enabled": True, "percent_of_time": 100, **options}},
        },
        "recording": {
            "enabled": True,
            "layers": {"layer_types": "all"},
            "transformer_engine": logs,
            "telens": {"ScaleHealth": scales, "PrecisionLedger": {"enabled": True}},
        },
    }


class Training:
    """A small training with delayed scaling. Its input may have a NaN, and its scale may be
    wrong.
    """

    def __init__(self):
        torch.manual_seed(1)
        self.layers = torch.nn.Sequential(
            te.Linear(32, 64, params_dtype=torch.bfloat16, name="layers.0.fc1"),
            te.Linear(64, 32, params_dtype=torch.bfloat16, name="layers.0.fc2"),
        )
        self.optimizer = torch.optim.SGD(self.layers.parameters(), lr=1e-3)
        self.generator = torch.Generator().manual_seed(2)
        self.step = 0

    def run(self, steps: int, nan_at: int | None = None, wrong_scale_from: int | None = None):
        for _ in range(steps):
            x = torch.randn(16, 32, generator=self.generator).bfloat16()
            if self.step == nan_at:
                x[3, 5] = math.nan
            if wrong_scale_from is not None and self.step >= wrong_scale_from:
                state = self.layers[1].fp8_meta["scaling_fwd"]
                scale = state.scale.clone()
                scale[0] = 1 / scale[0]
                state.scale = scale
            with te.autocast(recipe=DelayedScaling(amax_history_len=4)):
                loss = self.layers(x).float().square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            debug.step(loss)
        return self

    def weights(self) -> list[torch.Tensor]:
        return [each.detach().clone() for each in self.layers.parameters()]


def diagnosed(build_folder, run) -> list[dict]:
    """The findings that `telens diagnose` prints."""
    result = subprocess.run(
        [build_folder / "bin/telens", "diagnose", "--format", "json", str(run)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode in (0, 1), result.stderr
    return json.loads(result.stdout)["findings"]


def events(log_dir, kind: str) -> list[str]:
    table = telens.open_run(log_dir).events
    return list(table[table["kind"] == kind]["text"])


# ---------------------------------------------------------------------- telling


def test_planted_nan_matches_the_command_output(tmp_path, build_folder):
    heard = []
    logger = Scalars()
    debug.initialize(config_of(), log_dir=tmp_path, statistics_logger=logger)
    debug.on_finding(heard.append)
    training = Training().run(NAN_AT)
    assert debug.findings() == []
    training.run(3, nan_at=NAN_AT)
    debug.checkpoint_allowed()
    debug.end_debug()
    (finding,) = heard
    assert finding["cause"] == "nonfinite"
    assert finding["layer"] == "layers.0.fc1"
    assert finding["tensor"] == "activation"
    assert finding["first_iteration"] == NAN_AT
    (run,) = (tmp_path / "telens").iterdir()
    assert diagnosed(build_folder, run) == [finding]
    (text,) = events(tmp_path, "finding")
    assert text.startswith(
        "Diagnosis of section 'diagnosis' found nonfinite: layers.0.fc1 activation, iteration"
    )
    assert message_log(tmp_path).count("found nonfinite") == 1
    assert list(logger.values("findings").values()) == [1]


def test_wrong_scale_is_reported_during_training(tmp_path):
    debug.initialize(config_of(actions={"wrong_scale": "veto"}), log_dir=tmp_path)
    training = Training().run(12)
    assert debug.checkpoint_allowed()
    training.run(6, wrong_scale_from=12)
    assert not debug.checkpoint_allowed()
    (finding,) = debug.findings()
    assert (finding["cause"], finding["layer"]) == ("wrong_scale", "layers.0.fc2")
    assert abs(finding["first_iteration"] - 12) <= 2
    training.run(1, wrong_scale_from=12)
    assert "checkpoints are vetoed" in message_log(tmp_path)
    debug.end_debug()


def test_a_healthy_training_hears_nothing_and_computes_the_same(tmp_path):
    def train(config, folder):
        debug.initialize(config, log_dir=tmp_path / folder)
        debug.on_finding(heard.append)
        training = Training()
        for _ in range(20):
            training.run(2)
            assert debug.checkpoint_allowed()
        assert debug.findings() == []
        debug.end_debug()
        return training.weights()

    heard = []
    looked = train(config_of(actions={"others": "stop"}), "looked")
    without = train("", "without")
    assert heard == []
    assert all(map(torch.equal, looked, without))
    assert events(tmp_path / "looked", "finding") == []


def test_ignored_causes_are_not_reported(tmp_path):
    config = config_of(actions={"nonfinite": "ignore", "others": "stop"})
    with debug.session(config, log_dir=tmp_path):
        Training().run(NAN_AT + 4, nan_at=NAN_AT)
        debug.checkpoint_allowed()
    assert not any("nonfinite" in text for text in events(tmp_path, "finding"))


@pytest.mark.parametrize(("layer", "reported"), [("layers.0.fc1", True), ("layers.0.fc2", False)])
def test_layers_of_other_sections_are_not_diagnosed(tmp_path, layer, reported):
    """The NaN arises in fc1; a section that selects only fc2 must not report it."""
    config = config_of(actions={"others": "ignore", "nonfinite": "tell"})
    config["diagnosis"]["layers"] = {"layer_name_regex_pattern": f"^{layer}$"}
    with debug.session(config, log_dir=tmp_path):
        Training().run(NAN_AT + 4, nan_at=NAN_AT)
        debug.checkpoint_allowed()
    assert [f"nonfinite: {layer}" in text for text in events(tmp_path, "finding")] == [
        True
    ] * reported


# ---------------------------------------------------------------------- stopping


STOPPED = """
    import sys
    sys.path.insert(0, sys.argv[2])
    import telens.debug as debug
    from test_online_diagnosis import Training, config_of
    debug.initialize(config_of(freq=5, actions={"nonfinite": "stop"}), log_dir=sys.argv[1])
    training = Training()
    for _ in range(100_000):
        training.run(1, nan_at=6)
    print("never stopped")
"""


def test_stop_exits_with_code_1_and_the_finding(tmp_path):
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(STOPPED),
            tmp_path,
            str(pathlib.Path(__file__).parent),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("telens.RunStopped: Diagnosis of section 'diagnosis' found nonfinite: ")
    assert last.endswith("; the run is stopped")
    assert len(events(tmp_path, "stopped")) == 1
    assert "never stopped" not in result.stdout


# ---------------------------------------------------------------------- functions of the user


def test_raising_callback_is_reported_and_removed(tmp_path):
    calls = []

    def chat(finding):
        calls.append(finding["cause"])
        raise ValueError("no such channel")

    with debug.session(config_of(), log_dir=tmp_path):
        debug.on_finding(chat)
        training = Training().run(NAN_AT + 3, nan_at=NAN_AT)
        debug.checkpoint_allowed()
        training.run(2)
    assert calls == ["nonfinite"]
    (text,) = events(tmp_path, "listener_off")
    assert "debug.on_finding failed: ValueError: no such channel" in text


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_of_a_function_is_raised_by_step(tmp_path, interruption):
    def chat(finding):
        raise interruption

    debug.initialize(config_of(actions={"others": "veto"}), log_dir=tmp_path)
    debug.on_finding(chat)
    training = Training().run(NAN_AT + 2, nan_at=NAN_AT)
    debug.checkpoint_allowed()
    with pytest.raises(interruption):
        training.run(1)
    debug.end_debug()
    assert events(tmp_path, "listener_off") == []


def test_on_finding_decorates_only_callables(tmp_path):
    with pytest.raises(telens.UsageError, match="no session is open"):
        debug.on_finding(print)
    with debug.session(config_of(), log_dir=tmp_path):

        @debug.on_finding
        def chat(finding):
            pass

        assert callable(chat)
        with pytest.raises(telens.UsageError, match=r"debug\.on_finding: function must be"):
            debug.on_finding("chat")


# ---------------------------------------------------------------------- checkpoints


def test_checkpoint_is_allowed_without_veto(tmp_path):
    assert debug.checkpoint_allowed()
    with debug.session(config_of(), log_dir=tmp_path):
        Training().run(NAN_AT + 3, nan_at=NAN_AT)
        assert debug.checkpoint_allowed(0)


@pytest.mark.parametrize("wait", [-1, math.nan, "long"])
def test_a_wait_that_is_none_is_refused(wait):
    with pytest.raises(telens.UsageError, match=r"debug\.checkpoint_allowed: wait must be"):
        debug.checkpoint_allowed(wait)


# ---------------------------------------------------------------------- resumed, forked, several


def test_resumed_run_skips_old_findings(tmp_path, monkeypatch):
    monkeypatch.setenv("TELENS_RUN_ID", "resumed")
    with debug.session(config_of(), log_dir=tmp_path):
        Training().run(NAN_AT + 3, nan_at=NAN_AT)
    assert ["nonfinite" in text for text in events(tmp_path, "finding")] == [True]
    config = config_of(actions={"nonfinite": "stop"})
    with debug.session(config, log_dir=tmp_path, init_training_step=NAN_AT):
        training = Training()
        training.step = NAN_AT
        training.run(6)
        assert debug.checkpoint_allowed()
    # A new model has no amax history, which is reported rightly.
    assert sum("nonfinite" in text for text in events(tmp_path, "finding")) == 1


def test_forked_child_does_not_use_the_session(tmp_path):
    with debug.session(config_of(actions={"others": "veto"}), log_dir=tmp_path):
        training = Training().run(NAN_AT + 2, nan_at=NAN_AT)
        child = os.fork()
        if child == 0:
            os._exit(
                0 if debug.checkpoint_allowed() and not telens._C.debug.is_initialized() else 3
            )
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not debug.checkpoint_allowed()
        training.run(1)
    assert len(events(tmp_path, "finding")) == 1


def nan_on_rank_1(rank: int, folder: str) -> None:
    debug.initialize(config_of(actions={"nonfinite": "stop"}), log_dir=folder)
    torch.manual_seed(1)
    layer = te.Linear(32, 32, name=f"rank{rank}.fc1")
    steps = 0

    def train() -> None:
        nonlocal steps
        while True:
            value = math.nan if rank == 1 and steps >= 4 else 1.0
            layer(torch.full((16, 32), value)).sum().backward()
            debug.step()
            steps += 1

    with pytest.raises(telens.RunStopped) as stopped:
        train()
    assert not debug.checkpoint_allowed()
    pathlib.Path(folder, f"stopped_{rank}").write_text(f"{steps} {stopped.value}")
    debug.end_debug()


def test_finding_on_one_rank_stops_every_rank(tmp_path):
    run_ranks(nan_on_rank_1, str(tmp_path))
    steps, texts = zip(
        *((tmp_path / f"stopped_{rank}").read_text().split(" ", 1) for rank in (0, 1)), strict=True
    )
    assert steps[0] == steps[1]
    assert "a finding of rank 1 stops the run" in texts[0]
    assert "found nonfinite: rank1.fc1" in texts[1]
