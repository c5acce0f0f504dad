"""PrecisionLedger: what ran, why it differs from the request, and runs that it stops."""

import json
import subprocess

import pytest
import torch
from debug_helpers import message_log, section, train
from processor import has_native_bf16

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling


@pytest.fixture
def layer() -> te.Linear:
    torch.manual_seed(1)
    return te.Linear(32, 32, params_dtype=torch.bfloat16, name="layers.3.fc2")


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(16, 32, dtype=torch.bfloat16).requires_grad_()


def ledger_config(expect=None, altering: dict | None = None, **keys) -> dict:
    feature = {"enabled": True, **keys, **({"expect": expect} if expect else {})}
    config = section({"PrecisionLedger": feature}, namespace="telens")
    if altering:
        config["first_layers"] = section(altering)["section"]
    return config


@pytest.fixture
def command(build_folder):
    def run(*arguments):
        return subprocess.run(
            [build_folder / "bin/telens", "ledger", *map(str, arguments)],
            capture_output=True,
            text=True,
        )

    return run


def rows_of(command, log_dir) -> list[dict]:
    result = command(log_dir, "--format", "json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def run(config, tmp_path, layer, x, steps=2, **region):
    with debug.session(config, log_dir=tmp_path):
        train(layer, x, steps=steps, **region)


FP8 = {"fp8": True, "recipe": Float8CurrentScaling()}
DISABLE = {"DisableFP8GEMM": {"enabled": True, "gemms": ["fprop"]}}


def test_every_gemm_and_operand_lists_its_precision(tmp_path, layer, x, command):
    run(ledger_config(), tmp_path, layer, x, **FP8)
    rows = rows_of(command, tmp_path)
    ran = {(row["gemm"], row["tensor"]): row["ran"] for row in rows}
    e4m3, e5m2 = "E4M3 under tensor scaling", "E5M2 under tensor scaling"
    assert ran == {
        ("fprop", "activation"): e4m3,
        ("fprop", "weight"): e4m3,
        ("dgrad", "gradient"): e5m2,
        ("dgrad", "weight"): e4m3,
        ("wgrad", "gradient"): e5m2,
        ("wgrad", "activation"): e4m3,
    }
    assert all(row["requested"] == row["ran"] and row["fallback"] == "" for row in rows)
    assert all("GEMM of decoded operands" in row["kernel"] for row in rows)
    assert all(row["layer"] == "layers.3.fc2" and row["from"] == 0 for row in rows)


def test_a_fallback_comes_first_and_names_feature_and_section(tmp_path, layer, x, command):
    run(ledger_config(altering=DISABLE), tmp_path, layer, x, **FP8)
    rows = rows_of(command, tmp_path)
    assert [(row["gemm"], row["fallback"]) for row in rows[:3]] == [
        ("fprop", "yes"),
        ("fprop", "yes"),
        ("dgrad", ""),
    ]
    assert rows[0]["requested"] == "E4M3 under tensor scaling"
    assert rows[0]["ran"] == "BF16"
    assert rows[0]["why"] == "DisableFP8GEMM in section `first_layers`"
    without = "FP32 GEMM (the processor has no BF16 products)"
    assert rows[0]["kernel"] == ("BF16 GEMM" if has_native_bf16() else without)


def test_a_modified_operand_names_who_modified_it(tmp_path, layer, x, command):
    fake = {"enabled": True, "gemms": ["wgrad"], "tensors": ["gradient"], "quant_format": "FP8E5M2"}
    run(ledger_config(altering={"FakeQuant": fake}), tmp_path, layer, x, **FP8)
    why = {row["tensor"]: row["why"] for row in rows_of(command, tmp_path) if row["fallback"]}
    assert why == {
        "gradient": "FakeQuant in section `first_layers` modified the gradient",
        "activation": "FakeQuant in section `first_layers`",
    }


def test_a_kernel_that_is_not_the_fastest_says_why(tmp_path, x, command):
    layer = te.Linear(32, 32, params_dtype=torch.float32, name="fc")
    run(ledger_config(), tmp_path, layer, x.detach().float(), **FP8)
    (kernel,) = {row["kernel"] for row in rows_of(command, tmp_path)}
    name, reason = kernel.rstrip(")").split(" (")
    assert name == "FP32 GEMM of decoded operands"
    assert reason in ("the output is not BF16", "the processor does not support BF16 products")


def test_high_precision_without_recipe_is_expected(tmp_path, layer, x, command):
    run(ledger_config(), tmp_path, layer, x)
    rows = rows_of(command, tmp_path)
    assert {row["why"] for row in rows} == {"no recipe: it ran outside of fp8_autocast"}
    assert {row["fallback"] for row in rows} == {""}


def test_an_override_of_the_recipe_is_a_reason(tmp_path, layer, x, command):
    recipe = DelayedScaling(override_linear_precision=(False, False, True))
    run(ledger_config(), tmp_path, layer, x, fp8=True, recipe=recipe)
    why = {row["gemm"]: row["why"] for row in rows_of(command, tmp_path) if row["fallback"]}
    assert why == {"wgrad": "override_linear_precision of the recipe"}


def test_dequantized_backward_has_its_own_reason(tmp_path, layer, x, command):
    recipe = Float8CurrentScaling(backward_override="dequantized")
    run(ledger_config(), tmp_path, layer, x, fp8=True, recipe=recipe)
    why = {row["gemm"]: row["why"] for row in rows_of(command, tmp_path) if row["fallback"]}
    expected = "backward_override='dequantized' of the recipe"
    assert why == {"dgrad": expected, "wgrad": expected}


def stored_rows(log_dir) -> list[tuple[int, str, str]]:
    """(iteration, gemm, kernel) of each state in the run file, read with h5py."""
    import h5py

    (path,) = log_dir.glob("telens/*/rank00000.h5")
    with h5py.File(path) as file:
        words = [word.decode() for word in file["names/word"][:]]
        gemms = [gemm.decode() for gemm in file["names/gemm"][:]]
        return [
            (int(row["iteration"]), gemms[row["gemm"]], words[row["detail"]])
            for row in file["ledger"][:]
            if words[row["entry"]] == "kernel"
        ]


def test_unchanged_rows_are_written_once(tmp_path, layer, x):
    run(ledger_config(altering={"DisableFP8Layer": {"enabled": True, "start_step": 3}}), tmp_path,
        layer, x, steps=6, **FP8)  # fmt: skip
    rows = stored_rows(tmp_path)
    assert [(iteration, gemm) for iteration, gemm, _ in rows] == [
        (0, "fprop"), (0, "dgrad"), (0, "wgrad"), (3, "fprop"), (3, "dgrad"), (3, "wgrad"),
    ]  # fmt: skip


def test_failed_expectations_stop_the_run(tmp_path, layer, x, command):
    debug.initialize(ledger_config(["FP8"], DISABLE), log_dir=tmp_path)
    sentence = (
        "layers.3.fc2 fprop was to be FP8, ran in BF16: DisableFP8GEMM in section `first_layers`"
    )
    with pytest.raises(telens.Error) as stopped:
        train(layer, x, **FP8)
    assert str(stopped.value) == (
        f"PrecisionLedger in section `section`: 1 expectation does not hold:\n  {sentence}"
    )
    train(layer, x, **FP8)  # it says so once
    judged = command(tmp_path)  # the file is still being written
    assert judged.returncode == 1
    assert f"1 GEMM was not as the config expects:\n  {sentence}\n" in judged.stdout
    debug.end_debug()
    assert sentence in message_log(tmp_path)
    events = telens.open_run(tmp_path).events
    assert "stopped" in set(events["kind"])


def test_the_last_rule_that_fits_counts(tmp_path, layer, x):
    rules = [
        "BF16",
        {"format": "FP8", "layers": r"layers\.\d+\.fc2"},
        {"format": "E5M2", "gemms": ["dgrad", "wgrad"], "tensors": "gradient"},
    ]
    run(ledger_config(rules), tmp_path, layer, x, **FP8)
    rules[2]["format"] = "E4M3"
    with pytest.raises(telens.Error, match="2 expectations do not hold") as stopped:
        run(ledger_config(rules), tmp_path / "again", layer, x, **FP8)
    assert "dgrad gradient was to be E4M3, ran in E5M2 under tensor scaling" in str(stopped.value)


def test_unmatched_rule_is_reported(tmp_path, layer, x):
    run(ledger_config([{"format": "FP8", "layers": "lm_head"}]), tmp_path, layer, x, **FP8)
    assert "rule 1 of `expect` (format: FP8) matched no GEMM that ran" in message_log(tmp_path)


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ("FP9", "unknown format 'FP9' (did you mean"),
        ([{"layers": "x"}], "a rule of 'expect' needs a 'format'"),
        ([{"format": "FP8", "layer": "x"}], "unknown key 'layer' (did you mean 'layers'?)"),
        ([{"format": "FP8", "layers": "("}], "'layers': "),
        ([{"format": "FP8", "gemms": ["fwd"]}], "expected one of 'fprop', 'dgrad', 'wgrad'"),
        ([{"format": "FP8", "tensors": "output"}], "expected one of 'activation', 'weight'"),
        ([3], "a format must be one of"),
        ([[]], "a format must be one of"),
    ],
)
def test_wrong_rule_is_a_load_error(tmp_path, expect, message):
    with pytest.raises(telens.ConfigError) as error:
        debug.initialize(ledger_config(expect), log_dir=tmp_path)
    assert message in str(error.value)


