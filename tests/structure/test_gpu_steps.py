"""The steps of `make gpu-check`, where there is no GPU."""

import importlib.util
import sys
from pathlib import Path

import pytest
from gpu_check_fakes import FakeCommands, make_context, outcomes, place_library, report_in, written

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu_checks import build, steps  # noqa: E402
from gpu_checks.prebuilt import digest_of_library  # noqa: E402
from gpu_checks.report import ESSENTIAL  # noqa: E402
from gpu_checks.runner import Failed, OutOfTime, Runner, Skipped  # noqa: E402
from gpu_rows.groups import GROUPS, rows_of  # noqa: E402


@pytest.fixture
def context(tmp_path):
    return make_context(tmp_path)


def run_all(context) -> dict:
    report = report_in(context.out)
    Runner(report, context.commands, limit=60).run(steps.steps(context))
    return written(report)


def test_every_step_runs_and_the_report_says_so(context):
    report = run_all(context)
    assert {step["outcome"] for step in report["steps"].values()} == {"passed"}, report
    assert report["passed"] is True
    digest = digest_of_library(context.library)
    assert report["steps"][steps.COMPILE]["details"] == {"library": digest}
    for name, step in report["steps"].items():
        if name.startswith(ESSENTIAL):
            assert step["details"]["tests"] == {"passed": 3, "skipped": 1}


def test_every_file_of_cuda_tests_is_run_in_a_process_of_its_own(context):
    report = run_all(context)
    files = {f"tests/python/{path.name}" for path in (ROOT / "tests/python").glob("test_cuda*.py")}
    files -= {steps.BUILD_TESTS}
    assert "tests/python/test_cuda_blocks.py" in files
    runs = [words for words in context.commands.words if words.split()[-1] in files]
    assert {words.split()[-1] for words in runs} == files
    assert len(runs) == len(files)
    assert {steps.name_of_tests(file) for file in files} <= set(report["steps"])


def test_files_of_cuda_tests_begin_before_their_turn_but_for_those_that_ran_before(
    context, tmp_path
):
    paths = steps.cuda_tests()
    rest = [path for path in paths if path != steps.FIRST_TESTS]
    report = report_in(tmp_path)
    report.steps = {
        steps.name_of_tests(rest[2]): {"outcome": "passed"},
        steps.name_of_tests(rest[4]): {"outcome": "failed"},
        steps.name_of_tests(rest[5]): {"outcome": "skipped"},
    }
    context.is_new = report.is_new
    steps.tests_beside_each_other(context, rest[0])
    expected = [rest[0], rest[1], rest[3], *rest[5:]][: steps.FILES_AT_A_TIME]
    assert context.commands.begun == expected


def test_the_machine_code_is_looked_at_where_it_was_built_and_shows_nothing_of_a_gpu(context):
    report = run_all(context)
    assert report["steps"]["machine code"]["outcome"] == "passed"
    assert any(steps.BUILD_TESTS in words for words in context.commands.words)
    assert not any(steps.BUILD_TESTS in name for name in report["steps"])


def test_a_file_that_fails_stops_no_other(context):
    failure = Failed("python exited 1:\nillegal access")
    context.commands = FakeCommands(**{"no:cacheprovider tests/python/test_cuda.py": failure})
    report = run_all(context)
    step = report["steps"][steps.name_of_tests("test_cuda.py")]
    assert (step["outcome"], step["reason"]) == ("failed", "python exited 1:\nillegal access")
    assert "details" not in step  # it came to no summary
    assert outcomes(report)[steps.name_of_tests("test_cuda_statistics.py")] == "passed"
    assert report["passed"] is False


def test_a_failure_says_how_many_tests_failed_and_which(context):
    output = (
        "FAILED tests/python/test_cuda.py::test_b[1] - no\n"
        "==== 1 failed, 3 passed, 1 skipped in 2.10s ====\n"
    )
    failure = Failed("python exited 1", output)
    context.commands = FakeCommands(**{"no:cacheprovider tests/python/test_cuda.py": failure})
    step = run_all(context)["steps"][steps.name_of_tests("test_cuda.py")]
    assert step["outcome"] == "failed"
    assert step["details"] == {
        "tests": {"failed": 1, "passed": 3, "skipped": 1},
        "failed": ["test_b"],
    }


