"""Checks which folder includes which: every allowed dependency is in ROOMS, and any other is an
error.

`check_includes.py [ROOT]` prints one line a violation and exits 1 if there is any.
"""

import fnmatch
import re
import sys
from dataclasses import dataclass
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"(?P<ours>[^"]+)"|<(?P<system>[^>]+)>)')
SOURCE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}

LIBTORCH = ("torch/*", "ATen/*", "c10/*", "caffe2/*")
PYTHON = (
    "pybind11/*",
    "Python.h",
    "torch/csrc/utils/pybind.h",
    "torch/python.h",
    "torch/extension.h",
)
YAML = ("yaml-cpp/*",)
HDF5 = ("hdf5.h", "H5*.h", "hdf5/*")
QUOTED = ("hwy/*",)  # Highway's own files say `#include "hwy/highway.h"`, for its foreach_target
CUDA = ("cuda*.h", "cublas*.h", "cudnn*.h")
COMMAND_LINE = ("CLI/*",)
REGEX = ("pcre2.h",)
HTTP = ("httplib.h",)


@dataclass(frozen=True)
class Room:
    """A part of the source tree: its files, and the rooms and libraries that it may include."""

    name: str
    files: tuple[
        str, ...
    ]  # patterns of paths from the root; the first room that matches owns a file
    includes: frozenset[str]  # names of rooms, besides itself and base
    libraries: tuple[str, ...]  # from those that RESTRICTED names; all others are free


def room(name: str, files: str, includes: str = "", libraries: tuple[str, ...] = ()) -> Room:
    return Room(name, tuple(files.split()), frozenset(includes.split()), libraries)


# The folders of core/kernels/cuda, and the other folders whose code each may include; the last ones
# are shared by all. A .cu file includes no torch header; a .cpp file with its name binds it to
# torch.
GPU_KERNELS = {
    "blocks": "",
    "quantize": "blocks",
    "statistics": "blocks quantize",
    "gemm": "quantize",
    "norm_activation": "quantize",
    "permutation": "norm_activation",
    "": "",
}


def device_code(folder: str) -> str:
    return f"kernels_cuda_{folder}_device" if folder else "kernels_cuda_device"


def bindings(folder: str) -> str:
    return f"kernels_cuda_{folder}" if folder else "kernels_cuda"


def gpu_rooms():
    """A folder's device code, and its bindings."""
    for folder, others in GPU_KERNELS.items():
        path = f"core/kernels/cuda/{folder}".rstrip("/")
        seen = ["", *others.split()] if folder else []
        device = " ".join(map(device_code, seen))
        yield room(
            device_code(folder),
            f"{path}/*.cu {path}/*.cuh {path}/launchers.h",
            f"formats ops_layouts {device}",
            CUDA,
        )
        yield room(
            bindings(folder),
            f"{path}/*",
            f"formats ops ops_layouts {device} {device_code(folder)} "
            + " ".join(map(bindings, seen)),
            LIBTORCH + CUDA,
        )


GPU_ROOMS = tuple(gpu_rooms())

RESTRICTED = LIBTORCH + PYTHON + YAML + HDF5 + CUDA + COMMAND_LINE + REGEX + HTTP
# The folders that a kind of module may include.
MODULE_PARTS = (
    "formats ops collectives quantization gemm distributed hook_points modules_shared "
    "modules_layer modules_module"
)
MODULES = (
    "modules_shared modules_layer modules_module modules_linear modules_norm modules_moe "
    "modules_attention modules_fused modules_transformer"
)

EVERYTHING = (
    "precompiled formats torch_compat stable_abi ops_layouts ops kernels_cpu collectives "
    "block_options quantization gemm distributed layer_hooks hook_points modules hooks_config "
    "record_rows hooks options hooks_session hooks_libtorch hooks_plugins statistics record "
    "analysis engine features altering_features command_line "
    + " ".join((MODULES, *(each.name for each in GPU_ROOMS)))
)

