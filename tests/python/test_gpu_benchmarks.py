"""Every row of the GPU benchmarks runs with tiny shapes on a CPU, to find mistakes that do not need
a GPU.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu_rows.groups import GROUPS, rows_of  # noqa: E402

# The reason for which a row is skipped without a GPU.
REASONS = ("in this build", "torchao cannot be imported", "has no split_accumulator")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_row_rehearses_or_names_missing_parts(library_path, tmp_path):
    out = tmp_path / "rows.json"
    command = [sys.executable, str(ROOT / "benchmarks/gpu.py"), "--rehearse", "--out", str(out)]
    result = subprocess.run(
        [*command, "--library", str(library_path)],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = {row["name"]: row for row in json.loads(out.read_text())}
    names = [row.name for group in GROUPS for row in rows_of(group)]
    assert sorted(rows) == sorted(names)
    for name, row in rows.items():
        assert row["outcome"] in ("rehearsed", "skipped"), row
        if row["outcome"] == "skipped":
            assert any(reason in row["reason"] for reason in REASONS), name
