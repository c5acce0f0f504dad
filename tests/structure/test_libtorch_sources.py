"""Sources of libtelens.so stand behind LIBTORCH where they see more of LibTorch than tensors.

The others are compiled with core/precompiled_tensor.h, which has half the headers.
"""

import re
from pathlib import Path

from check_includes import INCLUDE

ROOT = Path(__file__).parents[2]
# Headers that bring autograd, modules, process groups, the dispatcher or all operators.
MORE_THAN_TENSORS = re.compile(
    r"torch/(?!version\.h)|ATen/(ATen|Functions|Operators|NativeFunctions|autocast_mode)\.h"
    r"|ATen/core/(dispatch/|boxing/|op_registration/|Dict\.h)"
    r"|fmt/format-inl\.h"
)


def listed_sources() -> dict[str, bool]:
    """Each source of telens_sources() by its path, and whether it stands behind LIBTORCH."""
    listed = {}
    for lists in [*ROOT.glob("core/**/CMakeLists.txt"), *ROOT.glob("*/CMakeLists.txt")]:
        folder = lists.parent.relative_to(ROOT)
        for words in re.findall(r"^ *telens_sources\(([^)]*)\)", lists.read_text(), re.MULTILINE):
            tensors, _, more = words.partition("LIBTORCH")
            listed |= {str(folder / name): False for name in tensors.split()}
            listed |= {str(folder / name): True for name in more.split()}
    return listed


def sees_more_than_tensors(path: str, known: dict[str, bool]) -> bool:
    if path not in known:
        known[path] = False  # where includes go in a circle
        for line in (ROOT / path).read_text().splitlines():
            include = INCLUDE.match(line)
            if not include:
                continue
            ours, system = include["ours"], include["system"] or ""
            known[path] |= bool(MORE_THAN_TENSORS.match(system))
            if ours and (ROOT / ours).exists():
                known[path] |= sees_more_than_tensors(ours, known)
    return known[path]


def test_sources_that_see_more_than_tensors_stand_behind_libtorch():
    known: dict[str, bool] = {}
    listed = listed_sources()
    assert any(listed.values())
    assert not all(listed.values())
    wrong = [
        f"{path} belongs {'before' if behind else 'behind'} LIBTORCH"
        for path, behind in listed.items()
        if sees_more_than_tensors(path, known) != behind
    ]
    assert not wrong, "\n".join(wrong)


def test_each_source_stands_in_a_list():
    there, listed = set(), set()
    for room in ("core", "hooks", "features", "inspector_cli", "python"):
        there |= {path for path in (ROOT / room).rglob("*.c*") if path.suffix in (".cpp", ".cu")}
        for lists in (ROOT / room).rglob("CMakeLists.txt"):
            words = lists.read_text().replace("${CMAKE_CURRENT_SOURCE_DIR}/", "")
            listed |= {lists.parent / name for name in re.findall(r"[\w/]+\.(?:cpp|cu)\b", words)}
    forgotten = sorted(str(path.relative_to(ROOT)) for path in there - listed)
    assert not forgotten, "\n".join(forgotten)
