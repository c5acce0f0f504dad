"""Crafted changes of a run file: each object and attribute is replaced by every other kind.

``changes(path, outside)`` returns them by name; each is a function of an open h5py file.
"""

import itertools
import pathlib

import h5py
import numpy as np
from stored_rows import store, store_zeros

PACKED = ("records", "histograms", "ledger", "blocks")
PLAIN = ("scalars", "events", "drops", "end")
# Rows that take no space in a file. A reader reads all records at once, so more of other tables
# would take over a gigabyte; lists that double grow by one chunk beyond a power of two.
MANY = (8 << 20) + 1024
INFLATING = {"records": 2**20, "histograms": MANY, "ledger": MANY, "blocks": MANY}
TEXT_ATTRIBUTES = ("telens_version", "run_id")
NUMBER_ATTRIBUTES = ("schema_version", "rank", "world_size", "start_time")

INTEGERS = (-(2**63), -(2**31) - 1, -(2**15) - 1, -2, -1, 0, 1, 2**15, 2**31, 2**53 + 1, 2**63 - 1)
REALS = (np.nan, np.inf, -np.inf, -1.0, 1e300, 5e-324)


def open_for_change(path):
    """Open a file in the format that TELens writes; h5py's default formats differ."""
    return h5py.File(path, "r+", libver=("v110", "v110"))


def objects(file):
    """Return the paths of all datasets and groups below the root."""
    paths = []
    file.visit(paths.append)
    return sorted(paths)


def changes(path, outside):
    """Return name -> change(file) for a run file; no reader may touch the file ``outside``."""
    with h5py.File(path, "r") as file:
        paths = objects(file)
        datasets = [each for each in paths if isinstance(file[each], h5py.Dataset)]
        columns = [
            (each, column)
            for each in datasets
            for column in (file[each].dtype.names or ())
            if file[each].dtype[column].kind in "iuf"
        ]
    named = {}
    for each, (kind, replace) in itertools.product(paths, _replacements(outside).items()):
        named[f"{each} becomes {kind}"] = _replacing(each, replace)
    for each, (kind, change) in itertools.product(datasets, _STORAGE.items()):
        named[f"{each} gets {kind}"] = _replacing(each, change)
    for (each, column), extreme in itertools.product(columns, range(len(INTEGERS))):
        named[f"{each}.{column} is extreme {extreme}"] = _filling(each, column, extreme)
    for each, rows in INFLATING.items():
        named[f"{each} inflates a thousandfold"] = _inflating(each, rows)
    for each in PACKED:
        for count in INTEGERS:
            named[f"{each}_count is {count}"] = _setting_count(each, count)
    for name in (*TEXT_ATTRIBUTES, *NUMBER_ATTRIBUTES, "continues", "records_seen"):
        for kind, value in _ATTRIBUTE_VALUES.items():
            named[f"attribute {name} becomes {kind}"] = _setting_attribute(name, value)
        named[f"attribute {name} is missing"] = _dropping_attribute(name)
    named["an unknown dataset"] = lambda file: file.create_dataset("more", data=1)
    named["an unknown soft link"] = lambda file: file.__setitem__("more", h5py.SoftLink("/end"))
    return named


# ---- replacements of an object: (file, path, the old object) -> None


def _replacing(path, replace):
    def change(file):
        replace(file, path)

    return change


def _link(make):
    def replace(file, path):
        del file[path]
        file[path] = make(file)

    return replace


def _data(**arguments):
    def replace(file, path):
        del file[path]
        file.create_dataset(path, **arguments)

    return replace


def _group(file, path):
    del file[path]
    file.create_group(path)


def _named_type(file, path):
    del file[path]
    file[path] = np.dtype("i8")


def _gone(file, path):
    del file[path]


def _replacements(outside):
    outside = pathlib.Path(outside)

    def external_storage(file, path):
        old = _shape_and_type(file, path)
        del file[path]
        shape, dtype = old
        file.create_dataset(path, shape, dtype, external=[(str(outside), 0, h5py.h5f.UNLIMITED)])

    def virtual(file, path):
        shape, dtype = _shape_and_type(file, path)
        del file[path]
        layout = h5py.VirtualLayout(shape=shape or (1,), dtype=dtype)
        source = h5py.VirtualSource(str(outside.with_suffix(".h5")), "data", shape=shape or (1,))
        layout[:] = source[:]
        file.create_virtual_dataset(path, layout)

    return {
        "a link to another file": _link(lambda _: h5py.ExternalLink(str(outside), "/data")),
        "a soft link": _link(lambda _: h5py.SoftLink("/end")),
        "a soft link to nothing": _link(lambda _: h5py.SoftLink("/nothing")),
        "a soft link to itself": lambda file, path: _link(lambda _: h5py.SoftLink("/" + path))(
            file, path
        ),
        "a second name of another object": _link(
            lambda file: file["drops" if "drops" in file else "end"]
        ),
        "the root": _link(lambda file: file["/"]),
        "external storage": external_storage,
        "a virtual dataset": virtual,
        "a group": _group,
        "a named type": _named_type,
        "missing": _gone,
        "one integer": _data(data=np.int64(7)),
        "an array of integers": _data(data=np.arange(1000, dtype="i8")),
        "an array of reals": _data(data=np.full(1000, 0.5)),
        "a matrix": _data(data=np.zeros((20, 20))),
        "nothing": _data(data=h5py.Empty("i8")),
        "no rows": _data(shape=(0,), maxshape=(None,), dtype="i8", chunks=(128,)),
        "texts of any length": _data(data=["text"] * 9, dtype=h5py.string_dtype()),
        "a long text": _data(data=np.bytes_(b"x" * 100_000)),
        "references": _data(shape=(9,), dtype=h5py.ref_dtype),
        "lists of any length": _data(shape=(9,), dtype=h5py.vlen_dtype("i8")),
        "bits": _data(shape=(9,), dtype=bool),
    }


