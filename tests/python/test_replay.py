"""telens replay: a dumped GEMM's error in parts, against numpy and ml_dtypes, and as a program."""

import json
import os
import re
import subprocess
import sys

import h5py
import ml_dtypes
import numpy as np
import pytest
import torch
from debug_helpers import message_log, section, train

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common import recipe as recipes
from telens.replay import casts, dumps, gemm_error

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
    """Two iterations, of which the second, with larger tensors, is dumped."""
    torch.manual_seed(1)
    layer = te.Linear(features, 96, params_dtype=dtype, name="layers.0.fc1")
    keys = {"tensors": ALL, "operands": True, "start_step": 1, "end_step": 1} | keys
    region = {"fp8": recipe is not None, **({"recipe": recipe} if recipe else {})}
    with debug.session(section({"DumpTensors": {"enabled": True, **keys}}), log_dir=log_dir):
        for size in (1.0, 3.0):
            x = (size * torch.randn(tokens, features)).to(dtype).requires_grad_()
            train(layer, x, **region)
    return log_dir / "tensor_dumps/rank_0/iter_000001"


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
    """The folder of dumps by recipe, each made once."""
    made = {}

    def folder(name):
        if name not in made:
            made[name] = dump_gemms(tmp_path_factory.mktemp(name), RECIPES[name])
        return made[name]

    return folder


def gemm_file(folder, gemm):
    return folder / f"layers_0_fc1_{gemm}_gemm.h5"


def decoded(dataset):
    format = dataset.attrs["format"].decode()
    codes = dataset[()]
    if format == "E2M1":
        codes = np.stack((codes & 0xF, codes >> 4), axis=-1).reshape(codes.shape[0], -1)
    return codes.view(FORMATS[format]).astype(np.float64)


def operand(group):
    """What the GEMM got, as [rows, K], in FP64."""
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
    """a, b, a', b', bias and result of a dumped GEMM."""
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


def parts_of(gemm):
    return {part.name: part.matrix.numpy() for part in gemm_error.split_error(gemm).parts}


def recorded(path):
    [found] = dumps.find(path)
    return casts.recorded(dumps.read(found))


