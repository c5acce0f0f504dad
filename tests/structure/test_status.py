"""docs/status.md says of every CUDA operator whether a GPU has run it, and does not flatter."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STATUS = ROOT / "docs/status.md"
NOT_RUN = "not yet run on a GPU"
REGISTRATION = re.compile(r'library\.impl\(\s*"(\w+)"')


def cuda_operators() -> set[str]:
    sources = (ROOT / "core/kernels/cuda").glob("*.cpp")
    return {name for source in sources for name in REGISTRATION.findall(source.read_text())}


def rows() -> dict[str, str]:
    """What the table of operators says of each on a GPU."""
    cells = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", STATUS.read_text(), re.MULTILINE)
    return {name: state.strip() for name, state in cells}


def gpu_results() -> list[Path]:
    """Committed results of `make gpu-check` whose steps passed or say why they did not run."""
    found = (ROOT / "benchmarks/results").glob("gpu-*.json")
    return [path for path in found if json.loads(path.read_text()).get("passed") is True]


def test_every_cuda_operator_has_a_row_and_every_row_an_operator():
    assert set(rows()) == cuda_operators()


def test_a_row_claims_a_gpu_only_if_the_results_of_one_are_committed():
    claims = [name for name, state in rows().items() if state != NOT_RUN]
    names = {path.name for path in gpu_results()}
    for name in claims:
        assert any(result in rows()[name] for result in names), (
            f"{name} claims to have run ('{rows()[name]}'), but names no committed result of "
            f"make gpu-check; there are {sorted(names) or 'none'}"
        )


def test_every_kernel_file_is_compiled_and_bound():
    listed = (ROOT / "core/kernels/cuda/CMakeLists.txt").read_text()
    for source in (ROOT / "core/kernels/cuda").iterdir():
        if source.suffix in {".cu", ".cpp"}:
            assert re.search(rf"\b{re.escape(source.name)}\b", listed), (
                f"{source.name} is not built"
            )
