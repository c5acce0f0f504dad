"""Reads what ELF files need of a machine, and splits off their debug information."""

import re
import subprocess
from pathlib import Path


def _output(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.strip()}")
    return done.stdout


class Binutils:
    """The binutils of an architecture."""

    def __init__(self, architecture: str, native: str) -> None:
        self._prefix = "" if architecture == native else f"{architecture}-linux-gnu-"

    def needed(self, file: Path) -> list[str]:
        """Returns the names of the shared libraries that the file needs."""
        dynamic = _output(f"{self._prefix}readelf", "-dW", file)
        return re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)

    def interpreter(self, file: Path) -> str | None:
        """Returns the dynamic loader of a program, or None if it needs none."""
        found = re.search(r"interpreter: (.+)\]", _output(f"{self._prefix}readelf", "-lW", file))
        return found and found.group(1)

    def highest_version(self, file: Path, library: str) -> tuple[int, ...]:
        """Returns the highest symbol version that the file needs, such as (2, 28) for GLIBC."""
        text = _output(f"{self._prefix}readelf", "-VW", file)
        found = re.findall(rf"Name: {library}_([\d.]+)", text)
        return max((tuple(map(int, each.split("."))) for each in found), default=())

    def strip(self, file: Path, target: Path, debug: Path) -> None:
        """Writes `file` without symbols to `target` and its debug information to `debug`."""
        for each in (target, debug):
            each.parent.mkdir(parents=True, exist_ok=True)
        objcopy = f"{self._prefix}objcopy"
        _output(objcopy, "--only-keep-debug", "--compress-debug-sections", file, debug)
        kind = "--strip-unneeded" if ".so" in file.suffixes else "--strip-all"
        _output(objcopy, kind, "--remove-section=.comment", file, target)
        _output(objcopy, f"--add-gnu-debuglink={debug}", target)
