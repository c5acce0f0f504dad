"""The C++ sample on two ranks has the bits of samples/gpt.py on two, or the losses of one rank."""

import contextlib
import os
import random
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpt_runs import PROGRAM, number
from test_gpt_in_parallel import FP32_BOUNDS, SMALL, STEPS, compare, losses, sums

import telens

CONFIG = """\
section:
  enabled: True
  layers: {layer_types: all}
  transformer_engine:
    LogTensorStats:
      enabled: True
      stats: [numel, l1_norm]
      tensors: [activation, weight, output]
      freq: 25
  telens:
    RankAgreement: {enabled: True, tensors: [activation, weight, gradient], freq: 25}
    CollectiveCheck: {enabled: True, freq: 25}
"""
FP32 = ["--recipe", "fp32"]
TP_SP = [*FP32, "--tp", 2, "--sp"]


def free_port() -> int:
    """Outside of the range from which the system assigns ports, so it stays free."""
    for _ in range(100):
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port between 20000 and 32000 is free")


def start(options: list, rank: int, **environment: object) -> subprocess.Popen:
    return subprocess.Popen(
        [PROGRAM, *map(str, options)],
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "RANK": str(rank)}
        | {name: str(value) for name, value in environment.items()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_ranks(folder: Path, *options: object, ranks: int = 2) -> list[str]:
    """Returns each rank's output. Runs without torchrun, whose start takes longer than the
    training.
    """
    world = {"WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    named = [*SMALL, *options, "--steps", STEPS, "--loss-file", folder / "cpp"]
    started = [start(named, rank, **world) for rank in range(ranks)]
    results = [process.communicate(timeout=300) for process in started]
    for process, (_, complaint) in zip(started, results, strict=True):
        assert process.returncode == 0, complaint
    return [printed for printed, _ in results]


def losses_in(file: Path) -> torch.Tensor:
    return torch.tensor([number(word) for word in file.read_text().split()])


def cpp_losses(folder: Path, *options: object, ranks: int = 2) -> torch.Tensor:
    run_ranks(folder, *options, ranks=ranks)
    found = losses_in(folder / "cpp")
    assert len(found) == STEPS
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> tuple[torch.Tensor, telens.Run]:
    """One rank, watched."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "debug.yaml").write_text(CONFIG)
    watching = ("--config", folder / "debug.yaml", "--log-dir", folder / "logs")
    found = cpp_losses(folder, *FP32, *watching, ranks=1)
    return found, telens.open_run(folder / "logs")


@pytest.mark.parametrize(
    "options",
    [["--tp", 2], ["--cp", 2], ["--cp", 2, "--cp-comm-type", "a2a"], ["--dp", 2]],
)
def test_two_ranks_match_a_single_rank(tmp_path, alone, options):
    compare(cpp_losses(tmp_path, *FP32, *options), alone[0], *FP32_BOUNDS)


def test_two_ranks_compute_the_bits_of_two_ranks_in_python(tmp_path):
    """A sum of two terms does not depend on their order."""
    options = ["--recipe", "current", "--tp", 2, "--sp"]
    assert torch.equal(cpp_losses(tmp_path, *options), losses(tmp_path, "python", *options))


def test_watching_changes_no_bit_and_covers_whole_tensors(tmp_path, alone):
    plain = cpp_losses(tmp_path, *TP_SP)
    (tmp_path / "debug.yaml").write_text(CONFIG)
    logs = tmp_path / "logs"
    first, second = run_ranks(
        tmp_path, *TP_SP, "--config", tmp_path / "debug.yaml", "--log-dir", logs
    )
    assert torch.equal(losses_in(tmp_path / "cpp"), plain)
    compare(plain, alone[0], *FP32_BOUNDS)
    assert "\nrecorded in" in first
    assert second == ""  # one of them tells

    run = telens.open_run(logs)
    assert len(list(logs.rglob("*.h5"))) == 2
    assert sums(run, "numel") == sums(alone[1], "numel")
    for key, value in sums(alone[1], "l1_norm").items():
        assert sums(run, "l1_norm")[key] == pytest.approx(value, rel=1e-4), key
    for compared in ("weight_differs", "collectives_wrong"):
        rows = run.records(statistic=compared)
        assert set(rows["rank"]) == {0, 1}
        assert set(rows["value"]) == {0}
    assert run.events.empty


def test_torchrun_starts_it(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    command = [*torchrun, "--nproc-per-node", "2", PROGRAM, *SMALL, *map(str, TP_SP)]
    result = subprocess.run(
        [*command, "--steps", "3", "--loss-file", tmp_path / "cpp"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert len(losses_in(tmp_path / "cpp")) == 3
    assert result.stdout.count("bigram entropy of the text") == 1


TWO = {"WORLD_SIZE": 2}


@pytest.mark.parametrize(
    ("options", "environment", "said"),
    [
        (["--tp", 2], {}, "--tp 2 --cp 1 --dp 1: 2 is their product, and the number of ranks is 1"),
        ([], TWO, "--tp 1 --cp 1 --dp 1: 1 is their product, and the number of ranks is 2"),
        (["--tp", 2, "--save", "x"], TWO, "--save and --resume want one rank (--tp 1)"),
        (["--dp", 2, "--batch", 3], TWO, "--batch is 3; expected a multiple of 2: --dp"),
        (["--cp", 2, "--sequence", 30], TWO, "--sequence is 30; expected a multiple of 4"),
        (["--tp", 2], TWO, "the environment variable MASTER_ADDR is not set"),
        (["--tp", 2], TWO | {"MASTER_ADDR": "x", "MASTER_PORT": "y"}, "MASTER_PORT is 'y'"),
        (["--tp", 2], {"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'; expected a number"),
        (["--tp", 0], {}, "--tp"),
    ],
)
def test_wrong_use_is_one_clear_line(options, environment, said):
    process = start(options, 0, **environment)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 2, complaint
    assert said in complaint
    assert complaint.count("\n") == 1


def test_nothing_of_gloo_is_compiled_into_the_program():
    """Its headers may be of another version than the gloo in torch, but only declarations are
    used.
    """
    listed = subprocess.run(["nm", "-C", PROGRAM], capture_output=True, text=True, check=True)
    names = re.findall(r"^[0-9a-f ]{16} \w (.+)$", listed.stdout, re.MULTILINE)
    of_gloo = re.compile(r"((vtable|typeinfo|typeinfo name|VTT) for )?gloo::|.*GlooStore")
    assert any(name.startswith("c10d::ProcessGroupGloo::ProcessGroupGloo(") for name in names)
    assert [name for name in names if of_gloo.match(name)] == []
