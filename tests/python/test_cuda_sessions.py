"""Debug sessions with every feature, on a GPU and on the CPU: the run files have the same rows, and
the same values where layers get the same numbers. Skipped where there is no GPU; `make gpu-check`
runs them. TELENS_TEST_DEVICE=cpu runs the code of these tests on the CPU.
"""

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from cuda_beside import BATCH, HIDDEN, NVFP4, RECIPES, TOKENS, WIDTH, draw, needs_gpu
from cuda_helpers import DEVICE

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common import recipe as recipes

pytestmark = [needs_gpu, pytest.mark.usefixtures("ops")]

STEPS = 3
INPUTS = ("activation", "weight", "gradient")
RESULTS = ("output", "wgrad", "dgrad")
GIVEN_TO_ATTENTION = ("query", "key", "value", "attention_output_gradient")
FROM_ATTENTION = ("attention_output", "query_gradient", "key_gradient", "value_gradient")
OF_VALUES = [
    *("min", "max", "mean", "std", "kurtosis", "l1_norm", "l2_norm", "rms", "numel", "zeros%"),
    *("cur_amax", "dynamic_range"),
]
IN_BLOCKS = [
    {"max_blockwise_dynamic_range": {"block_size": 32, "dims": 1}},
    {"max_blockwise_dynamic_range": {"block_size": 32, "dims": 2}},
]
OF_CASTS = ["underflows%", "overflows%", "saturated", "scale_inv_min", "scale_inv_max", "mse"]
OF_SCORES = [
    *("min", "max", "numel", "attention_entropy", "attention_entropy%", "one_key%", "first_key%"),
    *("undefined%", "blind%"),
]
WHAT_IFS = ["fp8_current_scaling", "mxfp8", "fp8_block_scaling"]


def on(**keys) -> dict:
    return {"enabled": True, **keys}


def everything(recipe) -> dict:
    what_ifs = [f"{name}_{stat}" for name in WHAT_IFS for stat in ("mse", "underflows%")]
    casts = [*OF_CASTS, *what_ifs] if recipe is not None else what_ifs
    has_blocks = isinstance(
        recipe, recipes.MXFP8BlockScaling | recipes.Float8BlockScaling | recipes.NVFP4BlockScaling
    )
    health = {"BlockTelemetry": on(tensors=INPUTS, k=4)} if has_blocks else {}
    if isinstance(recipe, recipes.DelayedScaling | recipes.Float8CurrentScaling):
        health = {"ScaleHealth": on(tensors=INPUTS)}
    of_fp8 = {"LogFp8TensorStats": on(tensors=INPUTS, stats=casts)} if recipe is not None else {}
    if isinstance(recipe, recipes.NVFP4BlockScaling):
        of_fp8 = {}
    return {
        "layers": on(
            layers={"layer_types": ["fc", "experts"]},
            transformer_engine={
                "LogTensorStats": on(tensors=[*INPUTS, *RESULTS], stats=OF_VALUES + IN_BLOCKS),
                "LogNvfp4TensorStats": on(tensors=INPUTS, stats=["underflows%", "mse"]),
                **of_fp8,
            },
            telens={
                "GemmError": on(gemms=["fprop", "dgrad", "wgrad"]),
                "ValueHistogram": on(tensors=[*INPUTS, "output"], bins="codes"),
                "PrecisionLedger": on(),
                "RankAgreement": on(tensors=INPUTS),
                "CollectiveCheck": on(),
                **health,
            },
        ),
        "attention": on(
            layers={"layer_types": ["attention"]},
            transformer_engine={
                "LogTensorStats": on(
                    tensors_struct=[
                        {"tensor": name, "stats": OF_VALUES}
                        for name in (*GIVEN_TO_ATTENTION, *FROM_ATTENTION)
                    ]
                    + [{"tensor": "scores", "stats": OF_SCORES}]
                ),
                "LogFp8TensorStats": on(tensors=[*GIVEN_TO_ATTENTION], stats=what_ifs),
            },
            telens={
                "PrecisionLedger": on(),
                "ValueHistogram": on(tensors=[*GIVEN_TO_ATTENTION], bins="exponent"),
            },
        ),
        "warning": on(
            layers={"layer_types": ["fc"]},
            telens={"Trigger": on(when=["cur_amax of activation > 0"], max_firings=2)},
        ),
        "diagnosis": on(layers={"layer_types": "all"}, telens={"Diagnosis": on()}),
    }


