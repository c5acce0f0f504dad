"""Runs the command on a terminal of a given width."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

from conftest import COMMAND


def on_terminal(columns, *arguments):
    """Returns the output on a terminal with this many columns, without colors."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    with subprocess.Popen(
        [COMMAND, *map(str, arguments)], stdout=follower, stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm", "NO_COLOR": ""},
    ) as process:  # fmt: skip
        os.close(follower)
        output = b""
        try:
            while part := os.read(leader, 65536):
                output += part
        except OSError:  # the other end is closed
            pass
        os.close(leader)
        process.wait(timeout=60)
    return re.sub(r"\x1b\[[0-9;]*m", "", output.decode()).replace("\r\n", "\n")
