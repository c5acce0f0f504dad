"""A dumped GEMM's error in parts, against numpy and ml_dtypes."""

import h5py
import ml_dtypes
import numpy as np
import pytest
import torch
from debug_helpers import message_log, section, train
from replay_cases import (
    ALL,
    FORMATS,
    OPERANDS,
    RECIPES,
    Dumped,
    dump_gemms,
    dump_in,
    gemm_file,
    parts_of,
    read_with_h5py,
    recorded,
    split_of,
)

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.replay import casts, dumps, found, gemm_error


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
    return Dumped(tmp_path_factory)


@pytest.mark.parametrize("gemm", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_error_parts_match_an_independent_computation(dumped, recipe, gemm):
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
    got = {
        name: sum(matrix for part, matrix in parts.items() if part.split(" ", 1)[-1].endswith(name))
        for name in (name_a, name_b)
    } | {name: parts[name] for name in ("output cast", "accumulation")}
    scale = np.abs(a) @ np.abs(b).T + np.abs(bias) + 1e-300
    for name, matrix in expected.items():
        # FP64 sums in another order; near a tie this may change a rounding.
        differs = np.abs(got[name] - matrix) > 1e-12 * scale
        assert differs.mean() < 1e-3, (name, np.abs(got[name] - matrix).max())
    if recipe == "none":
        assert not casting_a.any()
        assert not casting_b.any()
    else:
        assert np.linalg.norm(casting_a) > 1e-3 * np.linalg.norm(exact_sum)


@pytest.mark.parametrize("gemm", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_parts_add_up_to_the_error_within_fp64_rounding(dumped, recipe, gemm):
    product = recorded(gemm_file(dumped(recipe), gemm))
    split = split_of(product)
    a, b, _, _, bias, result = read_with_h5py(gemm_file(dumped(recipe), gemm))
    total = result - (a @ b.T + bias)
    assert np.allclose(split.total.numpy(), total, rtol=0, atol=1e-12 * np.abs(a).max() * 400)
    missed = (split.total - sum(part.matrix for part in split.parts)).abs()
    assert bool((missed <= split.bound).all())
    assert float(split.bound.max()) < 1e-12 * float(split.exact.abs().max())
    rows = gemm_error.figures(product).rows
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


@pytest.mark.parametrize("recipe", ["current", "current by powers of 2", "blockwise", "mxfp8"])
def test_current_amax_scale_has_zero_scale_error(dumped, recipe):
    for gemm in OPERANDS:
        parts = parts_of(recorded(gemm_file(dumped(recipe), gemm)))
        assert not any(parts[name].any() for name in parts if name.startswith("scale choice"))


@pytest.mark.parametrize("recipe", ["current", "blockwise", "mxfp8"])
@pytest.mark.parametrize("gemm", ["fprop", "dgrad", "wgrad"])
def test_the_recorded_recipe_as_another_cast_gives_the_recorded_codes(dumped, recipe, gemm):
    path = gemm_file(dumped(recipe), gemm)
    again = casts.under(dump_in(path), "", None)
    for cast, recorded_cast in zip(again.casts, recorded(path).casts, strict=True):
        assert torch.equal(cast.codes, recorded_cast.codes)
        assert torch.equal(cast.scales.reshape(-1), recorded_cast.scales.reshape(-1))


def test_the_files_of_tensors_are_replayed_as_the_file_of_the_gemm(tmp_path):
    keys = {"high_precision_tensor": True, "quantized_tensor": True}
    folder = dump_gemms(tmp_path, RECIPES["mxfp8"], **keys)
    for gemm, names in found.TENSORS.items():
        whole = recorded(gemm_file(folder, gemm))
        gemm_file(folder, gemm).unlink()
        pieces = [
            casts.recorded(dumps.read(each))
            for each in found.find(folder / f"layers_0_fc1_{names[2]}.h5")
            if each.gemm == gemm
        ]
        assert len(pieces) == 1
        expected, got = parts_of(whole), parts_of(pieces[0])
        assert all(np.array_equal(got[name], expected[name]) for name in expected)
        assert "operands: True" in " ".join(pieces[0].notes)


def test_damaged_neighbor_file_is_skipped(tmp_path):
    keys = {"high_precision_tensor": True, "quantized_tensor": True, "operands": False}
    folder = dump_gemms(tmp_path, RECIPES["mxfp8"], **keys)
    (folder / "torn.h5").write_bytes((folder / "layers_0_fc1_output.h5").read_bytes()[:3000])
    lines = []
    (gemm,) = found.find(folder / "layers_0_fc1_output.h5", warn=lines.append)
    assert gemm.gemm == "fprop"
    (line,) = lines
    assert "torn.h5: it cannot be read" in line
    assert line.endswith("; it is left out")


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


def test_parts_add_up_within_their_bound_whatever_the_magnitudes():
    """splits() raises AssertionError if the parts of an element do not add up."""
    random = np.random.default_rng(3)
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

    def matrix(rows, depth):
        low, high = random.choice([2, 40, 300]), random.choice([2, 40, 160])
        values = random.standard_normal((rows, depth)) * 2.0 ** random.integers(-low, high, 1)
        values *= 2.0 ** random.integers(-low, high, (rows, depth))
        return torch.from_numpy(values).to(dtypes[random.integers(4)])

    def cast(values, factor=1.0):
        codes = (values.double() * factor).to(dtypes[random.integers(1, 4)])
        return gemm_error.Cast(codes=codes, format="")

    elements = left_out = 0
    for _ in range(200):
        m, n, k = random.integers(1, 9, 3)
        pair = matrix(m, k), matrix(n, k)
        gemm = made_gemm(
            *pair,
            result=(pair[0].double() @ pair[1].double().T).to(dtypes[random.integers(1, 4)]),
            casts=tuple(map(cast, pair)),
            own_scales=(cast(pair[0], 1.1), None),
            bias=torch.randn(int(n)),
        )
        figures = gemm_error.figures(gemm)
        elements += figures.elements
        left_out += figures.left_out
    assert 0 < left_out < 0.9 * elements


@pytest.mark.parametrize("shape", [(0, 4, 3), (4, 0, 3), (4, 3, 0), (0, 0, 0)])
def test_empty_product_has_zero_error(shape):
    m, n, k = shape
    gemm = made_gemm(torch.zeros(m, k), torch.zeros(n, k))
    rows = gemm_error.figures(gemm).rows
    assert [row["part"] for row in rows][-1] == "total"
    assert all(row["relative_error"] == row["share"] == row["mean_error"] == 0 for row in rows)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_elements_that_are_not_finite_are_left_out_and_counted(value):
    a = torch.tensor([[1.0, value], [2.0, 3.0]])
    split = split_of(made_gemm(a, torch.ones(3, 2)))
    assert split.left_out == 3
    assert bool(split.exact.isfinite().all())
    assert "3 of 6 elements are not finite" in gemm_error.text(made_gemm(a, torch.ones(3, 2)))


def test_an_overflow_of_the_output_is_left_out():
    a, b = torch.full((1, 4), 300.0).half(), torch.full((1, 4), 300.0).half()
    assert split_of(made_gemm(a, b, torch.tensor([[np.inf]]).half())).left_out == 1


@pytest.mark.parametrize("recipe", ["none", "delayed", "nvfp4"])
def test_chunked_rows_match_the_whole(dumped, recipe):
    product = recorded(gemm_file(dumped(recipe), "fprop"))
    product.result[5, 7] = np.nan
    for rows in (7, 1):
        whole = gemm_error.figures(product)
        some = rows * product.result.shape[1]
        assert len(list(gemm_error.splits(product, some))) == -(-product.result.shape[0] // rows)
        piecewise = gemm_error.figures(product, some)
        assert whole.elements == product.result.numel()
        assert (piecewise.elements, piecewise.left_out) == (whole.elements, whole.left_out)
        for one, other in zip(whole.rows, piecewise.rows, strict=True):
            assert one.pop("part") == other.pop("part")
            assert one == pytest.approx(other, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_to_16_bits_is_one_rounding(dtype):
    one = torch.ones((), dtype=torch.float64)
    step = torch.finfo(dtype).eps
    # Just above and below a tie, nearer than FP32 can represent: a rounding to FP32 first would
    # give the tie.
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


def test_a_value_that_is_not_finite_leaves_the_others_their_cast(tmp_path):
    """A non-finite amax gives no scale: a cast with 1 would clip values that the recorded scale
    does not.
    """
    torch.manual_seed(1)
    layer = te.Linear(32, 32, params_dtype=torch.bfloat16, name="fc")
    keys = {"enabled": True, "tensors": ALL, "operands": True, "start_step": 1, "end_step": 1}
    with debug.session(section({"DumpTensors": keys}), log_dir=tmp_path):
        for value in (0.0, np.nan):
            x = 1e-4 * torch.randn(32, 32, dtype=torch.bfloat16)
            x[3, 4] = value
            train(layer, x.requires_grad_(), fp8=True, recipe=RECIPES["delayed"])
    product = recorded(tmp_path / "tensor_dumps/rank_0/iter_000001/fc_fprop_gemm.h5")
    figures = gemm_error.figures(product)
    assert figures.left_out == 32
    rows = {row["part"]: row["relative_error"] for row in figures.rows}
    assert rows["quantizing activation"] < 0.05
    assert rows["scale choice activation"] == 0
    assert "the activation has values that are not finite" in " ".join(product.notes)


def test_fp32_layer_has_exact_output_and_bias(tmp_path):
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


def test_in_place_write_before_second_gemm_is_detected(tmp_path):
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


def test_gemm_files_require_operands_option(tmp_path):
    folder = dump_gemms(tmp_path, None, operands=False, high_precision_tensor=True)
    assert not list(folder.glob("*_gemm.h5"))


def test_a_gemm_of_which_a_tensor_is_not_chosen_is_not_written(tmp_path):
    folder = dump_gemms(tmp_path, None, tensors=["activation", "weight", "output", "gradient"])
    assert [path.name for path in folder.iterdir()] == ["layers_0_fc1_fprop_gemm.h5"]