# docs/internals/architecture.md draws this table; change both together.
ROOMS = (
    # core
    room("base", "core/base/*"),
    room("formats", "core/formats/*"),
    room("precompiled", "core/precompiled*.h", "build", libraries=LIBTORCH),
    # Plain structs that kernels fill and features read, and formulas for every device: no LibTorch.
    room("ops_layouts", "core/ops/*_layout.h core/ops/*_formula.h", "formats"),
    room("torch_compat", "core/torch_compat.* core/stable_abi/torch_compat.cpp", "", LIBTORCH),
    # The part of ATen that libtelens_observe.so uses, on LibTorch's stable ABI.
    room("stable_abi", "core/stable_abi/tensor.* core/stable_abi/operators.*", "", LIBTORCH),
    room(
        "ops", "core/ops/* core/stable_abi/device.cpp", "formats ops_layouts stable_abi", LIBTORCH
    ),
    room("kernels_cpu", "core/kernels/cpu/*", "formats ops ops_layouts", LIBTORCH),
    *GPU_ROOMS,
    # Groups and collectives of plain tensors, which amax reduction needs.
    room(
        "collectives",
        "core/distributed/process_group.* core/distributed/collectives.* "
        "core/distributed/compare_ranks.* core/distributed/state_by_group.h "
        "core/distributed/warn_once.*",
        "",
        LIBTORCH,
    ),
    room("block_options", "core/quantization/block_options.h", "formats ops_layouts"),
    room(
        "quantization",
        "core/quantization/*",
        "formats ops ops_layouts collectives block_options",
        LIBTORCH,
    ),
    room("gemm", "core/gemm/*", "formats ops quantization", LIBTORCH),
    room("distributed", "core/distributed/*", "formats ops quantization collectives", LIBTORCH),
    room("layer_hooks", "core/layer_hooks.*", "collectives"),
    room(
        "hook_points",
        "core/hook_points.*",
        "formats ops collectives quantization gemm layer_hooks",
        LIBTORCH,
    ),
    # modules, from what all of them share to whole transformer layers
    room(
        "modules_shared",
        "core/modules/shared/*",
        "formats ops collectives quantization gemm distributed hook_points",
        LIBTORCH,
    ),
    # One linear layer: its operands, its GEMMs with hooks, its autograd function.
    room(
        "modules_layer",
        "core/modules/layer/*",
        "formats ops collectives quantization gemm distributed hook_points modules_shared",
        LIBTORCH,
    ),
    room(
        "modules_module",
        "core/modules/module/*",
        "quantization distributed collectives modules_shared modules_layer",
        LIBTORCH,
    ),
    room(
        "modules_linear",
        "core/modules/linear/*",
        MODULE_PARTS,
        LIBTORCH,
    ),
    room(
        "modules_norm",
        "core/modules/norm/*",
        MODULE_PARTS,
        LIBTORCH,
    ),
    room(
        "modules_moe",
        "core/modules/moe/*",
        MODULE_PARTS,
        LIBTORCH,
    ),
    room(
        "modules_attention",
        "core/modules/attention/*",
        MODULE_PARTS,
        LIBTORCH,
    ),
    room(
        "modules_fused",
        "core/modules/fused/*",
        MODULE_PARTS + " modules_linear modules_norm",
        LIBTORCH,
    ),
    room(
        "modules_transformer",
        "core/modules/transformer/*",
        MODULE_PARTS + " modules_linear modules_norm modules_fused modules_attention",
        LIBTORCH,
    ),
    room("modules", "core/modules/*", MODULES, LIBTORCH),
    # The run file: rows (one struct a table), writer, reader, repair, dumps.
    room("record_rows", "record/rows/*"),
    room("record", "record/*", "formats record_rows", HDF5),
    # hooks
    room("hooks_config", "hooks/config/*", "formats", YAML + REGEX),
    room("statistics", "hooks/statistics/*", "formats ops_layouts hooks_config"),
    # The adapters: what the debug session needs from LibTorch and c10d.
    room(
        "hooks_libtorch",
        "hooks/libtorch/* hooks/stable_abi/*",
        "formats ops ops_layouts collectives quantization distributed block_options layer_hooks "
        "hook_points torch_compat hooks_config record_rows hooks hooks_session hooks_plugins",
        LIBTORCH,
    ),
    # Features and plugins that use LibTorch's tensors.
    room(
        "hooks_plugins",
        "hooks/feature.h hooks/plugin.h hooks/plugin_versions.h",
        "hooks hook_points",
        LIBTORCH,
    ),
    room(
        "engine",
        "hooks/engine/*",
        "formats ops_layouts hooks_config hooks statistics",
    ),
    # The session and its API. Features and plugins do not include it.
    room(
        "hooks_session",
        "hooks/session/* hooks/debug.*",
        "formats layer_hooks hooks_config record_rows hooks",
    ),
    room(
        "hooks",
        "hooks/*",
        "formats ops_layouts collectives block_options layer_hooks hooks_config record_rows",
    ),
    # Facts about a run, and the rules that judge them. Reads runs only through record.
    room("analysis", "analysis/*", "formats record statistics hooks_config record_rows"),
    # features
    room(
        "options",
        "features/*_options.* features/trigger/condition.*",
        "formats hooks_config statistics record analysis",
    ),
    # These change what a layer computes.
    room(
        "altering_features",
        "features/fake_quant/* features/per_tensor_scaling/*",
        "formats ops quantization hooks hooks_libtorch hooks_plugins options features",
        LIBTORCH,
    ),
    room(
        "features",
        "features/*",
        "formats ops_layouts hooks_config record_rows hooks options statistics record analysis "
        "engine",
    ),
    # command: text and tables know nothing of runs, and reports nothing of the command line
    room("cli_terminal", "inspector_cli/terminal/*", "hooks_config"),
    room(
        "cli_report",
        "inspector_cli/report/*",
        "formats hooks_config record_rows statistics record analysis cli_terminal",
    ),
    # Runs the user's program, and searches with several runs; knows nothing of the command line.
    room(
        "cli_bisect",
        "inspector_cli/bisect/*",
        "formats hooks_config record_rows options statistics record analysis cli_report "
        "cli_terminal",
    ),
    # The report for a browser: a local server, which knows nothing of the command line.
    room(
        "cli_serve",
        "inspector_cli/serve/*",
        "record_rows record analysis cli_report cli_terminal",
        HTTP,
    ),
    # Messages about a command line, for any program that parses one.
    room("command_line", "inspector_cli/command_line/*", "hooks_config", COMMAND_LINE),
    room(
        "inspector_cli",
        "inspector_cli/*",
        "formats hooks_config record_rows options statistics record analysis cli_report "
        "cli_terminal cli_bisect cli_serve command_line",
        COMMAND_LINE,
    ),
    # rest
    room("python", "python/*", EVERYTHING, LIBTORCH + PYTHON + CUDA),
    room("samples", "samples/*", EVERYTHING, RESTRICTED),
    room(
        "tests",
        "tests/*",
        EVERYTHING + " inspector_cli cli_bisect cli_report cli_serve cli_terminal python samples",
        RESTRICTED,
    ),
    room("benchmarks", "benchmarks/*", EVERYTHING + " tests samples", RESTRICTED),
    room("build", "cmake/*"),
)

