"""The steps of a check, the most telling first: what the time limit leaves out is at the end."""

import importlib.util
import shutil
import sys
from functools import partial
from pathlib import Path

from gpu_rows.groups import GROUPS

from gpu_checks import build
from gpu_checks.context import ROOT, Context
from gpu_checks.pytest_output import counts, details
from gpu_checks.report import ESSENTIAL
from gpu_checks.runner import Failed, OutOfTime, Skipped, Step

DEVICE_TESTS = ("host_grid_test", "device_code_test", "cuda_gemm_test")
# A few tests of each family of kernels, for tools that slow them down a hundredfold. None
# captures a graph: without the caching allocator LibTorch refuses to.
SANITIZED_TESTS = (
    "test_cuda.py::test_strided_and_misaligned_views_match_cpu_bits",
    "test_cuda.py::test_both_orientations_hold_the_codes_of_the_cpu",
    "test_cuda.py::test_histories_advance_as_on_the_cpu",
    "test_cuda_ranges.py::test_strided_histories_advance_as_on_the_cpu",
    "test_cuda_ranges.py::test_linear_matches_cpu_for_any_number_of_tokens",
    "test_cuda_fused.py::test_shapes_that_tiles_do_not_fit_give_the_bits_of_the_pair",
    "test_cuda_fused.py::test_misaligned_and_strided_views_give_the_bits_of_their_copies",
    "test_cuda_blocks.py::test_blocks_of_strided_and_misaligned_views_match_cpu",
    "test_cuda_blocks.py::test_hadamard_transforms_match_cpu",
    "test_cuda_statistics.py::test_block_statistics_of_views_match_cpu",
    "test_cuda_statistics.py::test_errors_of_blocks_match_cpu",
    "test_cuda_gemm.py::test_nan_makes_its_row_and_no_other_nan",
    "test_cuda.py::test_norms_match_cpu",
    "test_cuda.py::test_activations_match_cpu",
    "test_cuda.py::test_histograms_match_cpu",
    "test_cuda.py::test_dynamic_ranges_of_blocks_match_cpu",
    "test_cuda.py::test_statistics_match_cpu",
    "test_cuda.py::test_central_moments_match_cpu",
    # A few cases of many: ragged blocks in rows and columns, and squares of every edge.
    "test_cuda_blocks.py::test_four_over_six_blocks_match_cpu[both-False-shape1-dtype0]",
    "test_cuda_blocks.py::test_four_over_six_blocks_match_cpu[both-True-shape2-dtype2]",
    "test_cuda_permutation.py::test_rows_match_cpu",
    "test_cuda_permutation.py::test_sums_and_gradients_match_cpu",
)
SANITIZERS = ("memcheck", "racecheck", "initcheck")
# Only memcheck follows cuBLASLt's products: racecheck breaks off in them, and initcheck takes what
# the copy engine wrote for uninitialized.
FOLLOWS_PRODUCTS = "memcheck"
WITH_PRODUCTS = (
    "test_cuda_ranges.py::test_linear_matches_cpu_for_any_number_of_tokens",
    "test_cuda_gemm.py::test_nan_makes_its_row_and_no_other_nan",
)
# Messages of compute-sanitizer where it cannot watch the device at all.
SANITIZER_UNUSABLE = ("Device not supported", "Failed to initialize", "Unable to find injection")
COMPILE = "compile and link"
# These run first: numbers must be right before any is timed.
FIRST_TESTS = "tests/python/test_cuda.py"
# Matrices of several processes whose device is a parameter. They run on the GPU in processes of
# their own: by NCCL where there is a GPU a rank, else by gloo on one.
TESTS_OF_PROCESSES = (
    "test_tensor_parallel.py",
    "test_tensor_parallel_norms.py",
    "test_parallel_transformer.py",
    "test_parallel_statistics.py",
    "test_context_parallel.py",
    "test_moe_dispatcher.py",
    "test_divided_checkpoint.py",
    "test_fsdp_of_codes.py",
)
# Each test waits for its ranks to import torch and to open the card, most of the time on one core.
TESTS_AT_A_TIME = 8
# Files of tests that run beside each other on one card.
FILES_AT_A_TIME = 8
# Then what is most worth knowing of a card, before the tests that take longer.
FIRST_GROUPS = ("memory_bound", "linear")
# It disassembles the library, which needs no GPU and says nothing of one.
BUILD_TESTS = "tests/python/test_cuda_build.py"


