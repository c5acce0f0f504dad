"""What a mutation of the product's code is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    promise: str  # the promise that hangs on the line
    file: str
    before: str
    after: str
    program: str  # the GoogleTest program, as its CMake target is called
    tests: str  # --gtest_filter
