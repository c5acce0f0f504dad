"""telens plan with very large configurations: it takes linear time and prints short messages."""

import os
import resource
import subprocess

import pytest
from conftest import COMMAND

pytestmark = pytest.mark.skipif(
    "TELENS_SANITIZED" in os.environ, reason="limits are of an optimized build"
)

ITEMS = 100_000
# Quadratic time would be more than a minute of processor time; the command takes 1 to 3 s.
SECONDS = 30
MEGABYTES = 1500
FEATURE = "LogTensorStats: {enabled: True, tensors: [gradient], stats: [std]}"
FEATURES = f"transformer_engine: {{{FEATURE}}}"
ALL = "layers: {layer_types: [all]}"
SECTION = f"s: {{enabled: True, {ALL}, {FEATURES}}}\n"


def listed(make, count=ITEMS):
    return "".join(make(i) for i in range(count))


def with_option(option):
    return SECTION.replace("stats: [std]", f"stats: [std], {option}")


CONFIGS = {
    "ranges": with_option(f"start_end_list: [{listed(lambda i: f'[{3 * i},{3 * i + 1}],')}]"),
    "layer_types": SECTION.replace("[all]", f"[{listed(lambda i: f'x{i},')}]"),
    "exact_names": SECTION.replace(
        "layer_types: [all]", f"exact_layer_names: [{listed(lambda i: f'x{i},')}]"
    ),
    "unknown keys of a section": f"s:\n  enabled: True\n  {ALL}\n"
    + listed(lambda i: f"  b{i}: 1\n"),
    "unknown keys of a feature": with_option(listed(lambda i: f"b{i}: 1,")),
    "unknown statistics": with_option("").replace("[std]", f"[{listed(lambda i: f'x{i}%,')}]"),
    "one tensor many times": SECTION.replace("[gradient]", "[" + "gradient," * ITEMS + "]"),
    "one anchor's name many times": listed(lambda i: f"k{i}: &a v\n") + SECTION,
    "a chain of sections": listed(
        lambda i: (
            f"s{i}: {{enabled: True, started_by: s{i + 1}, {ALL}, telens: {{Trigger: "
            "{enabled: True, when: loss > 1, start: 5}}}\n"
        ),
        20_000,
    ),
    "a circle of sections": listed(
        lambda i: (
            f"s{i}: {{enabled: True, started_by: s{(i + 1) % 20_000}, {ALL}, telens: "
            "{Trigger: {enabled: True, when: loss > 1, start: 5}}}\n"
        ),
        20_000,
    ),
}


def limits():
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEGABYTES << 20, MEGABYTES << 20))


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "names").write_text("model.fc1\n")

    def run(text, limit=limits):
        (tmp_path / "a.yaml").write_text(text)
        return subprocess.run(
            [COMMAND, "plan", tmp_path / "a.yaml", "--layers", tmp_path / "names"],
            capture_output=True, text=True, preexec_fn=limit, check=False,
        )  # fmt: skip

    return run


@pytest.mark.parametrize("case", CONFIGS)
def test_time_grows_with_the_size_and_messages_do_not(plan, case):
    result = plan(CONFIGS[case])
    assert result.returncode in (0, 2), (result.returncode, result.stderr[-300:])
    assert len(result.stderr) < 60_000
    assert len(result.stderr.splitlines()) <= 45  # 20 errors or warnings of each kind


@pytest.mark.parametrize(
    "text",
    [
        SECTION.replace("gradient", "y" * 1_000_000),
        SECTION.replace("std", "y" * 1_000_000),
        SECTION.replace("LogTensorStats", "y" * 1000),  # YAML has no longer key
        SECTION.replace("enabled: True, layers", "enabled: " + "y" * 1_000_000 + ", layers"),
        SECTION.replace(
            FEATURES, "telens: {Trigger: {enabled: True, when: " + "y" * 1_000_000 + "}}"
        ),
        SECTION.replace(ALL, "layers: {layer_name_regex_pattern: '(" + "y" * 1_000_000 + "'}"),
        "y" * 1_000_000,
    ],
)
def test_a_message_quotes_the_beginning_of_a_long_text(plan, text):
    result = plan(text)
    assert result.returncode == 2
    assert "y" * 90 in result.stderr
    assert "y" * 200 not in result.stderr


def test_errors_beyond_the_first_20_are_counted(plan):
    result = plan("s:\n  enabled: True\n  " + ALL + "\n" + listed(lambda i: f"  b{i}: 1\n", 1000))
    lines = result.stderr.splitlines()
    assert len(lines) == 21
    assert "a.yaml:4:3" in lines[0]
    assert lines[-1].strip() == "... and 980 more"


@pytest.mark.parametrize("size", [100_000, 1_000_000])
def test_aliases_of_a_long_text_are_refused(plan, size):
    result = plan(f"t: &t {'y' * size}\nl: [{'*t,' * (size // 3)}]\n")
    assert result.returncode == 2
    assert "its texts are longer than 64 MB after its aliases are expanded" in result.stderr


def test_the_end_of_memory_is_an_error(plan):
    def little_memory():
        resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))

    result = plan(f"t: &t {'y' * 30_000_000}\nl: [*t, *t]\nm: *t\n", little_memory)
    assert result.returncode == 2, result.stderr[:300]
    assert "memory" in result.stderr


@pytest.mark.parametrize("name", ["/dev/zero", "link"])
def test_a_device_as_a_config_is_refused(tmp_path, name):
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "names").write_text("model.fc1\n")
    result = subprocess.run(
        [COMMAND, "plan", os.path.join(tmp_path, name), "--layers", tmp_path / "names"],
        capture_output=True, text=True, preexec_fn=limits, check=False,
    )  # fmt: skip
    assert result.returncode == 2
    assert "is larger than 64 MB" in result.stderr
