"""Replaces rows of a run file and their checksums, like an attacker who avoids detection."""

import zlib

import numpy as np

FIRST_WITH_CHECKSUMS = 3  # the first schema version with them: see docs/run_file.md
CHECKSUM_BYTES = 4


def store(file, path, rows):
    """Replace all rows of a table. A tail, or a single value, gets as many rows as it has."""
    checksums = file.attrs["schema_version"] >= FIRST_WITH_CHECKSUMS
    dataset = file[path]
    packed = f"{path}_tail" in file
    if dataset.chunks is not None:
        dataset.resize((len(rows),))
    if packed and checksums:
        _store_chunks(dataset, rows)
        return
    dataset[...] = rows
    if "crc" in dataset.attrs:
        dataset.attrs.modify("crc", np.uint32(checksum(dataset[...].tobytes(), 0)))
    if checksums and f"{path}_crc" in file:
        table = path.removesuffix("_tail")
        first = len(file[table]) if path.endswith("_tail") else 0
        _store_checksums(file[f"{path}_crc"], rows, first)


def store_zeros(dataset, rows):
    """Store zero rows in a compressed table, which take little more than their checksums."""
    dataset.resize((rows,))
    chunk_rows = dataset.chunks[0]
    packed = zlib.compress(bytes(chunk_rows * dataset.dtype.itemsize), 9)
    for number in range(-(-rows // chunk_rows)):
        sum_of = checksum(packed, number).to_bytes(CHECKSUM_BYTES, "little")
        dataset.id.write_direct_chunk((number * chunk_rows,), packed + sum_of)


def checksum(content: bytes, number: int) -> int:
    return zlib.crc32(content, number & 0xFFFFFFFF)


def _store_checksums(dataset, rows, first):
    if dataset.chunks is not None:
        dataset.resize((len(rows),))
    # Slices, because NumPy drops trailing zeros of a single element.
    dataset[...] = [checksum(rows[i : i + 1].tobytes(), first + i) for i in range(len(rows))]


def _store_chunks(dataset, rows):
    """Shuffle, deflate and append the checksum."""
    chunk_rows = dataset.chunks[0]
    for number, begin in enumerate(range(0, len(rows), chunk_rows)):
        chunk = np.zeros(chunk_rows, dtype=dataset.dtype)
        chunk[: len(rows) - begin] = rows[begin : begin + chunk_rows]
        planes = np.frombuffer(chunk.tobytes(), np.uint8).reshape(chunk_rows, -1).T.tobytes()
        packed = zlib.compress(planes, 1)
        sum_of = checksum(packed, number).to_bytes(CHECKSUM_BYTES, "little")
        dataset.id.write_direct_chunk((begin,), packed + sum_of)
