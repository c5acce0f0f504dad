"""`telens run`: programs that do not call TELens are recorded in every process that they start."""

import os
import subprocess
import sys

import pytest
from conftest import PROJECT_ROOT

import telens

TRAIN = """
import os, sys
import torch
torch.manual_seed(0)
linears = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)
model = torch.nn.Sequential(torch.nn.LayerNorm(16), *linears)
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
head = torch.nn.Linear(16, 16)
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
with torch.no_grad():
    model(torch.ones(4, 16))  # no training forward
for _ in range(3):
    x = torch.randn(8, 16)
    loss = torch.nn.functional.mse_loss(head(model(x)), x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
"""
LAYERS = ["0", "1", "2", "Linear"]
TELENS = PROJECT_ROOT / "build/bin/telens"
OUTLIERS = PROJECT_ROOT / "samples/plugins/log_outliers"


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def run(folder, *command, **environment):
    """Runs a command with `telens run`, recording into folder/run."""
    return subprocess.run(
        [TELENS, "run", "--log-dir", folder / "run", "--", *command],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def test_a_script_is_recorded_with_equal_output(tmp_path, script):
    plain = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    result = run(tmp_path, sys.executable, script)
    assert (result.returncode, result.stdout, result.stderr) == (0, plain.stdout, "")
    recorded = telens.open_run(tmp_path / "run")
    assert {*recorded.records(statistic="cur_amax")["layer"]} == {*LAYERS}
    assert recorded.losses.tolist() == pytest.approx([*map(float, plain.stdout.split())])


def test_all_ranks_of_torchrun_are_recorded(tmp_path, script):
    result = run(tmp_path, sys.executable, "-m", "torch.distributed.run", "--standalone",
                 "--nproc-per-node=2", script)  # fmt: skip
    assert result.returncode == 0, result.stderr
    rows = telens.open_run(tmp_path / "run").records(statistic="cur_amax", tensor="weight")
    assert {*rows["rank"]} == {0, 1}
    assert {*rows["layer"]} == {*LAYERS}
    assert {*rows["iteration"]} == {0, 1, 2}


def test_processes_without_torch_import_nothing(tmp_path):
    code = "import sys; print('telens' in sys.modules, 'torch' in sys.modules)"
    assert run(tmp_path, sys.executable, "-c", code).stdout == "False False\n"


def test_a_sitecustomize_of_the_user_still_runs(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    (tmp_path / "sitecustomize.py").write_text("print('customized')\n")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    result = run(tmp_path, sys.executable, "-c", "print('ran')", PYTHONPATH=paths)
    # Printed once in the process of `telens run` and once in the program.
    assert result.stdout == "customized\ncustomized\nran\n"


def run_with_config(folder, config, *options, script):
    return subprocess.run(
        [TELENS, "run", "--config", config, *options, "--", sys.executable, script],
        capture_output=True, text=True, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_config_with_mistakes_ends_before_the_program(tmp_path, script):
    config = tmp_path / "config.yaml"
    config.write_text("section: {enabled: True, layers: {layer_types: [all]}, nonsense: {}}\n")
    result = run_with_config(tmp_path, config, script=script)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("telens: ")
    assert "nonsense" in result.stderr
    assert not (tmp_path / "telens_run").exists()


def test_features_of_a_folder_record_attached_models(tmp_path, script):
    config = OUTLIERS / "log_outliers.yaml"
    result = run_with_config(tmp_path, config, "--feature-dir", OUTLIERS, script=script)
    assert (result.returncode, len(result.stdout.split())) == (0, 3), result.stderr
    rows = telens.open_run(tmp_path / "telens_run").records(statistic="outliers%")
    assert {*rows["layer"]} == {*LAYERS}


def test_feature_folders_are_checked_before_the_program(tmp_path, script):
    config = OUTLIERS / "log_outliers.yaml"
    unknown = run_with_config(tmp_path, config, script=script)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "LogOutliers" in unknown.stderr
    missing = run_with_config(tmp_path, config, "--feature-dir", "none", script=script)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "no such folder: none" in missing.stderr


def test_wrong_command_lines_are_refused(tmp_path):
    missing = run(tmp_path, "no_such_program")
    assert missing.returncode == 127
    assert "telens run: cannot start no_such_program" in missing.stderr
    no_config = subprocess.run(
        [TELENS, "run", "--config", "none.yaml", "--", "true"], capture_output=True, text=True
    )
    assert no_config.returncode == 2
    assert "the config file 'none.yaml' cannot be read" in no_config.stderr


RESUMED = """
import os, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
if os.path.exists("state.pt"):
    optimizer.load_state_dict(torch.load("state.pt"))
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
torch.save(optimizer.state_dict(), "state.pt")
"""
SLURM = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": ""}
STEP = {**SLURM, "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"TELENS_RUN_ID": "job"}, {"TELENS_RUN_ID": "job"}),
        (SLURM, {**SLURM, "SLURM_RESTART_COUNT": "1"}),
        (STEP, {**STEP, "SLURM_RESTART_COUNT": "1"}),
    ],
    ids=["run_id", "requeued_job", "step_of_a_job"],
)
def test_a_resumed_job_continues_its_run(tmp_path, first, second):
    (tmp_path / "train.py").write_text(RESUMED)
    for environment in (first, second):
        result = run(tmp_path, sys.executable, "train.py", **environment)
        assert (result.returncode, result.stderr) == (0, "")
    recorded = telens.open_run(tmp_path / "run")
    assert len(recorded.segments) == 2
    assert [*recorded.losses.index] == [0, 1, 2, 3, 4, 5]


def test_an_unknown_optimizer_state_does_not_end_the_program(tmp_path):
    (tmp_path / "train.py").write_text("""
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters())
state = optimizer.state_dict()
state["state"] = {0: {"step": None}}
optimizer.load_state_dict(state)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
print("trained")
""")
    result = run(tmp_path, sys.executable, "train.py")
    assert (result.returncode, result.stdout) == (0, "trained\n")
    assert result.stderr.startswith("telens run: step count of an optimizer state: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("environment", "name"), [(SLURM, "17"), (STEP, "17.0")])
def test_two_programs_of_a_job_have_two_runs(tmp_path, script, environment, name):
    for _ in range(2):
        assert run(tmp_path, sys.executable, script, **environment).stderr == ""
    names = sorted(path.name for path in (tmp_path / "run/telens").iterdir())
    assert len(names) == 2
    assert name in names


def test_modules_of_any_class_can_be_named(tmp_path, script):
    command = [TELENS, "run", "--log-dir", tmp_path / "run", "--modules", "Sequential"]
    command += ["--modules", "LayerNorm", "--", sys.executable, script]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    layers = telens.open_run(tmp_path / "run").names("layer")
    assert {*layers} == {*LAYERS, "Sequential"}


def test_a_python_without_the_package_is_reported(tmp_path):
    result = run(tmp_path, "true", TELENS_PYTHON="/usr/bin/python3", PYTHONPATH="")
    assert result.returncode == 2
    assert result.stderr.startswith("telens: run: no package telens in /usr/bin/python3; expected")


def test_an_exception_of_the_program_ends_the_run(tmp_path, script):
    script.write_text(TRAIN + "raise ValueError('no more data')\n")
    result = run(tmp_path, sys.executable, script)
    assert result.returncode == 1
    diagnosed = subprocess.run(
        [TELENS, "diagnose", tmp_path / "run"], capture_output=True, text=True
    )
    assert diagnosed.returncode == 1, diagnosed.stdout
    assert "ValueError: no more data" in diagnosed.stdout


def test_a_program_that_trains_nothing_is_reported(tmp_path):
    for code in ("print('ran')", "import torch; torch.nn.Linear(2, 2).eval()(torch.ones(2))"):
        result = run(tmp_path, sys.executable, "-c", code)
        assert result.returncode == 0
        assert f"nothing was recorded in {tmp_path / 'run'}" in result.stderr


def test_a_program_that_watches_itself_is_not_reported(tmp_path, script):
    watch = f"import telens; telens.watch(model, log_dir={str(tmp_path / 'own')!r})"
    script.write_text(TRAIN.replace("for _ in", f"{watch}\nfor _ in"))
    result = run(tmp_path, sys.executable, script)
    assert (result.returncode, result.stderr) == (0, "")
    assert len(telens.open_run(tmp_path / "own").records()) > 0


def test_second_run_in_a_folder_is_not_reported_as_empty(tmp_path, script):
    for _ in range(2):
        result = run(tmp_path, sys.executable, script)
        assert (result.returncode, result.stderr) == (0, "")


def test_other_files_in_the_folder_do_not_count_as_recorded(tmp_path):
    code = "import os; os.makedirs('run'); open('run/notes.txt', 'w').close()"
    result = run(tmp_path, sys.executable, "-c", code)
    assert result.returncode == 0
    assert f"nothing was recorded in {tmp_path / 'run'}" in result.stderr
