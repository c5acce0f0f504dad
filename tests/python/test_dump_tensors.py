"""Dumped tensors, read with h5py only: they are what the GEMM read, and enough to repeat it."""

import pathlib
import subprocess
import sys
import textwrap

import h5py
import ml_dtypes
import numpy as np
import pytest
import torch
from debug_helpers import message_log, section, train

import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import Float8CurrentScaling, MXFP8BlockScaling

FORMATS = {
    "E4M3": ml_dtypes.float8_e4m3fn,
    "E5M2": ml_dtypes.float8_e5m2,
    "E8M0": ml_dtypes.float8_e8m0fnu,
    "BF16": ml_dtypes.bfloat16,
    "FP16": np.float16,
    "FP32": np.float32,
}
ALL = ["activation", "weight", "gradient", "output", "wgrad", "dgrad"]


def dumping(tensors=ALL, high=True, quantized=True, **keys) -> dict:
    return section(
        {
            "DumpTensors": {
                "enabled": True,
                "tensors": tensors,
                "high_precision_tensor": high,
                "quantized_tensor": quantized,
                **keys,
            }
        }
    )


def folder(log_dir: pathlib.Path, iteration: int = 0) -> pathlib.Path:
    return log_dir / f"tensor_dumps/rank_0/iter_{iteration:06d}"


def decoded(dataset: h5py.Dataset) -> np.ndarray:
    """A dataset's elements, in FP64."""
    return dataset[()].view(FORMATS[dataset.attrs["format"].decode()]).astype(np.float64)


def operand(group: h5py.Group) -> np.ndarray:
    """Returns an operand of a GEMM as a matrix in FP64, as docs/run_file.md says."""
    if "values" in group:
        return decoded(group["values"])
    values = decoded(group["codes"])
    scales = decoded(group["scale_inv"])
    length, height = int(group.attrs["block_length"]), int(group.attrs["block_height"])
    if length > 0:
        scales = scales.repeat(height, axis=0)[: values.shape[0]]
        scales = scales.repeat(length, axis=1)[:, : values.shape[1]]
    values = values * scales
    return values.T if group.attrs["transposed"] else values


@pytest.fixture
def layer() -> te.Linear:
    torch.manual_seed(1)
    return te.Linear(64, 96, params_dtype=torch.bfloat16, name="layers.0.fc1")


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(2)
    return torch.randn(32, 64, dtype=torch.bfloat16).requires_grad_()


def assert_same_product(output, a, b, bias=0.0):
    """output = a @ b.T + bias, within FP32 accumulation and one rounding to BF16 on both sides."""
    exact = a @ b.T + bias
    bound = a.shape[1] * 2.0**-23 * (np.abs(a) @ np.abs(b).T + np.abs(bias))
    bound += 2 * 2.0**-8 * np.abs(exact)
    worst = np.unravel_index(np.argmax(np.abs(output - exact) - bound), exact.shape)
    assert np.all(np.abs(output - exact) <= bound), (worst, output[worst], exact[worst])


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        (None, "none"),
        (Float8CurrentScaling(), "fp8_current_scaling"),
        (MXFP8BlockScaling(), "mxfp8"),
    ],
    ids=["bf16", "fp8", "mxfp8"],
)
def test_gemms_are_reproducible_from_files(tmp_path, layer, x, recipe, name):
    region = {"fp8": recipe is not None, **({"recipe": recipe} if recipe else {})}
    with debug.session(dumping(), log_dir=tmp_path):
        train(layer, x, **region)
    files = {tensor: h5py.File(folder(tmp_path) / f"layers_0_fc1_{tensor}.h5") for tensor in ALL}
    for tensor in ("activation", "weight", "gradient"):
        assert files[tensor].attrs["recipe"].decode() == name
        assert ("codes" in files[tensor]["rowwise"]) == (recipe is not None)
    gemms = {
        tensor: [files[tensor][way].attrs["gemm"].decode() for way in ("rowwise", "columnwise")]
        for tensor in ("activation", "weight", "gradient")
    }
    assert gemms == {
        "activation": ["fprop", "wgrad"],
        "weight": ["fprop", "dgrad"],
        "gradient": ["dgrad", "wgrad"],
    }
    rows = {tensor: operand(files[tensor]["rowwise"]) for tensor in gemms}
    columns = {tensor: operand(files[tensor]["columnwise"]) for tensor in gemms}
    out = {tensor: decoded(files[tensor]["high_precision"]) for tensor in ALL[3:]}
    bias = decoded(files["output"]["bias"])
    assert_same_product(out["output"], rows["activation"], rows["weight"], bias)
    assert_same_product(out["dgrad"], rows["gradient"], columns["weight"].T)
    assert_same_product(out["wgrad"], columns["gradient"].T, columns["activation"].T)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_high_precision_values_are_kept_bit_for_bit(tmp_path, dtype):
    layer = te.Linear(16, 16, params_dtype=dtype, name="fc")
    x = torch.randn(16, 16).to(dtype)
    with debug.session(dumping(["activation"], quantized=False), log_dir=tmp_path):
        train(layer, x)
    with h5py.File(folder(tmp_path) / "fc_activation.h5") as file:
        stored = file["high_precision"]
        values = stored[()].view(FORMATS[stored.attrs["format"].decode()])
        assert np.array_equal(values.astype(np.float64), x.double().numpy())
        assert list(file.attrs["shape"]) == [16, 16]
        assert file.attrs["iteration"] == 0
        assert "rowwise" not in file