def test_sanitizers_run_tests_that_exist_and_capture_no_graph(context):
    run_all(context)
    sanitized = [words for words in context.commands.words if "--tool" in words and "-m" in words]
    assert len(sanitized) == len(steps.SANITIZERS)
    for test in steps.SANITIZED_TESTS:
        file, name = test.split("[")[0].split("::")
        source = (ROOT / "tests/python" / file).read_text()
        assert f"def {name}(" in source
        products = test in steps.WITH_PRODUCTS
        for words in sanitized:
            followed = not products or f"--tool {steps.FOLLOWS_PRODUCTS}" in words
            assert (f"tests/python/{test}" in words) == followed
        body = source.split(f"def {name}(")[1].split("\n\n\n")[0]
        assert "graph" not in body


@pytest.mark.parametrize("has_xdist", [True, False])
def test_tests_of_processes_run_side_by_side_where_they_can(context, monkeypatch, has_xdist):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: has_xdist if name == "xdist" else find(name, *rest),
    )
    run_all(context)
    (words,) = (w for w in context.commands.words if "test_fsdp_of_codes.py" in w)
    assert (f"-k cuda -n {steps.TESTS_AT_A_TIME}" in words) == has_xdist


def test_a_sanitizer_that_runs_out_of_time_found_nothing_so_far(context):
    cut = OutOfTime("compute-sanitizer ran out of time", "a PASSED\nb PASSED\nc ")
    context.commands = FakeCommands(**{"--tool": cut})
    report = run_all(context)
    step = report["steps"]["compute-sanitizer memcheck"]
    assert step["outcome"] == "skipped"
    assert step["reason"] == "out of time after 2 tests, in which memcheck found nothing"
    assert report["passed"] is True


def test_without_a_build_nothing_of_it_is_tried(context):
    context.commands = FakeCommands(**{"--build": Failed("cmake exited 1:\nptxas fatal")})
    report = run_all(context)
    assert report["steps"][steps.COMPILE]["outcome"] == "failed"
    assert report["steps"][steps.name_of_tests("test_cuda.py")]["outcome"] == "skipped"
    assert "ptxas fatal" in report["steps"][steps.COMPILE]["reason"]
    assert not any("-m pytest" in words for words in context.commands.words)


def test_a_run_in_which_every_test_skipped_itself_is_a_failure(context):
    context.commands = FakeCommands(**{"-m pytest": "==== 40 skipped in 2.10s ====\n"})
    report = run_all(context)
    assert "no test ran" in report["steps"][steps.name_of_tests("test_cuda.py")]["reason"]
    assert report["passed"] is False


def test_a_sanitizer_that_does_not_work_here_is_skipped_with_its_words(context):
    refused = Failed("compute-sanitizer exited 1:\nDevice not supported")
    context.commands = FakeCommands(**{"--tool": refused})
    report = run_all(context)
    step = report["steps"]["compute-sanitizer racecheck"]
    assert step["outcome"] == "skipped"
    assert "Device not supported" in step["reason"]
    assert report["passed"] is True


def test_an_error_that_a_sanitizer_finds_is_a_failure(context):
    context.commands = FakeCommands(**{"kernel_substring": Failed("exited 9:\nInvalid read")})
    assert run_all(context)["steps"]["compute-sanitizer memcheck"]["outcome"] == "failed"


def test_a_machine_without_a_sanitizer_skips_it(context):
    Path(context.nvcc).with_name("compute-sanitizer").unlink()
    report = run_all(context)
    assert (
        "neither on the PATH nor beside nvcc"
        in (report["steps"]["compute-sanitizer initcheck"]["reason"])
    )


