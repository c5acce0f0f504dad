"""The files that `telens new-plugin` writes build against an installed telens and pass their
tests.
"""

import os
import sys

from programs import BUILD, run


def new_plugin(prefix, folder, language):
    run(prefix / "bin/telens", "new-plugin", "CountLarge", f"--{language}", "--dir", folder)
    return folder / "count_large"


def environment():
    packages = os.environ.get("TELENS_PACKAGES", str(BUILD / "python"))
    return os.environ | {"PYTHONPATH": packages}


def test_a_new_cpp_plugin_builds_and_its_test_passes(prefix, tmp_path):
    project = new_plugin(prefix, tmp_path, "cpp")
    build = tmp_path / "build"
    run(
        *("cmake", "-S", project, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug"),
        *(f"-DCMAKE_PREFIX_PATH={prefix}", f"-DPython3_EXECUTABLE={sys.executable}"),
    )
    run("cmake", "--build", build)
    tests = ("ctest", "--test-dir", build, "--output-on-failure")
    assert "100% tests passed" in run(*tests, env=environment())


def test_a_new_python_plugin_passes_its_test(prefix, tmp_path):
    project = new_plugin(prefix, tmp_path, "python")
    output = run(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", project),
        env=environment(),
        cwd=project,
    )
    assert "1 passed" in output
