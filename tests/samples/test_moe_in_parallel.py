"""samples/moe.py with torchrun and --ep, --tp, --sp, --cp has the losses of one rank, also by
expert.
"""

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_models import BUILD, CONFIG, ROOT
from test_moe import SMALL

import telens

STEPS = 30
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
DIVIDED = {1: [], 2: ["--ep", "2"], 4: ["--ep", "2", "--tp", "2", "--sp"]}  # by the number of ranks
SAMPLE = str(ROOT / "samples/moe.py")


def train(folder: Path, *options: str, ranks: int = 2) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(BUILD / "python"), os.environ.get("PYTHONPATH", "")])
    started = [*TORCHRUN, str(ranks), SAMPLE] if ranks > 1 else [SAMPLE]
    return subprocess.run(
        [sys.executable, *started, *DIVIDED[ranks], *SMALL, "--steps", str(STEPS), *options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def losses(folder: Path, *options: str, ranks: int) -> torch.Tensor:
    done = train(folder, *options, "--loss-file", f"losses of {ranks}", ranks=ranks)
    assert done.returncode == 0, done.stderr
    words = (folder / f"losses of {ranks}").read_text().split()
    assert len(words) == STEPS
    return torch.tensor([struct.unpack(">f", bytes.fromhex(word))[0] for word in words])


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Losses and runs in FP32, by the number of ranks."""
    folder = tmp_path_factory.mktemp("watched")
    (folder / "debug.yaml").write_text(CONFIG.replace("[max]", "[max, numel]"))
    found = {}
    for ranks in DIVIDED:
        options = ("--recipe", "fp32", "--config", "debug.yaml", "--log-dir", f"logs{ranks}")
        found[ranks] = losses(folder, *options, ranks=ranks), folder / f"logs{ranks}"
    return found


@pytest.mark.parametrize("ranks", [2, 4])
def test_expert_parallel_ranks_match_a_single_rank(watched, ranks):
    (alone, _), (several, _) = watched[1], watched[ranks]
    assert (several - alone).abs().max() < 1e-5


@pytest.mark.parametrize("divided", [["--tp", "2", "--sp"], ["--cp", "2"]])
def test_context_parallel_ranks_match_a_single_rank(watched, tmp_path, divided):
    found = losses(tmp_path, "--recipe", "fp32", *divided, "--ep", "1", ranks=2)
    assert (found - watched[1][0]).abs().max() < 1e-5


def test_each_expert_is_recorded_by_the_rank_that_has_it(watched):
    rows = telens.open_run(watched[2][1]).records(tensor="activation", statistic="numel")
    first = rows[rows["iteration"] == 0]
    for fc in ("fc1", "fc2"):
        for expert in range(4):
            of_expert = first[first["layer"] == f"layers.0.experts.{fc}.gemm_{expert}"]
            assert set(of_expert["rank"]) == {expert // 2}, (fc, expert)
    whole = telens.open_run(watched[1][1]).records(tensor="activation", statistic="numel")
    whole = whole[whole["iteration"] == 0]
    for layer in whole["layer"]:
        (expected,) = whole[whole["layer"] == layer]["value"]
        assert set(first[first["layer"] == layer]["value"]) == {expected}, layer
    shown = subprocess.run(
        [BUILD / "bin/telens", "stats", watched[2][1], "--layer", "fc1.gemm_3", "--rank", "1"],
        capture_output=True,
        text=True,
    )
    assert "layers.0.experts.fc1.gemm_3" in shown.stdout


def test_two_ranks_learn_in_fp8(tmp_path):
    done = train(tmp_path, "--recipe", "delayed")
    assert done.returncode == 0, done.stderr
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("mean loss")]
    assert float(line.split(":")[1].split()[0]) < 4.7  # all bytes alike: 5.55


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--ep", "3", "--experts", "4"], "--cp 1 --ep 3: 3 is their product, and the number of r"),
        (["--ep", "2", "--save", "x"], "--save and --resume want one rank"),
        (["--tp", "2", "--resume", "x"], "--save and --resume want one rank"),
    ],
)
def test_indivisible_sizes_are_rejected(tmp_path, options, words):
    done = train(tmp_path, *options, ranks=1)
    assert done.returncode == 2
    assert done.stderr.startswith("moe: ")
    assert words in done.stderr
