"""``python -m telens.run_as_te``: runs scripts of Transformer Engine without changes."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import report_missing_client

import telens

CLIENTS = Path(__file__).parent / "clients"

CONFIG = """\
stats:
  enabled: True
  layers: {layer_types: all}
  transformer_engine:
    LogTensorStats: {enabled: True, tensors: [activation], stats: [max]}
"""

# A script that steps an optimizer and does not know TELens.
TRAINING = """\
import torch
import transformer_engine.pytorch as te
model = torch.nn.Sequential(te.Linear(16, 16), te.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(model=model, optimizer=optimizer):
    for _ in range(2):  # accumulates
        model(torch.ones(16, 16)).sum().backward()
    optimizer.step()
"""

# The same with torch's own modules.
PLAIN = """\
import torch
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
weight = model[0].weight
before = weight.detach().clone()
for _ in range(2):
    model(torch.ones(16, 16)).sum().backward()
    optimizer.step()
moved = bool((weight != before).any())
print([type(m).__module__ for m in model], model[0].weight is weight, moved)
"""

# Calls that scripts for a GPU make; prints the devices of the results.
CUDA = """\
import io, torch
import transformer_engine.pytorch as te
assert not torch.cuda.is_available()
assert torch.cuda.get_device_capability() >= (8, 9)
torch.cuda.set_device(0)
devices = set()
x = torch.randn(4, 16, device="cuda").cuda(non_blocking=True).to("cuda:0").to(0).pin_memory()
devices |= {x.device, torch.zeros_like(x, device="cuda").device, x.new_ones(2, device=0).device}
for layer in (torch.nn.Linear(16, 16, device="cuda"), te.Linear(16, 16, device="cuda").cuda()):
    layer = layer.to(torch.device("cuda", 0)).to(device="cuda", dtype=torch.bfloat16)
    devices |= {layer.weight.device, layer(x.bfloat16()).device}
generator = torch.Generator(device="cuda").manual_seed(1)
devices |= {generator.device, torch.rand(2, generator=generator, device="cuda").device}
for region in (
    torch.autocast("cuda", dtype=torch.bfloat16),
    torch.autocast(device_type="cuda", dtype=torch.bfloat16),
    torch.cuda.amp.autocast(dtype=torch.bfloat16),
):
    with region:
        assert (x @ x.t()).dtype == torch.bfloat16
for region in (torch.autocast("cuda"), torch.cuda.amp.autocast(), torch.cuda.amp.autocast(True)):
    with region:
        assert (x @ x.t()).dtype == torch.float16
scaler = torch.amp.GradScaler()
assert scaler.is_enabled()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
with torch.cuda.stream(torch.cuda.Stream()):
    start.record(); end.record(); torch.cuda.synchronize()
assert start.elapsed_time(end) >= 0
file = io.BytesIO(); torch.save(x, file); file.seek(0)
devices.add(torch.load(file, map_location="cuda").device)
with torch.device("cuda"):
    devices.add(torch.nn.Linear(2, 2).weight.device)
print(*devices)
"""

# torch has bias as the third argument, Transformer Engine's code has sequence_parallel.
POSITIONS = """\
import torch
import transformer_engine.pytorch as te
for value in (True, False):
    try:
        te.Linear(16, 16, value)
    except TypeError as error:
        print(error)
print(te.Linear(16, 16, bias=False).bias, torch.nn.Linear(16, 16, False).bias)
"""

SCRIPTS = {
    "positions.py": POSITIONS,
    "names.py": """\
import importlib.metadata, importlib.util, inspect, json, sys
import transformer_engine
import nvdlfw_inspect.api
from transformer_engine import pytorch as te
from transformer_engine.common.recipe import DelayedScaling, Format
from transformer_engine.pytorch.module.linear import Linear
from transformer_engine.debug.features.api import TEConfigAPIMapper
from nvdlfw_inspect.registry import Registry, api_method
print(json.dumps({
    "arguments": sys.argv[1:],
    "main": __name__,
    "beside": __import__("beside").ANSWER,
    "versions": [importlib.metadata.version(n) for n in ("transformer-engine", "nvdlfw_inspect")],
    "found": importlib.util.find_spec("transformer_engine") is not None,
    "modules": {m.__name__: [m.__file__, m.__path__, m.__version__, m.__spec__.origin]
                for m in (transformer_engine, te, nvdlfw_inspect)},
    "distributions": importlib.metadata.packages_distributions().get("transformer_engine"),
    "source": inspect.getfile(transformer_engine),
    "classes": [c.__module__ for c in (te.Linear, Linear, DelayedScaling, Registry)],
    "by path": te.common.recipe.Format.E4M3.name,
    "has": [hasattr(te, "Linear"), hasattr(te, "FusedAdam")],
    "paths": [m.__file__ for n, m in sys.modules.items() if hasattr(m, "__file__")
              and n.startswith(("transformer_engine.", "nvdlfw_inspect."))],
}))
""",
    "classes.py": """\
import json, pickle
import transformer_engine.pytorch as te
layers = [te.Linear(16, 16), te.LayerNormLinear(16, 16), te.LayerNormMLP(16, 32), te.LayerNorm(16),
          te.RMSNorm(16), te.GroupedLinear(2, 16, 16), te.TransformerLayer(16, 32, 2)]
modules = [m for layer in layers for m in layer.modules() if type(m).__name__ in dir(te)]
print(json.dumps({
    "modules": sorted({m.__module__ for m in modules}),
    "pickled": all(type(pickle.loads(pickle.dumps(m))) is type(m) for m in modules),
}))
""",
    "beside.py": "ANSWER = 42\n",
    "missing.py": """\
def refused(statement):
    try:
        exec(statement)
    except (ImportError, AttributeError) as error:
        print(type(error).__mro__[-4].__name__, error)
import transformer_engine.pytorch as te
refused("from transformer_engine.pytorch import Linaer")
refused("from transformer_engine.pytorch import FusedAdam")
try:
    from transformer_engine.pytorch.ops import Sequential
    class OfUser(Sequential): pass
    OfUser()
except ValueError as error:
    print(error)
refused("from nvdlfw_inspect.api import end_debugg")
refused("te.Linaer")
""",
    "trains.py": TRAINING + "for _ in range(3): train()\n",
    "two_optimizers.py": TRAINING
    + "other = te.Linear(16, 16)\n"
    + "other_optimizer = torch.optim.Adam(other.parameters())\n"
    + "for _ in range(3): train(); train(other, other_optimizer)\n",
    "steps_itself.py": TRAINING
    + "import nvdlfw_inspect.api as api\nfor _ in range(3): train(); train(); api.step()\n",
    "names_its_layers.py": TRAINING
    + "import nvdlfw_inspect.api as api\n"
    + "api.infer_and_assign_layer_names(model)\nmodel[0].set_debug_name('mine')\ntrain()\n",
    "without_optimizer.py": TRAINING + "model(torch.ones(16, 16))\n",
    "begins_another.py": "import nvdlfw_inspect.api as api\napi.initialize()\n",
    "fails.py": TRAINING + "train()\nraise SystemExit(5)\n",
    "plain.py": PLAIN,
    "plain_fails.py": PLAIN + "raise RuntimeError('on purpose')\n",
    "odd_widths.py": PLAIN.replace("32", "24"),
    "one_layer.py": "import torch\ntorch.nn.Linear(16, 16)(torch.ones(16, 16)).sum().backward()\n",
    "cuda.py": CUDA,
}


def run_python(*arguments: str, folder: Path, packages: str = "") -> subprocess.CompletedProcess:
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), packages]))
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
    )


def watched(name: str) -> list[str]:
    return ["--config", "debug.yaml", "--log-dir", f"logs/{name}"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What each script printed and how it ended, by name; all run in one process."""
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "debug.yaml").write_text(CONFIG)
    for name, text in SCRIPTS.items():
        (folder / name).write_text(text)
    command_lines = {
        "names.py": ["names.py", "--lr", "1"],
        "classes.py": ["classes.py"],
        "missing.py": ["missing.py"],
        "as_module": ["-m", "trains"],
        "nowhere": ["nowhere.py"],
        "wrong_config": ["--config", "nowhere.yaml", "trains.py"],
        "log_dir_alone": ["--log-dir", "logs", "nowhere.py"],
        "converted": ["--convert", "--recipe", "current", *watched("converted"), "plain.py"],
        "odd_widths.py": ["--convert", *watched("odd_widths.py"), "odd_widths.py"],
        "convert_one_layer": ["--convert", "one_layer.py"],
        "unknown_recipe": ["--recipe", "mxfp", "plain.py"],
        "cuda.py": ["--device", "cpu", "cuda.py"],
    }
    for name in SCRIPTS:
        if name not in ("beside.py", *command_lines):
            command_lines[name] = [*watched(name), name]
    done = run_python(
        str(CLIENTS / "run_scripts.py"), json.dumps([*command_lines.values()]), folder=folder
    )
    assert done.returncode == 0, done.stderr
    results = dict(zip(command_lines, json.loads(done.stdout.splitlines()[-1]), strict=True))
    return folder, results


