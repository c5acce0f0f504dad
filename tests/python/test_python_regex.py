"""Regular expressions of a config against Python's own answers."""

import random
import re
import warnings

import pytest
from config_questions import ask

NAMES = [
    "",
    "model.layers.0.self_attention.layernorm_linear_qkv",
    "model.layers.12.layernorm_mlp.fc1",
    "model.layers.12.layernorm_mlp.fc2",
    "Layer_3",
    "experts.gemm_7",
    "MODEL.FC1",
    "a",
    "aa",
    "ab",
    "aab",
    "abab",
    "a{,3}",
    "a-b_c d",
    "[:alpha:]",
    "fc1\n",
    "b\x07\x0b",
    "couché.é9",
]


def python_answer(pattern: str) -> list[bool] | None:
    """None if Python refuses the pattern."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            compiled = re.compile(pattern)
        except re.error:
            return None
    return [compiled.search(name) is not None for name in NAMES]


def our_answers(patterns: list[str]) -> list[dict]:
    return ask([{"pattern": pattern, "texts": NAMES} for pattern in patterns])


@pytest.mark.parametrize(
    "pattern",
    [
        ".*(fc1|fc2)",
        r"layers\.(0|12)\..*fc\d",
        r"^(?!.*fc1).*mlp",
        r"(?<=layers\.)12",
        r"(?<!fc)\d+",
        "a{,1}b",
        "^a{,3}$",
        "a{}",
        "a{x}",
        "^a{2,}",
        r"fc1\Z",
        "fc1$",
        r"\u0061b",
        r"\x61b",
        r"\U00000061b",
        r"\141b",
        r"couch\u00e9",
        "[[:alpha:]]",
        "[[:alpha:]]+$",
        "[]a]",
        "[^]a]",
        "[a-]b",
        r"[\w-]+",
        r"\v",
        r"\a",
        "(?i)fc1",
        "(?i:MODEL).layers",
        "(?s)fc1.",
        "(?m)^fc1$",
        r"(?P<x>a)(?P=x)",
        r"(a)(b)?\1",
        r"(ab)\1",
        r"(a)?(?(1)b|c)",
        r"(?P<x>a)?(?(x)b|c)",
        "(?#comment)a",
        "(?>a+)b",
        "a++b",
        "a+?b",
        "é9",
        "[é]",
        r"\w9$",
        r"\bfc1\b",
        r"\.",
        r"\{,3\}",
        "",
    ],
)
def test_accepted_patterns_match_like_python(pattern):
    assert python_answer(pattern) is not None
    assert our_answers([pattern])[0].get("matches") == python_answer(pattern)


@pytest.mark.parametrize(
    ("pattern", "construct"),
    [
        ("(", "a group '(' is not closed"),
        ("a)", "a ')' without its '('"),
        ("[a", "a set '[' is not closed"),
        ("*a", "nothing to repeat"),
        ("^*", "nothing to repeat"),
        ("a|*", "nothing to repeat"),
        ("a**", "one repetition directly after another"),
        ("a{2}{3}", "one repetition directly after another"),
        ("a\\", "a backslash at the end"),
        (r"\h", r"does not support the escape \h"),
        (r"\Qa\E", r"not support the escape \Q"),
        (r"\K", r"not support the escape \K"),
        (r"\z", r"not support the escape \z"),
        (r"\x6", r"\x needs 2 hexadecimal digits"),
        (r"\u006", r"\u needs 4 hexadecimal digits"),
        (r"\1(a)", "group 1 is not defined before this"),
        (r"[\d-a]", "a range in [...] between sets"),
        (r"[\A]", r"not support the escape \A in a set"),
        (r"[z-a]", "cannot be compiled"),
        ("(?<name>a)", "not support the group (?<"),
        ("(?R)", "not support the group (?R"),
        ("(?1)", "not support the group (?1"),
        ("(?|a|b)", "not support the group (?|"),
        ("(?P>x)", "not support the group (?P"),
        ("(*UTF)a", "nothing to repeat"),
        ("a(?i)b", "must be at its start"),
        (r"\777", "octal escape above"),
    ],
)
def test_patterns_invalid_in_python_are_rejected(pattern, construct):
    assert python_answer(pattern) is None
    error = our_answers([pattern])[0]["error"]
    assert construct in error
    assert f"'{pattern}'" in error


@pytest.mark.parametrize(
    ("pattern", "construct"),
    [
        (r"\N{DIGIT ONE}", r"\N{...} is not supported"),
        ("(?a)a", "the flag 'a' is not supported"),
        ("(?x) a b", "the flag 'x' is not supported"),
    ],
)
def test_untranslatable_patterns_are_rejected(pattern, construct):
    assert python_answer(pattern) is not None
    assert construct in our_answers([pattern])[0]["error"]


def test_catastrophic_backtracking_is_an_error():
    answer = ask([{"pattern": "(a+)+$", "texts": ["a" * 64 + "b"]}])[0]
    assert "cannot be matched" in answer["error"]


PIECES = [
    *"ab1.^$|*+?()[]{}-_,é ",
    *"ab",
    "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?P<n>", "(?P=n)", "(?#c)", "(?i)", "(?s)",
    "(?(1)", "{2}", "{,2}", "{1,}", "{1,2}", "{,}", "{}", "[^", "[]", "[[:", ":]]", "[a-b]",
    r"\d", r"\w", r"\S", r"\b", r"\Z", r"\A", r"\.", r"\1", r"\x61", r"\u0062", r"\060", r"\n",
    r"\h", r"\-", "fc", "a-", "]]",
]  # fmt: skip


def test_random_patterns_get_pythons_answer():
    rng = random.Random(20260101)
    patterns = ["".join(rng.choices(PIECES, k=rng.randint(1, 7))) for _ in range(4000)]
    accepted = refused = 0
    for pattern, ours in zip(patterns, our_answers(patterns), strict=True):
        theirs = python_answer(pattern)
        assert ours.get("matches") == theirs, (pattern, ours)
        accepted += theirs is not None
        refused += theirs is None
    assert accepted > 800
    assert refused > 800
