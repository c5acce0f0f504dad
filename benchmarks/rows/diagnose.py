"""telens diagnose of large runs."""

import statistics
import subprocess
import tempfile

from programs import CannotRun
from report import Row, at_most

from rows.group import Group, timed

DIAGNOSE = {  # records: row, seconds at the most
    100_000: ("telens diagnose of 100,000 records", 1),
    1_000_000: ("telens diagnose of 1,000,000 records", 10),
}
OF_FLIGHT_RECORDER = ["l2_norm", "numel", "mean", "std", "cur_amax", "nonfinite"]


def healthy_lines(records):
    """Lines for write_lines: what a flight recorder has of a training in which nothing happens."""
    layers = [f"layers.{block}.{part}" for block in range(10) for part in ("qkv", "proj", "fc1")]
    tensors = ["weight", "activation", "gradient", "output"]
    statistics_of_all = len(layers) * len(tensors) * len(OF_FLIGHT_RECORDER)
    for step in range(records // statistics_of_all + 1):
        wobble = 1 + 0.01 * (step * 2654435761 % 1000) / 1000
        for place, layer in enumerate(layers):
            for number, tensor in enumerate(tensors):
                size = (1 + 0.01 * place) * 10.0**-number
                size *= 1 + 1e-5 * step if tensor == "weight" else wobble
                values = (64 * size, 4096, 0.01 * size, size, 4 * size, 0)
                for statistic, value in zip(OF_FLIGHT_RECORDER, values, strict=True):
                    yield f"record\t{step}\t{layer}\t{tensor}\t-\t{statistic}\t{value}"


def diagnose_rows(programs):
    command = programs.build / "bin" / "telens"
    writer = programs.build / "tests" / "write_lines"
    if not writer.exists():
        raise CannotRun(f"{writer} is not built")
    for records, (name, seconds) in DIAGNOSE.items():
        with tempfile.TemporaryDirectory(prefix="telens-bench-") as folder:
            lines = "\n".join(healthy_lines(records))
            subprocess.run([writer, folder], input=lines, text=True, check=True)
            rounds = 1 if programs.quick else 5
            times = [timed([command, "diagnose", folder])[0] for _ in range(rounds)]
        yield Row(name, statistics.median(times), "s", at_most(seconds), {"telens": times})


GROUP = Group([name for name, _ in DIAGNOSE.values()], diagnose_rows)
