"""Dumped GEMMs for the tests of telens replay, and their contents as h5py, numpy and ml_dtypes read
them.
"""

import h5py
import ml_dtypes
import numpy as np
import torch
from debug_helpers import section, train

import telens.debug as debug
import telens.pytorch as te
from telens.common import recipe as recipes
from telens.replay import casts, dumps, found, gemm_error

ALL = ["activation", "weight", "gradient", "output", "wgrad", "dgrad"]
OPERANDS = {
    "fprop": "activation weight",
    "dgrad": "gradient weight",
    "wgrad": "gradient activation",
}
RECIPES = {
    "none": None,
    "delayed": recipes.DelayedScaling(),
    "current": recipes.Float8CurrentScaling(),
    "current by powers of 2": recipes.Float8CurrentScaling(use_power_2_scales=True),
    "blockwise": recipes.Float8BlockScaling(),
    "mxfp8": recipes.MXFP8BlockScaling(),
    "nvfp4": recipes.NVFP4BlockScaling(),
}
FORMATS = {
    "E4M3": ml_dtypes.float8_e4m3fn,
    "E5M2": ml_dtypes.float8_e5m2,
    "E2M1": ml_dtypes.float4_e2m1fn,
    "E8M0": ml_dtypes.float8_e8m0fnu,
    "BF16": ml_dtypes.bfloat16,
    "FP16": np.float16,
    "FP32": np.float32,
}


def dump_gemms(log_dir, recipe, *, features=128, tokens=64, dtype=torch.bfloat16, **keys):
    """Trains two iterations, and dumps the second one, which has larger tensors."""
    torch.manual_seed(1)
    layer = te.Linear(features, 96, params_dtype=dtype, name="layers.0.fc1")
    keys = {"tensors": ALL, "operands": True, "start_step": 1, "end_step": 1} | keys
    region = {"fp8": recipe is not None, **({"recipe": recipe} if recipe else {})}
    with debug.session(section({"DumpTensors": {"enabled": True, **keys}}), log_dir=log_dir):
        for size in (1.0, 3.0):
            x = (size * torch.randn(tokens, features)).to(dtype).requires_grad_()
            train(layer, x, **region)
    return log_dir / "tensor_dumps/rank_0/iter_000001"


def drop_checksums(file):
    """Removes the checksums: earlier versions wrote none, and tests that change a dump need
    none.
    """

    def drop(_, item):
        item.attrs.pop("crc", None)

    file.attrs.pop("structure_crc", None)
    file.visititems(drop)


class Dumped:
    """The folder of dumps of each recipe; each is made once."""

    def __init__(self, tmp_path_factory):
        self._factory = tmp_path_factory
        self._made = {}

    def __call__(self, name):
        if name not in self._made:
            self._made[name] = dump_gemms(self._factory.mktemp("dumps"), RECIPES[name])
        return self._made[name]


def gemm_file(folder, gemm):
    return folder / f"layers_0_fc1_{gemm}_gemm.h5"


def decoded(dataset):
    format = dataset.attrs["format"].decode()
    codes = dataset[()]
    if format == "E2M1":
        codes = np.stack((codes & 0xF, codes >> 4), axis=-1).reshape(codes.shape[0], -1)
    return codes.view(FORMATS[format]).astype(np.float64)


def operand(group):
    """Returns an operand of a dumped GEMM as [rows, K], in FP64."""
    if "values" in group:
        return decoded(group["values"])
    values, scales = decoded(group["codes"]), decoded(group["scale_inv"])
    if length := int(group.attrs["block_length"]):
        scales = scales.repeat(int(group.attrs["block_height"]), 0)[: values.shape[0]]
        scales = scales.repeat(length, 1)[:, : values.shape[1]]
    values = values * scales
    if "tensor_scale" in group:
        values = values * decoded(group["tensor_scale"])
    if "hadamard_signs" not in group.attrs:
        return values
    # H[i, j] = (-1)^popcount(i & j) / 4 is its own inverse.
    index = np.arange(16)
    ones = np.array([bin(n).count("1") for n in range(16)])
    matrix = (-1.0) ** ones[index[:, None] & index] / 4
    signs = 1.0 - 2.0 * (int(group.attrs["hadamard_signs"]) >> index & 1)
    return ((values.reshape(-1, 16) @ matrix) * signs).reshape(values.shape)


def read_with_h5py(path):
    """Returns a, b, a', b', bias and result of a dumped GEMM."""
    with h5py.File(path) as file:
        gemm = file.attrs["gemm"].decode()
        a, b = (decoded(file[f"{side}/high_precision"]) for side in "ab")
        a_cast, b_cast = operand(file["a"]), operand(file["b"])
        if gemm == "wgrad":
            a = a.T
        if gemm != "fprop":
            b = b.T
        if "values" in file["a"]:
            a_cast = a_cast.T if gemm == "wgrad" else a_cast
            b_cast = b_cast.T if gemm != "fprop" else b_cast
        bias = decoded(file["bias"]) if "bias" in file else 0.0
        return a, b, a_cast, b_cast, bias, decoded(file["result"])


def split_of(gemm):
    [split] = gemm_error.splits(gemm)
    return split


def parts_of(gemm):
    return {part.name: part.matrix.numpy() for part in split_of(gemm).parts}


def dump_in(path):
    [one] = found.find(path)
    return dumps.read(one)


def recorded(path):
    return casts.recorded(dump_in(path))
