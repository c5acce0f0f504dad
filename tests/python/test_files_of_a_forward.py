"""A watched FP8 forward of a Linear is read in few files: those whose functions it enters.

The limits are goals of the design. Raising one is a decision, not a repair.
"""

import shutil
import subprocess

import pytest
from entered_files import defined_functions, entered_files

MOST_FILES = {"core/": 30, "core/modules/": 8}


@pytest.fixture(scope="module")
def entered(build_folder, tmp_path_factory) -> set[str]:
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is not installed")
    profile = tmp_path_factory.mktemp("callgrind") / "profile"
    command = [
        "valgrind",
        "--tool=callgrind",
        "--collect-atstart=no",
        "--toggle-collect=counted_forward*",
        f"--callgrind-out-file={profile}",
        build_folder / "tests/watched_forward",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return entered_files(profile)


@pytest.mark.parametrize("folder", MOST_FILES)
def test_a_watched_forward_is_read_in_few_files(entered, folder):
    files = sorted(file for file in entered if file.startswith(folder))
    assert "core/modules/linear/linear.cpp" in files
    assert len(files) <= MOST_FILES[folder], "\n".join(files)


def test_definitions_are_told_from_calls_and_declarations():
    source = """
      int declared(int x);
      namespace { int helper(int x) { return declared(x); } }
      struct Box final : Base {
        explicit Box(int x) : x_(x) {}
        int get() const { if (x_) { return helper(x_); } return 0; }
        int later() const;  // int commented() {
      };
      int Box::later() const { return get(); }
      const char* text = "int quoted() {";
    """
    assert defined_functions(source) == {"helper", "Box::Box", "Box::get", "Box::later"}
