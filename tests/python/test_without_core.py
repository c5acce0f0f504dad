"""The package without telens-core: what works, and the errors of what does not.

Programs run with the built observer or, if it is not built, with the core's own functions reduced
to the names in _observer.pyi.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from observer_names import built, observer_names

HERE = Path(__file__).resolve().parent
COMMAND = Path(os.environ.get("TELENS_COMMAND", HERE.parents[1] / "build/bin/telens"))


def run_without_core(folder, text):
    program = folder / "program.py"
    program.write_text(text)
    runner = HERE / "observer_names.py"
    return subprocess.run(
        [sys.executable, runner, program], capture_output=True, text=True, cwd=folder
    )


def output(folder, text):
    done = run_without_core(folder, text)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_core_has_every_name_of_the_observer():
    from telens import _C

    names, debug_names = observer_names()
    assert sorted(names - set(dir(_C))) == []
    assert sorted(debug_names - set(dir(_C.debug))) == []


@pytest.mark.skipif(built("_observer") is None, reason="telens._observer is not built")
def test_stub_lists_every_name_of_the_observer(tmp_path):
    program = "import json, telens\nprint(json.dumps([dir(telens._C), dir(telens._C.debug)]))"
    found = json.loads(output(tmp_path, program))
    for names, listed in zip(found, observer_names(), strict=True):
        assert {name for name in names if not name.startswith("_")} == listed


def test_names_come_from_the_observer(tmp_path):
    program = "import telens\nprint(telens._C.__name__, telens.UsageError is telens._C.UsageError)"
    assert output(tmp_path, program) == "telens._observer True\n"


@pytest.mark.parametrize(
    "needs_core",
    ["telens.pytorch", "telens.paddle", "telens.run_as_te", "telens.replay.command"],
)
def test_modules_of_the_core_say_what_to_install(tmp_path, needs_core):
    done = run_without_core(tmp_path, f"import {needs_core}")
    assert done.returncode == 1
    (message,) = (line for line in done.stderr.splitlines() if line.startswith("ImportError"))
    assert "needs the FP8 modules of telens-core for torch" in message
    assert "Install telens-core" in message
    assert "telens.watch, telens.debug, telens.open_run" in message


WATCHED = """
import torch
import telens

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
telens.watch(model, log_dir="logs")
for step in range(6):
    if step == 4:
        model[2].weight.data[0, 0] = float("nan")
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    telens.step(loss)
telens.debug.end_debug()
run = telens.open_run("logs")
records = run.records(layer="^2$", tensor="weight", statistic="nan")
print(records["value"].tolist(), len(run.losses))
"""


def test_watched_training_is_recorded_and_diagnosed(tmp_path):
    first, *_ = output(tmp_path, WATCHED).splitlines()
    assert first == "[0.0, 0.0, 0.0, 0.0, 1.0, 16.0] 6"
    done = subprocess.run(
        [COMMAND, "diagnose", "logs"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1
    assert "nonfinite: 2 weight, iterations 4 to 5" in done.stdout


FEATURE_CLASS = """
import torch
import telens.debug as debug

@debug.Registry.register_feature(namespace="telens")
class Peak(debug.TEConfigAPIMapper):
    '''Logs the largest magnitude.'''

    @debug.api_method
    def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
        return True, iteration + 1

    @debug.api_method
    def inspect_tensor(self, config, layer_name, *, tensor_name, tensor, iteration, **others):
        print(layer_name, tensor_name, iteration, tensor.abs().max().item())

config = {"s": {"enabled": True, "layers": {"layer_types": ["all"]},
                "telens": {"Peak": {"enabled": True, "tensors": ["weight"]}}}}
with debug.session(config, log_dir="logs"):
    values = torch.tensor([[-3.0, 2.0]])
    debug.transformer_engine.inspect_tensor("fc", tensor_name="weight", tensor=values)
    debug.step()
"""


def test_feature_classes_are_called(tmp_path):
    assert "fc weight 0 3.0" in output(tmp_path, FEATURE_CLASS).splitlines()


def test_casts_of_the_core_say_what_to_install(tmp_path):
    program = (
        "import torch\nfrom telens.debug.features.inheritable import fake_quantize\n"
        "fake_quantize(torch.ones(2), 'FP8E4M3')"
    )
    done = run_without_core(tmp_path, program)
    assert "ImportError: fake_quantize needs the FP8 modules of telens-core" in done.stderr


def test_another_torch_than_the_cores_loads_the_observer(tmp_path):
    text = "import torch\ntorch.__version__ = '9.9.9'\nimport telens\ntelens.pytorch"
    done = run_without_core(tmp_path, text)
    assert "telens-core for torch 9.9, but" in done.stderr


def test_torch_older_than_the_stable_abi_is_refused(tmp_path):
    text = "import torch\ntorch.__version__ = '2.9.1+cpu'\nimport telens"
    done = run_without_core(tmp_path, text)
    assert "telens requires torch 2.10 or newer, but torch 2.9.1+cpu is installed" in done.stderr
