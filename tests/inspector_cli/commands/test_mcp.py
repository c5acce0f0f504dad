"""telens mcp: the tools, their answers about recorded runs, errors and limits."""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
from conftest import COMMAND, ROOT, WRITE_HISTOGRAMS, Lines
from mcp_agent import start_agent

SERVER = ROOT / "python/telens/mcp_server.py"
TOOLS = {
    "advise",
    "blocks",
    "debug_config",
    "diagnose",
    "diff",
    "explain",
    "info",
    "ledger",
    "list_runs",
    "plan",
    "series",
    "stats",
    "whatif",
}
CONFIG = """\
watch:
  enabled: True
  layers: {layer_name_regex_pattern: '.*'}
  transformer_engine:
    LogTensorStats: {enabled: True, tensors: [activation], stats: [l2_norm], freq: 5}
"""


@pytest.fixture(scope="module")
def agent():
    with start_agent(COMMAND) as agent:
        yield agent


def write_all(lines):
    """A run with data for every tool, and a second one, which only `diff` needs."""
    config = {"watch": {"enabled": True, "layers": {"layer_types": "all"}}}
    lines.config(config)
    for step in range(5):
        for layer in ("blocks.0.fc1", "blocks.1.fc1"):
            for tensor in ("activation", "weight", "gradient"):
                lines.record(step, layer, tensor, "l2_norm", 32)
                lines.record(step, layer, tensor, "numel", 4096)
                lines.record(step, layer, tensor, "mxfp8_underflows%", 0.5)
                lines.record(step, layer, tensor, "mxfp8_mse", 1e-4)
                lines.record(step, layer, tensor, "digest", 2**51 + step)
        lines.scalar(step, "loss", 4 - 0.1 * step)
    lines.block(1, "blocks.0.fc1", "activation", "block_mse", (3, 4), 0.5)
    for state in ("requested", "ran"):
        lines.ledger(0, "blocks.0.fc1", "fprop", 0, {f"activation {state}": "E4M3"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the log_dirs `all` and `other`, and with histograms."""
    folder = tmp_path_factory.mktemp("runs")
    lines = Lines()
    write_all(lines)
    lines.write(folder / "all")
    lines.record(5, "blocks.1.fc1", "activation", "l2_norm", 32)
    for step in range(2, 5):
        lines.record(step, "lm_head", "activation", "l2_norm", 1)
    changed = [
        line.replace("\t32", "\t99") if line[:8] == "record\t3" else line for line in lines.lines
    ]
    lines.lines = [
        line.replace(str(2**51 + 3), str(2**51 + 77)) if "fc1\tgradient" in line else line
        for line in changed
    ]
    lines.write(folder / "other")
    subprocess.run([WRITE_HISTOGRAMS, folder / "histograms", "0"], check=True)
    (folder / "debug.yaml").write_text(CONFIG)
    return folder


def test_every_tool_is_described_and_reads_only(agent):
    tools = agent.tools()
    assert set(tools) == TOOLS
    for tool in tools.values():
        assert tool.description.strip().endswith(".")
        assert tool.annotations.read_only_hint is True
        assert tool.annotations.destructive_hint is False
        for parameter in tool.input_schema["properties"].values():
            assert parameter["description"]
            assert "type" in parameter or "anyOf" in parameter


# Each tool with arguments, the command line that prints the same JSON, and a value in it.
ANSWERS = {
    "info": ({"run": "all"}, "info {}/all", lambda found: found["records"] == 150),
    "diagnose": ({"run": "all"}, "diagnose {}/all", lambda found: "findings" in found),
    "advise": (
        {"run": "all"},
        "advise {}/all",
        lambda found: found["recommended"] == "MXFP8",
    ),
    "stats": (
        {"run": "all", "tensor": ["weight"], "statistic": ["l2_norm"], "layer": r"blocks\.0"},
        r"stats {}/all --tensor weight --stat l2_norm --layer blocks\.0",
        lambda found: [each["max"] for each in found] == [32],
    ),
    "series": (
        {"run": "all", "statistic": ["l2_norm"], "iterations": "1:3"},
        "plot {}/all --stat l2_norm --iterations 1:3",
        lambda found: found["statistics"][0]["worst"][0]["points"] == [[1, 32], [2, 32], [3, 32]],
    ),
    "diff": (
        {"a": "all", "b": "other"},
        "diff {}/all {}/other",
        lambda found: found["divergences"][0]["first_iteration"] == 3,
    ),
    "ledger": (
        {"run": "all"},
        "ledger {}/all",
        lambda found: found[0]["layer"] == "blocks.0.fc1",
    ),
    "blocks": (
        {"run": "all", "top": 5},
        "blocks {}/all --top 5",
        lambda found: (found[0]["block row"], found[0]["value"]) == (3, 0.5),
    ),
    "whatif": (
        {"run": "histograms", "fp8_format": "E4M3", "tensor": ["activation"]},
        "whatif {}/histograms --fp8-format E4M3 --tensor activation",
        lambda found: {each["tensor"] for each in found} == {"activation"},
    ),
    "plan": (
        {"config": "debug.yaml", "layers": "all"},
        "plan {}/debug.yaml --layers {}/all",
        lambda found: found["plan"][0]["feature"] == "transformer_engine.LogTensorStats",
    ),
}
PATHS = ("run", "a", "b", "config", "layers")


@pytest.mark.parametrize("tool", ANSWERS)
def test_answer_is_the_json_of_the_command(agent, telens, folder, tool):
    arguments, line, is_expected = ANSWERS[tool]
    given = {
        name: str(folder / value) if name in PATHS else value for name, value in arguments.items()
    }
    answer = agent.ask(tool, **given)
    printed = telens(*line.replace("{}", str(folder)).split(), "--format", "json")
    assert answer["result"] == json.loads(printed.stdout)
    assert is_expected(answer["result"]), answer["result"]
    assert "cut" not in answer


def test_exact_diff_names_the_first_changed_tensor(agent, folder):
    found = agent.ask("diff", a=str(folder / "all"), b=str(folder / "other"), exact=True)["result"]
    assert (found["first"]["iteration"], found["first"]["tensor"]) == (3, "gradient")


def test_list_runs_finds_log_dirs_below_a_folder(agent, folder):
    runs = agent.ask("list_runs", folder=str(folder))["result"]
    assert [pathlib.Path(each["path"]).relative_to(folder).parts[0] for each in runs] == [
        "all",
        "histograms",
        "other",
    ]
    for each in runs:
        assert each["state"].startswith("ended cleanly")
        assert each["problem"] is None


def test_list_runs_has_every_run_of_a_log_dir(agent, write_run):
    log_dir = write_run("first")
    write_run("second", log_dir=log_dir)
    (log_dir / "telens/broken").mkdir()
    (log_dir / "telens/broken/rank00000.h5").write_bytes(b"no HDF5")
    runs = agent.ask("list_runs", folder=str(log_dir))["result"]
    names = {pathlib.Path(each["path"]).name: each["problem"] for each in runs}
    assert set(names) == {"first", "second", "broken"}
    assert (names["first"], names["second"]) == (None, None)
    assert "HDF5" in names["broken"]
    (run,) = agent.ask("list_runs", folder=str(log_dir / "telens/first"))["result"]
    assert run["path"] == str(log_dir / "telens/first")


def test_debug_config_is_the_recorded_text(agent, folder):
    assert "layer_types" in agent.ask("debug_config", run=str(folder / "all"))["result"]


def test_explain_knows_causes_and_features(agent):
    names = agent.ask("explain")["result"]
    assert "nonfinite" in names["causes"]
    assert "transformer_engine.FakeQuant" in names["features"]
    rule = agent.ask("explain", name="nonfinite")["result"]
    assert rule["cause"] == "nonfinite"
    assert rule["next_step"]
    assert "quant_format" in agent.ask("explain", name="FakeQuant")["result"]
    assert "did you mean" in agent.error("explain", name="FakeQant")


def test_notes_of_the_command_are_part_of_the_answer(agent, write_run):
    log_dir = write_run("first")
    write_run("second", log_dir=log_dir)
    (note,) = agent.ask("diagnose", run=str(log_dir))["notes"]
    assert "using the newest of 2 runs" in note


@pytest.mark.parametrize(
    ("tool", "arguments", "part"),
    [
        ("info", {"run": "no/such/run"}, "'no/such/run' does not exist"),
        ("diagnose", {"run": ""}, "does not exist"),
        ("stats", {"run": "--help"}, "'--help' does not exist"),
        ("list_runs", {"folder": "no/such/folder"}, "does not exist"),
        ("diff", {"a": "no/such/run", "b": "/"}, "does not exist"),
        ("plan", {"config": "no.yaml", "layers": "-"}, "does not exist"),
        ("explain", {"name": "--markdown"}, "is not a name"),
        ("info", {}, "Field required"),
        ("info", {"run": 3}, "valid string"),
        ("stats", {"run": "/", "top": 0}, "greater than or equal to 1"),
        (
            "stats",
            {"run": "/", "layr": "fc1"},
            "unknown parameter layr; expected some of run, layer",
        ),
        ("whatif", {"run": "/", "fp8_format": "E9M9"}, "'E4M3', 'E5M2' or 'HYBRID'"),
        ("repair", {"run": "/"}, "Unknown tool"),
    ],
)
def test_wrong_call_is_an_error_that_names_the_cause(agent, tool, arguments, part):
    assert part in agent.error(tool, **arguments)


def test_error_of_the_command_is_the_error_of_the_tool(agent, telens, folder, tmp_path):
    run = folder / "all"
    printed = telens("stats", run, "--layer", "attention")
    assert printed.returncode == 2
    assert printed.stderr.strip() in agent.error("stats", run=str(run), layer="attention")
    (tmp_path / "bad.yaml").write_text("watch: {enabled: True, layers: {}, nonsense: 1}")
    error = agent.error("plan", config=str(tmp_path / "bad.yaml"), layers=str(run))
    assert "nonsense" in error
    assert "no run" in agent.error("list_runs", folder=str(tmp_path))


def test_option_in_a_value_stays_a_value(agent, folder, tmp_path):
    page = tmp_path / "page.html"
    error = agent.error("series", run=str(folder / "all"), layer=f"--out={page}")
    assert "--out" in error
    assert not page.exists()


def test_no_call_changes_a_file(agent, folder):
    def digests():
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return {path: hashlib.sha256(path.read_bytes()).digest() for path in files}

    before = digests()
    for arguments, _, _ in ANSWERS.values():
        paths = {name: str(folder / arguments[name]) for name in PATHS if name in arguments}
        tool = next(name for name, row in ANSWERS.items() if row[0] is arguments)
        agent.text(tool, arguments | paths)
    assert digests() == before


def test_long_answer_is_cut_with_a_note(folder):
    run = str(folder / "all")
    with start_agent(COMMAND, "--max-characters", "700") as agent:
        text, is_error = agent.text("stats", {"run": run, "statistic": ["l2_norm"]})
        whole = agent.ask("stats", run=run, statistic=["l2_norm"], top=1)
    answer = json.loads(text)
    assert not is_error
    assert len(text) <= 700
    (note,) = answer["cut"]
    assert 1 <= len(answer["result"]) < 6
    assert note.startswith(f"result: the first {len(answer['result'])} of 6;")
    assert answer["result"][0] == whole["result"][0]
    assert "cut" not in whole


def test_long_text_is_cut_with_a_note(tmp_path):
    lines = Lines()
    lines.config({"watch": "x" * 5000})
    lines.scalar(0, "loss", 1)
    lines.write(tmp_path)
    with start_agent(COMMAND, "--max-characters", "500") as agent:
        text, is_error = agent.text("debug_config", {"run": str(tmp_path)})
    assert not is_error
    assert len(text) <= 500
    assert "characters" in json.loads(text)["cut"][0]


@pytest.fixture
def slow_command(tmp_path):
    """A command that writes its process id and then does nothing for a minute."""
    path = tmp_path / "slow"
    path.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    path.chmod(0o755)
    return path


def is_running(process):
    return pathlib.Path(f"/proc/{process}").exists()


def test_slow_command_is_stopped_after_the_time_limit(slow_command, tmp_path):
    wrapper = tmp_path / "mcp"
    wrapper.write_text(
        f"#!/bin/sh\nexec {sys.executable} {SERVER} --command={slow_command} --timeout=0.5\n"
    )
    wrapper.chmod(0o755)
    begin = time.monotonic()
    with start_agent(wrapper) as agent:
        error = agent.error("info", run=str(tmp_path))
    assert "telens info was stopped after 0.5 seconds; select fewer" in error
    assert time.monotonic() - begin < 30
    assert not is_running((tmp_path / "pid").read_text().strip())


def test_server_ends_when_its_input_ends():
    result = subprocess.run(
        [COMMAND, "mcp"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"TELENS_PYTHON": sys.executable},
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_server_imports_neither_torch_nor_telens(tmp_path, folder):
    for name in ("torch", "telens", "numpy"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('imported {name}')\n")
    with start_agent(COMMAND, PYTHONPATH=str(tmp_path)) as agent:
        answer = agent.ask("info", run=str(folder / "all"))
    assert answer["result"]["layers"] == 2


def test_python_without_the_sdk_is_told_how_to_install_it(tmp_path):
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    result = subprocess.run(
        [COMMAND, "mcp"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"TELENS_PYTHON": str(python)},
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("telens: mcp: No module named ")
    assert "-m pip install 'mcp==" in result.stderr
    assert "TELENS_PYTHON" in result.stderr
    assert result.stderr.count("\n") == 1
