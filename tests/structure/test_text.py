"""Formatting of the sources, and words that no file of the repository may contain."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = Path(sys.executable).parent

# A folder of one machine: a home, a scratch or a mount point.
MACHINE_PATH = re.compile(r"(?<![\w.$}~*])/(?:home|root|Users|work|opt|mnt|srv)/\w")
# The place where something ran matters, not its owner.
LOAN = re.compile(r"\blent\b", re.IGNORECASE)
PACKAGE_HOST = re.compile(
    r"https?://[\w.-]*(?:pypi|pythonhosted|deb\.debian|archive\.ubuntu)[\w.-]*"
)


def tracked_files(*patterns: str) -> list[str]:
    command = [
        "git",
        "-C",
        str(ROOT),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    listed = subprocess.run(
        [*command, *patterns], check=True, capture_output=True, text=True
    ).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_cpp_sources_are_clang_formatted():
    sources = tracked_files("*.h", "*.cpp", "*.cu", "*.cuh")
    assert sources
    run(str(TOOLS / "clang-format"), "--dry-run", "-Werror", *sources)


def test_python_sources_are_ruff_formatted():
    run(str(TOOLS / "ruff"), "format", "--check", ".")


def test_python_sources_pass_ruff():
    run(str(TOOLS / "ruff"), "check", "--no-cache", ".")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("cd /home/ada/telens", True),
        ("#!/usr/bin/env python3", False),
        ("see docs/work/plan.md", False),
        ("${prefix}/root/lib", False),
    ],
)
def test_machine_paths_differ_from_harmless_paths(line, named):
    assert bool(MACHINE_PATH.search(line)) == named


@pytest.mark.parametrize(
    ("line", "named"),
    [("on a lent machine", True), ("Lent for minutes", True), ("equivalent, silent", False)],
)
def test_loan_is_distinguished_from_words_that_contain_it(line, named):
    assert bool(LOAN.search(line)) == named


def test_no_file_names_machine_folders_loans_or_registry_hosts():
    found = []
    for name in tracked_files():
        if name == Path(__file__).relative_to(ROOT).as_posix():
            continue
        content = (ROOT / name).read_bytes()
        if b"\0" in content:
            continue
        for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1):
            if any(each.search(line) for each in (MACHINE_PATH, PACKAGE_HOST, LOAN)):
                found.append(f"{name}:{number}: {line.strip()[:120]}")
    assert not found, "\n".join(found)


# Differences between devices belong in an operator's kernels (docs/internals/architecture.md).
ASKS_FOR_THE_DEVICE = re.compile(r"\bis_(?:cpu|cuda)\(|\bdevice_type\(")


def test_no_module_asks_which_device_a_tensor_is_on():
    found = []
    for name in tracked_files("core/modules", "core/gemm", "core/quantization"):
        for number, line in enumerate((ROOT / name).read_text().splitlines(), start=1):
            if ASKS_FOR_THE_DEVICE.search(line):
                found.append(f"{name}:{number}: {line.strip()}")
    assert not found, "\n".join(found)
