"""The build, installed once for all tests."""

import pytest
from programs import BUILD, run


@pytest.fixture(scope="session")
def prefix(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", BUILD, "--prefix", prefix)
    return prefix
