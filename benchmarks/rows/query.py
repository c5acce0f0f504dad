"""telens stats of a large run."""

import statistics
import subprocess
import tempfile
import time

from report import Row, at_most

from rows.group import Group

QUERY = ["telens stats of one layer out of 10^7 records"]


def query_rows(programs):
    command = programs.build / "bin" / "telens"
    seconds = []
    with tempfile.TemporaryDirectory(prefix="telens-bench-") as folder:
        subprocess.run([programs.path("recorder"), "--write", folder], check=True)
        for _ in range(3 if programs.quick else 10):
            start = time.perf_counter()
            subprocess.run(
                [command, "stats", folder, "--layer", "layers.7"], check=True, capture_output=True
            )
            seconds.append(time.perf_counter() - start)
    yield Row(QUERY[0], statistics.median(seconds), "s", at_most(1), {"telens": seconds})


GROUP = Group(QUERY, query_rows)
