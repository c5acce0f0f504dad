"""Malicious dumps: telens replay opens no other file, waits for nothing and needs little memory."""

import os
import shutil
import zlib

import h5py
import numpy as np
import pytest
from replay_cases import RECIPES, drop_checksums, dump_gemms, gemm_file

import telens
from telens.replay import dumps, found


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    """Dumps a GEMM of a layer with a recipe that makes codes."""
    return gemm_file(dump_gemms(tmp_path_factory.mktemp("dumped"), RECIPES["current"]), "fprop")


@pytest.fixture
def dump(intact, tmp_path):
    return shutil.copy(intact, tmp_path / intact.name)


def read(path):
    return [dumps.read(each) for each in found.find(path)]


def replace(file, name, **options):
    """Writes a dataset again with other storage options; its attributes stay."""
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
def test_rejects_objects_unknown_in_dumps(dump, intact, change):
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


def test_any_changed_byte_of_the_elements_is_reported(dump):
    with h5py.File(dump) as file:
        places = [file[name].id.get_offset() for name in ("result", "a/codes", "b/scale_inv")]
    content = dump.read_bytes()
    for place in places:
        changed = bytearray(content)
        changed[place + 3 if place == places[0] else place] ^= 8
        dump.write_bytes(changed)
        with pytest.raises(telens.RecordError, match="elements do not match their checksum"):
            read(dump)


def set_attribute(item, name, value):
    """Replaces an attribute by one of the same type."""
    item.attrs.modify(name, value)


@pytest.mark.parametrize(
    "change",
    [
        lambda file: set_attribute(file, "iteration", 7),
        lambda file: set_attribute(file["a"], "transposed", 1),
        lambda file: file.move("bias", "bibs"),
        lambda file: file["a"].attrs.__delitem__("amax_epsilon"),
        lambda file: file.attrs.__delitem__("structure_crc"),
        lambda file: file["result"].attrs.__delitem__("crc"),
    ],
)
def test_a_changed_name_or_attribute_is_reported(dump, change):
    with h5py.File(dump, "r+") as file:
        change(file)
    with pytest.raises(telens.RecordError, match="names, attributes or shapes differ"):
        read(dump)


def test_a_dump_without_checksums_is_read(dump):
    with h5py.File(dump, "r+") as file:
        drop_checksums(file)
    assert read(dump)[0].gemm == "fprop"


def test_checksums_match_the_documentation(dump):
    objects = {}

    def describe(name, item):
        attributes = sorted((key.encode(), value) for key, value in item.attrs.items())
        described = b""
        for key, value in attributes:
            if key not in (b"crc", b"structure_crc"):
                described += key + b"\0"
                described += value.rstrip(b"\0") if isinstance(value, bytes) else value.tobytes()
        if isinstance(item, h5py.Dataset):
            assert zlib.crc32(item[()].tobytes()) == item.attrs["crc"]
            described += np.asarray(item.shape, "<u8").tobytes() + item.attrs["crc"].tobytes()
        objects[name.encode()] = described

    with h5py.File(dump) as file:
        describe("", file)
        file.visititems(describe)
        all_bytes = b"".join(name + b"\0" + objects[name] for name in sorted(objects))
        assert zlib.crc32(all_bytes) == file.attrs["structure_crc"]
