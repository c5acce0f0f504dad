"""What goes to stderr beside the text logs."""

import logging

from debug_helpers import message_log

import telens.debug as debug


def test_warnings_are_on_stderr_too_behind_the_peers_words(tmp_path, capfd):
    with debug.session("", log_dir=tmp_path):
        for level in (logging.INFO, logging.WARNING, logging.ERROR):
            debug.log_message(f"level {level}", layer_name="fc", level=level)
    lines = [line for line in capfd.readouterr().err.splitlines() if "level" in line]
    logged = message_log(tmp_path).splitlines()
    assert [line.split(" - ", 1)[1] for line in logged] == [
        "INFO - LAYER=fc: level 20",
        "WARNING - LAYER=fc: level 30",
        "ERROR - LAYER=fc: level 40",
    ]
    assert lines == [f"NVDLFW INSPECT - {line}" for line in logged[1:]]
