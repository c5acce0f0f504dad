"""The type of the statements in docs/internals/contract.md."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Statement:
    """A promise and the test that fails if the promise is broken.

    ``test`` is "Suite.name" of a GoogleTest or "test_file.py::test_name" of a Python test.
    """

    text: str
    test: str
