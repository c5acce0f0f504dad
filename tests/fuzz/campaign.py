"""Damages run files, reads them with every subcommand and Python's reader, and counts the outcomes.

    tests/fuzz/campaign.py --build build-campaign --files 20000 [--python build/python] [--seed 1]
        [--first 5000 | --only 473 1077]

A file counts by its worst outcome: a crash (including a sanitizer's report), more than 10 s of
processor time, more than 1 GB, data of another file, an exception of Python's reader that is not a
telens.Error, a repair that lost rows, other content than before without a message ("silent"), a
message about damage ("told"), an error, the same content as before. Files up to "silent" are kept
in --keep. The same arguments create the same files. A "silent" file is a failure if its bytes were
changed blindly; a change that also corrects checksums cannot be detected.

If a file is refused or has its original content, the other subcommands and Python's reader have
nothing else to read: they run on one of EVERY such files.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

from damaged_bytes import BLIND, damage
from hostile_files import changes, open_for_change

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "inspector_cli"))
from subcommands import command_lines  # noqa: E402

SECONDS = 10
MEGABYTES = 1024
EVERY = 13
SECRET = "what stands in no run file "
BAD = (
    "crash",
    "too long",
    "too much memory",
    "raw exception",
    "touched another file",
    "worse repair",
)
BLIND_CHANGES = {change.__name__ for change in BLIND}
# malloc returns NULL above 1 GB, as on a machine with no more memory: HDF5 allocates what a file's
# numbers say before it reads anything. `new` ends the program.
ENVIRONMENT = {
    "ASAN_OPTIONS": "abort_on_error=1:detect_leaks=0:quarantine_size_mb=16:malloc_context_size=2:"
    "allocator_may_return_null=1:max_allocation_size_mb=1024:detect_stack_use_after_return=0",
    "UBSAN_OPTIONS": "halt_on_error=1:abort_on_error=1:print_stacktrace=1",
}


class Reader:
    """A program that reads the files named on its stdin and answers each with a line of JSON."""

    def __init__(self, command, **environment):
        self._process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ENVIRONMENT, **environment},
        )

    def read(self, path):
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self._process.args[0]} ended while it read {path}")
        return json.loads(line)

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def run_all_commands(program, folder):
    """Start all_commands, which runs the subcommands of the table on the files that it reads.

    A file is checked by its content and `info`, and if those differ from the intact file's by all
    command lines. Content is printed again after `repair`, which comes last.
    """
    first = ["content {run}", "info {run}"]
    others = [line for line in command_lines("damaged") if line not in first]
    commands = pathlib.Path(folder) / "commands.txt"
    commands.write_text("\n".join([*first, "", *others, "content {copy}", ""]))
    return Reader([program, folder, commands, SECONDS, MEGABYTES, SECRET])


class Seeds:
    """Run files of all kinds: closed, killed, long, with histograms."""

    def __init__(self, build, folder):
        programs = build / "tests"
        self.files = []
        for name, command in (
            ("closed", [programs / "write_run", "LOG", "run", "40"]),
            ("killed", [programs / "write_run", "LOG", "run", "-1"]),
            ("long", [programs / "write_run", "LOG", "run", "400"]),
            ("histograms", [programs / "write_histograms", "LOG", "0"]),
        ):
            log_dir = folder / name
            log_dir.mkdir()
            _write(["%s" % (log_dir if word == "LOG" else word) for word in command])
            self.files.append((name, next(log_dir.rglob("rank00000.h5"))))
        self.outside = folder / "outside.bin"
        self.outside.write_text(SECRET * 40_000)


def _write(command):
    """Run a writer; kill it if it prints that it has recorded."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout.readline() == "recorded\n":
            process.kill()
    assert process.returncode in (0, -9), command


def damaged_files(seeds, target, numbers, seed):
    """Yield (name, change, intact file) for each damaged file, which exists at ``target`` until the
    next one.

    One of four is a crafted file, as long as there are any; the others have damaged bytes. A file
    does not depend on which other files are requested.
    """
    contents = {path: path.read_bytes() for _, path in seeds.files}
    by_hand = _changes_by_hand(seeds)
    random.Random(seed).shuffle(by_hand)
    wanted = set(numbers)
    for number in range(max(wanted, default=-1) + 1):
        is_by_hand = number % 4 == 0 and _change_by_hand(by_hand, target)
        if is_by_hand:
            name, path, _ = by_hand.pop()
        if number not in wanted:
            continue
        if is_by_hand:
            yield f"{number} {name}", "by hand", path
            continue
        numbered = random.Random(seed * 1_000_003 + number)
        name, path = numbered.choice(seeds.files)
        change, content = damage(contents[path], numbered)
        target.write_bytes(content)
        yield f"{name}: {number} {change}", change, path


def _changes_by_hand(seeds):
    """Return changes of all files except the killed one, which h5py cannot open for changes."""
    return [
        (f"{name}: {change}", path, apply)
        for name, path in seeds.files
        if name != "killed"
        for change, apply in changes(path, seeds.outside).items()
    ]


def _change_by_hand(by_hand, target):
    """Apply the last change that fits this file. Return False if none is left."""
    while by_hand:
        _, path, apply = by_hand[-1]
        shutil.copy(path, target)
        try:
            with open_for_change(target) as file:
                apply(file)
            return True
        except (KeyError, ValueError, TypeError, OSError, RuntimeError):
            by_hand.pop()
    return False


def is_bad(verdict, change):
    """Return whether the verdict is a failure for this kind of change."""
    return verdict in BAD or (verdict == "silent" and change in BLIND_CHANGES)


