"""For all Python tests: the location of the build, its operators, and features for one test."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch

# A shell that runs the tests in the background makes them, and the programs that they start, ignore
# Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

PROJECT_ROOT = Path(__file__).resolve().parents[2]

# The package as it was built, for the tests and the processes that they start; TELENS_PACKAGES=""
# takes an installed one.
PACKAGES = os.environ.get("TELENS_PACKAGES", str(PROJECT_ROOT / "build/python"))
if PACKAGES:
    sys.path.insert(0, PACKAGES)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [PACKAGES, os.environ.get("PYTHONPATH")])
    )


def report_missing_client(package: str) -> None:
    """Skips the test of a client that is not installed, or fails it in `make test-clients`."""
    if os.environ.get("TELENS_CLIENTS") == "required":
        pytest.fail(f"{package} is not installed in build/clients")
    pytest.skip(f"{package} is not installed in build/clients: run `make test-clients`")


@pytest.fixture(scope="session")
def library_path() -> Path:
    """The path of libtelens.so: TELENS_LIBRARY if set, else that in the build folder."""
    return Path(os.environ.get("TELENS_LIBRARY", PROJECT_ROOT / "build/lib/libtelens.so"))


@pytest.fixture(scope="session")
def build_folder(library_path: Path) -> Path:
    """The build folder of the library; its tests/ has the programs of the tests."""
    return library_path.parents[1]


@pytest.fixture(scope="session")
def telens_ops(library_path: Path):
    """The operators telens::*, as torch.ops.telens."""
    torch.ops.load_library(str(library_path))
    return torch.ops.telens


@pytest.fixture(scope="session")
def ops(telens_ops):
    """The operators of a build that has kernels for GPUs; TELENS_TEST_DEVICE=cpu, a dry run of
    tests without a GPU, takes any."""
    if os.environ.get("TELENS_TEST_DEVICE") == "cpu":
        return telens_ops
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("CUDA")
    if "telens::amax" not in registered:
        pytest.skip("libtelens.so was built without CUDA (TELENS_CUDA=OFF)")
    return telens_ops


@pytest.fixture(autouse=True)
def _no_session_left_open():
    """If a test fails inside a debug session, the next test must not be affected."""
    yield
    if "telens.debug" in sys.modules:
        sys.modules["telens.debug"].end_debug()


@pytest.fixture
def layer():
    """Returns a named layer with the same weights in every test."""
    import telens.pytorch as te

    torch.manual_seed(1)
    return te.Linear(32, 32, name="fc1")


@pytest.fixture
def x() -> torch.Tensor:
    """What it takes."""
    torch.manual_seed(2)
    return torch.randn(16, 32, requires_grad=True)


@pytest.fixture
def register():
    """Registers feature classes for the duration of a test."""
    from telens import _C, debug
    from telens.debug.registry import Registry

    owners = []

    def register_class(cls, namespace="transformer_engine"):
        Registry.register_feature(namespace=namespace)(cls)
        owners.append(f"{cls.__module__}.{cls.__qualname__}")
        return cls

    yield register_class
    debug.end_debug()
    for owner in owners:
        _C.unregister_features(owner)


@pytest.fixture(params=["eager", "recorded"])
def graphs(request, monkeypatch):
    """The class that captures graphs in make_graphed_callables; None if modules are called
    directly.
    """
    from recorded_graphs import RecordedGraphs

    from telens.pytorch import graph

    recorded = RecordedGraphs() if request.param == "recorded" else None
    monkeypatch.setattr(graph, "_graphs_for", lambda runners: recorded)
    return recorded
