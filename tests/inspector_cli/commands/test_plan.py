"""telens plan: what a configuration will do to layers, without running them."""

import json
import os
import subprocess

import pytest
from command_results import expect_one_line_error, rows_of
from conftest import COMMAND, ROOT
from example_config import CONFIG, LAYERS


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "debug.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def layers(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text(LAYERS)
    return path


def test_table_has_layer_gemm_tensor_and_schedule(telens, config, layers):
    rows = rows_of(telens("plan", config, "--layers", layers, "--format", "csv"))
    assert [tuple(row.values()) for row in rows if row["layer"] == "layers.0.fc1"] == [
        ("layers.0.fc1", "", "activation", "transformer_engine.LogTensorStats", "watch",
         "every 10 iterations"),
        ("layers.0.fc1", "", "gradient", "transformer_engine.LogTensorStats", "watch",
         "every 10 iterations"),
        ("layers.0.fc1", "wgrad", "", "transformer_engine.DisableFP8GEMM", "watch",
         "every iteration, 0 to 4 and from 20"),
    ]  # fmt: skip
    assert {row["layer"] for row in rows} == {"layers.0.fc1", "layers.1.fc1"}


def test_table_ends_with_record_load(telens, config, layers):
    # 2 layers, 2 tensors, 2 statistics and 6 counters: 32 records, every tenth iteration
    assert telens("plan", config, "--layers", layers).stdout.endswith(
        "\n2 of 4 layers have features\n"
        "3.2 records (15 bytes) a step on average, at most 32 (150 bytes) in iteration 0, if "
        "every layer runs quantized\n"
    )


def test_unmatched_selectors_warn_with_location(telens, config, layers):
    result = telens("plan", config, "--layers", layers)
    assert result.stderr == (
        f"telens: warning: {config}:4:24: section 'watch': no layer's name contains 'qkv'\n"
    )


def test_recorded_layers_are_noted_as_incomplete(telens, config, lines, tmp_path):
    lines.record(0, "layers.0.fc1", "activation", "mean", 1.0)
    run = lines.write(tmp_path)
    result = telens("plan", config, "--layers", run)
    warnings = result.stderr.splitlines()
    assert "no layer's name contains 'qkv'" in warnings[0]
    assert warnings[1:] == [
        f"telens: warning: only the layers that {run} recorded are known; selectors may match "
        "layers that were not recorded: pass all names in a file"
    ]
    lines.record(0, "layers.0.qkv", "activation", "mean", 1.0)
    assert telens("plan", config, "--layers", lines.write(tmp_path / "all")).stderr == ""


def test_iteration_shows_due_features(telens, config, layers):
    def features(iteration):
        result = telens(
            "plan", config, "--layers", layers, "--iteration", iteration, "--format", "csv"
        )
        return {row["feature"].removeprefix("transformer_engine.") for row in rows_of(result)}

    assert features(0) == {"LogTensorStats", "DisableFP8GEMM"}
    assert features(3) == {"DisableFP8GEMM"}
    assert features(10) == {"LogTensorStats"}
    assert features(7) == set()
    table = telens("plan", config, "--layers", layers, "--iteration", 10).stdout
    assert table.endswith("32 records in iteration 10, if every layer runs quantized\n")


def test_json_holds_rows_warnings_and_load(telens, config, layers):
    plan = json.loads(
        telens("plan", config, "--layers", layers, "--format", "json", "--iteration", 3).stdout
    )
    assert [row["gemm"] for row in plan["plan"]] == ["wgrad", "wgrad"]
    assert "'qkv'" in plan["warnings"][0]
    assert plan["load"]["average_records"] == pytest.approx(3.2)
    assert (plan["load"]["most_records"], plan["load"]["busiest"]) == (32, 0)
    assert plan["load"]["not_counted"] == []


