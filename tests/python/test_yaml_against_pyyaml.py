"""YAML is read as by PyYAML's safe_load, with which nvdlfw-inspect reads its configs."""

import random

import pytest
import yaml
from config_questions import ask

PIECES = [*"0123456789__++--..ee:EbxoF", "0x", "0b", "e+", "E-", "true", "on", "No", "~", "null"]


def same(ours, theirs) -> bool:
    """Equal and of the same type: 1, 1.0 and True are different values in a config."""
    if isinstance(theirs, dict):
        keys = isinstance(ours, dict) and list(ours) == [str(key) for key in theirs]
        return keys and all(map(same, ours.values(), theirs.values()))
    if isinstance(theirs, list):
        return isinstance(ours, list) and len(ours) == len(theirs) and all(map(same, ours, theirs))
    return type(ours) is type(theirs) and ours == theirs


def answers(texts: list[str]) -> list[dict]:
    return ask([{"yaml": text} for text in texts])


def test_random_scalars_are_the_same_values():
    rng = random.Random(1)
    scalars = {"".join(rng.choices(PIECES, k=rng.randint(1, 6))) for _ in range(12000)}
    kinds = dict.fromkeys((int, float, str, bool, type(None)), 0)
    texts = [f"- {scalar}" for scalar in sorted(scalars) if ":" not in scalar]
    for text, answer in zip(texts, answers(texts), strict=True):
        try:
            theirs = yaml.safe_load(text)[0]
        except (ValueError, yaml.YAMLError):  # such as "0b_", which PyYAML takes for an integer
            continue
        if isinstance(theirs, list):  # "- - 1"
            continue
        if isinstance(theirs, int) and abs(theirs) >= 2**63:
            assert "does not fit 64 bits" in answer["error"]
            continue
        assert same(answer["value"][0], theirs), (text, answer)
        kinds[type(theirs)] += 1
    assert min(kinds.values()) > 0, kinds
    assert kinds[int] > 200
    assert kinds[float] > 100


@pytest.mark.parametrize(
    "text",
    [
        "a: &x {k: 1, l: [yes, 'yes']}\nb: {<<: *x, k: 2}\n",
        "base: &b\n  one: 1\n  two: 2\nother: &o {two: 3, four: 4}\n"
        "both:\n  <<: [*b, *o]\n  own: |\n    text\n    of lines\n",
        "a: &x\n  <<: {deep: 1}\n  more: 2\nb:\n  last: 3\n  <<: *x\n",
        "- &n 5\n- *n\n- {k: *n}\n- []\n- {}\n- ''\n-\n",
        "layers: {layer_numbers: [1, 3, 5-8], names: [a.b, 'c: d', \"e\\u00e9\\n\"]}\n",
        "folded: >\n  one\n  two\nplain: several words # comment\n",
        "a: 1\n...\n",
    ],
)
def test_structures_anchors_and_merge_keys_are_the_same(text):
    assert same(answers([text])[0]["value"], yaml.safe_load(text))
