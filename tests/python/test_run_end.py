"""How a run says that it ended: cleanly, or by which exception."""

import gc
import itertools
import os
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path

import pytest

import telens.debug as debug
from telens.debug import exits

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
SILENT = """
    class Silent(Exception):
        def __str__(self):
            raise TypeError("no words")
    raise Silent
"""
AROUND = """
    import sys
    import telens.debug as debug
    try:
        raise ImportError("no such module")
    except ImportError:
        debug.initialize("", log_dir=sys.argv[1])
        debug.step()
"""
BLOCK_AROUND = """
    import sys
    import telens.debug as debug
    try:
        raise ImportError("no such module")
    except ImportError:
        with debug.session("", log_dir=sys.argv[1]):
            debug.step()
"""
EXIT_IN_A_BLOCK = """
    import sys
    import telens.debug as debug
    with debug.session("", log_dir=sys.argv[1]):
        sys.exit(3)
"""
ENDS = {
    "uncaught": (BEGIN + '\n    raise RuntimeError("no data")', 1, "RuntimeError: no data"),
    "in a block": (IN_A_BLOCK, 1, "ValueError: batch 7 of 5"),
    "interrupted": (BEGIN + "\n    raise KeyboardInterrupt", -2, "KeyboardInterrupt"),
    "exit with a code": (EXIT_IN_A_BLOCK, 3, "SystemExit: 3"),
    "exit with 0": (BEGIN + "\n    sys.exit(0)", 0, None),
    "handled before": (BEGIN + HANDLED, 0, None),
    "without words": (BEGIN + SILENT, 1, "Silent"),
    "no UTF-8": (BEGIN + '\n    raise ValueError("\\udcff")', 1, r"ValueError: \udcff"),
    "handled around it": (AROUND + "        debug.end_debug()", 0, None),
    "handled around a block": (BLOCK_AROUND, 0, None),
    "handled around another": (
        AROUND + '        raise RuntimeError("no data")',
        1,
        "RuntimeError: no data",
    ),
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


class Handled(Exception):
    """Supports weak references, which Python's own exceptions do not."""


def test_exception_handled_at_start_is_ignored(tmp_path):
    try:
        raise Handled
    except Handled as error:
        alive = weakref.ref(error)
        debug.initialize("", log_dir=tmp_path)
        debug.step()
    debug.step()
    gc.collect()
    assert alive() is None


def test_exceptions_whose_contexts_are_a_ring_come_to_an_end():
    first, second = Handled("first"), Handled("second")
    try:
        raise first
    except Handled:
        first.__context__, second.__context__ = second, first
        found = list(itertools.islice(exits._handled(), 9))
    first.__context__ = None
    assert found == [first, second]
