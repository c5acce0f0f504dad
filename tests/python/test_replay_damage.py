"""Dumps that are damaged or were not written by a session: telens.replay refuses them in one
line.
"""

import h5py
import numpy as np
import pytest
from replay_cases import (
    Dumped,
    drop_checksums,
    gemm_file,
    recorded,
)

import telens
from telens.replay import gemm_error


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
    return Dumped(tmp_path_factory)


def mutations(file):
    """Changes of an open dump, by name. No GEMM can have written any of the results."""

    def replace(path, values, **attributes):
        kept = dict(file[path].attrs) | attributes
        del file[path]
        file[path] = values
        file[path].attrs.update(kept)

    def attribute(path, name, value):
        return lambda: file[path].attrs.__setitem__(name, value)

    return {
        "no schema": lambda: file.attrs.__delitem__("schema"),
        "another version": attribute("/", "schema_version", 9),
        "another GEMM": attribute("/", "gemm", "qgrad"),
        "an iteration of text": attribute("/", "iteration", "one"),
        "no layer": lambda: file.attrs.__delitem__("layer"),
        "no codes": lambda: file.__delitem__("a/codes"),
        "no operand": lambda: file.__delitem__("b"),
        "codes in one row": lambda: replace("a/codes", file["a/codes"][0]),
        "codes of FP32": lambda: replace("a/codes", file["a/codes"][()].astype(np.float32)),
        "an unknown format": attribute("a/codes", "format", "E3M4"),
        "fewer scales": lambda: replace("b/scale_inv", file["b/scale_inv"][:, :1]),
        "blocks of no rows": attribute("a", "block_height", 0),
        "blocks of -32": attribute("a", "block_length", -32),
        "the other orientation": attribute("a", "transposed", 1),
        "signs of 17 bits": attribute("a", "hadamard_signs", 2**16),
        "an unknown rounding": attribute("b", "scale_rounding", 3),
        "an epsilon that is NaN": attribute("b", "amax_epsilon", np.nan),
        "a longer sum": lambda: replace("a/codes", np.zeros((64, 160), np.uint8)),
        "no result": lambda: file.__delitem__("result"),
        "a smaller result": lambda: replace("result", file["result"][1:]),
        "another original": lambda: replace("a/high_precision", file["a/high_precision"][:, 1:]),
        "a longer bias": lambda: replace("bias", np.zeros(97, np.uint16)),
        "a group for a dataset": lambda: (file.__delitem__("result"), file.create_group("result")),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(mutations(None)))
def test_a_changed_dump_is_refused_by_a_line_that_names_it(dumped, tmp_path, name):
    path = tmp_path / "changed.h5"
    path.write_bytes(gemm_file(dumped("mxfp8"), "fprop").read_bytes())
    recorded(path)
    with h5py.File(path, "r+") as file:
        drop_checksums(file)  # or each of them would be damage
        mutations(file)[name]()
    with pytest.raises(telens.RecordError, match=r"changed\.h5: ") as refusal:
        recorded(path)
    assert "\n" not in str(refusal.value)


def test_a_cut_dump_is_refused(dumped, tmp_path):
    whole = gemm_file(dumped("mxfp8"), "fprop").read_bytes()
    path = tmp_path / "cut.h5"
    for size in (0, 7, 100, 2000, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(telens.RecordError, match=r"cut\.h5"):
            recorded(path)


def refusal_of(path):
    """ "": it was read."""
    try:
        gemm_error.text(recorded(path))
    except (telens.RecordError, telens.UsageError) as error:
        return str(error)
    return ""


def test_damaged_bytes_are_refused_with_a_line_or_change_no_meaning(dumped, tmp_path):
    whole = gemm_file(dumped("mxfp8"), "fprop").read_bytes()
    random = np.random.default_rng(5)
    path = tmp_path / "damaged.h5"
    refused = 0
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[random.integers(0, 6000)] ^= 1 << random.integers(0, 8)
        path.write_bytes(bytes(damaged))
        refusal = refusal_of(path)
        assert "\n" not in refusal
        refused += refusal != ""
    assert refused > 0