def test_a_machine_without_nvcc_looks_for_a_sanitizer_on_its_path(context, monkeypatch, tmp_path):
    context.nvcc = ""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Skipped, match="neither on the PATH nor beside nvcc"):
        steps.find_sanitizer(context)
    program = tmp_path / "compute-sanitizer"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert steps.find_sanitizer(context) == program


def test_carried_wheels_are_installed_and_missing_packages_named(context, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(build, "OPTIONAL_PACKAGES", ("json", "no_such_package"))
    (context.dependencies / "wheels/gfloat-0.5.2-py3-none-any.whl").touch()
    details = run_all(context)["steps"]["Python packages"]["details"]
    assert details["carried"] == ["gfloat-0.5.2-py3-none-any.whl"]
    assert details["missing"] == ["no_such_package"]
    assert "gfloat-0.5.2" in next(words for words in context.commands.words if " pip " in words)


def test_a_machine_without_pkg_config_gets_the_carried_one(context, monkeypatch):
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    carried = context.site / "pkgconf/.bin/pkgconf"
    carried.parent.mkdir(parents=True)
    carried.touch(mode=0o644)
    build.configure(context)
    words, extra = context.commands.seen[-1]
    assert extra["PKG_CONFIG"] == str(carried)
    assert carried.stat().st_mode & 0o111
    assert extra["PKG_CONFIG_PATH"].startswith(str(context.dependencies / "lib/pkgconfig"))
    assert f"-DCMAKE_PREFIX_PATH={context.dependencies}" in words


def test_each_group_of_benchmarks_is_a_step_of_its_own(context):
    """So that a kernel that breaks the CUDA context takes only its own group with it."""
    context.commands = FakeCommands(**{"--group gemm": Failed("illegal memory access")})
    report = run_all(context)
    assert report["steps"]["benchmarks: gemm"]["outcome"] == "failed"
    assert report["steps"]["benchmarks: layer"]["outcome"] == "passed"
    asked = [words for words in context.commands.words if "benchmarks/gpu.py" in words]
    assert len(asked) == len(GROUPS)


def test_what_is_most_worth_knowing_comes_first(context):
    names = [step.name for step in steps.steps(context) if not step.prepares]
    assert names[:3] == [
        steps.name_of_tests("test_cuda.py"),
        "benchmarks: memory_bound",
        "benchmarks: linear",
    ]


def test_a_known_card_is_built_for_alone(context):
    context.capability = (9, 0)
    build.configure(context)
    assert "-DTELENS_CUDA_TARGETS=90a" in context.commands.words[-1]
    assert context.environment()["TELENS_CUDA_TARGETS"] == "90a"
    context.capability = (12, 1)
    build.configure(context)
    assert "TELENS_CUDA_TARGETS" not in context.commands.words[-1]


def test_of_a_library_built_elsewhere_only_the_python_module_is_compiled(context, tmp_path):
    context.prebuilt = tmp_path / "prebuilt"
    place_library(context)
    report = run_all(context)
    assert report["passed"] is True
    assert not {"CPU tests", "machine code", "device code on the host"} & set(report["steps"])
    assert not any(steps.BUILD_TESTS in words for words in context.commands.words)
    (configured,) = [words for words in context.commands.words if "cmake -S" in words]
    assert f"-S {ROOT / 'cmake/prebuilt'}" in configured
    assert f"-DTELENS_PREBUILT={context.prebuilt}" in configured
    (built,) = [words for words in context.commands.words if "--build" in words]
    assert built.endswith("--target telens_python")
    environment = context.environment()
    assert environment["TELENS_LIBRARY"] == str(context.prebuilt / "lib/libtelens.so")
    assert str(context.prebuilt / "lib") in environment["LD_LIBRARY_PATH"]
    assert environment["TELENS_PACKAGES"] == str(context.build / "python")


def test_a_row_has_a_name_of_its_own():
    names = [row.name for group in GROUPS for row in rows_of(group)]
    assert len(names) == len(set(names))
