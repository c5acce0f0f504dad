"""GemmError and dumped GEMMs of divided layers: each rank compares its own rows."""

import json
import pathlib
import shutil
import subprocess

import pytest
import torch
import torch.distributed as dist
from debug_helpers import section
from distributed_workers import run_ranks
from overlap_helpers import OVERLAPS, userbuffers
from parallel_helpers import Part, normal, numbers, region

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.replay import casts, dumps, found, gemm_error

IN, OUT, TOKENS, SAMPLES = 64, 64, 64, 1 << 20
GEMMS = ("fprop", "dgrad", "wgrad")
# (mode, sequence parallelism, precision): EXACT runs with data for which no GEMM rounds.
EXACT = [
    (mode, sequence, precision)
    for mode in ("column", "row")
    for sequence in (False, True)
    for precision in ("FP32", "current", "delayed")
]
ROUNDED = [(mode, sequence, "BF16") for mode in ("column", "row") for sequence in (False, True)] + [
    (mode, True, "current") for mode in ("column", "row")
]
TENSORS = ["activation", "weight", "gradient", "output", "dgrad", "wgrad"]
CONFIG = section(
    {
        "transformer_engine": {
            "DumpTensors": {
                "enabled": True,
                "tensors": TENSORS,
                "operands": True,
                "high_precision_tensor": True,
                "quantized_tensor": True,
            },
        },
        "telens": {"GemmError": {"enabled": True, "gemms": list(GEMMS), "samples": SAMPLES}},
    },
    namespace=None,
)


def name_of(case: tuple, exact: bool) -> str:
    mode, sequence, precision = case
    parts = (mode, "sequence" if sequence else "whole", precision, "exact" if exact else "rounded")
    return "_".join(parts)


def whole_tensors(precision: str, exact: bool) -> dict[str, torch.Tensor]:
    """The tensors of one process, the same on all ranks; each rank takes its rows."""
    sizes = {"activation": (TOKENS, 1, IN), "weight": (OUT, IN), "gradient": (TOKENS, 1, OUT)}
    dtype = torch.bfloat16 if precision == "BF16" else torch.float32
    if exact:
        made = {
            name: numbers(precision, *size, seed=seed)
            for seed, (name, size) in enumerate(sizes.items(), 1)
        }
        for tensor in made.values():  # each part has the largest number, and so the same scale
            tensor.view(-1, tensor.shape[-1])[::4, ::4] = 1.75
        return made
    return {name: normal(*size, seed=i).to(dtype) for i, (name, size) in enumerate(sizes.items())}


def run_layer(case: tuple, exact: bool, steps: int = 0, **options) -> dict[str, torch.Tensor]:
    """Returns the results of the layer's GEMMs on this rank, as FP64 matrices."""
    mode, sequence, precision = case
    part = Part(dist.get_rank(), 2)
    whole = whole_tensors(precision, exact)
    layer = te.Linear(
        IN, OUT, bias=False, parallel_mode=mode, sequence_parallel=sequence, device="cpu",
        tp_group=dist.group.WORLD, params_dtype=whole["weight"].dtype,
        name=options.pop("name", None) or name_of(case, exact), **options,
    )  # fmt: skip
    rows = 0 if sequence else None
    in_dim, out_dim = (rows, -1) if mode == "column" else (-1, rows)
    with torch.no_grad():
        layer.weight.copy_(part.of(whole["weight"], 0 if mode == "column" else 1))
    # Delayed scaling has a scale from an amax only in the second forward.
    for _ in range(steps or (2 if precision == "delayed" else 1)):
        x = part.of(whole["activation"], in_dim).clone().requires_grad_()
        layer.zero_grad()
        with region(precision, dist.group.WORLD):
            out = layer(x)
        out.backward(part.of(whole["gradient"], out_dim))
        if steps:
            debug.step()
    made = {"fprop": out.detach(), "dgrad": x.grad, "wgrad": layer.weight.grad}
    return {gemm: tensor.double().flatten(0, -2) for gemm, tensor in made.items()}


def watch(rank: int, folder: str) -> None:
    log_dir = pathlib.Path(folder)
    with debug.session(CONFIG, log_dir=log_dir / "exact"):
        for case in EXACT:
            run_layer(case, exact=True)
        # If a GEMM that overlaps is watched, it runs in one part.
        for name, (mode, switches, settings) in OVERLAPS.items():
            with userbuffers(2, settings):
                run_layer(
                    (mode, True, "current"), exact=True, name=name.replace(" ", "_"),
                    ub_name="fc1" if mode == "column" else "fc2", **switches,
                )  # fmt: skip
        debug.step()
    with debug.session(CONFIG, log_dir=log_dir / "rounded"):
        for case in ROUNDED:
            made = run_layer(case, exact=False, steps=3)  # as many as `diagnose` asks for
            torch.save(made, log_dir / f"{name_of(case, False)}.{rank}")


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(watch, str(folder))
    return folder


def errors(log_dir: pathlib.Path) -> dict[tuple[str, str, int], float]:
    records = telens.open_run(log_dir).records(statistic="gemm_relative_error")
    return {(row.layer, row.gemm, row.rank): row.value for row in records.itertuples()}