def test_one_tensor_under_several_names_is_stored_once(tmp_path, layer, x):
    with debug.session(dumping(["activation"]), log_dir=tmp_path):
        train(layer, x)
    with h5py.File(folder(tmp_path) / "layers_0_fc1_activation.h5") as file:
        assert file["rowwise/values"] == file["high_precision"] == file["columnwise/values"]


def test_colliding_names_and_later_micro_batches_get_a_suffix(tmp_path, x):
    first = te.Linear(64, 16, params_dtype=torch.bfloat16, name="a.b")
    second = te.Linear(64, 16, params_dtype=torch.bfloat16, name="a_b")
    with debug.session(dumping(["activation"], freq=2), log_dir=tmp_path):
        for _ in range(3):
            first(x)
            second(x)
            first(x)
            debug.step()
    names = ["a_b_activation.1.h5", "a_b_activation.2.h5", "a_b_activation.h5"]
    assert sorted(path.name for path in folder(tmp_path, 0).iterdir()) == names
    assert sorted(path.name for path in folder(tmp_path, 2).iterdir()) == names
    assert not folder(tmp_path, 1).exists()
    layers = [h5py.File(folder(tmp_path) / name).attrs["layer"].decode() for name in names]
    assert layers == ["a_b", "a.b", "a.b"]


def test_dump_without_selected_tensors_is_logged(tmp_path, layer, x):
    config = section({"DumpTensors": {"enabled": True, "tensors": ["activation"]}})
    with debug.session(config, log_dir=tmp_path):
        train(layer, x)
    assert not (tmp_path / "tensor_dumps").exists()
    assert "neither high_precision_tensor nor quantized_tensor is set" in message_log(tmp_path)


def test_output_without_codes_is_logged(tmp_path, layer, x):
    with debug.session(dumping(["output"], high=False), log_dir=tmp_path):
        train(layer, x)
    assert not (tmp_path / "tensor_dumps").exists()
    assert "the output of a GEMM has no quantized tensor" in message_log(tmp_path)


def test_unwritable_dump_folder_warns_once(tmp_path, layer, x):
    (tmp_path / "tensor_dumps").write_text("in the way")
    with debug.session(dumping(), log_dir=tmp_path):
        train(layer, x, steps=2)
    log = message_log(tmp_path)
    assert log.count("cannot write the tensor dump") == 1
    assert "it is disabled for the rest of the session, and the training continues" in log
    assert layer.weight.grad is not None


def test_a_full_disk_costs_one_warning_and_leaves_no_half_file(tmp_path):
    script = textwrap.dedent(
        """
        import resource, sys
        import torch
        import telens.debug as debug
        import telens.pytorch as te
        from test_dump_tensors import dumping

        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        layer = te.Linear(1024, 16, params_dtype=torch.bfloat16, name="fc")
        debug.initialize(dumping(["activation"]), log_dir=sys.argv[1])
        for _ in range(2):
            layer(torch.ones(1024, 1024, dtype=torch.bfloat16)).sum().backward()
            debug.step()
        debug.end_debug()
        print("trained on")
        """
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=pathlib.Path(__file__).parent,
    )
    assert run.stdout == "trained on\n", run.stderr
    assert run.stderr.count("cannot write the tensor dump") == 1
    assert "File too large" in run.stderr
    assert list(folder(tmp_path).iterdir()) == []
