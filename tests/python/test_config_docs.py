"""The ready configs and the examples of docs/configuration.md can be loaded."""

import re
from pathlib import Path

import pytest
from config_questions import ROOT, ask

# The names that infer_and_assign_layer_names gives to a transformer's layers, and a head.
LAYERS = [
    f"model.layers.{number}.{kind}"
    for number in range(12)
    for kind in (
        "self_attention.layernorm_linear_qkv",
        "self_attention.core_attention",
        "self_attention.proj",
        "layernorm_mlp.fc1",
        "layernorm_mlp.fc2",
    )
] + ["lm_head"]

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
BLOCK = re.compile(r"^```(\w+)( wrong)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall((ROOT / "docs" / "configuration.md").read_text())
EXAMPLES = [text for kind, wrong, text in BLOCKS if kind == "yaml" and not wrong]
README = [
    text for kind, _, text in BLOCK.findall((ROOT / "README.md").read_text()) if kind == "yaml"
]


def selected(config: str) -> set[str]:
    """Returns the sections that select at least one layer."""
    answer = ask([{"config": config, "layers": LAYERS, "steps": 1}])[0]
    assert "error" not in answer, answer["error"]
    entries = [entry for layer in answer["layers"].values() for entry in layer]
    assert all(isinstance(entry, dict) for entry in entries), answer
    assert all(entry["selections"] for entry in entries)
    return {entry["section"] for entry in entries}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_ready_config_loads_and_is_named_after_its_section(path: Path):
    sections = re.findall(r"^(\w+):", path.read_text(), re.MULTILINE)
    assert sections[0] == path.stem
    assert selected(path.read_text()) == set(sections)


def test_there_are_ready_configs_and_examples():
    assert len(CONFIGS) >= 16
    assert len(EXAMPLES) >= 9
    assert len(README) == 1


@pytest.mark.parametrize("text", EXAMPLES + README, ids=lambda text: text.split(":")[0])
def test_every_example_of_the_docs_selects_layers_with_each_section(text: str):
    assert selected(text) == set(re.findall(r"^(\w+):", text, re.MULTILINE))


def test_wrong_docs_example_has_the_documented_errors():
    position = next(i for i, (_, wrong, _) in enumerate(BLOCKS) if wrong)
    config, expected = BLOCKS[position][2], BLOCKS[position + 1][2]
    answer = ask([{"config": config, "layers": [], "steps": 1}])[0]
    assert answer["error"].replace("config.yaml:", "debug.yaml:") == expected.rstrip("\n")