class Judge:
    def __init__(self, all_commands, python_reader, seeds):
        self._all_commands, self._python = all_commands, python_reader
        self._seeds = seeds
        self._outside = seeds.outside.read_bytes()
        self._intact = {path: self._content(path) for _, path in seeds.files}
        self.peak, self.longest = 0, 0.0

    def _content(self, path):
        return _result(self._all_commands.read(path), "content {run}")

    def verdict(self, path, intact, everything=True):
        """Return (verdict, details). If not ``everything``, skip commands that read nothing
        more.
        """
        answer = self._all_commands.read(path if everything else f"some {path}")
        if not everything and self._has_more(answer, self._intact[intact]):
            return self.verdict(path, intact)
        self.peak = max(self.peak, answer["peak"])
        self.longest = max(self.longest, answer["seconds"])
        for result in answer["results"]:
            if "ended" in result:
                kind = "crash" if result["ended"] in ("crashed", "ended early") else result["ended"]
                return kind, result
            if result["leaked"]:
                return "touched another file", result
        if self._seeds.outside.read_bytes() != self._outside:
            return "touched another file", answer
        if self._python is not None and everything:
            result = self._python.read(path)
            if result["kind"] != "fine":
                return result["kind"], result
        return self._verdict_of_content(answer, self._intact[intact])

    @staticmethod
    def _has_more(answer, before):
        """Return whether the file has content that the intact file does not have."""
        if any("ended" in result for result in answer["results"]):
            return False
        content, info = _result(answer, "content {run}"), _result(answer, "info {run}")
        is_refused = content["code"] != 0 and info["code"] == content["code"]
        return not is_refused and not _is_same(content, before)

    def _verdict_of_content(self, answer, before):
        content = _result(answer, "content {run}")
        told = _result(answer, "info {run}")["damaged"] or content["damaged"]
        verdict = self._verdict_of_repair(answer, content)
        if verdict is not None:
            return verdict
        if content["code"] != 0:
            return "refused", content
        if _is_same(content, before):
            return "the same", None
        return ("told" if told else "silent"), content

    @staticmethod
    def _verdict_of_repair(answer, content):
        """Return the verdict of the repair, or None if it is not worse."""
        repair, again = _result(answer, "repair {copy}"), _result(answer, "content {copy}")
        if repair is None:
            return None
        if repair["code"] == 0 and content["code"] == 0 and not _is_kept(content, again):
            return "worse repair", [content, repair, again]
        # A file with too many rows to print has as many after its repair.
        shown_as_far = again["bytes"] > 0 and again["out"] == content["out"]
        if repair["code"] == 0 and again["code"] != 0 and not shown_as_far:
            return "worse repair", [content, repair, again]
        return None


def _is_same(content, before):
    return content["out"] == before["out"] and content["err"] == before["err"]


def _is_kept(content, again):
    """Return whether a repaired file has the original content; a file without an end gets one.

    The first line of err is the version that wrote the file, which a repair changes.
    """
    end, end_again = (each["err"].partition("\n")[2] for each in (content, again))
    return again["out"] == content["out"] and end in ("end none\n", end_again)


def _result(answer, command):
    return next((each for each in answer["results"] if each["command"] == command), None)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--build", type=pathlib.Path, required=True)
    arguments.add_argument("--python", type=pathlib.Path, help="the folder of the telens package")
    arguments.add_argument("--files", type=int, default=20_000)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--first", type=int, default=0, help="the number of the first file")
    arguments.add_argument("--only", type=int, nargs="*", help="numbers of single files")
    arguments.add_argument("--keep", type=pathlib.Path, default=pathlib.Path("build-fuzz/damaged"))
    options = arguments.parse_args()

    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    begin = time.monotonic()
    counts, bad = collections.Counter(), 0
    with tempfile.TemporaryDirectory(prefix="telens-campaign", dir=memory) as folder:
        folder = pathlib.Path(folder)
        seeds = Seeds(options.build, folder)
        (folder / "written").mkdir()
        driver = options.build / "tests" / "all_commands"
        all_commands = run_all_commands(driver, folder / "written")
        python_reader = None
        if options.python:
            command = [sys.executable, HERE / "python_reader.py", SECONDS, MEGABYTES]
            python_reader = Reader(command, PYTHONPATH=str(options.python))
        judge = Judge(all_commands, python_reader, seeds)
        (folder / "damaged").mkdir()
        target = folder / "damaged" / "rank00000.h5"
        numbers = options.only or range(options.first, options.files)
        files = damaged_files(seeds, target, numbers, options.seed)
        for done, (name, change, intact) in enumerate(files):
            verdict, details = judge.verdict(target, intact, everything=done % EVERY == 0)
            counts[verdict] += 1
            bad += is_bad(verdict, change)
            if verdict in (*BAD, "silent"):
                options.keep.mkdir(parents=True, exist_ok=True)
                kept = options.keep / f"{verdict}-{counts[verdict]}.h5".replace(" ", "_")
                if counts[verdict] <= 40:
                    shutil.copy(target, kept)
                    kept.with_suffix(".json").write_text(json.dumps([name, details], indent=1))
                    print(f"{verdict}: {name} ({kept})", flush=True)
            if done % 100 == 99:
                print(
                    f"{done + 1} files, {time.monotonic() - begin:.0f} s, {dict(counts)}",
                    flush=True,
                )
        all_commands.close()
    total = sum(counts.values())
    print(
        f"{total} files in {time.monotonic() - begin:.0f} s; at most {judge.peak >> 20} MB"
        f" and {judge.longest:.1f} s of a processor"
    )
    for verdict, count in counts.most_common():
        print(f"  {count:6} {verdict}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
