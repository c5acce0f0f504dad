"""telens bisect with a program that stands for a training and knows which layers it needs."""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import pytest
from conftest import COMMAND, WRITE_LINES

PROGRAM = pathlib.Path(__file__).parents[1] / "bisect_program.py"
LAYERS = [f"layers.{i}.fc1" for i in range(200)]


class Bisect:
    """A search in its own folder; a log of the program counts its runs."""

    def __init__(self, folder, layers=LAYERS):
        self.folder = folder
        self.names = folder / "names.txt"
        self.names.write_text("\n".join(layers))
        self.log = folder / "runs.log"
        self.dir = folder / "search"

    def command(self, plant, *options):
        return [
            COMMAND, "bisect", "--layers", self.names, "--dir", self.dir, *options,
            "--", sys.executable, "-S", "-E", PROGRAM, json.dumps(plant), self.log,
        ]  # fmt: skip

    def start(self, plant, *options):
        command = list(map(str, self.command(plant, *options)))
        environment = os.environ | {"WRITE_LINES": WRITE_LINES}
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    def run(self, plant, *options, code=0):
        process = self.start(plant, *options)
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, out + err
        return out, err

    def runs(self):
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def result(self):
        """Returns {(layer, gemm)} of the configuration that the search wrote."""
        text = (self.dir / "high_precision.yaml").read_text()
        found = set()
        for section in re.split(r"^(?=\w)", text, flags=re.MULTILINE):
            layers = [json.loads(line) for line in re.findall(r"^      - (.*)$", section, re.M)]
            listed = re.search(r"gemms: \[(.*)\]", section)
            gemms = listed[1].split(", ") if listed else ["fprop", "dgrad", "wgrad"]
            found |= {(layer, gemm) for layer in layers for gemm in gemms}
        return found


@pytest.fixture
def bisect(tmp_path):
    return Bisect(tmp_path)


def whole(*layers):
    return {(layer, gemm) for layer in layers for gemm in ("fprop", "dgrad", "wgrad")}


# The last case takes the most runs.
PLANTS = [random.Random(seed).sample(range(200), 3) for seed in range(3)] + [[197, 198, 199]]


@pytest.mark.parametrize("places", PLANTS, ids=str)
def test_3_of_200_layers_are_found_within_40_runs(bisect, places):
    layers = [LAYERS[i] for i in places]
    out, err = bisect.run({"needs": layers}, "--depth", "layer")
    assert bisect.result() == whole(*layers)
    # 2 runs of the whole range, 3 * (9 + 1) that halve it, 2 that check the entries.
    assert bisect.runs() <= 34
    assert err == ""
    assert f"({bisect.runs()} runs in total)" in out


@pytest.mark.parametrize("places", PLANTS, ids=str)
def test_gemms_of_layers_are_found_within_40_runs(bisect, places):
    needs = [[LAYERS[i], "dgrad"] for i in places]
    bisect.run({"needs": needs})
    assert bisect.result() == {tuple(each) for each in needs}
    assert bisect.runs() <= 40


def test_finds_two_gemms_in_a_layer_and_a_whole_layer(bisect):
    needs = [[LAYERS[7], "fprop", "wgrad"], LAYERS[150]]
    bisect.run({"needs": needs})
    expected = {(LAYERS[7], "fprop"), (LAYERS[7], "wgrad")} | whole(LAYERS[150])
    assert bisect.result() == expected


def test_keeps_one_of_interchangeable_layers(bisect):
    bisect.run({"any_of": [LAYERS[20], LAYERS[120]]}, "--depth", "layer")
    assert bisect.result() in (whole(LAYERS[20]), whole(LAYERS[120]))


def test_each_entry_has_the_run_that_failed_without_it(bisect):
    layers = [LAYERS[3], LAYERS[60]]
    bisect.run({"needs": layers}, "--depth", "layer")
    text = (bisect.dir / "high_precision.yaml").read_text()
    for layer in layers:
        told = re.search(rf"# - {re.escape(layer)}: run (\d+) failed without it \(exit code 3\), "
                         r"run (\d+) passed with it", text)  # fmt: skip
        state = json.loads((bisect.dir / "state.json").read_text())["runs"]
        without, with_it = state[int(told[1]) - 1], state[int(told[2]) - 1]
        assert not without["passed"]
        assert layer not in without["config"]
        assert with_it["passed"]
        assert all(each in with_it["config"] for each in layers)