class Layers(torch.nn.Module):
    """Each layer gets random inputs and not the output of another one."""

    def __init__(self, device: str, fc: str = "fc", attention: str = "attention") -> None:
        super().__init__()
        torch.manual_seed(5)
        made = {"params_dtype": torch.bfloat16, "device": device, "init_method": draw}
        self.fc = te.Linear(WIDTH, HIDDEN, name=fc, **made)
        self.experts = te.GroupedLinear(2, WIDTH, HIDDEN, name="experts", **made)
        self.attention = te.DotProductAttention(4, 32, softmax_type="learnable", device=device)
        self.attention.set_debug_name(attention)

    def forward(self, x, grad, tensors, recipe) -> list[torch.Tensor]:
        with te.autocast(enabled=recipe is not None, recipe=recipe):
            outputs = [self.fc(x), self.experts(x.flatten(0, 1), [48, 16])]
        outputs.append(self.attention(*tensors))
        for out in outputs:
            out.backward(grad.reshape(-1)[: out.numel()].view(out.shape))
        leaves = [x, *tensors, *self.parameters()]
        return [each.detach().cpu() for each in (*outputs, *(leaf.grad for leaf in leaves))]


def trained(device: str, make, config, folder, steps=STEPS, **names) -> list[list[torch.Tensor]]:
    layers, recipe = Layers(device, **names), make()
    generator = torch.Generator().manual_seed(6)
    results = []
    with debug.session(config, log_dir=folder):
        for _ in range(steps):
            layers.zero_grad()
            sizes = [(TOKENS, BATCH, WIDTH), (TOKENS, BATCH, HIDDEN), (3, TOKENS, BATCH, 4, 32)]
            x, grad, tensors = (
                torch.randn(size, generator=generator).bfloat16().to(device) for size in sizes
            )
            x[0, 0, :3] = torch.tensor([0.0, -0.0, 1e-40])
            leaves = [each.clone().requires_grad_() for each in tensors]
            results.append(layers(x.requires_grad_(), grad, leaves, recipe))
            debug.step()
    return results


def rows(folder) -> dict[tuple, list[float]]:
    found: dict[tuple, list[float]] = {}
    for row in telens.open_run(folder).records().itertuples():
        key = tuple(
            str(each) for each in (row.iteration, row.layer, row.tensor, row.gemm, row.statistic)
        )
        found.setdefault(key, []).append(row.value)
    return found


def ledger(folder) -> set[tuple]:
    """Entries of PrecisionLedger; kernels have names of their own on each device."""
    table = telens.open_run(folder).table("ledger")
    keys = [each for each in ("iteration", "layer", "gemm", "tensor", "entry") if each in table]
    return {tuple(map(str, row)) for row in table[keys].itertuples(index=False)}


# FP32 or FP64 sums in another order.
SUMS = ("mean", "std", "kurtosis", "l1_norm", "l2_norm", "rms", "mse", "block_mse", "difference")
SIZES = ("min", "max", "std", "l1_norm", "l2_norm", "rms", "cur_amax")
COUNTS_OF_RESULTS = ("numel", "nan", "posinf", "neginf", "nonfinite")


def allowed(tensor: str, statistic: str, value: float) -> float | None:
    """How much the devices may differ; None if a value is not compared."""
    if tensor == "scores":
        return 1e-2 + 1e-3 * abs(value)
    if statistic.startswith("gemm_"):
        return 0.02 + 0.1 * abs(value)  # a sample of results, of casts that are the same
    if tensor in (*INPUTS, *GIVEN_TO_ATTENTION):
        return 1e-5 * abs(value) + 1e-7 if statistic.endswith(SUMS) else 0.0
    if statistic in COUNTS_OF_RESULTS:
        return 0.0
    return 2**-4 * abs(value) if statistic in SIZES else None


RECIPES_HERE = {
    "none": lambda: None,
    **{name: RECIPES[name] for name in ("delayed", "current", "MXFP8", "128-blocks")},
    "NVFP4": lambda: recipes.NVFP4BlockScaling(**NVFP4),
}


