"""Reading a run of many ranks."""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from programs import CannotRun
from report import Row, at_most

from rows.group import Group, timed

RANKS = 1024
MANY_RANKS = [
    f"telens info of {RANKS:,} ranks",
    f"telens stats of one layer of {RANKS:,} ranks",
    f"memory of telens info of {RANKS:,} ranks",
]
WHY_SLOWER = (
    "an opening of a file that may come from anywhere checks its 40 objects one by one; processes, "
    "one a core, share the files, and other work on the machine leaves them fewer"
)


def many_ranks_rows(programs):
    """A run of 1,441 records a rank, beside a loop over its files with h5py."""
    command = programs.build / "bin" / "telens"
    writer = programs.build / "tests" / "write_run"
    if not writer.exists():
        raise CannotRun(f"{writer} is not built")
    info, stats, loop, megabytes = [], [], [], []
    with tempfile.TemporaryDirectory(prefix="telens-bench-") as folder:
        ranks = 16 if programs.quick else RANKS
        subprocess.run([writer, folder, "run", "40", "0", str(ranks)], check=True)
        if not programs.quick:
            time.sleep(4)  # files that were changed just now are checked in each opening
        reader = [sys.executable, Path(__file__).parents[1] / "read_with_h5py.py", folder]
        for _ in range(1 if programs.quick else 5):
            seconds, peak = timed([command, "info", folder])
            info.append(seconds)
            megabytes.append(peak)
            stats.append(timed([command, "stats", folder, "--layer", "layers.2"])[0])
            loop.append(timed([*reader, "layers.2.fc1"])[0])
    samples = {"telens": info, "h5py, one layer": loop}
    median = statistics.median
    yield Row(MANY_RANKS[0], median(info), "s", at_most(2), samples, if_missed=WHY_SLOWER)
    samples = {"telens": stats, "h5py": loop}
    yield Row(MANY_RANKS[1], median(stats), "s", at_most(3), samples, if_missed=WHY_SLOWER)
    yield Row(MANY_RANKS[2], median(megabytes), "MB", at_most(1000), {"telens": megabytes})


GROUP = Group(MANY_RANKS, many_ranks_rows)
