"""The source of a promise of docs/contract.md."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Statement:
    """A statement, the test that fails if it is not true, and a mutation that makes it so.

    ``test`` is "Suite.name" of a GoogleTest or "test_file.py::test_name". ``before`` must stand in
    ``file`` exactly once; ``after`` takes its place.
    """

    text: str
    test: str
    file: str
    before: str
    after: str