def test_the_names_come_from_standard_input_too(config):
    result = subprocess.run(
        [COMMAND, "plan", config, "--layers", "-", "--format", "csv"],
        input=LAYERS, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert len(rows_of(result)) == 6


def test_the_names_come_whole_from_a_pipe_with_a_name(config):
    reader, writer = os.pipe()
    os.write(writer, LAYERS.encode())
    os.close(writer)
    result = subprocess.run(
        [COMMAND, "plan", config, "--layers", f"/dev/fd/{reader}", "--format", "csv"],
        pass_fds=[reader], capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    os.close(reader)
    names = subprocess.run(
        [COMMAND, "plan", config, "--layers", "-", "--format", "csv"],
        input=LAYERS, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.stdout == names.stdout != ""


def test_device_as_layer_list_is_rejected(telens, config):
    expect_one_line_error(
        telens("plan", config, "--layers", "/dev/zero"), "'/dev/zero' is a device"
    )


@pytest.mark.parametrize("where", ["", "telens/run", "telens/run/rank00000.h5"])
def test_the_names_come_from_a_run_too(telens, config, log_dir, where):
    rows = rows_of(telens("plan", config, "--layers", log_dir / where, "--format", "csv"))
    assert {row["layer"] for row in rows} == {"layers.0.fc1", "layers.1.fc1"}


def test_a_plugins_feature_may_be_named(telens, tmp_path, layers):
    config = tmp_path / "own.yaml"
    config.write_text(
        "s:\n  enabled: True\n  layers: {layer_types: fc2}\n"
        "  mine: {Round: {enabled: True, bits: 3}}\n"
    )
    expect_one_line_error(
        telens("plan", config, "--layers", layers), f"{config}:4:3", "unknown", "'mine'"
    )
    arguments = ["plan", config, "--layers", layers, "--plugin-feature"]
    (row,) = rows_of(telens(*arguments, "mine.Round", "--format", "csv"))
    assert (row["feature"], row["when"]) == ("mine.Round", "decided at run time")
    assert "not counted: mine.Round" in telens(*arguments, "mine.Round").stdout
    expect_one_line_error(telens(*arguments, "Round"), "'Round'", "namespace.Name")


def test_a_plugins_statistic_may_be_named(telens, tmp_path, layers):
    config = tmp_path / "own.yaml"
    config.write_text(
        "s:\n  enabled: True\n  layers: {layer_types: fc2}\n  transformer_engine:\n"
        "    LogTensorStats: {enabled: True, tensors: output, stats: [tail_weight]}\n"
    )
    command = ["plan", config, "--layers", layers]
    expect_one_line_error(telens(*command), f"{config}:5:62", "unknown statistic 'tail_weight'")
    named = telens(*command, "--plugin-statistic", "tail_weight")
    assert "7 records" in named.stdout  # one, and the six counters
    misspelt = telens(*command, "--plugin-statistic", "tail_wait")
    expect_one_line_error(misspelt, "'tail_weight' (did you mean 'tail_wait'?)")
    taken = telens(*command, "--plugin-statistic", "l2_norm")
    expect_one_line_error(taken, "'l2_norm'", "--plugin-statistic", "telens has")


def test_a_plan_that_does_nothing_says_so(telens, tmp_path, layers):
    config = tmp_path / "empty.yaml"
    config.touch()
    result = telens("plan", config, "--layers", layers)
    assert result.returncode == 0
    (warning,) = result.stderr.splitlines()
    assert f"{config}:1:1: it is empty and watches nothing" in warning
    assert result.stdout.endswith("0 of 4 layers have features\nnothing is recorded\n")


WAITING = """\
spike:
  enabled: True
  layers: {layer_types: [all]}
  telens:
    Trigger: {enabled: True, when: loss spikes > 2x, start: 10}
closer_look:
  enabled: True
  started_by: spike
  layers: {layer_types: [all]}
  transformer_engine:
    LogTensorStats: {enabled: True, tensors: activation, stats: [max]}
"""


def test_triggered_features_count_as_load(telens, tmp_path, layers):
    config = tmp_path / "waiting.yaml"
    config.write_text(WAITING)
    expected = "a section records only once a trigger fires: 'closer_look'"
    plan = ("plan", config, "--layers", layers)
    assert telens(*plan).stdout.endswith(f"nothing is recorded from the start on; {expected}\n")
    assert telens(*plan, "--iteration", 3).stdout.endswith(f"; {expected}\n")
    load = json.loads(telens(*plan, "--format", "json").stdout)["load"]
    assert (load["most_records"], load["waiting"]) == (0, ["closer_look"])


def test_all_config_errors_are_reported_with_location(telens, tmp_path, layers):
    config = tmp_path / "wrong.yaml"
    config.write_text(CONFIG.replace("freq", "frequency").replace("wgrad", "wgrat"))
    result = telens("plan", config, "--layers", layers)
    assert (result.returncode, result.stdout) == (2, "")
    first, second = result.stderr.splitlines()
    assert first.startswith(f"telens: {config}:7:")
    assert "did you mean 'freq'?" in first
    assert second.startswith(f"{config}:8:")
    assert "did you mean 'wgrad'?" in second


def test_conflicting_sections_are_both_named(telens, tmp_path, layers):
    config = tmp_path / "overlap.yaml"
    config.write_text(CONFIG + CONFIG.replace("watch:", "again:"))
    result = telens("plan", config, "--layers", layers)
    assert (result.returncode, result.stdout) == (2, "")
    assert "'watch'" in result.stderr
    assert "'again'" in result.stderr


def test_bad_input_is_one_clear_line(telens, config, layers, tmp_path):
    expect_one_line_error(telens("plan", tmp_path / "no.yaml", "--layers", layers), "no.yaml")
    expect_one_line_error(
        telens("plan", config, "--layers", tmp_path / "no"), "no", "one layer name"
    )
    expect_one_line_error(telens("plan", config, "--layers", tmp_path), "no run file")
    empty = tmp_path / "empty.txt"
    empty.write_text("# nothing\n")
    expect_one_line_error(telens("plan", config, "--layers", empty), "contains no layer names")
    expect_one_line_error(telens("plan", config), "--layers")
    expect_one_line_error(telens("plan", config, "--layers", layers, "--iteration", -1), "-1")


FIRST_MLP_LAYERS = [
    "model.layers.0.layernorm_mlp.fc1",  # Transformer Engine
    "decoder.layers.0.mlp.linear_fc1",  # Megatron
    "model.layers.0.mlp.gate_proj",  # Llama, Qwen, Gemma of transformers
    "transformer.h.0.mlp.c_fc",  # GPT-2, nanoGPT
    "h.0.mlp.c_fc",
    "model.decoder.layers.0.fc1",  # OPT
    "bert.encoder.layer.0.intermediate.dense",
    "gpt_neox.layers.0.mlp.dense_h_to_4h",
    "blocks.0.mlp.fc1",  # ViT of timm
    "encoder.block.0.layer.1.DenseReluDense.wi",  # T5
    "model.layers.0.block_sparse_moe.experts.0.w1",  # Mixtral
]
OTHER_LAYERS = ["model.layers.10.mlp.gate_proj", "model.layers.0.mlp.down_proj", "lm_head"]


def test_dump_one_gemm_selects_the_first_mlp_of_common_models(telens, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("\n".join(FIRST_MLP_LAYERS + OTHER_LAYERS))
    config = ROOT / "configs/dump_one_gemm.yaml"
    rows = rows_of(telens("plan", config, "--layers", names, "--format", "csv"))
    assert {row["layer"] for row in rows} == set(FIRST_MLP_LAYERS)


def test_table_groups_layers_with_the_same_effect(telens, config, layers):
    plan = ("plan", config, "--layers", layers)
    heading, *rows = telens(*plan).stdout.split("\n\n")[0].splitlines()
    assert heading.split() == ["section", "feature", "gemms", "tensors", "when", "layers"]
    assert len(rows) == 2  # LogTensorStats and DisableFP8GEMM, each in two layers
    assert all(row.endswith("2 of 4: layers.0.fc1, layers.1.fc1") for row in rows)
    assert "activation, gradient" in rows[0]
    each = telens(*plan, "--each-layer").stdout.split("\n\n")[0].splitlines()
    assert len(each) == 1 + 6


def test_help_has_examples(telens):
    result = telens("plan", "--help")
    assert result.returncode == 0
    assert "Examples:\n  telens plan debug.yaml" in result.stdout
