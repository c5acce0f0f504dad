"""samples/faults/two_ranks.py: faults on one of two ranks, and what telens says about them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_faults import FAULTS, PYTHON_BUILD, diagnose

PLANTED = ("rank_parts", "other_scale", "lost_nan", "unreduced")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("two_ranks")
    packages = os.pathsep.join([str(PYTHON_BUILD), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, FAULTS / "two_ranks.py", out, "--fault", "none", *PLANTED],
        check=True,
        env=os.environ | {"PYTHONPATH": packages, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=300,
    )
    return out


@pytest.mark.parametrize("fault", PLANTED)
def test_first_finding_names_the_faulty_rank(runs, fault):
    from judge import place_of_truth

    folder = runs / f"{fault}-delayed-1"
    truth = json.loads((folder / "truth.json").read_text())["truth"]
    findings = diagnose(folder)["findings"]
    assert place_of_truth(findings, truth) == 1, (truth, findings[:3])
    assert findings[0]["first_iteration"] == truth["first"]
    # The result without the NaN is on both ranks.
    assert findings[0]["rank"] == (0 if fault == "lost_nan" else 1)


def test_agreeing_ranks_give_no_finding(runs):
    assert diagnose(runs / "none-delayed-1")["findings"] == []