def is_left_out(layer: str, gemm: str) -> bool:
    """wgrad sums over rows of all ranks, and a rank has the rows of others only as codes."""
    quantized = "current" in layer or "delayed" in layer
    return gemm == "wgrad" and "sequence" in layer and quantized


def test_exact_products_have_zero_error_on_every_rank(logs):
    names = [name_of(case, True) for case in EXACT]
    expected = {
        (name, gemm, rank)
        for name in names
        for gemm in GEMMS
        for rank in range(2)
        if not is_left_out(name, gemm)
    } | {
        (name.replace(" ", "_"), gemm, rank)
        for name in OVERLAPS
        for gemm in ("fprop", "dgrad")
        for rank in range(2)
    }
    assert errors(logs / "exact") == dict.fromkeys(expected, 0.0)


def test_one_warning_says_which_gemms_are_not_measured(logs):
    for rank in range(2):
        # In "rounded" each layer runs three times.
        for folder, layers in (("exact", 4 + len(OVERLAPS)), ("rounded", 2)):
            log = logs / folder / "nvdlfw_inspect_logs" / f"nvdlfw_inspect_globalrank-{rank}.log"
            all_lines = log.read_text().splitlines()
            lines = [line for line in all_lines if "wgrad is not measured" in line]
            assert len([line for line in lines if "WARNING" in line]) == 1
            assert len(lines) == layers
            assert not any("fprop is not" in line or "dgrad is not" in line for line in all_lines)
    events = telens.open_run(logs / "exact").table("events")
    assert not (events["kind"] == "feature_off").any()


def relative(out: torch.Tensor, exact: torch.Tensor) -> float:
    return ((out - exact).norm() / exact.norm()).item()


def test_error_covers_every_row_against_fp64(logs):
    """For products that are not summed over ranks: this rank's rows, and of wgrad all rows."""
    found_errors = errors(logs / "rounded")
    for case in ROUNDED:
        mode, sequence, precision = case
        name = name_of(case, False)
        whole = {k: v.double() for k, v in whole_tensors(precision, False).items()}
        x, gradient = whole["activation"].flatten(0, 1), whole["gradient"].flatten(0, 1)
        for rank in range(2):
            part = Part(rank, 2)
            made = torch.load(logs / f"{name}.{rank}")
            if not is_left_out(name, "wgrad"):
                exact = part.of(gradient.T @ x, 0 if mode == "column" else 1)
                expected = relative(made["wgrad"], exact)
                assert found_errors[name, "wgrad", rank] == pytest.approx(expected), name
            gemm, product = (
                ("fprop", x @ whole["weight"].T)
                if mode == "column"
                else ("dgrad", gradient @ whole["weight"])
            )
            own = 0 if sequence else None
            expected = relative(part.of(made[gemm], own), part.of(part.of(product, 1), own))
            assert found_errors[name, gemm, rank] == pytest.approx(expected), name
            # For sums over ranks, only this rank's part is compared.
            assert 0 < found_errors[name, "fprop", rank] < 0.1
            assert 0 < found_errors[name, "dgrad", rank] < 0.1
    assert ("column_sequence_current_rounded", "wgrad", 0) not in found_errors


def test_diagnose_says_nothing_of_these_products(logs, build_folder):
    ran = subprocess.run(
        [build_folder / "bin/telens", "diagnose", logs / "rounded", "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    causes = {finding["cause"] for finding in json.loads(ran.stdout)["findings"]}
    assert "gemm_error" not in causes


@pytest.mark.parametrize("case", [c for c in EXACT if c[1]], ids=lambda case: name_of(case, True))
def test_a_dumped_gemm_is_replayed_in_the_rows_of_its_rank(logs, case):
    measured = "fprop" if case[0] == "column" else "dgrad"
    for rank in range(2):
        folder = logs / "exact" / "tensor_dumps" / f"rank_{rank}" / "iter_000000"
        for gemm in (measured, "wgrad"):
            path = folder / f"{name_of(case, True)}_{gemm}_gemm.h5"
            [one] = found.find(path)
            if gemm == "wgrad":
                with pytest.raises(
                    telens.UsageError, match="wgrad sums over the rows of every rank"
                ):
                    dumps.read(one)
                continue
            again = casts.recorded(dumps.read(one))
            assert len(again.result) == TOKENS // 2
            assert any(f"rows {rank * TOKENS // 2} to" in note for note in again.notes)
            assert gemm_error.figures(again).rows[-1]["relative_error"] == 0


@pytest.mark.parametrize(
    "case", [c for c in EXACT if c[2] == "FP32"], ids=lambda case: name_of(case, True)
)
def test_sum_over_ranks_is_not_replayed_as_local(logs, case, tmp_path):
    summed = {"row": "output", "column": "dgrad"}[case[0]]
    layer = name_of(case, True)
    for path in (logs / "exact/tensor_dumps/rank_1/iter_000000").glob(f"{layer}_*.h5"):
        if not path.name.endswith("_gemm.h5"):
            shutil.copy(path, tmp_path)
    for name, gemm in (("output", "fprop"), ("dgrad", "dgrad")):
        [one] = [each for each in found.find(tmp_path / f"{layer}_{name}.h5") if each.gemm == gemm]
        if name == summed:
            with pytest.raises(telens.UsageError, match=f"{name} is a sum over ranks"):
                dumps.read(one)
        else:
            dumps.read(one)
