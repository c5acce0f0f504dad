"""names_used.py FOLDER: the names of Transformer Engine that Python files in a folder use.

Walks over imports and over attributes of what they bind. Prints as JSON which names resolve, which
of these raise when they are called, and which are missing. Run it through telens.run_as_te.
"""

import ast
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("transformer_engine", "transformer_engine_torch")


def is_theirs(node: ast.ImportFrom) -> bool:
    return not node.level and node.module.partition(".")[0] in PACKAGES


def names_in(tree: ast.Module) -> Iterator[str]:
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.partition(".")[0] in PACKAGES:
                    yield each.name
                    bound[each.asname or each.name.partition(".")[0]] = (
                        each.name if each.asname else each.name.partition(".")[0]
                    )
        elif isinstance(node, ast.ImportFrom) and is_theirs(node):
            for each in node.names:
                yield f"{node.module}.{each.name}"
                bound[each.asname or each.name] = f"{node.module}.{each.name}"

    def path(node: ast.AST) -> str | None:
        if isinstance(node, ast.Name):
            return bound.get(node.id)
        if isinstance(node, ast.Attribute):
            base = path(node.value)
            return base and f"{base}.{node.attr}"
        return None

    yield from filter(None, (path(n) for n in ast.walk(tree) if isinstance(n, ast.Attribute)))


def find(path: str) -> object:
    """Returns what a path names: the longest module in it, then attributes."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise AttributeError(path)


used = set()
for file in Path(sys.argv[1]).rglob("*.py"):
    text = file.read_text(errors="ignore")
    if any(package in text for package in PACKAGES):
        used.update(names_in(ast.parse(text)))

report: dict[str, list[str]] = {"resolved": [], "raises": [], "missing": []}
for name in sorted(used):
    try:
        found = find(name)
    except AttributeError:
        report["missing"].append(name)
        continue
    report["resolved"].append(name)
    if (getattr(found, "__doc__", None) or "").startswith("Missing: "):
        report["raises"].append(name)
print(json.dumps(report))