def recorded(ran, name: str):
    """The rows of a script's session."""
    folder, results = ran
    assert results[name]["status"] == 0, results[name]["err"]
    return telens.open_run(folder / "logs" / name).records(tensor="activation")


def messages(ran, name: str) -> str:
    """The message log of a script's session."""
    folder = ran[0] / "logs" / name / "nvdlfw_inspect_logs"
    return (folder / "nvdlfw_inspect_globalrank-0.log").read_text()


def test_layers_name_transformer_engines_modules(ran):
    found = json.loads(ran[1]["classes.py"]["out"])
    assert len(found["modules"]) == 9
    assert all(name.startswith("transformer_engine.pytorch.") for name in found["modules"])
    assert found["pickled"]


def test_names_of_transformer_engine_are_ours(ran):
    found = json.loads(ran[1]["names.py"]["out"])
    assert found["classes"] == [
        "transformer_engine.pytorch.module.linear",
        "transformer_engine.pytorch.module.linear",
        "telens.common.recipe",
        "telens.debug.registry",
    ]
    assert found["has"] == [True, False]
    assert found["by path"] == "E4M3"
    # No installed nvdlfw_inspect was imported.
    assert found["paths"]
    ours = Path(telens.__file__).parent
    assert all(ours in Path(each).parents for each in found["paths"])


