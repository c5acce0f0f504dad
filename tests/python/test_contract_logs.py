"""What is written to stderr in addition to the text logs."""

import logging
import subprocess
import sys
import types

import pytest
from debug_helpers import message_log

from telens import _C, debug


@pytest.mark.parametrize("peer", [True, False])
def test_warnings_are_on_stderr_after_a_prefix(tmp_path, capfd, monkeypatch, peer):
    _C.debug.set_terminal_prefix("telens: ")
    if peer:
        monkeypatch.setitem(sys.modules, "nvdlfw_inspect", types.ModuleType("nvdlfw_inspect"))
    else:
        monkeypatch.delitem(sys.modules, "nvdlfw_inspect", raising=False)
    with debug.session("", log_dir=tmp_path):
        for level in (logging.INFO, logging.WARNING, logging.ERROR):
            debug.log_message(f"level {level}", layer_name="fc", level=level)
    _C.debug.set_terminal_prefix("telens: ")
    lines = [line for line in capfd.readouterr().err.splitlines() if "level" in line]
    logged = message_log(tmp_path).splitlines()
    assert [line.split(" - ", 1)[1] for line in logged] == [
        "INFO - LAYER=fc: level 20",
        "WARNING - LAYER=fc: level 30",
        "ERROR - LAYER=fc: level 40",
    ]
    prefix = "NVDLFW INSPECT - " if peer else "telens: "
    assert lines == [prefix + line for line in logged[1:]]


SCRIPT = """\
import telens.debug as debug
from telens.run_as_te import install
install()
debug.initialize(log_dir="logs")
debug.log_message("before", level="WARNING")
import transformer_engine.pytorch
debug.log_message("still", level="WARNING")
import nvdlfw_inspect.api
debug.log_message("after", level="WARNING")
"""


def test_importing_nvdlfw_inspect_brings_the_peers_prefix(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    lines = {line.rpartition(" - ")[2]: line.split(" ")[0] for line in done.stderr.splitlines()}
    assert lines == {"before": "telens:", "still": "telens:", "after": "NVDLFW"}