def test_a_run_without_a_ledger_is_wrong_use(tmp_path, layer, x, command):
    run({}, tmp_path, layer, x)
    result = command(tmp_path)
    assert result.returncode == 2
    assert (
        "this run contains no ledger; record it with the feature telens.PrecisionLedger"
        in result.stderr
    )


@pytest.mark.parametrize("named_before", [True, False])
def test_foreign_linear_layers_are_listed_first(tmp_path, x, command, named_before):
    model = torch.nn.Sequential(
        te.Linear(32, 32, params_dtype=torch.bfloat16), torch.nn.Linear(32, 32).bfloat16()
    )
    config = ledger_config(["FP8", {"format": "high_precision", "layers": "model.1"}])
    if named_before:
        debug.infer_and_assign_layer_names(model)
    with debug.session(config, log_dir=tmp_path):
        if not named_before:
            debug.infer_and_assign_layer_names(model)
        train(model, x, steps=2, **FP8)
    first, *others = rows_of(command, tmp_path)
    assert (first["layer"], first["gemm"]) == ("model.1", "all")
    assert first["ran"] == "not seen: torch's Linear"
    assert first["fallback"] == "yes"
    assert "convert it with telens.pytorch.convert" in first["why"]
    assert {row["layer"] for row in others} == {"model.0"}
    log = message_log(tmp_path)
    assert log.count("a linear layer of the model (model.1) is not a TELens layer") == 1
    assert "matched no GEMM" not in log