def test_bool_as_third_argument_of_linear_names_both_meanings(ran):
    *errors, biases = ran[1]["positions.py"]["out"].splitlines()
    assert [
        f"give bias={value} or sequence_parallel={value} by name" in error
        for value, error in zip((True, False), errors, strict=True)
    ] == [True, True]
    assert biases == "None None"


def test_a_script_runs_as_python_runs_it(ran):
    found = json.loads(ran[1]["names.py"]["out"])
    assert found["arguments"] == ["--lr", "1"]
    assert found["main"] == "__main__"
    assert found["beside"] == 42
    assert ran[1]["as_module"]["status"] == 0
    assert ran[1]["fails.py"]["status"] == 5


def test_whoever_asks_finds_the_packages_installed(ran):
    found = json.loads(ran[1]["names.py"]["out"])
    assert found["found"]
    assert found["versions"] == [
        f"2.20.0+telens.{telens.__version__}",
        f"0.2.2+telens.{telens.__version__}",
    ]
    ours = Path(telens.__file__)
    for name, file in {
        "transformer_engine": ours,
        "transformer_engine.pytorch": ours.parent / "pytorch" / "__init__.py",
        "nvdlfw_inspect": ours,
    }.items():
        version = found["versions"][name.startswith("nvdlfw")]
        assert found["modules"][name] == [str(file), [str(file.parent)], version, str(file)]
    assert found["source"] == str(ours)
    assert found["distributions"] == ["transformer_engine"]
    # In this process, without the hook, the installed version is found.
    assert importlib.metadata.version("nvdlfw_inspect") == "0.2.2"


def test_missing_name_is_an_import_error_with_a_hint(ran):
    lines = ran[1]["missing.py"]["out"].splitlines()
    assert lines == [
        "ImportError telens has no transformer_engine.pytorch.Linaer (did you mean 'Linear'?)",
        "ImportError telens has no transformer_engine.pytorch.FusedAdam; it is in "
        "transformer_engine.pytorch.optimizers",
        "telens has no transformer_engine.pytorch.ops.Sequential: its name can only be imported; "
        "use torch.nn.Sequential of modules of telens.pytorch, of which LayerNormLinear and "
        "LayerNormMLP are fused",
        "ImportError telens has no nvdlfw_inspect.api.end_debugg (did you mean 'end_debug'?)",
        "AttributeError telens has no transformer_engine.pytorch.Linaer (did you mean 'Linear'?)",
    ]


