"""A library that was built on another machine: what it was built of, and whether it fits here.

  python3 -m gpu_checks.prebuilt digest              of the sources that this tree would build it of
  python3 -m gpu_checks.prebuilt describe FOLDER --sources DIGEST --targets 90a --torch TORCH
                                                     leaves lib/libtelens.json beside the library;
                                                     TORCH is the folder of the torch package

cmake/prebuilt/build.sh calls both, with benchmarks/ on the PYTHONPATH: the digest before it builds,
so that what changes meanwhile makes the library stale.
"""

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = "lib/libtelens.so"
DESCRIPTION = "lib/libtelens.json"
MEND = "run make gpu-prebuilt and carry dist/prebuilt anew, or leave it out"

# Sources of the library and of the programs beside it. Python, tests and documentation are
# not: a changed test must not make a library stale that it could be run with.
FOLDERS = ("core", "record", "hooks", "analysis", "features", "inspector_cli", "samples/gpt")
SUFFIXES = (".cpp", ".cu", ".cuh", ".h", ".in", ".txt")
BUILD_FILES = ("CMakeLists.txt", "cmake/*.cmake", "cmake/prebuilt/build.sh")


def digest_of_files(root: Path, files: list[Path]) -> str:
    """Names the contents of files by their places in the tree, whatever the tree's place is."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def digest_of_compiled(root: Path) -> str:
    files = [path for folder in FOLDERS for path in (root / folder).rglob("*")]
    files = [path for path in files if path.suffix in SUFFIXES]
    files += [path for pattern in BUILD_FILES for path in root.glob(pattern)]
    return digest_of_files(root, [path for path in files if path.is_file()])


def digest_of_library(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()[:16]


def describe(folder: Path, sources: str, targets: list[str], torch: Path) -> None:
    version = (torch / "version.py").read_text()
    found = {
        name: re.search(rf"^{name}\b.*= *'([^']*)'", version, re.MULTILINE)
        for name in ("__version__", "cuda")
    }
    description = {
        "sources": sources,
        "targets": targets,
        "torch": found["__version__"][1],
        "torch_cuda": found["cuda"][1] if found["cuda"] else None,
        "library": digest_of_library(folder / LIBRARY),
    }
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")


def release(version: str) -> str:
    """Without what a wheel's index appends: 2.11.0 of 2.11.0+cu130."""
    return version.partition("+")[0]


def runs_on(target: str, capability: tuple[int, int]) -> bool:
    """Whether code for a target as TELENS_CUDA_TARGETS has them runs on a card: 90a on 9.0 alone,
    100f on its family, 90 on later cards of its major version, 90-virtual on all later ones."""
    parsed = re.fullmatch(r"(\d+)(\d)([af]?)(-virtual|-real)?", target)
    if parsed is None:
        return False
    least = int(parsed[1]), int(parsed[2])
    if parsed[3] == "a":
        return tuple(capability) == least
    if parsed[4] == "-virtual" and not parsed[3]:
        return tuple(capability) >= least
    return capability[0] == least[0] and capability[1] >= least[1]


def faults_of_machine(description: dict, machine) -> Iterator[str]:
    """`machine`: gpu_machine's."""
    torch = description["torch"], description["torch_cuda"]
    if (release(torch[0]), torch[1]) != (release(machine.torch), machine.torch_cuda):
        yield (
            f"prebuilt: built with torch {torch[0]} (CUDA {torch[1]}), and here is torch "
            f"{machine.torch} (CUDA {machine.torch_cuda}); expected the same: name a Python that "
            f"has it (GPU_PYTHON=...), or {MEND}"
        )
    if not any(runs_on(target, machine.capability) for target in description["targets"]):
        capability = ".".join(map(str, machine.capability))
        yield (
            f"prebuilt: built for {';'.join(description['targets'])}, and {machine.card} has "
            f"compute capability {capability}; expected code for it: leave dist/prebuilt out"
        )


def faults_of_prebuilt(folder: Path, root: Path, machine=None) -> list[str]:
    """Why the library is none of this tree for this machine; without one, of the tree alone."""
    try:
        description = json.loads((folder / DESCRIPTION).read_text())
        sources, library = description["sources"], description["library"]
        faults = [] if machine is None else list(faults_of_machine(description, machine))
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {error}".replace(str(folder), folder.name)
        return [f"prebuilt: {DESCRIPTION} does not say what it was built of ({why}); {MEND}"]
    here = digest_of_compiled(root)
    if sources != here:
        faults.append(f"prebuilt: built of other sources ({sources}, here {here}); {MEND}")
    if library != digest_of_library(folder / LIBRARY):
        faults.append(f"prebuilt: {LIBRARY} is not the one that {DESCRIPTION} describes; {MEND}")
    return faults


def main(words=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("digest")
    describing = commands.add_parser("describe")
    describing.add_argument("folder", type=Path)
    describing.add_argument("--sources", required=True)
    describing.add_argument("--targets", required=True)
    describing.add_argument("--torch", type=Path, required=True)
    arguments = parser.parse_args(words)
    if arguments.command == "digest":
        print(digest_of_compiled(ROOT))
    else:
        targets = arguments.targets.split(";")
        describe(arguments.folder, arguments.sources, targets, arguments.torch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
