"""Read the records of a run with h5py and pandas only: read_run.py LOG_DIR/telens/RUN_ID."""

import sys
from itertools import groupby
from pathlib import Path

import h5py
import numpy as np
import pandas as pd

DICTIONARIES = ("layer", "tensor", "gemm", "statistic", "scope")


def read_table(file, name):
    """Read records, histograms, ledger or blocks: the compressed rows and the tail.

    Count, tail and table are read in this order, so that a growing file loses no row.
    """
    count, tail = int(file[name + "_count"][()]), file[name + "_tail"][:]
    rows = file[name][:]
    return np.concatenate([rows, tail[: max(0, count - len(rows))]])


def read_names(file, dictionary):
    return [name.decode(errors="backslashreplace") for name in file["names/" + dictionary][:]]


def read_file(path):
    """Return the records of one file with names in place of ids, and the file's attributes."""
    with h5py.File(path, "r", swmr=True) as file:
        frame = pd.DataFrame(read_table(file, "records"))
        for column in DICTIONARIES:
            frame[column] = frame[column].map(dict(enumerate(read_names(file, column))))
        return frame.assign(rank=int(file.attrs["rank"])), dict(file.attrs)


def read_rank(paths):
    """Join the segments of one rank. A resumed run replaces the iterations that it repeats."""
    joined = []
    for path in paths:
        frame, attributes = read_file(path)
        if "continues" not in attributes and len(frame):
            first = frame["iteration"].min()
            joined = [earlier[earlier["iteration"] < first] for earlier in joined]
        joined.append(frame)
    return pd.concat(joined, ignore_index=True)


def read_run(folder):
    """Return the records of all ranks."""
    files = sorted(Path(folder).glob("rank*.h5"))
    ranks = groupby(files, key=lambda path: path.name.split(".")[0])
    return pd.concat([read_rank(paths) for _, paths in ranks], ignore_index=True)


if __name__ == "__main__":
    print(read_run(sys.argv[1]).to_string(max_rows=20))