def test_optimizer_step_ends_an_iteration(ran):
    rows = recorded(ran, "trains.py")
    assert sorted(set(rows["iteration"])) == [0, 1, 2]
    assert set(rows["layer"]) == {"model.0", "model.1"}


def test_first_optimizer_ends_iterations(ran):
    rows = recorded(ran, "two_optimizers.py")
    assert set(rows["layer"]) == {"model.0", "model.1", "model_2"}
    assert sorted(set(rows["iteration"][rows["layer"] == "model.0"])) == [0, 1, 2]


def test_a_script_that_steps_itself_is_the_only_one_that_does(ran):
    # When the optimizer steps first, it is unknown that the script will call step() itself, so
    # iteration 0 is ended once more.
    assert sorted(set(recorded(ran, "steps_itself.py")["iteration"])) == [0, 1, 2, 3]


def test_names_that_a_script_gives_stay(ran):
    assert set(recorded(ran, "names_its_layers.py")["layer"]) == {"mine", "model.1"}


def test_missing_steps_or_start_are_reported(ran):
    assert "no optimizer of torch.optim stepped" in ran[1]["without_optimizer.py"]["err"]
    assert "no optimizer" not in ran[1]["trains.py"]["err"]
    assert "--config has begun a session already" in ran[1]["begins_another.py"]["err"]
    assert ran[1]["nowhere"] | {"out": ""} == {
        "out": "",
        "err": "telens.run_as_te: no such script: nowhere.py\n",
        "status": 2,
    }
    assert ran[1]["wrong_config"]["status"] == 2
    message = "telens.run_as_te: --log-dir: without --config nothing is recorded there\n"
    assert ran[1]["log_dir_alone"]["err"].startswith(message)
    assert message not in ran[1]["as_module"]["err"]


# ---------------------------------------------------------------------- plain PyTorch scripts


def test_convert_keeps_optimizer_parameters(ran):
    result = ran[1]["converted"]
    assert result["status"] == 0, result["err"]
    out = result["out"].splitlines()
    assert out[0] == "telens.convert: converted 2 modules: 2 Linear"
    ours, torchs = "transformer_engine.pytorch.module.linear", "torch.nn.modules.activation"
    assert out[-1] == f"{[ours, torchs, ours]} True True"
    rows = recorded(ran, "converted")
    assert sorted(set(rows["iteration"])) == [0, 1]
    assert set(rows["layer"]) == {"model.0", "model.2"}


def test_recipe_runs_every_forward_in_fp8(ran):
    log = messages(ran, "converted")
    assert "LAYER=model.0: Tensor: activation, gemm fprop - Quantize" in log
    assert "no layer of TELens ran" not in log


def test_a_session_without_any_telens_layer_says_so_at_its_end(ran):
    (line,) = [line for line in messages(ran, "plain.py").splitlines() if "no layer" in line]
    assert line.endswith(
        "WARNING - no layer of TELens ran in this session, so none was watched: 2 torch.nn.Linear "
        "ran instead; call telens.pytorch.convert(model) once the model is built, or start the "
        "script with `python -m telens.run_as_te --convert`. To record the model without FP8: "
        "`telens run`"
    )
    assert "no optimizer" not in ran[1]["plain.py"]["err"]


