"""Runs the programs of incidents in separate processes and diagnoses their runs."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import pathlib
import shutil
import socket
import subprocess
import time
import traceback

from .catalog import FIRST, Incident

LIMIT = 300  # seconds after which a training is killed


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def train_rank(
    source: str, broken: bool, log_dir: pathlib.Path, rank: int, ranks: int, port: int
) -> None:
    """Trains one rank in a child process and writes its output to a file next to the run."""
    log = os.open(log_dir / f"output_{rank}.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    import torch

    from .training import PROGRAMS

    torch.set_num_threads(1)
    os.environ["TELENS_BUDGET"] = "off"  # recorded rows must not depend on the machine's speed
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = str(port)
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
    try:
        PROGRAMS[source](broken, log_dir).run()
    except Exception:
        traceback.print_exc()
        raise


def train(incident: Incident, broken: bool, folder: pathlib.Path) -> dict:
    """Trains an incident or its healthy twin unless the folder contains a finished training.

    Raises RuntimeError if the twin fails.
    """
    return run_in_process(incident.source, broken, folder, incident.ranks)


@functools.cache
def prepare() -> None:
    """Imports the modules and reads the text that every training uses, before processes fork."""
    import torch

    from . import incidents  # noqa: F401 (registers the programs)
    from .training import text

    text()
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])  # imports the compiler


def run_in_process(source: str, broken: bool, folder: pathlib.Path, ranks: int = 1) -> dict:
    """Trains in one process per rank unless the folder contains a finished training.

    Returns the seconds and the exit codes. The processes are forked from this one, so that torch is
    imported once. A broken program may fail. Raises RuntimeError if a healthy program fails; the
    next call trains it again.
    """
    prepare()
    state = folder / "trained.json"
    if state.exists():
        known = json.loads(state.read_text())
        if broken or not any(known["exit_codes"]):
            return known
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    context = multiprocessing.get_context("fork")
    port = free_port()
    begin = time.monotonic()
    processes = [
        context.Process(target=train_rank, args=(source, broken, folder, rank, ranks, port))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT)
        if process.is_alive():
            process.kill()
            process.join()
    result = {
        "seconds": round(time.monotonic() - begin, 1),
        "exit_codes": [process.exitcode for process in processes],
    }
    if not broken and any(result["exit_codes"]):
        raise RuntimeError(
            f"healthy training {source} failed with exit codes {result['exit_codes']}; "
            f"see {folder}/output_*.txt"
        )
    state.write_text(json.dumps(result))
    return result


def diagnose(folder: pathlib.Path, command: str) -> list[dict]:
    """Returns the findings of `telens diagnose`. Raises RuntimeError if the command fails."""
    result = subprocess.run(
        [command, "diagnose", str(folder), "--format", "json"], capture_output=True, text=True
    )
    if result.returncode not in (0, 1):
        raise RuntimeError(f"{folder}: {result.stderr}")
    return json.loads(result.stdout)["findings"]


def judge(incident: Incident, findings: list[dict]) -> dict:
    """Compares findings with the expected answer.

    ``place`` is the number of the first finding whose parts are all correct, None if no finding is
    correct. ``parts`` says which parts of the closest finding are correct.
    """
    judged = [incident.expected.parts_of(each) for each in findings[:FIRST]]
    places = [number for number, parts in enumerate(judged, start=1) if all(parts.values())]
    nearest = max(judged, key=lambda parts: (parts["cause"], sum(parts.values())), default={})
    return {
        "place": places[0] if places else None,
        "parts": nearest or dict.fromkeys(("cause", "layer", "tensor", "first"), False),
        "findings": [summarize(each) for each in findings[:FIRST]],
    }


def summarize(finding: dict) -> dict:
    names = ("cause", "layer", "tensor", "rank", "first_iteration", "summary")
    return {name: finding[name] for name in names}
