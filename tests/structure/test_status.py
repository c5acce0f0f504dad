"""docs/status.md lists every CUDA operator; every CUDA source is in its list in CMake."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "core/kernels/cuda"
REGISTRATION = re.compile(r'library\.impl\(\s*"(\w+)"')


def cuda_operators() -> set[str]:
    sources = KERNELS.rglob("*.cpp")
    return {name for source in sources for name in REGISTRATION.findall(source.read_text())}


def test_status_page_has_a_row_for_every_cuda_operator():
    page = (ROOT / "docs/status.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|[^|]*\|$", page, re.MULTILINE)
    assert set(rows) == cuda_operators()


def test_every_cuda_source_is_built():
    listed = (KERNELS / "CMakeLists.txt").read_text()
    for source in KERNELS.rglob("*"):
        if source.suffix in {".cu", ".cpp"}:
            assert re.search(rf"\b{re.escape(source.name)}\b", listed), f"{source.name}: not built"