# These see tensors as handles (core/base/tensor_handle.h) and must not include LibTorch, not even
# through our headers.
SEE_HANDLES = frozenset(
    ["base", "layer_hooks", "block_options", "hooks", "hooks_session", "engine", "features"]
)

# libtelens_base.a and the command: they may not include a room that uses LibTorch.
WITHOUT_LIBTORCH = frozenset(
    (
        "base",
        "formats",
        "ops_layouts",
        "hooks_config",
        "record_rows",
        "options",
        "statistics",
        "record",
        "analysis",
        "cli_terminal",
        "cli_report",
        "cli_bisect",
        "cli_serve",
        "command_line",
        "inspector_cli",
    )
)


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def room_of(path: str) -> Room | None:
    return next((room for room in ROOMS if matches(path, room.files)), None)


def check_library(name: str, owner: Room, quoted: bool) -> str | None:
    """Returns the error for an include of something that is not ours, or None."""
    if quoted and not matches(name, QUOTED):
        return f'"{name}" is no path from the root of the repository (use <> for libraries)'
    if matches(name, RESTRICTED) and not matches(name, owner.libraries):
        return f"<{name}> does not belong in {owner.name}"
    return None


def check_arrow(name: str, owner: Room, quoted: bool) -> str | None:
    """Returns the error for an include of one of our files, or None."""
    if not quoted:
        return f'<{name}> is ours: include it as "{name}"'
    target = room_of(name)
    allowed = owner.includes | {owner.name, "base"}
    if target and target.name in allowed:
        return None
    return (
        f'"{name}": {owner.name} may not include {target.name if target else "it"} '
        f"(it may include {', '.join(sorted(allowed))})"
    )


def check_include(include: re.Match, owner: Room, path: str, root: Path) -> str | None:
    """Returns the error for one #include line of the file `path`, or None."""
    name = include["ours"] or include["system"]
    if owner.name == "samples" and (root / path).parent.joinpath(name).is_file():
        return None  # a sample is a program of its own, as a user would write it
    check = check_arrow if (root / name).is_file() else check_library
    return check(name, owner, quoted=bool(include["ours"]))


def source_files(root: Path):
    """The C++ and CUDA sources of the project, as paths from the root."""
    folders = sorted({pattern.split("/")[0] for room in ROOMS for pattern in room.files})
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SOURCE_SUFFIXES and path.is_file():
                yield path.relative_to(root).as_posix()


def path_to_libtorch(path: str, root: Path, known: dict[str, str | None]) -> str | None:
    """Returns the includes through which a file reaches LibTorch, or None."""
    if path in known:
        return known[path]
    known[path] = None  # ends circles
    for line in (root / path).read_text().splitlines():
        include = INCLUDE.match(line)
        name = include and (include["ours"] or include["system"])
        if not name:
            continue
        if matches(name, LIBTORCH):
            known[path] = name
        elif (root / name).is_file():
            rest = path_to_libtorch(name, root, known)
            known[path] = rest and f"{name} > {rest}"
        if known[path]:
            break
    return known[path]


def indirect_violations(root: Path) -> list[str]:
    """Reports files of SEE_HANDLES that reach a header of LibTorch."""
    found = []
    known: dict[str, str | None] = {}
    for path in source_files(root):
        owner = room_of(path)
        if owner is None or owner.name not in SEE_HANDLES:
            continue
        if reached := path_to_libtorch(path, root, known):
            found.append(f"{path}: {owner.name} reaches LibTorch: {reached}")
    return found


def violations(root: Path) -> list[str]:
    found = indirect_violations(root)
    for path in source_files(root):
        owner = room_of(path)
        if owner is None:
            found.append(f"{path}: belongs to no room of {Path(__file__).name}")
            continue
        for number, line in enumerate((root / path).read_text().splitlines(), start=1):
            include = INCLUDE.match(line)
            message = include and check_include(include, owner, path, root)
            if message:
                found.append(f"{path}:{number}: {message}")
    return found


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2]).resolve()
    found = violations(root)
    print("\n".join(found) or f"{sum(1 for _ in source_files(root))} files, no forbidden include")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
