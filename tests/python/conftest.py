"""What the Python tests share: where the build is, and the operators of libtelens.so."""

import os
from pathlib import Path

import pytest
import torch

PROJECT_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def library_path() -> Path:
    """libtelens.so: TELENS_LIBRARY if set, else that of the build folder."""
    return Path(os.environ.get("TELENS_LIBRARY", PROJECT_ROOT / "build/lib/libtelens.so"))


@pytest.fixture(scope="session")
def build_folder(library_path: Path) -> Path:
    """The build folder that the library lies in; its tests/ holds the programs of the tests."""
    return library_path.parents[1]


@pytest.fixture(scope="session")
def telens_ops(library_path: Path):
    """The operators telens::*, as torch.ops.telens."""
    torch.ops.load_library(str(library_path))
    return torch.ops.telens