def _shape_and_type(file, path):
    old = file[path]
    if isinstance(old, h5py.Dataset):
        return (old.shape or (1,)), old.dtype
    return (4,), np.dtype("i8")


# ---- the same data with other storage


def _stored(**arguments):
    def change(file, path):
        old = file[path]
        data, dtype = old[()], old.dtype
        maxshape = old.maxshape
        del file[path]
        if old_is_scalar := np.shape(data) == ():
            data = np.reshape(data, (1,))
        keywords = {"maxshape": maxshape if not old_is_scalar else None, **arguments}
        file.create_dataset(path, data=data, dtype=dtype, **keywords)

    return change


def _unknown_filter(file, path):
    dtype = file[path].dtype
    del file[path]
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((16,))
    properties.set_filter(32_000, h5py.h5z.FLAG_OPTIONAL, (1, 2, 3))
    space = h5py.h5s.create_simple((100,), (h5py.h5s.UNLIMITED,))
    dataset = h5py.h5d.create(
        file.id, path.encode(), h5py.h5t.py_create(dtype, logical=True), space, properties
    )
    del dataset


def _long(rows, **arguments):
    def change(file, path):
        dtype = file[path].dtype
        del file[path]
        file.create_dataset(path, shape=(rows,), dtype=dtype, **arguments)

    return change


def _own_type(file, path):
    """Commit the dataset's type as a separate object."""
    data, dtype = file[path][()], file[path].dtype
    del file[path]
    file["a type"] = dtype
    file.create_dataset(path, data=data, dtype=file["a type"])


def _other_columns(file, path):
    dtype = file[path].dtype
    del file[path]
    names = [(name + "_", "i2") for name in (dtype.names or ("one", "two"))]
    file.create_dataset(path, shape=(100,), maxshape=(None,), chunks=(64,), dtype=names)


def _half_stored(file, path):
    """Extend a dataset beyond the rows that were written."""
    dataset = file[path]
    if dataset.chunks is not None:
        dataset.resize((len(dataset) + 1000,))


_STORAGE = {
    "a filter that nobody knows": _unknown_filter,
    "another filter": _stored(compression="gzip", shuffle=True, fletcher32=True, chunks=True),
    "LZF": _stored(compression="lzf", chunks=True),
    "a scale-offset filter": _long(100, chunks=(16,), scaleoffset=0),
    "a filter alone": _long(100, chunks=(16,), compression="gzip"),
    "2^40 rows that were never stored": _long(2**40),
    "2^40 rows in chunks": _long(2**40, chunks=(4096,), maxshape=(None,)),
    "2^22 rows in packed chunks": _long(
        2**22, chunks=(4096,), maxshape=(None,), compression="gzip", shuffle=True
    ),
    "chunks of 2^20 rows": _long(
        2**20, chunks=(2**20,), maxshape=(None,), compression="gzip", shuffle=True
    ),
    "chunks of one row": _long(100, chunks=(1,), maxshape=(None,)),
    "packed chunks of one row": _long(
        2**20, chunks=(1,), maxshape=(None,), compression="gzip", shuffle=True
    ),
    "no rows and no more": _long(0),
    "a type of its own": _own_type,
    "other columns": _other_columns,
    "rows that were never stored": _half_stored,
}


def _inflating(path, rows):
    def change(file):
        store_zeros(file[path], rows)

    return change


# ---- values


def _filling(path, column, extreme):
    def change(file):
        dataset = file[path]
        rows = dataset[()]
        if np.shape(rows) == () or len(rows) == 0:
            rows = np.zeros(3, dtype=dataset.dtype)
        kind = dataset.dtype[column]
        if kind.kind == "f":
            value = REALS[extreme % len(REALS)]
        else:
            limits = np.iinfo(kind)
            value = min(max(INTEGERS[extreme], int(limits.min)), int(limits.max))
        rows[column][:: 2 if extreme % 2 else 1] = value
        store(file, path, rows)
        count = path.removesuffix("_tail") + "_count"
        if path.endswith("_tail") and count in file:
            file[count][()] = len(file[path.removesuffix("_tail")]) + 3

    return change


def _setting_count(table, count):
    def change(file):
        file[table + "_count"][()] = count

    return change


_ATTRIBUTE_VALUES = {
    "an array": np.arange(4096, dtype="i8"),
    "an array of one": np.arange(1, dtype="i8"),
    "a real": 0.5,
    "not a number": np.nan,
    "infinite": np.inf,
    "text": np.bytes_(b"text"),
    "a long text": np.bytes_(b"x" * 60_000),
    "text that is no UTF-8": np.bytes_(b"\xff\xfe\x80 run"),
    "text of any length": "text",
    "texts": np.array([b"ab"] * 99),
    "nothing": h5py.Empty("i8"),
    "rows": np.zeros(9, dtype=[("a", "i8"), ("b", "f8")]),
    "an enum": np.bool_(True),
    "-1": np.int64(-1),
    "0": np.int64(0),
    "2": np.int64(2),
    "the least integer": np.int64(-(2**63)),
    "the largest integer": np.int64(2**63 - 1),
    "unsigned": np.uint64(2**64 - 1),
}


def _setting_attribute(name, value):
    def change(file):
        file.attrs[name] = value

    return change


def _dropping_attribute(name):
    def change(file):
        if name in file.attrs:
            del file.attrs[name]

    return change