@pytest.mark.parametrize("recipe", RECIPES_HERE)
def test_runs_have_the_records_of_the_cpu(recipe, tmp_path):
    make = RECIPES_HERE[recipe]
    for device, name in ((DEVICE, "ours"), ("cpu", "theirs")):
        trained(device, make, everything(make()), tmp_path / name)
    ours, theirs = rows(tmp_path / "ours"), rows(tmp_path / "theirs")
    assert ours.keys() == theirs.keys()
    compared, wrong = 0, []
    for key, expected in theirs.items():
        _, _, tensor, _, statistic = key
        assert len(ours[key]) == len(expected), key
        for actual, value in zip(ours[key], expected, strict=True):
            bound = allowed(tensor, statistic, value)
            if bound is None:
                continue
            compared += 1
            same = actual == value or (math.isnan(actual) and math.isnan(value))
            if not (same or abs(actual - value) <= bound):
                wrong.append(f"{key}: {actual!r}, on the CPU {value!r}")
    assert not wrong, "\n".join(wrong[:20]) + f"\n{len(wrong)} of {compared} are wrong"
    assert compared > 400


@pytest.mark.parametrize("recipe", ["none", "delayed", "MXFP8"])
def test_runs_have_the_histograms_of_the_cpu(recipe, tmp_path):
    make = RECIPES_HERE[recipe]
    found = []
    for device in (DEVICE, "cpu"):
        folder = tmp_path / str(len(found))
        trained(device, make, everything(make()), folder)
        found.append(counted_rows(telens.open_run(folder).histograms()))
    ours, theirs = found
    assert theirs.total() > 100
    assert ours == theirs, "\n".join(
        f"{where}: {len(rows)} rows, the first of them {sorted(rows)[:10]}"
        for where, rows in (("here alone", ours - theirs), ("on the CPU alone", theirs - ours))
    )


def counted_rows(table) -> Counter:
    """The rows of layers' inputs without their order, which differs between devices."""
    given = table[table["tensor"].astype(str).isin((*INPUTS, *GIVEN_TO_ATTENTION))]
    return Counter(given.astype(str).itertuples(index=False, name=None))


@pytest.mark.parametrize("recipe", RECIPES_HERE)
def test_watching_everything_changes_no_bit(recipe, tmp_path):
    """Gradients of attention are not compared, because its kernels may add in any order."""
    make = RECIPES_HERE[recipe]
    watched = trained(DEVICE, make, everything(make()), tmp_path / "watched")
    plain = trained(DEVICE, make, {}, tmp_path / "plain")
    for ours, theirs in zip(watched, plain, strict=True):
        count = len(ours)
        of_attention = {2, 4, 5, 6, count - 1}
        for i in range(count):
            if i not in of_attention:
                assert torch.equal(ours[i], theirs[i]), i


@pytest.mark.skipif(DEVICE == "cpu", reason="other kernels run there")
def test_the_ledger_says_that_cublaslt_multiplied_codes(tmp_path):
    trained(DEVICE, RECIPES["delayed"], everything(recipes.DelayedScaling()), tmp_path)
    ledger = telens.open_run(tmp_path).table("ledger").astype(str)
    ran = ledger[(ledger["entry"] == "kernel") & ledger["gemm"].isin(["fprop", "dgrad", "wgrad"])]
    assert set(ran["detail"]) == {"cuBLASLt FP8 product"}


# Configurations with features whose frequency depends on their own cost.
BY_TIME = ("production", "flight_recorder")
# Layer names that the example configurations select, and what some of them need.
NAMES = {"fc": "layers.0.mlp.fc1", "attention": "layers.0.core_attention"}
RECIPE_OF = {"block_recipes": "MXFP8"}
STEPS_OF = {"dump_one_gemm": 11}
CONFIGS = sorted(path.stem for path in (Path(__file__).parents[2] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("name", CONFIGS)
def test_example_configurations_record_on_the_device_as_on_the_cpu(name, tmp_path):
    config = str(Path(__file__).parents[2] / f"configs/{name}.yaml")
    found = []
    for folder, device in (("ours", DEVICE), ("theirs", "cpu")):
        recipe, steps = RECIPES[RECIPE_OF.get(name, "delayed")], STEPS_OF.get(name, 2)
        trained(device, recipe, config, tmp_path / folder, steps, **NAMES)
        found.append(set(rows(tmp_path / folder)) | ledger(tmp_path / folder))
    if name in BY_TIME:
        found = [{key[1:] for key in each} for each in found]
    ours, theirs = found
    assert ours == theirs
    assert theirs or name == "dump_one_gemm"
    files = [
        sorted(p.name for p in (tmp_path / each).rglob("iter_*/*")) for each in ("ours", "theirs")
    ]
    assert files[0] == files[1]
    assert files[1] or name != "dump_one_gemm"
