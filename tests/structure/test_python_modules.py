"""No Python module is hidden by a package with its name, which import would prefer."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("python", "benchmarks", "samples", "tests")


def hidden_modules(root: Path) -> list[str]:
    """Returns files x.py in whose folder there is also a folder x with Python files."""
    modules = [path for folder in FOLDERS for path in (root / folder).rglob("*.py")]
    return [
        path.relative_to(root).as_posix()
        for path in sorted(modules)
        if next(path.with_suffix("").glob("*.py"), None) is not None
    ]


def test_no_module_is_hidden_by_a_package():
    assert hidden_modules(ROOT) == []


def test_module_next_to_a_package_of_the_same_name_is_found(tmp_path):
    package = tmp_path / "python" / "telens" / "attention"
    package.mkdir(parents=True)
    package.with_suffix(".py").touch()
    assert hidden_modules(tmp_path) == []
    (package / "__init__.py").touch()
    assert hidden_modules(tmp_path) == ["python/telens/attention.py"]
