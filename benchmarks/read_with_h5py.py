"""What a team writes that has h5py alone: the largest value of each statistic of a layer, file by
file, as docs/run_file.md reads one: read_with_h5py.py LOG_DIR LAYER."""

import pathlib
import sys

import h5py
import numpy as np


def records_of(file):
    count, tail = int(file["records_count"][()]), file["records_tail"][:]
    rows = file["records"][:]
    return np.concatenate([rows, tail[: max(0, count - len(rows))]])


def names_of(file, dictionary):
    return [name.decode() for name in file["names/" + dictionary][:]]


def main(log_dir, layer):
    largest = {}
    for path in sorted(pathlib.Path(log_dir).glob("telens/*/rank*.h5")):
        with h5py.File(path, "r", swmr=True) as file:
            records = records_of(file)
            records = records[records["layer"] == names_of(file, "layer").index(layer)]
            statistics = names_of(file, "statistic")
            for id in np.unique(records["statistic"]):
                most = np.nanmax(records["value"][records["statistic"] == id])
                largest[statistics[id]] = max(most, largest.get(statistics[id], -np.inf))
    print(largest)


if __name__ == "__main__":
    main(*sys.argv[1:])