# Seconds on an H100 or H200 with 16 cores, whichever took longer, rounded up.
EXPECTED = {
    "memory_bound": 8,
    "statistics": 29,
    "gemm": 6,
    "linear": 25,
    "session": 24,
    "host_time": 9,
    "block_formats": 8,
    "layer": 40,
}
# Seconds for the slowest file; those that ran beside another one wait for nothing.
EXPECTED_OF_TESTS = 21
EXPECTED_COMPILING, EXPECTED_COMPILING_PREBUILT = 160, 40


def cuda_tests() -> list[str]:
    """Every test file that compares a GPU with the CPU."""
    found = sorted((ROOT / "tests/python").glob("test_cuda*.py"))
    return [name for name in (str(path.relative_to(ROOT)) for path in found) if name != BUILD_TESTS]


def command_of_tests(*arguments: str) -> tuple[str, ...]:
    # -v names a test before it runs: the log then says which one hung.
    program = (sys.executable, "-m", "pytest", "-v", "-rsfE", "-p", "no:cacheprovider")
    return *program, *arguments


def pytest(context: Context, *arguments: str, before=(), extra=None) -> dict:
    """Details of a run in which at least one test passed. A failure has them too."""
    try:
        output = context.commands.run(*before, *command_of_tests(*arguments), extra=extra)
    except Failed as error:
        if counts(error.output):
            error.details = details(error.output)
        raise
    if counts(output).get("passed", 0) == 0:
        raise Failed(f"no test ran: {details(output)}")
    return details(output)


