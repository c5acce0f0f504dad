"""The code of the CUDA kernels by operator, and digests that tell whether it changed.

A digest leaves out comments, white space and `#include` lines: a comment or a moved file changes no
kernel.
"""

import hashlib
import re
from pathlib import Path

# Where the code of operators is followed to.
FOLDERS = ("core/kernels/cuda", "core/formats")
SUFFIXES = {".cpp", ".cu", ".cuh", ".h"}
REGISTRATION = re.compile(r'library\.impl\(\s*"(\w+)"')
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
LAUNCHER = re.compile(r"\blaunch_\w+(?=\()")
TOKENS = re.compile(
    r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/|^\s*#include[^\n]*', re.DOTALL | re.MULTILINE
)


def code_digest(text: str) -> str:
    code = TOKENS.sub(lambda found: found[0] if found[0].startswith('"') else " ", text)
    return hashlib.sha256(" ".join(code.split()).encode()).hexdigest()[:16]


def kernel_files(root: Path) -> list[Path]:
    return sorted(
        path for folder in FOLDERS for path in (root / folder).rglob("*") if path.suffix in SUFFIXES
    )


def kernel_digests(root: Path) -> dict[str, str]:
    """Digests of the kernels' files by their paths from the root."""
    return {
        str(path.relative_to(root)): code_digest(path.read_text()) for path in kernel_files(root)
    }


def files_of_operators(root: Path) -> dict[str, set[str]]:
    """For each operator with a CUDA kernel the files that its code is in: those of its
    registration, what they include, and the sources of what they call."""
    texts = {str(path.relative_to(root)): path.read_text() for path in kernel_files(root)}
    launched_in: dict[str, set[str]] = {}
    for name, text in texts.items():
        if name.endswith(".cu"):
            for launcher in LAUNCHER.findall(text):
                launched_in.setdefault(launcher, set()).add(name)

    def next_files(name: str) -> set[str]:
        found = {include for include in INCLUDE.findall(texts[name]) if include in texts}
        if name.endswith(".h"):
            stem = name.removesuffix(".h")
            found |= {source for source in (f"{stem}.cpp", f"{stem}.cu") if source in texts}
        if name.endswith(".cpp"):
            for launcher in LAUNCHER.findall(texts[name]):
                found |= launched_in.get(launcher, set())
        return found

    def reachable(start: str) -> set[str]:
        seen, waiting = set(), [start]
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += next_files(name)
        return seen

    operators: dict[str, set[str]] = {}
    for name, text in texts.items():
        for operator in REGISTRATION.findall(text):
            operators.setdefault(operator, set()).update(reachable(name))
    return operators


def changed_files(root: Path, digests: dict[str, str]) -> set[str]:
    """Files whose code is in none of the digests, which kernel_digests() computed earlier."""
    known = set(digests.values())
    return {name for name, digest in kernel_digests(root).items() if digest not in known}


def changed_operators(root: Path, digests: dict[str, str]) -> set[str]:
    """Operators that use such a file."""
    changed = changed_files(root, digests)
    return {name for name, files in files_of_operators(root).items() if files & changed}
