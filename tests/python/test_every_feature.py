"""Tests that use all built-in features must include each of them."""

import subprocess

from every_feature import FEATURES


def test_every_built_in_feature_has_a_section(build_folder):
    listed = subprocess.run(
        [build_folder / "bin/telens", "features"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[1:]
    assert {line.split()[0] for line in listed} == set(FEATURES)
