"""Shared objects need the shared C++ library, also where the compiler would link it statically."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = f"""
cmake_minimum_required(VERSION 3.24)
project(example LANGUAGES CXX)
list(APPEND CMAKE_MODULE_PATH "{ROOT}/cmake")
include(TelensRuntime)
add_library(options INTERFACE)
telens_share_cxx_library(options)
add_library(example SHARED example.cpp)
target_link_libraries(example PRIVATE options)
"""
SOURCE = "#include <iostream>\nvoid greet(int number) { std::cout << number << std::endl; }\n"


def run(*command) -> str:
    done = subprocess.run(
        [str(each) for each in command], capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize("is_static", [False, True], ids=["as it is", "static by itself"])
def test_a_library_needs_the_shared_one_and_exports_none_of_it(tmp_path, is_static):
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    (tmp_path / "example.cpp").write_text(SOURCE)
    build = tmp_path / "build"
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if is_static:
        wrapper = tmp_path / "c++"
        wrapper.write_text(f'#!/bin/sh\nexec "{compiler}" -static-libstdc++ "$@"\n')
        wrapper.chmod(0o755)
        compiler = wrapper
    said = run("cmake", "-S", tmp_path, "-B", build, f"-DCMAKE_CXX_COMPILER={compiler}")
    if is_static:
        assert "links libstdc++ statically" in said
    run("cmake", "--build", build)
    library = build / "libexample.so"
    assert "[libstdc++.so.6]" in run("readelf", "-d", library)
    own = run("nm", "-D", "--defined-only", library).split()
    assert not [name for name in own if name.startswith(("_ZNSo", "_ZNSt6locale"))]