def with_a_linear_layer_of_torch() -> torch.nn.Module:
    ours = te.Linear(32, 32, params_dtype=torch.bfloat16)
    return torch.nn.Sequential(ours, torch.nn.Linear(32, 32).bfloat16())


def layers_in_ledger(tmp_path, name, model, x, command, to_name=None) -> set[str]:
    """Trains the model in a session, with names given to `to_name`; returns the layers in the
    ledger.
    """
    with debug.session(ledger_config(), log_dir=tmp_path / name):
        if to_name is not None:
            debug.infer_and_assign_layer_names(to_name)
        train(model, x, **FP8)
    return {row["layer"] for row in rows_of(command, tmp_path / name)}


@pytest.mark.parametrize("named_before", [True, False])
def test_a_ledger_lists_no_layers_of_the_model_of_an_earlier_session(
    tmp_path, x, command, named_before
):
    first, second = with_a_linear_layer_of_torch(), torch.nn.ModuleDict()
    second["encoder"] = with_a_linear_layer_of_torch()
    debug.infer_and_assign_layer_names(first)
    for name in ("first", "again"):  # a model need not be named twice
        assert layers_in_ledger(tmp_path, name, first, x, command) == {"model.0", "model.1"}
    if named_before:
        debug.infer_and_assign_layer_names(second)
    to_name = None if named_before else second
    listed = layers_in_ledger(tmp_path, "second", second["encoder"], x, command, to_name)
    assert listed == {"model.encoder.0", "model.encoder.1"}


def test_a_ledger_lists_all_models_that_were_named_for_its_session(tmp_path, x, command):
    first, second = with_a_linear_layer_of_torch(), torch.nn.ModuleDict()
    second["encoder"] = with_a_linear_layer_of_torch()
    debug.infer_and_assign_layer_names(first)
    debug.end_debug()  # there is no session that could end
    debug.infer_and_assign_layer_names(second)
    listed = layers_in_ledger(tmp_path, "both", first, x, command)
    assert listed == {"model.0", "model.1", "model.encoder.1"}
