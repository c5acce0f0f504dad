"""Which sources cmake/TelensSources.cmake compiles together."""

import subprocess
from pathlib import Path

MODULES = Path(__file__).parents[2] / "cmake"
PROJECT = f"""
cmake_minimum_required(VERSION 3.24)
project(batches LANGUAGES CXX)
set(TELENS_UNITY ON)
include({MODULES}/TelensSources.cmake)
add_library(telens_base STATIC)
telens_base_sources({{sources}})
"""


def batches(folder: Path, **sources: str) -> set[frozenset[str]]:
    """Configures a library of these sources. Returns the names in each translation unit."""
    for name, text in sources.items():
        (folder / f"{name}.cpp").write_text(text)
    listed = " ".join(f"{name}.cpp" for name in sources)
    (folder / "CMakeLists.txt").write_text(PROJECT.format(sources=listed))
    command = ["cmake", "-G", "Ninja", "-S", folder, "-B", folder / "build"]
    subprocess.run(command, check=True, capture_output=True)
    united = [unit.read_text() for unit in (folder / "build").rglob("unity_*.cxx")]
    return {frozenset(name for name in sources if f"/{name}.cpp" in unit) for unit in united}


def local(declaration: str) -> str:
    opening, closing = "namespace room {\nnamespace {", "}  // namespace\n}  // namespace room"
    return f"{opening}\n\n{declaration}\n\n{closing}\n"


def test_sources_with_a_common_local_name_are_separated(tmp_path):
    found = batches(
        tmp_path,
        function=local("int count(int x) {\n  return x;\n}"),
        type=local("struct Item {\n  int value = 0;\n};"),
        same_function=local("template <typename T>\nvoid count(T* x) {\n  *x = 0;\n}"),
        same_type=local("enum class Item { one, two };"),
        constant=local("constexpr int kSize = 3;"),
        same_constant=local("const char* const kSize[] = {};"),
    )
    assert found == {
        frozenset({"function", "type", "constant"}),
        frozenset({"same_function", "same_type", "same_constant"}),
    }


def test_attributes_do_not_hide_local_names(tmp_path):
    found = batches(
        tmp_path,
        one=local("[[nodiscard]] int count(int x) {\n  return x;\n}"),
        two=local("int count(int x) {\n  return x;\n}"),
    )
    assert found == {frozenset({"one"}), frozenset({"two"})}


def test_using_declaration_is_separated_from_other_use(tmp_path):
    found = batches(
        tmp_path,
        one=local("using std::string;"),
        same=local("using std::string;\nusing std::vector;"),
        other=local("using fmt::string;"),
        type=local("struct string {};"),
    )
    assert found == {frozenset({"one", "same"}), frozenset({"other"}), frozenset({"type"})}


def test_members_and_equal_using_declarations_share_a_batch(tmp_path):
    text = local("using std::string;")
    found = batches(
        tmp_path, one=text + "void One::run() {\n}\n", two=text + "void Two::run() {\n}\n"
    )
    assert found == {frozenset({"one", "two"})}
