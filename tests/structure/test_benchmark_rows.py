"""The rows of the benchmarks: names are unique, and every feature's cost is measured."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from rows import GROUPS  # noqa: E402
from rows.features import FEATURES  # noqa: E402


def measured_features():
    return {name for features in FEATURES.values() for name in features}


def test_the_name_of_a_row_is_its_own():
    names = [name for group in GROUPS for name in group.names]
    assert len(names) == len(set(names))


def test_every_layer_feature_has_a_cost_row():
    """base.LogTensorStats, which no layer calls, has rows against nvdlfw-inspect instead."""
    documented = re.findall(r"^\| \[(\w+)\.(\w+)\]", (ROOT / "docs/features.md").read_text(), re.M)
    of_layers = {name for namespace, name in documented if namespace != "base"}
    assert {"LogTensorStats", "Trigger"} < of_layers
    assert {name.split()[0] for name in measured_features()} == of_layers


def test_the_program_measures_the_features_of_the_rows():
    program = (ROOT / "benchmarks/feature_overhead.cpp").read_text()
    assert set(re.findall(r"\{\"([A-Z][^\"]*)\",", program)) == measured_features()