def tests_beside_each_other(context: Context, path: str) -> dict:
    """Those of one file, and in the meantime those of the files that follow: they mostly wait for
    what a processor computes to compare with."""
    few = {"OMP_NUM_THREADS": str(max(1, context.jobs // FILES_AT_A_TIME))}
    paths = [each for each in cuda_tests() if each not in (FIRST_TESTS, path)]
    # A file that failed in an earlier check comes behind the benchmarks, beside which nothing runs.
    left = [each for each in paths if each > path and context.is_new(name_of_tests(each))]
    for each in (path, *left[: FILES_AT_A_TIME - 1]):
        context.commands.begin(*command_of_tests(each), extra=few)
    return pytest(context, path)


def processes_on_gpu(context: Context) -> dict:
    files = [f"tests/python/{name}" for name in TESTS_OF_PROCESSES]
    return pytest(context, *files, "-k", "cuda", *at_a_time())


def at_a_time() -> tuple[str, ...]:
    """Without pytest-xdist one test runs behind the other."""
    return ("-n", str(TESTS_AT_A_TIME)) if importlib.util.find_spec("xdist") else ()


def sample_on_gpu(context: Context) -> dict:
    return pytest(context, "tests/samples/test_gpt.py", "-k", "gpu")


def benchmarks(context: Context, group: str) -> list[str]:
    output = context.commands.run(
        *(sys.executable, "benchmarks/gpu.py", "--library", context.library, "--group", group),
        *("--out", context.out / "gpu_benchmarks.json", "--missing"),
    )
    return output.splitlines()


def device_code(context: Context) -> None:
    build.build(context, *DEVICE_TESTS)
    for program in DEVICE_TESTS:
        context.commands.run(context.built / "tests" / program, "--gtest_brief=1")


def find_sanitizer(context: Context) -> Path:
    on_path = shutil.which("compute-sanitizer")
    # A machine that compiles nothing for GPUs may have no nvcc.
    beside_nvcc = Path(context.nvcc).with_name("compute-sanitizer") if context.nvcc else None
    program = Path(on_path) if on_path else beside_nvcc
    if program is None or not program.exists():
        raise Skipped("compute-sanitizer is neither on the PATH nor beside nvcc")
    return program


def tests_for(tool: str) -> list[str]:
    return [
        f"tests/python/{test}"
        for test in SANITIZED_TESTS
        if tool == FOLLOWS_PRODUCTS or test not in WITH_PRODUCTS
    ]


def sanitize(context: Context, tool: str) -> dict:
    command = (find_sanitizer(context), "--tool", tool, "--error-exitcode", "9")
    # Kernels of ours alone: torch's are not ours to check. But what those wrote is initialized.
    ours = () if tool == "initcheck" else ("--kernel-name", "kernel_substring=telens")
    try:
        return pytest(
            context,
            *("-x", *tests_for(tool)),
            before=(*command, *ours),
            # Each tensor an allocation of its own, so that reading beyond one is noticed.
            extra={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        )
    except OutOfTime as error:
        passed = error.output.count(" PASSED")
        raise Skipped(f"out of time after {passed} tests, in which {tool} found nothing") from error
    except Failed as error:
        if any(words in str(error) for words in SANITIZER_UNUSABLE):
            raise Skipped(f"compute-sanitizer does not work on this machine: {error}") from error
        raise


def cpu_tests(context: Context) -> str:
    """What the CPU promises must hold in a build with CUDA too."""
    build.compile_everything(context)
    output = context.commands.run(
        *("ctest", "--test-dir", context.build, "--parallel", context.jobs),
        "--output-on-failure",
    )
    return next(line for line in output.splitlines() if "tests passed" in line)


def pytest_of(context: Context, path: str) -> dict:
    return pytest(context, path)


def name_of_tests(path: str) -> str:
    return f"{ESSENTIAL}: {Path(path).name}"


def steps(context: Context) -> list[Step]:
    """Expected seconds are those of an H100 or H200 with 16 cores. Guessed are those of the device
    code on the host and of the CPU's tests, which have not run to their end there."""

    def step(name, seconds, expected, action, *needs, **about):
        return Step(name, seconds, partial(action, context), needs, expected=expected, **about)

    def tests(path):
        # A process of its own for each file: a kernel that breaks the CUDA context breaks it for
        # all that the process runs after it.
        run = pytest if path == FIRST_TESTS else tests_beside_each_other
        return Step(
            *(name_of_tests(path), 120, partial(run, context, path), (COMPILE,)),
            expected=EXPECTED_OF_TESTS,
        )

    def rows(group):
        return Step(
            *(
                f"benchmarks: {group}",
                GROUPS[group],
                partial(benchmarks, context, group),
                (COMPILE,),
            ),
            expected=EXPECTED[group],
            keeps_parts=True,
        )

    compiling = EXPECTED_COMPILING_PREBUILT if context.prebuilt else EXPECTED_COMPILING
    tests_of_the_build = [
        step("machine code", 120, 36, partial(pytest_of, path=BUILD_TESTS), COMPILE),
        step("device code on the host", 300, 120, device_code, COMPILE),
        step("CPU tests", 300, 250, cpu_tests, COMPILE),
    ]
    return [
        step("Python packages", 60, 1, build.unpack_wheels, prepares=True),
        step("configure", 60, 2, build.configure, prepares=True),
        step(COMPILE, 330, compiling, build.compile_for_gpu, "configure", prepares=True),
        tests(FIRST_TESTS),
        *(rows(group) for group in FIRST_GROUPS),
        *(tests(path) for path in cuda_tests() if path != FIRST_TESTS),
        *(rows(group) for group in GROUPS if group not in FIRST_GROUPS),
        step("sample on the GPU", 60, 16, sample_on_gpu, COMPILE),
        step("processes on the GPU", 300, 90, processes_on_gpu, COMPILE),
        *(
            step(f"compute-sanitizer {tool}", 180, 45, partial(sanitize, tool=tool), COMPILE)
            for tool in SANITIZERS
        ),
        # A library that was built elsewhere was tested there.
        *([] if context.prebuilt else tests_of_the_build),
    ]