def test_warns_if_more_high_precision_fails(bisect):
    """Only layer 10 in high precision passes; with layer 0 it fails, and with 0 and 50 it
    passes.
    """
    plant = {"needs": [LAYERS[10]], "upset_by": LAYERS[0], "unless": LAYERS[50]}
    _, err = bisect.run(plant, "--depth", "layer")
    assert bisect.result() == whole(LAYERS[10])
    expect_refusal(("", err), "warning: layers.50.fc1 was not needed")


def test_killed_search_continues(bisect):
    plant = {"needs": [LAYERS[11], LAYERS[99]], "hang": 0.05}
    process = bisect.start(plant, "--depth", "layer")
    while bisect.runs() < 6:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    done = len(json.loads((bisect.dir / "state.json").read_text())["runs"])
    while processes_with(str(bisect.log)):  # the program that ran when its search was killed
        time.sleep(0.01)
    before = bisect.runs()
    assert 5 <= done <= before <= done + 1
    out, _ = bisect.run(plant, "--depth", "layer")
    assert bisect.result() == whole(LAYERS[11], LAYERS[99])
    assert f"reusing {done} runs of {bisect.dir}" in out
    total = len(json.loads((bisect.dir / "state.json").read_text())["runs"])
    assert bisect.runs() == total + (before - done)
    configs = [
        each["config"] for each in json.loads((bisect.dir / "state.json").read_text())["runs"]
    ]
    assert len(set(configs)) == len(configs), "a run was repeated"
    bisect.run(plant, "--depth", "layer")  # finds nothing left to run
    assert bisect.runs() == total + (before - done)


def processes_with(text):
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in path.read_bytes().decode(errors="replace"):
                found.append(path)
        except OSError:
            pass
    return found


def test_interrupt_ends_program_and_search_continues(bisect):
    slow = {"needs": [LAYERS[5]], "hang": 200}
    process = bisect.start(slow, "--depth", "layer")
    while bisect.runs() < 1:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=100)  # less than the program hangs
    assert process.returncode == 128 + signal.SIGINT
    assert err == "telens: interrupted; run the same command to continue\n"
    assert processes_with(str(bisect.log)) == []


def test_a_run_that_hangs_has_failed(bisect):
    plant = {"needs": [LAYERS[5]], "hang": 60}
    out, _ = bisect.run(plant, "--depth", "layer", "--timeout", "0.3")
    assert bisect.result() == whole(LAYERS[5])
    assert "timed out after 0.3" in out
    assert processes_with(str(bisect.log)) == []


def test_check_command_judges_run(bisect, tmp_path):
    """The program always succeeds; the check looks at the configuration that it was given."""
    plant = {}
    check = f"""! ls {{log_dir}} 2>/dev/null; test "$(sed -n '/{LAYERS[42]}"$/p' {{config}})" """
    bisect.run(plant, "--depth", "layer", "--check", check)
    assert bisect.result() == whole(LAYERS[42])


def test_config_can_be_a_program_argument(bisect):
    script = f'grep -q {LAYERS[9]}\\" "$1" && test "$2" = "$TELENS_LOG_DIR"'
    command = [COMMAND, "bisect", "--layers", bisect.names, "--dir", bisect.dir, "--depth", "layer",
               "--", "sh", "-c", script, "sh", "{config}", "{log_dir}"]  # fmt: skip
    subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=60)
    assert bisect.result() == whole(LAYERS[9])


def falling(last, count=40):
    return [4 - (4 - last) * i / (count - 1) for i in range(count)]


@pytest.fixture
def reference(lines, tmp_path):
    for i, loss in enumerate(falling(2.0)):
        lines.scalar(i, "loss", loss)
    return lines.write(tmp_path / "reference")


@pytest.mark.parametrize("bad", [falling(2.2), [*falling(2.0)[:30], float("nan")]])
def test_a_loss_above_the_reference_has_failed(bisect, reference, bad):
    plant = {"needs": [LAYERS[77]], "losses": {"passed": falling(2.005), "failed": bad}}
    out, _ = bisect.run(plant, "--reference", reference, "--tolerance", "0.01", "--depth", "layer")
    assert bisect.result() == whole(LAYERS[77])
    assert "loss nan in iteration 30" in out or re.search(r"loss 2\.\d+, reference 2\.", out)


def test_a_loss_within_the_tolerance_passes(bisect, reference):
    plant = {"needs": [LAYERS[7]], "losses": {"passed": falling(2.0), "failed": falling(2.01)}}
    out, _ = bisect.run(plant, "--reference", reference, "--tolerance", "0.01", code=1)
    assert "Nothing to search: the command passes without changes (loss 2.0" in out


