"""A recording that a signal or a full disk ends, and how telens diagnose reports it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from conftest import PROJECT_ROOT

COMMAND = os.environ.get("TELENS_COMMAND", str(PROJECT_ROOT / "build/bin/telens"))
PROGRAM = """
import sys, time, torch
import telens.debug as debug, telens.pytorch as te
layer = te.Linear(32, 32, name="fc", device="cpu", params_dtype=torch.float32)
section = {"enabled": True, "layers": {"layer_name_regex_pattern": ".*"}, "transformer_engine":
           {"LogTensorStats": {"enabled": True, "tensors": ["activation"], "stats": ["std"]}}}
debug.initialize({"all": section}, log_dir=sys.argv[1])
for _ in range(3):
    layer(torch.ones(32, 32))
    debug.step()
print("three steps", flush=True)
time.sleep(60)
"""


def notes_of(log_dir: Path) -> list[str]:
    result = subprocess.run(
        [COMMAND, "diagnose", log_dir, "--format", "json"], capture_output=True, text=True
    )
    assert result.returncode in (0, 1), result.stderr
    return json.loads(result.stdout)["recording"]


def test_a_run_that_sigterm_ended_says_so_and_in_which_iteration(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "three steps\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == -signal.SIGTERM
    assert notes_of(tmp_path) == ["the recording of rank 0: ended by SIGTERM in iteration 3"]


def test_run_continuing_after_sigterm_lacks_a_note(tmp_path):
    program = PROGRAM.replace(
        "time.sleep(60)",
        "import os, signal\\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\\n"
        "os.kill(os.getpid(), signal.SIGTERM)\\n"
        "debug.step(); debug.end_debug()",
    ).replace("\\n", "\n")
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
    assert notes_of(tmp_path) == []
