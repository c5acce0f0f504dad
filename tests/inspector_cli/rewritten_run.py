"""A run of other values."""

import shutil

import h5py


def rewritten(run_file, folder, value_of):
    """A copy of the run with the values of value_of(iteration, layer, tensor, statistic)."""
    path = folder / "rank00000.h5"
    shutil.copy(run_file, path)
    with h5py.File(path, "r+", libver="latest") as file:
        records = file["records"][:]
        for i, record in enumerate(records):
            names = [
                file["names/" + kind][record[kind]].decode()
                for kind in ("layer", "tensor", "statistic")
            ]
            records["value"][i] = value_of(int(record["iteration"]), *names)
        file["records"][:] = records
    return path
