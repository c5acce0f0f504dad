"""What a debug session costs the transformer layer of Llama 7B's shape: all statistics of all
tensors, and a session that does not touch the layer."""

import contextlib
import statistics
import tempfile
from pathlib import Path

from gpu_rows.bench import Bench, fp8
from gpu_rows.layer import our_layer, our_tensors
from gpu_rows.linear import training_step
from gpu_rows.row import Measured, Row, at_most

CONFIG = Path(__file__).resolve().parents[2] / "configs/log_all_statistics.yaml"
OF_ANOTHER_LAYER = """
of_another_layer:
  enabled: True
  layers: {layer_name_regex_pattern: 'another_layer'}
  transformer_engine:
    LogTensorStats: {enabled: True, tensors: [activation], stats: [max], freq: 1}
"""
ITERATIONS = 10  # a block: as many as the larger frequency has to come round once
BLOCKS = 5


@contextlib.contextmanager
def session(config: str):
    import telens.debug as debug

    with tempfile.TemporaryDirectory(prefix="telens-bench-") as folder:
        path = Path(folder) / "debug.yaml"
        path.write_text(config)
        with debug.session(path, log_dir=folder):
            yield debug


def all_statistics(freq: int) -> str:
    text = CONFIG.read_text()
    if "freq: 1\n" not in text:
        raise ValueError(f"{CONFIG.name} has no 'freq: 1' to be changed")
    return text.replace("freq: 1\n", f"freq: {freq}\n")


def our_step(bench: Bench):
    x, gradient = our_tensors(bench)
    return training_step(our_layer(bench), x, gradient, fp8)


def block_of(step, end_of_iteration=lambda: None):
    def block():
        for _ in range(ITERATIONS):
            step()
            end_of_iteration()

    return block


def with_statistics(bench: Bench, freq: int) -> Measured:
    """A session is the whole process's, so blocks with and without one take turns."""
    step = our_step(bench)
    plain, watched = [], []
    for _ in range(1 if bench.rehearse else BLOCKS):
        plain += bench.seconds_of_one(block_of(step))
        with session(all_statistics(freq)) as debug:
            watched += bench.seconds_of_one(block_of(step, debug.step))
    ours, theirs = statistics.median(watched), statistics.median(plain)
    return Measured(ours, theirs, f"{1e3 * ours / ITERATIONS:.2f} ms a step")


def launches(bench: Bench) -> Measured:
    """A launch that only one of the two has, by name, counts as one more."""
    step = our_step(bench)
    plain = bench.timer.launches(step)
    with session(OF_ANOTHER_LAYER) as debug:

        def step_of_session():
            step()
            debug.step()

        watched = bench.timer.launches(step_of_session)
    different = {
        name: [watched[name], plain[name]]
        for name in sorted(watched.keys() | plain.keys())
        if watched[name] != plain[name]
    }
    more = sum(abs(with_session - without) for with_session, without in different.values())
    return Measured(
        plain.total() + more,
        plain.total(),
        f"{watched.total()} launches, {plain.total()} without a session",
        {"with and without a session": different},
    )


def untouched_time(bench: Bench) -> Measured:
    """Of single steps: what several launch may fill the queue, and then the host waits."""
    step = our_step(bench)
    plain, watched = [], []
    for _ in range(1 if bench.rehearse else BLOCKS):
        plain += bench.timer.host_seconds([step])
        with session(OF_ANOTHER_LAYER) as debug:

            def step_of_session(debug=debug):
                step()
                debug.step()

            watched += bench.timer.host_seconds([step_of_session])
    ours, theirs = statistics.median(watched), statistics.median(plain)
    return Measured(ours, theirs, f"{1e3 * ours:.2f} ms of the host a step")


NONE = "the same layer without a session"
ROWS = [
    Row(
        "all statistics of all tensors of the layer, freq 1",
        NONE,
        lambda bench: with_statistics(bench, 1),
        at_most(1.10),
        of_time=True,
    ),
    Row(
        "all statistics of all tensors of the layer, freq 10",
        NONE,
        lambda bench: with_statistics(bench, 10),
        at_most(1.02),
        of_time=True,
    ),
    Row(
        "launches of an untouched layer beside a session",
        NONE,
        launches,
        at_most(1),
        of_time=True,
        unit="launches",
    ),
    Row("wall time of an untouched layer beside a session", NONE, untouched_time, of_time=True),
]
