"""telens mcp on incidents of DebugBench: the calls of an agent that finds the cause from a
folder.
"""

import math
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = os.environ.get("TELENS_COMMAND", str(ROOT / "build/bin/telens"))
sys.path.append(str(ROOT / "tests/inspector_cli"))

from mcp_agent import start_agent  # noqa: E402


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Trains an incident of DebugBench once, and returns it with the folder of its log_dirs."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.debugbench.catalog import read_incidents
    from benchmarks.debugbench.runner import train

    folders = tmp_path_factory.mktemp("incidents")

    def run(source, *names):
        (incident,) = [each for each in read_incidents() if each.source == source]
        folder = folders / incident.folder
        for name in names:
            train(incident, name == "broken", folder / name)
        return incident, folder

    yield run
    sys.path.remove(str(ROOT))


@pytest.fixture(scope="module")
def agent():
    with start_agent(COMMAND) as agent:
        yield agent


def find_cause(agent, incident, folder):
    """Makes the calls of an agent. Returns the run and its first finding, which must be the right
    one.
    """
    (run,) = [
        each
        for each in agent.ask("list_runs", folder=str(folder))["result"]
        if "broken" in each["path"]
    ]
    found = agent.ask("diagnose", run=run["path"])["result"]["findings"][0]
    assert all(incident.expected.parts_of(found).values()), found
    rule = agent.ask("explain", name=found["cause"])["result"]
    assert rule["title"] == found["title"]
    return run["path"], found


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("ymcui/Chinese-LLaMA-Alpaca#534", "nonfinite"),
        ("NVIDIA/TransformerEngine#982", "history_lost"),
    ],
)
def test_calls_of_an_agent_lead_to_the_cause(agent, trained, source, cause):
    incident, folder = trained(source, "broken")
    run, found = find_cause(agent, incident, folder)
    assert found["cause"] == cause
    about = agent.ask("info", run=run)["result"]
    assert "loss" in {each["name"] for each in about["scalars"]}
    seen = agent.ask("stats", run=run, layer=f"^{found['layer']}$", top=5)["result"]
    assert {each["layer"] for each in seen} == {found["layer"]}


def test_nonfinite_gradient_is_visible_in_the_series(agent, trained):
    incident, folder = trained("ymcui/Chinese-LLaMA-Alpaca#534", "broken", "twin")
    run, found = find_cause(agent, incident, folder)
    place = {"layer": f"^{found['layer']}$", "tensor": [found["tensor"]]}
    drawn = agent.ask("series", run=run, statistic=["nonfinite"], **place)["result"]
    points = drawn["statistics"][0]["worst"][0]["points"]
    assert min(iteration for iteration, value in points if value) == found["first_iteration"]
    (twin,) = [
        each["path"] for each in agent.ask("list_runs", folder=str(folder / "twin"))["result"]
    ]
    parted = agent.ask("diff", a=twin, b=run)["result"]["divergences"]
    assert parted[0]["first_iteration"] <= found["first_iteration"]
    assert any(not math.isfinite(float(each["b"])) for each in parted)