@pytest.mark.parametrize("gemm", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_parts_are_those_of_an_independent_computation(dumped, recipe, gemm):
    path = gemm_file(dumped(recipe), gemm)
    a, b, a_cast, b_cast, bias, result = read_with_h5py(path)
    parts = parts_of(recorded(path))
    name_a, name_b = OPERANDS[gemm].split()
    casting_a = (a_cast - a) @ (b + b_cast).T / 2
    casting_b = (a + a_cast) @ (b_cast - b).T / 2
    exact_sum = a_cast @ b_cast.T + bias
    rounded = exact_sum.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    expected = {
        name_a: casting_a,
        name_b: casting_b,
        "output cast": rounded - exact_sum,
        "accumulation": result - rounded,
    }
    found = {
        name: sum(matrix for part, matrix in parts.items() if part.split(" ", 1)[-1].endswith(name))
        for name in (name_a, name_b)
    } | {name: parts[name] for name in ("output cast", "accumulation")}
    scale = np.abs(a) @ np.abs(b).T + np.abs(bias) + 1e-300
    for name, matrix in expected.items():
        # FP64 sums in another order; a rounding at a tie may fall the other way for it.
        differs = np.abs(found[name] - matrix) > 1e-12 * scale
        assert differs.mean() < 1e-3, (name, np.abs(found[name] - matrix).max())
    if recipe == "none":
        assert not casting_a.any()
        assert not casting_b.any()
    else:
        assert np.linalg.norm(casting_a) > 1e-3 * np.linalg.norm(exact_sum)


@pytest.mark.parametrize("gemm", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_parts_add_up_to_the_error_within_fp64_rounding(dumped, recipe, gemm):
    split = gemm_error.split_error(recorded(gemm_file(dumped(recipe), gemm)))
    a, b, _, _, bias, result = read_with_h5py(gemm_file(dumped(recipe), gemm))
    total = result - (a @ b.T + bias)
    assert np.allclose(split.total.numpy(), total, rtol=0, atol=1e-12 * np.abs(a).max() * 400)
    missed = (split.total - sum(part.matrix for part in split.parts)).abs()
    assert bool((missed <= split.bound).all())
    assert float(split.bound.max()) < 1e-12 * float(split.exact.abs().max())
    rows = gemm_error.figures(split)
    assert sum(row["share"] for row in rows[:-1]) == pytest.approx(1, abs=1e-9)
    assert sum(row["mean_error"] for row in rows[:-1]) == pytest.approx(rows[-1]["mean_error"])


def test_parts_that_do_not_add_up_are_an_error():
    one = torch.ones(2, 2, dtype=torch.float64)
    with pytest.raises(AssertionError, match="more than FP64 rounds"):
        gemm_error._telescope(one, 2 * one, {"a": [(1.5 * one, one)]})


def test_a_stale_scale_of_delayed_scaling_is_the_choice_of_the_scale(dumped):
    # The tensors of the dumped iteration are three times as large as those before.
    path = gemm_file(dumped("delayed"), "fprop")
    parts = parts_of(recorded(path))
    a, b, _, b_cast, *_ = read_with_h5py(path)
    scale = np.float32(448) / np.float32(np.abs(a).max())
    own = (a.astype(np.float32) * scale).astype(FORMATS["E4M3"]).astype(np.float64)
    own *= np.float64(np.float32(1) / scale)
    assert np.allclose(parts["quantizing activation"], (own - a) @ (b + b_cast).T / 2, atol=1e-9)
    stale = np.linalg.norm(parts["scale choice activation"])
    assert stale > 3 * np.linalg.norm(parts["quantizing activation"]), "it clips"


@pytest.mark.parametrize("recipe", ["current", "blockwise", "mxfp8"])
def test_a_scale_from_the_tensors_own_amax_leaves_nothing_to_the_choice(dumped, recipe):
    for gemm in OPERANDS:
        parts = parts_of(recorded(gemm_file(dumped(recipe), gemm)))
        assert not any(parts[name].any() for name in parts if name.startswith("scale choice"))


@pytest.mark.parametrize("recipe", ["current", "blockwise", "mxfp8"])
@pytest.mark.parametrize("gemm", ["fprop", "dgrad", "wgrad"])
def test_the_recorded_recipe_as_another_cast_gives_the_recorded_codes(dumped, recipe, gemm):
    [found] = dumps.find(gemm_file(dumped(recipe), gemm))
    again = casts.under(dumps.read(found), "", None)
    for cast, recorded_cast in zip(again.casts, recorded(found.files["gemm"]).casts, strict=True):
        assert torch.equal(cast.codes, recorded_cast.codes)
        assert torch.equal(cast.scales.reshape(-1), recorded_cast.scales.reshape(-1))


def test_the_files_of_tensors_are_replayed_as_the_file_of_the_gemm(tmp_path):
    keys = {"high_precision_tensor": True, "quantized_tensor": True}
    folder = dump_gemms(tmp_path, RECIPES["mxfp8"], **keys)
    for gemm, names in dumps.TENSORS.items():
        whole = recorded(gemm_file(folder, gemm))
        gemm_file(folder, gemm).unlink()
        pieces = [
            casts.recorded(dumps.read(each))
            for each in dumps.find(folder / f"layers_0_fc1_{names[2]}.h5")
            if each.gemm == gemm
        ]
        assert len(pieces) == 1
        expected, got = parts_of(whole), parts_of(pieces[0])
        assert all(np.array_equal(got[name], expected[name]) for name in expected)
        assert "operands: True" in " ".join(pieces[0].notes)


def made_gemm(a, b, result=None, **keys):
    a, b = torch.as_tensor(a), torch.as_tensor(b)
    plain = [gemm_error.Cast(codes=each, format="") for each in (a, b)]
    fields = {
        "title": "made", "names": ("activation", "weight"), "originals": (a, b),
        "casts": tuple(plain), "own_scales": (None, None), "bias": None,
        "result": (a.double() @ b.double().T).to(a.dtype) if result is None else result,
        "result_dtype": a.dtype, "notes": [],
    }  # fmt: skip
    return gemm_error.Gemm(**fields | keys)


@pytest.mark.parametrize("shape", [(0, 4, 3), (4, 0, 3), (4, 3, 0), (0, 0, 0)])
def test_an_empty_product_has_no_error(shape):
    m, n, k = shape
    gemm = made_gemm(torch.zeros(m, k), torch.zeros(n, k))
    rows = gemm_error.figures(gemm_error.split_error(gemm))
    assert all(row["relative_error"] == row["share"] == row["mean_error"] == 0 for row in rows)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_elements_that_are_not_finite_are_left_out_and_counted(value):
    a = torch.tensor([[1.0, value], [2.0, 3.0]])
    split = gemm_error.split_error(made_gemm(a, torch.ones(3, 2)))
    assert split.left_out == 3
    assert bool(split.exact.isfinite().all())
    assert "3 of 6 elements are not finite" in gemm_error.text(made_gemm(a, torch.ones(3, 2)))


def test_an_overflow_of_the_output_is_left_out():
    a, b = torch.full((1, 4), 300.0).half(), torch.full((1, 4), 300.0).half()
    assert gemm_error.split_error(made_gemm(a, b, torch.tensor([[np.inf]]).half())).left_out == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_to_16_bits_is_one_rounding(dtype):
    one = torch.ones((), dtype=torch.float64)
    step = torch.finfo(dtype).eps
    # Just above and below a tie, nearer than FP32 can tell: two roundings would see the tie.
    ties = one + torch.tensor([step / 2 + sign * 2.0**-40 for sign in (-1, 0, 1)], dtype=one.dtype)
    assert gemm_error.round_once(ties, dtype).tolist() == [1.0, 1.0, 1.0 + step]
    assert gemm_error.round_once(-ties, dtype).tolist() == [-1.0, -1.0, -1.0 - step]
    special = torch.tensor([0.0, -0.0, np.inf, -np.inf, np.nan, 1e300, 1e-300], dtype=one.dtype)
    rounded = gemm_error.round_once(special, dtype)
    assert rounded[:4].tolist() == [0, 0, np.inf, -np.inf]
    assert torch.signbit(rounded[1])
    assert rounded[4].isnan()
    assert rounded[5:].tolist() == [np.inf, 0.0]
    codes = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    codes = codes[codes.isfinite()]
    assert torch.equal(gemm_error.round_once(codes.double(), dtype).to(dtype), codes)


@pytest.mark.parametrize("format", ["E4M3", "E5M2", "E2M1", "E8M0"])
def test_every_code_is_decoded_as_ml_dtypes_does(format):
    codes = np.arange(256, dtype=np.uint8).reshape(16, 16)
    ours = gemm_error.decode(torch.from_numpy(codes), format).numpy()
    if format == "E2M1":
        codes = np.stack((codes & 0xF, codes >> 4), axis=-1).reshape(16, 32)
    assert np.array_equal(ours, codes.view(FORMATS[format]).astype(np.float64), equal_nan=True)


def test_a_layer_of_fp32_has_no_output_cast_and_its_rounded_bias_is_exact(tmp_path):
    torch.manual_seed(3)
    layer = te.Linear(64, 32, params_dtype=torch.float32, name="fc")
    torch.nn.init.normal_(layer.bias)
    keys = {"enabled": True, "tensors": ALL, "operands": True}
    with debug.session(section({"DumpTensors": keys}), log_dir=tmp_path):
        train(layer, torch.randn(32, 64).requires_grad_(), fp8=True, recipe=RECIPES["current"])
    path = tmp_path / "tensor_dumps/rank_0/iter_000000/fc_fprop_gemm.h5"
    parts = parts_of(recorded(path))
    a, b, a_cast, b_cast, bias, result = read_with_h5py(path)
    assert np.array_equal(bias, layer.bias.detach().bfloat16().double().numpy())
    # One rounding to FP32, and an FP32 sum of 64 products.
    magnitude = np.abs(a_cast) @ np.abs(b_cast).T + np.abs(bias)
    assert np.abs(parts["output cast"]).max() <= 2.0**-24 * magnitude.max()
    assert (np.abs(parts["accumulation"]) <= 66 * 2.0**-24 * magnitude).all()
    assert sum(parts.values()) == pytest.approx(result - (a @ b.T + bias), abs=1e-12)


def test_a_tensor_written_in_place_before_its_second_gemm_is_not_taken_for_the_original(tmp_path):
    layer = te.Linear(64, 32, params_dtype=torch.bfloat16, name="fc")
    x = torch.randn(32, 64, dtype=torch.bfloat16)
    keys = {"enabled": True, "tensors": ALL, "operands": True}
    with debug.session(section({"DumpTensors": keys}), log_dir=tmp_path):
        with te.autocast(enabled=True, recipe=RECIPES["current"]):
            out = layer(x)
        x.zero_()
        out.float().sum().backward()
        debug.step()
    folder = tmp_path / "tensor_dumps/rank_0/iter_000000"
    with h5py.File(folder / "fc_wgrad_gemm.h5") as file:
        assert "high_precision" not in file["b"]
        assert "high_precision" in file["a"]
    assert "activation: it was written in place between its cast and wgrad" in message_log(tmp_path)
    with pytest.raises(telens.UsageError, match="lacks the activation in high precision"):
        recorded(folder / "fc_wgrad_gemm.h5")
    recorded(folder / "fc_fprop_gemm.h5")


def test_without_operands_no_gemm_is_written(tmp_path):
    folder = dump_gemms(tmp_path, None, operands=False, high_precision_tensor=True)
    assert not list(folder.glob("*_gemm.h5"))


def test_a_gemm_of_which_a_tensor_is_not_chosen_is_not_written(tmp_path):
    folder = dump_gemms(tmp_path, None, tensors=["activation", "weight", "output", "gradient"])
    assert [path.name for path in folder.iterdir()] == ["layers_0_fc1_fprop_gemm.h5"]


# The program.


@pytest.fixture
def replay(build_folder, tmp_path):
    def run(*arguments, **environment):
        return subprocess.run(
            [str(build_folder / "bin/telens"), "replay", *map(str, arguments)],
            capture_output=True, text=True, timeout=120, cwd=tmp_path,
            env=os.environ | {"TELENS_PYTHON": sys.executable} | environment,
        )  # fmt: skip

    return run


def test_the_command_prints_a_table_and_the_reproducer_prints_the_same(dumped, replay, tmp_path):
    folder = dumped("delayed")
    answer = replay(folder, "--gemm", "dgrad", "--emit", "repro.py")
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert lines[0].startswith(
        "layers.0.fc1 dgrad, iteration 1, rank 0: [64, 96] x [128, 96]^T, fp8_delayed_scaling, "
    )
    assert [line.split("  ")[0] for line in lines[2:]] == [
        "quantizing gradient", "quantizing weight", "scale choice gradient",
        "scale choice weight", "output cast", "accumulation", "total",
    ]  # fmt: skip
    shares = [float(line.split()[-2]) for line in lines[2:]]
    assert sum(shares[:-1]) == pytest.approx(shares[-1], abs=0.05)
    script = (tmp_path / "repro.py").read_text()
    assert set(re.findall(r"^ *(?:import|from) (\w+)(?= import|$)", script, re.M)) == {
        "__future__", "dataclasses", "math", "pathlib", "torch",
    }  # fmt: skip
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    again = subprocess.run(
        [sys.executable, tmp_path / "repro.py"],
        capture_output=True, text=True, timeout=120, cwd=elsewhere, env=environment,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith(answer.stdout)


def test_another_cast_stands_below_and_json_holds_both(dumped, replay):
    path = gemm_file(dumped("mxfp8"), "fprop")
    answer = replay(path, "--format", "E5M2", "--recipe", "mxfp8", "--format", "json")
    assert answer.returncode == 0, answer.stderr
    page = json.loads(answer.stdout)
    assert page["schema_version"] == 1
    [gemm] = page["gemms"]
    assert (gemm["layer"], gemm["gemm"], gemm["iteration"]) == ("layers.0.fc1", "fprop", 1)
    assert gemm["recorded"]["casts"] == ["E4M3", "E4M3"]
    assert gemm["other_cast"]["casts"] == ["E5M2", "E5M2"]
    total = {key: gemm[key]["parts"][-1]["relative_error"] for key in ("recorded", "other_cast")}
    # One bit of mantissa less doubles the error.
    assert 1.6 < total["other_cast"] / total["recorded"] < 2.4
    assert "no hardware multiplies E5M2 by E5M2" in gemm["other_cast"]["notes"]
    a, b, *_ = read_with_h5py(path)
    again = [cast_to_mxfp8(each, FORMATS["E5M2"], 57344.0) for each in (a, b)]
    with h5py.File(path) as file:
        bias = decoded(file["bias"])
    exact, other = a @ b.T + bias, again[0] @ again[1].T + bias
    other = other.astype(ml_dtypes.bfloat16).astype(np.float64)
    expected = np.linalg.norm(other - exact) / np.linalg.norm(exact)
    assert total["other_cast"] == pytest.approx(expected, rel=1e-6)


def cast_to_mxfp8(values, dtype, largest):
    """By 32 along a row, with the power of two above amax / largest."""
    blocks = values.reshape(-1, 32)
    amax = np.abs(blocks).max(axis=1, keepdims=True)
    scales = 2.0 ** np.ceil(np.log2(amax / largest))
    return ((blocks / scales).astype(dtype).astype(np.float64) * scales).reshape(values.shape)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: there is no such file or folder"),
        (["{dump}", "--format", "E3M4"], "expected table or json, or E4M3, E5M2 or HYBRID"),
        (["{dump}", "--gemm", "fprob"], "there is no GEMM 'fprob'"),
        (["{dump}", "--gemm", "wgrad"], "none of its 1 GEMMs fits these filters; one is fprop"),
        (["{dump}", "--layer", "fc2"], "none of its 1 GEMMs fits these filters"),
        (["{dump}", "--layer", "("], "--layer '('"),
        (["{dump}", "--iterations", "3:1"], "its end lies before its beginning"),
        (["{dump}", "--iterations", "x"], "expected a:b, a:, :b or one iteration"),
        (["{dump}", "--rank", "-1"], "--rank"),
        (["{dump}", "--recipe", "fp9"], "there is no recipe 'fp9'|--recipe fp9: expected"),
        (["{dump}", "--recipe", "nvfp4", "--format", "E5M2"], "nvfp4 has E2M1 alone"),
        (["{dump}", "--emit", "repro.txt"], "expected the name of a Python script"),
        (["{dump}", "--emit", "no/where.py"], "it cannot be written"),
        (["{empty}"], "it holds no dump of DumpTensors"),
        (["{text}"], "it cannot be read as a dump"),
        ([], "DUMP is required"),
        (["--fromat", "json", "{dump}"], "--format"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line_and_exit_code_2(dumped, replay, tmp_path, arguments, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.h5").write_text("no HDF5")
    paths = {
        "dump": gemm_file(dumped("current"), "fprop"),
        "empty": tmp_path / "empty",
        "text": tmp_path / "text.h5",
    }
    answer = replay(*[each.format(**paths) for each in arguments])
    assert answer.returncode == 2, answer.stdout
    assert re.fullmatch(
        rf"telens: [^\n]*({re.escape(message).replace(re.escape('|'), '|')})[^\n]*\n", answer.stderr
    ), answer.stderr


def test_a_python_without_the_package_is_named(dumped, replay):
    answer = replay(gemm_file(dumped("current"), "fprop"), TELENS_PYTHON="no-such-python")
    assert answer.returncode == 2
    assert "cannot start no-such-python" in answer.stderr
    answer = replay(gemm_file(dumped("current"), "fprop"), PYTHONPATH="")
    assert answer.returncode == 2
    assert "No module named 'telens'" in answer.stderr
    assert "TELENS_PYTHON" in answer.stderr


def test_a_folder_of_micro_batches_of_tensors_is_refused(tmp_path):
    layer = te.Linear(64, 32, params_dtype=torch.bfloat16, name="fc")
    x = torch.randn(32, 64, dtype=torch.bfloat16)
    keys = {"enabled": True, "tensors": ALL, "operands": True, "high_precision_tensor": True,
            "quantized_tensor": True}  # fmt: skip
    with debug.session(section({"DumpTensors": keys}), log_dir=tmp_path):
        for _ in range(2):
            layer(x).float().sum().backward()
        debug.step()
    found = [each for each in dumps.find(tmp_path) if each.gemm == "fprop"]
    assert [each.files["gemm"].name for each in found] == ["fc_fprop_gemm.1.h5", "fc_fprop_gemm.h5"]
    for path in tmp_path.rglob("*_gemm*.h5"):
        path.unlink()
    with pytest.raises(telens.UsageError, match=r"several micro-batches.*operands: True"):
        dumps.find(tmp_path)


def mutations(file):
    """Named changes of an open dump, each of which no GEMM can have written."""

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
        "the other way": attribute("a", "transposed", 1),
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
