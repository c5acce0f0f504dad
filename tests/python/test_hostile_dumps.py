"""Dumps made to do harm: telens replay reads no other file, waits for nothing and stays small."""

import os
import shutil

import h5py
import numpy as np
import pytest
from replay_cases import RECIPES, dump_gemms, gemm_file

import telens
from telens.replay import dumps, found


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    """A dumped GEMM under a recipe with codes."""
    return gemm_file(dump_gemms(tmp_path_factory.mktemp("dumped"), RECIPES["current"]), "fprop")


@pytest.fixture
def dump(intact, tmp_path):
    return shutil.copy(intact, tmp_path / intact.name)


def read(path):
    return [dumps.read(each) for each in found.find(path)]


def replace(file, name, **options):
    """The dataset made anew with other options of storage; its attributes stay."""
    old = file[name]
    shape, dtype, values, attributes = old.shape, old.dtype, old[()], dict(old.attrs)
    del file[name]
    if "external" not in options:
        options["data"] = values
    new = file.create_dataset(name, **{"shape": shape, "dtype": dtype} | options)
    for key, value in attributes.items():
        new.attrs[key] = value


def external_storage(file, other):
    replace(file, "result", external=[(str(other), 0, h5py.h5f.UNLIMITED)])


def external_link(file, other):
    del file["result"]
    file["result"] = h5py.ExternalLink(str(other), "/result")


def external_group(file, other):
    file.move("a", "moved")
    file["a"] = h5py.ExternalLink(str(other), "/a")


def virtual_dataset(file, other):
    shape, dtype = file["result"].shape, file["result"].dtype
    layout = h5py.VirtualLayout(shape=shape, dtype=dtype)
    layout[...] = h5py.VirtualSource(str(other), "result", shape=shape)
    del file["result"]
    file.create_virtual_dataset("result", layout)


def soft_link(file, other):
    file.move("result", "elsewhere")
    file["result"] = h5py.SoftLink("/elsewhere")


CHANGES = {
    "external storage": external_storage,
    "an external link": external_link,
    "an external link to a group": external_group,
    "a soft link": soft_link,
    "a virtual dataset": virtual_dataset,
    "chunks": lambda file, other: replace(file, "result", chunks=(8, 8)),
    "a filter": lambda file, other: replace(file, "result", chunks=(8, 8), compression="gzip"),
    "texts of any length": lambda file, other: file.create_dataset(
        "note", data=["a"], dtype=h5py.string_dtype()
    ),
    "references": lambda file, other: file.create_dataset("note", (1,), dtype=h5py.ref_dtype),
    "a structure": lambda file, other: file.create_dataset("note", (1,), dtype="f4,f4"),
    "an attribute of any length": lambda file, other: file.attrs.create("note", "a" * 9),
    "a named type": lambda file, other: file.__setitem__("type", np.dtype("f4")),
    "groups in one another": lambda file, other: file.create_group("a/b/c/d"),
    "a group that holds itself": lambda file, other: file.__setitem__("a/a", file["a"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_no_dump_has_is_refused(dump, intact, change):
    with h5py.File(dump, "r+") as file:
        CHANGES[change](file, intact)
    with pytest.raises(telens.RecordError, match=str(dump)):
        read(dump)


def test_a_pipe_or_a_device_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe_fprop_gemm.h5")
    (tmp_path / "zero_fprop_gemm.h5").symlink_to("/dev/zero")
    for path in tmp_path.iterdir():
        with pytest.raises(telens.RecordError, match="not a regular file"):
            found.find(path)


def test_an_external_link_to_a_pipe_does_not_wait(dump, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with h5py.File(dump, "r+") as file:
        external_link(file, tmp_path / "pipe")
    with pytest.raises(telens.RecordError, match="result is a link to another place"):
        read(dump)
