import re
from pathlib import Path

import check_includes
import pytest

ROOT = Path(__file__).parents[2]


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def violations_of(root: Path, path: str, include: str) -> list[str]:
    """The violations in a tree in which `path` has one more include."""
    for header in (
        "core/base/error.h",
        "core/formats/e4m3.h",
        "core/modules/linear/linear.h",
        "hooks/debug.h",
        "samples/gpt/text.h",
    ):
        write(root, header, "#pragma once\n")
    write(root, path, f"#pragma once\n#include <vector>\n#include {include}\n")
    return check_includes.violations(root)


def test_includes_follow_the_design():
    assert check_includes.violations(ROOT) == []


@pytest.mark.parametrize(
    ("path", "include"),
    [
        ("core/ops/cast.cpp", '"core/formats/e4m3.h"'),
        ("hooks/statistics/merge.h", '"core/base/error.h"'),
        ("tests/core/test_linear.cpp", '"core/modules/linear/linear.h"'),
        ("core/modules/norm/norm.cpp", "<torch/nn/module.h>"),
        ("hooks/config/parse.cpp", "<yaml-cpp/yaml.h>"),
        ("core/kernels/cuda/cast.cpp", "<ATen/core/Tensor.h>"),
        ("samples/gpt/model.cpp", '"text.h"'),
    ],
)
def test_an_arrow_of_the_design_passes(tmp_path, path, include):
    assert violations_of(tmp_path, path, include) == []


@pytest.mark.parametrize(
    ("path", "include", "complaint"),
    [
        (
            "core/ops/cast.cpp",
            '"core/modules/linear/linear.h"',
            "ops may not include modules_linear",
        ),
        ("core/modules/norm/norm.cpp", '"hooks/debug.h"', "modules_norm may not include hooks"),
        (
            "inspector_cli/commands/stats.cpp",
            '"hooks/debug.h"',
            "inspector_cli may not include hooks",
        ),
        ("inspector_cli/report/chart.cpp", "<CLI/CLI.hpp>", "does not belong in cli_report"),
        ("record/writer.cpp", "<torch/library.h>", "does not belong in record"),
        ("features/probe_options.h", "<ATen/core/Tensor.h>", "does not belong in options"),
        (
            "core/kernels/cuda/cast.cu",
            "<torch/library.h>",
            "does not belong in kernels_cuda_device",
        ),
        ("core/quantization/recipe.cpp", "<yaml-cpp/yaml.h>", "does not belong in quantization"),
        ("core/ops/cast.cpp", "<core/formats/e4m3.h>", "is ours"),
        ("core/formats/e5m2.h", '"e4m3.h"', "no path from the root"),
        ("core/attic/old.cpp", '"core/base/error.h"', "belongs to no room"),
    ],
)
def test_a_forbidden_include_is_reported_with_its_line(tmp_path, path, include, complaint):
    (violation,) = violations_of(tmp_path, path, include)
    assert violation.startswith(path)
    assert complaint in violation


def test_rooms_without_libtorch_reach_no_room_that_has_it():
    rooms = {room.name: room for room in check_includes.ROOMS}
    for name in check_includes.WITHOUT_LIBTORCH:
        assert rooms[name].includes <= check_includes.WITHOUT_LIBTORCH
        assert not set(rooms[name].libraries) & set(check_includes.LIBTORCH)


def test_libtorch_through_our_header_is_reported(tmp_path):
    root = tmp_path
    write(root, "core/distributed/process_group.h", "#include <c10/util/intrusive_ptr.h>\n")
    write(root, "hooks/rank_group.h", '#include "core/distributed/process_group.h"\n')
    (violation,) = violations_of(root, "hooks/engine/sums.cpp", '"hooks/rank_group.h"')[1:]
    assert violation == (
        "hooks/rank_group.h: hooks reaches LibTorch: "
        "core/distributed/process_group.h > c10/util/intrusive_ptr.h"
    )


def test_the_arrows_have_no_cycle():
    rooms = {room.name: room for room in check_includes.ROOMS}

    def reach(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"a cycle: {' -> '.join((*path, name))}"
        for target in rooms[name].includes:
            reach(target, (*path, name))

    for name in rooms:
        reach(name, ())


def test_every_source_is_listed_in_a_cmake_file():
    there, listed = set(), set()
    for room in ("core", "record", "hooks", "analysis", "features", "inspector_cli", "python"):
        there |= {path for path in (ROOT / room).rglob("*.c*") if path.suffix in (".cpp", ".cu")}
        for lists in (ROOT / room).rglob("CMakeLists.txt"):
            words = lists.read_text().replace("${CMAKE_CURRENT_SOURCE_DIR}/", "")
            listed |= {lists.parent / name for name in re.findall(r"[\w/]+\.(?:cpp|cu)\b", words)}
    observer = (ROOT / "cmake/TelensObserver.cmake").read_text()
    listed |= {ROOT / name for name in re.findall(r"[\w/]+\.cpp\b", observer)}
    forgotten = sorted(str(path.relative_to(ROOT)) for path in there - listed)
    assert not forgotten, "\n".join(forgotten)
