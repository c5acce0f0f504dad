"""Each ready config runs in the sample, and its run has what docs/ready_configs.md shows."""

import csv
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from gpt_runs import COMMAND, ROOT, train

PAGE = (ROOT / "docs" / "ready_configs.md").read_text()


class Example(NamedTuple):
    """The output of `telens COMMAND` for a run with a config, and the number of steps."""

    command: str
    says: str
    steps: int = 2
    options: tuple[str, ...] = ()


STATS = "stats --format csv"
EXAMPLES = {
    "flight_recorder": Example("diagnose", "(33 of 33 rules checked)"),
    "attach": Example("stats --stat mean", "dgrad"),
    "block_recipes": Example("blocks", "block_underflows%", options=("--recipe", "mxfp8")),
    "compare_recipes": Example(STATS, "nvfp4"),
    "current_scaling_for_gradients": Example("stats --stat saturated", "gradient"),
    "dump_one_gemm": Example("info", "tensor_dumps", 11),
    "exact_digests": Example(STATS + " --stat digest", "wgrad"),
    "fake_quant_e5m2_gradients": Example("messages", "gradient, gemm dgrad - modify_tensor()"),
    "fp8_forward_only": Example("messages", "gradient, gemm dgrad - High Precision"),
    "attention_health": Example("stats --stat one_key%", "core_attention"),
    "fp8_health": Example(STATS, "fp8_current_scaling"),
    "gemm_error": Example("stats --stat gemm_cosine", "wgrad"),
    "is_it_really_fp8": Example("ledger", "weight E4M3, tensor scaling"),
    "log_all_statistics": Example("stats --stat scale_inv_max", "gradient"),
    # A learning rate at which the loss spikes.
    "loss_diverges": Example("info", "loss spikes > 1.5x", 30, ("--learning-rate", "0.5")),
    "nan_hunt": Example("stats --stat posinf", "dgrad"),
    "production": Example("stats --stat overflows%", "gradient", 8),
    "scale_health": Example("stats --stat scale_headroom", "gradient"),
    "value_histograms": Example("whatif", "SQNR"),
    "which_layers_in_bf16": Example("stats --stat gemm_relative_error", "dgrad"),
}


def said(command: str, run: Path, refuses: bool = False) -> str:
    """Returns what the command prints, or the text log of messages; `refuses`: it may have nothing
    to print.
    """
    if command == "messages":
        return (run / "nvdlfw_inspect_logs/nvdlfw_inspect_globalrank-0.log").read_text()
    result = subprocess.run([COMMAND, *command.split(), run], capture_output=True, text=True)
    refused = refuses and result.returncode in (1, 2) and result.stderr.startswith("telens: ")
    assert result.returncode == 0 or refused, result.stderr
    return result.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_ready_config_runs_and_records_its_data(path: Path, tmp_path: Path):
    example = EXAMPLES[path.stem]
    arguments = ("--config", str(path), "--steps", str(example.steps), *example.options)
    train(tmp_path, *arguments, name="run")
    if path.stem == "dump_one_gemm":
        assert len(list(tmp_path.glob("run/tensor_dumps/rank_0/iter_000010/*.h5"))) == 9
    else:
        assert example.says in said(example.command, tmp_path / "run")


def test_the_gemm_that_keeps_its_direction_worst_comes_first(tmp_path: Path):
    config = ROOT / "configs" / "gemm_error.yaml"
    train(tmp_path, "--config", str(config), "--steps", "2", name="run")
    rows = csv.DictReader(
        said("stats --stat gemm_cosine --format csv", tmp_path / "run").split("\n")
    )
    lowest = [float(row["min"]) for row in rows]
    assert lowest == sorted(lowest)
    assert lowest[0] < lowest[-1]


def test_advise_answers_which_layers_stay_in_bf16(tmp_path: Path):
    config = ROOT / "configs" / "which_layers_in_bf16.yaml"
    train(tmp_path, "--config", str(config), "--steps", "22", name="run")
    assert "Keep in BF16: no layer stands out under current scaling" in said(
        "advise", tmp_path / "run"
    )


@pytest.mark.parametrize("scaled", [True, False])
def test_current_scaled_gradients_do_not_underflow_at_first(scaled: bool, tmp_path: Path):
    text = (ROOT / "configs" / "current_scaling_for_gradients.yaml").read_text()
    config = tmp_path / "config.yaml"
    config.write_text(
        text.replace(
            "PerTensorScaling:\n      enabled: True", f"PerTensorScaling:\n      enabled: {scaled}"
        )
    )
    train(tmp_path, "--config", str(config), "--steps", "1", name="run")
    rows = csv.DictReader(
        said("stats --stat underflows% --format csv", tmp_path / "run").split("\n")
    )
    worst = max(float(row["max"]) for row in rows)
    # With an empty history the scale is 1.
    assert worst < 5 if scaled else worst > 50


def test_data_is_missing_without_the_config(tmp_path: Path):
    plain = tmp_path / "plain.yaml"
    plain.write_text(
        "plain: {enabled: True, layers: {layer_types: all}, "
        "transformer_engine: {LogTensorStats: {enabled: True, tensors: weight, stats: max}}}"
    )
    train(tmp_path, "--config", str(plain), "--steps", "2", name="run")
    for example in EXAMPLES.values():
        assert example.says not in said(example.command, tmp_path / "run", refuses=True)


@pytest.mark.parametrize("name", EXAMPLES)
def test_ready_configs_page_shows_recorded_data(name: str):
    heading = re.search(rf"\[{name}\]\(#([\w-]+)\)", PAGE)[1].replace("-", " ")
    section = next(
        text
        for text in PAGE.split("\n## ")
        if re.sub(r"[^\w ]", "", text.splitlines()[0]).lower() == heading
    )
    assert f" {name}" in section
    assert "```\n$ " in section