def run_script(folder, text, *options):
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "script.py").write_text(text)
    command = [sys.executable, "-m", "telens.run_as_te", *options, "script.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_losses_of_a_script_are_recorded(tmp_path):
    script = """\
import json, torch
import transformer_engine.pytorch as te
model = te.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(3):
    parts = [model(torch.randn(16, 16)).square().mean() for _ in range(2)]
    for part in parts:
        part.backward()
    optimizer.step()
    losses.append(sum(parts).item() / 2)
print(json.dumps(losses))
"""
    done = run_script(tmp_path, script, "--config", "config.yaml", "--log-dir", "logs")
    assert done.returncode == 0, done.stderr
    recorded = telens.open_run(tmp_path / "logs").losses
    assert recorded.to_list() == pytest.approx(json.loads(done.stdout))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the script finds its GPU")
def test_script_without_its_gpu_names_device_cpu(tmp_path):
    done = run_script(tmp_path, "import torch\ntorch.ones(1).cuda()\n")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("--device cpu runs a script for a GPU on the CPU")


def test_session_after_a_conversion_quotes_its_reasons(ran):
    (line,) = [each for each in messages(ran, "odd_widths.py").splitlines() if "no layer" in each]
    assert "telens.pytorch.convert did not convert: Linear: weight [" in line
    assert "FP8 GEMMs need multiples of 16" in line
    assert "--convert" not in line


def test_failed_script_gets_no_convert_hint(ran):
    assert "on purpose" in ran[1]["plain_fails.py"]["err"]
    assert "no layer of TELens ran" not in messages(ran, "plain_fails.py")


def test_convert_lists_unconverted_layers(ran):
    assert (
        "--convert: a model is not converted: the script calls the layer itself"
        in (ran[1]["convert_one_layer"]["err"])
    )


def test_an_unknown_recipe_is_refused_with_the_nearest_one(ran):
    assert ran[1]["unknown_recipe"] == {
        "out": "",
        "err": "telens.run_as_te: --recipe: unknown recipe 'mxfp' (did you mean 'mxfp8'?); it "
        "is one of delayed, current, mxfp8, block, nvfp4\n",
        "status": 2,
    }


def test_cuda_is_the_cpu_with_device_cpu(ran):
    assert ran[1]["cuda.py"] == {"out": "cpu\n", "err": "", "status": 0}


# ---------------------------------------------------------------------- clients that others wrote


def run_client(
    name: str, tmp_path: Path, packages: str = "", options: tuple[str, ...] = ()
) -> tuple[dict, object]:
    (tmp_path / "debug.yaml").write_text(CONFIG)
    done = run_python(
        *("-m", "telens.run_as_te", "--config", "debug.yaml", "--log-dir", "logs", *options),
        str(CLIENTS / name),
        folder=tmp_path,
        packages=packages,
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    return printed, telens.open_run(tmp_path / "logs").records(tensor="activation")


def check_training(printed: dict, rows) -> None:
    """The training learned with a recipe whose history is 4, and the session recorded each of its 6
    steps.
    """
    assert sum(printed["losses"][-2:]) < sum(printed["losses"][:2])
    assert printed["history"] == [4, 3]
    assert printed["scale"][0] != 1
    assert any(name.startswith("transformer_engine.") for name in printed["layers"].values())
    assert sorted(set(rows["iteration"])) == [*range(6)]
    assert len(set(rows["layer"])) == 2


def test_accelerate_te_backend_trains_in_fp8(tmp_path):
    pytest.importorskip("accelerate")
    printed, rows = run_client("accelerate_client.py", tmp_path)
    assert printed["backend"] == "TE"
    assert printed["converted"]
    check_training(printed, rows)


def test_lightning_te_precision_trains_in_fp8(tmp_path):
    packages = Path(__file__).parents[2] / "build" / "clients"
    if not (packages / "lightning").is_dir():
        report_missing_client("Lightning")
    check_training(*run_client("lightning_client.py", tmp_path, str(packages)))


def test_pefts_lora_of_transformer_engine_layers_trains(tmp_path):
    pytest.importorskip("peft")
    printed, rows = run_client("peft_client.py", tmp_path)
    assert printed["losses"][-1] < printed["losses"][0]
    assert len(set(rows["iteration"])) == 4


def test_the_trainer_of_transformers_records_loss_rate_and_norm(tmp_path):
    pytest.importorskip("transformers")
    printed, rows = run_client("trainer_client.py", tmp_path, options=("--convert",))
    assert printed["layer"] == "transformer_engine.pytorch.module.linear"
    assert sorted(set(rows["iteration"])) == [0, 1, 2]
    scalars = telens.open_run(tmp_path / "logs").scalars
    for column, name in enumerate(("loss", "grad_norm", "lr")):
        values = scalars["value"][scalars["name"] == name].tolist()
        assert values == pytest.approx([each[column] for each in printed["logged"]], rel=1e-6)


def test_a_nano_gpt_for_a_gpu_trains_in_fp8_on_the_cpu(tmp_path):
    options = ("--convert", "--recipe", "delayed", "--device", "cpu")
    printed, rows = run_client("nano_gpt_client.py", tmp_path, options=options)
    assert printed["losses"][-1] < printed["losses"][0]
    assert (printed["device"], printed["head"]) == ("cpu", "torch.nn.modules.linear")
    assert printed["layer"] == "telens.pytorch.modules"
    assert printed["scale"][0] != 1
    assert sorted(set(rows["iteration"])) == [0, 1, 2, 3]
