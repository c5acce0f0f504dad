"""docs/internals/status.md lists every CUDA operator, CMake lists every CUDA source, and both GPU
pages match the committed reports."""

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import gpu_pages  # noqa: E402
from gpu_checks.kernel_code import FOLDERS, changed_operators, kernel_digests  # noqa: E402

KERNELS = ROOT / "core/kernels/cuda"
REGISTRATION = re.compile(r'library\.impl\(\s*"(\w+)"')


def cuda_operators() -> set[str]:
    sources = KERNELS.rglob("*.cpp")
    return {name for source in sources for name in REGISTRATION.findall(source.read_text())}


def test_status_page_has_a_row_for_every_cuda_operator():
    page = (ROOT / "docs/internals/status.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|[^|]*\|$", page, re.MULTILINE)
    assert set(rows) == cuda_operators()


def test_every_cuda_source_is_built():
    listed = (KERNELS / "CMakeLists.txt").read_text()
    for source in KERNELS.rglob("*"):
        if source.suffix in {".cu", ".cpp"}:
            assert re.search(rf"\b{re.escape(source.name)}\b", listed), f"{source.name}: not built"


def test_gpu_pages_match_their_generator():
    for path, text in gpu_pages.render_all().items():
        assert path.read_text() == text, f"{path.name}: run python benchmarks/gpu_pages.py"


def test_operators_that_use_a_changed_file_are_reported(tmp_path):
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder)
    before = kernel_digests(tmp_path)
    assert changed_operators(tmp_path, before) == set()
    kernel = tmp_path / "core/kernels/cuda/permutation/row_exchange.cu"
    code = kernel.read_text()
    kernel.write_text("// A comment.\n" + code)
    assert changed_operators(tmp_path, before) == set()
    kernel.write_text(code + "int more();\n")
    assert changed_operators(tmp_path, before) == {"spread_rows", "combine_rows", "row_products"}
    kernel.write_text(code)
    shared = tmp_path / "core/kernels/cuda/norm_activation/launchers.h"
    shared.write_text(shared.read_text() + "int more();\n")
    changed = changed_operators(tmp_path, before)
    assert {"layer_norm_forward", "activation_quantize"} <= changed
    assert not {"gemm", "amax", "statistics"} & changed


def test_an_operator_without_a_passed_test_is_not_yet_run():
    passed = {"steps": {"CUDA against CPU: test_cuda.py": {"outcome": "passed"}}}
    failed = {"steps": {"CUDA against CPU: test_cuda.py": {"outcome": "failed"}}}
    state = gpu_pages.operator_state
    assert state("`test_cuda.py`", {"H100": False}, {"H100": failed}) == (
        "not yet run on a GPU: `test_cuda.py`"
    )
    assert state("`test_cuda.py`", {"H100": True}, {"H100": passed}) == (
        "H100, before a change: `test_cuda.py`"
    )
    cards = {"H100": passed, "H200": passed}
    assert state("`test_cuda.py`", {"H100": False, "H200": True}, cards) == "H100: `test_cuda.py`"
