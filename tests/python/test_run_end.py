"""What a run says of how it ended: cleanly, or by which exception."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = os.environ.get("TELENS_COMMAND", str(ROOT / "build/bin/telens"))

BEGIN = """
    import sys
    import telens.debug as debug
    debug.initialize("", log_dir=sys.argv[1])
    debug.record("x", 1.0)
    debug.step()
"""
HANDLED = """
    try:
        raise LookupError("handled")
    except LookupError:
        pass
"""
IN_A_BLOCK = """
    import sys
    import telens.debug as debug
    with debug.session("", log_dir=sys.argv[1]):
        raise ValueError("batch 7 of 5\\nand a second line")
"""
ENDS = {
    "uncaught": (BEGIN + '\n    raise RuntimeError("no data")', 1, "RuntimeError: no data"),
    "in a block": (IN_A_BLOCK, 1, "ValueError: batch 7 of 5"),
    "interrupted": (BEGIN + "\n    raise KeyboardInterrupt", -2, "KeyboardInterrupt"),
    "exit with a code": (BEGIN + "\n    with debug.session(''): sys.exit(3)", 3, "SystemExit: 3"),
    "exit with 0": (BEGIN + "\n    sys.exit(0)", 0, None),
    "handled before": (BEGIN + HANDLED, 0, None),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_run_names_the_exception_that_ended_it(tmp_path, name):
    program, code, reason = ENDS[name]
    training = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert training.returncode == code, training.stderr
    info = subprocess.run([COMMAND, "info", tmp_path], capture_output=True, text=True, check=True)
    if reason is None:
        assert "ended cleanly" in info.stdout
    else:
        assert "ended by an exception" in info.stdout
        assert f": {reason}" in info.stdout
        assert "second line" not in info.stdout