def test_names_may_hold_anything_that_a_file_can(tmp_path):
    names = ['a "quoted" name', "key: {value}", "# no comment? \\n", "größe\U0001f600", "- item"]
    search = Bisect(tmp_path, ["x", *[name for name in names if not name.startswith("#")], "y"])
    bad = [name for name in names if not name.startswith("#")]
    search.run({"needs": bad}, "--depth", "layer")
    assert search.result() == whole(*bad)


def expect_refusal(result, *words):
    _, err = result
    assert err.startswith("telens: "), err
    assert err.count("\n") == 1, err
    for each in words:
        assert each in err


def test_failure_in_high_precision_is_reported(bisect):
    out, _ = bisect.run({"needs": ["another"]}, code=1)
    assert "Low precision is not the cause: the command also fails with all 200 layers" in out
    assert "run-002/output.txt" in out
    assert bisect.runs() == 2


def test_layers_are_required_without_a_session(bisect, tmp_path):
    command = [COMMAND, "bisect", "--dir", str(bisect.dir), "--", "false"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    expect_refusal((result.stdout, result.stderr), "the first run recorded no layers",
                   "exit code 1", "TELENS_CONFIG", "--layers", "run-001/output.txt")  # fmt: skip


def test_a_program_that_fails_shows_its_last_lines(bisect, monkeypatch):
    """Even if it failed before it trained. Its error follows its output."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    program = "for i in range(20): print('line', i)\nraise ValueError('no such file')"
    command = [COMMAND, "bisect", "--dir", bisect.dir, "--", sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    first, *lines = result.stdout[result.stdout.index("Last output") :].splitlines()
    assert first == f"Last output of run 1: {bisect.dir / 'run-001/output.txt'}"
    assert "  line 19" in lines
    assert "  line 0" not in lines
    assert lines[-1] == "  ValueError: no such file"


@pytest.mark.parametrize(("needs", "code"), [(["another"], 1), ([], 1)], ids=["fails", "passes"])
def test_failed_start_does_not_claim_folder(bisect, needs, code):
    bisect.run({"needs": needs}, "--depth", "layer", code=code)
    out, _ = bisect.run({"needs": [LAYERS[2]]}, "--depth", "layer")
    assert "reusing" not in out
    assert bisect.result() == whole(LAYERS[2])


def test_started_search_survives_failing_restart(bisect, tmp_path):
    bisect.run({"needs": [LAYERS[2]]}, "--depth", "layer")
    state = (bisect.dir / "state.json").read_text()
    bisect.names.unlink()  # the file of --layers
    expect_refusal(bisect.run({"needs": [LAYERS[2]]}, "--depth", "layer", code=2), "names.txt")
    assert (bisect.dir / "state.json").read_text() == state


def test_a_first_run_without_layers_leaves_its_folder_free(bisect, tmp_path):
    command = [COMMAND, "bisect", "--dir", str(bisect.dir), "--", "false"]
    subprocess.run(command, capture_output=True, text=True, timeout=60)
    bisect.run({"needs": [LAYERS[2]]}, "--depth", "layer")
    assert bisect.result() == whole(LAYERS[2])


def test_a_folder_of_another_search_is_refused(bisect):
    bisect.run({"needs": [LAYERS[1]]}, "--depth", "layer")
    expect_refusal(bisect.run({"needs": [LAYERS[2]]}, code=2), "another command", "--dir")
    (bisect.dir / "state.json").write_text("{")
    expect_refusal(bisect.run({"needs": [LAYERS[2]]}, code=2), "is not the state of a search")


def test_start_failure_names_program(bisect):
    command = [COMMAND, "bisect", "--layers", str(bisect.names), "--dir", str(bisect.dir),
               "--", "no-such-program"]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    expect_refusal((result.stdout, result.stderr), "cannot start 'no-such-program'", "No such file")


def test_conflicting_config_is_rejected(bisect, tmp_path):
    config = tmp_path / "own.yaml"
    config.write_text(
        "own:\n  enabled: True\n  layers: {layer_types: [all]}\n"
        "  transformer_engine: {DisableFP8GEMM: {enabled: True, gemms: [fprop]}}\n"
    )
    _, err = bisect.run({"needs": [LAYERS[1]]}, "--config", config, code=2)
    assert f"the sections 'own' ({config}:1:1) and 'high_precision' both select" in err
    assert bisect.runs() == 1
