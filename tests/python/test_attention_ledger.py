"""PrecisionLedger for attention: which kernel ran, and why no faster one did."""

import contextlib
import json
import subprocess

import pytest
import torch
from debug_helpers import config_of, logging_of
from processor import has_native_bf16

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import Float8CurrentScaling

HEADS, SIZE, TOKENS = 2, 16, 24
KERNELS = {
    "flash attention": "aten::_scaled_dot_product_flash_attention_for_cpu",
    "math attention": "aten::_scaled_dot_product_attention_math",
}
ASKED = "aten::_fused_sdp_choice"
LEDGER = config_of("PrecisionLedger", "telens")


@pytest.fixture(autouse=True)
def without_variables(monkeypatch):
    for name in ("FLASH_ATTN", "FUSED_ATTN", "UNFUSED_ATTN", "ALLOW_NONDETERMINISTIC_ALGO"):
        monkeypatch.delenv(f"NVTE_{name}", raising=False)


def attention(value_size=SIZE, **options) -> te.DotProductAttention:
    options = {"attention_dropout": 0.0, "qkv_format": "bshd", **options}
    module = te.DotProductAttention(HEADS, (SIZE, value_size), **options)
    module.set_debug_name("attn")
    return module


def heads(value_size=SIZE, groups=HEADS, dtype=torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(83)
    of = [(HEADS, SIZE), (groups, SIZE), (groups, value_size)]
    return [torch.randn(2, TOKENS, *each, dtype=dtype, requires_grad=True) for each in of]


def attend(module, tensors, **arguments) -> tuple[list[torch.Tensor], dict[str, int]]:
    """Returns the output and the gradients, and how often each operator ran."""
    with torch.profiler.profile(acc_events=True) as profile:
        out = module(*tensors, **arguments)
        out.square().sum().backward()
    names = {event.key: event.count for event in profile.key_averages()}
    return [out.detach(), *(tensor.grad for tensor in tensors)], names


def states(log_dir) -> list[dict[str, str]]:
    """The entries and details of each state of an attention in the run file, in order."""
    found = []
    table = telens.open_run(log_dir).table("ledger")
    for row in table[table["gemm"] == "attention"].itertuples():
        if not found or row.entry in found[-1]:
            found.append({"layer": str(row.layer), "iteration": row.iteration})
        found[-1][str(row.entry)] = str(row.detail)
    return found


def bias(gradient: bool) -> dict:
    return {
        "core_attention_bias_type": "post_scale_bias",
        "core_attention_bias": torch.randn(1, HEADS, TOKENS, TOKENS, requires_grad=gradient),
    }


def padding() -> dict:
    return {
        "attn_mask_type": "padding",
        "attention_mask": torch.arange(TOKENS).expand(2, 1, 1, TOKENS) >= TOKENS - 3,
    }


DROPOUT = {"attention_dropout": 0.1}
LEARNED = {"softmax_type": "learnable"}
NO_FASTER = "no faster one takes "
FLASH, MATH = KERNELS
CASES = {
    "plain": ({}, {}, FLASH, ""),
    "padding": ({}, padding, FLASH, ""),
    "bias": ({}, lambda: bias(False), FLASH, ""),
    "off_by_one": ({"softmax_type": "off-by-one"}, {}, FLASH, ""),
    "grouped": ({"num_gqa_groups": 1}, {}, FLASH, ""),
    "dropout": (DROPOUT, {}, MATH, NO_FASTER + "attention_dropout"),
    "learned_bias": ({}, lambda: bias(True), MATH, NO_FASTER + "the gradient of the bias"),
    "learned_sink": (LEARNED, {}, MATH, NO_FASTER + "the gradient of softmax_offset"),
    "two_reasons": (
        DROPOUT | LEARNED, {}, MATH,
        NO_FASTER + "attention_dropout and the gradient of softmax_offset",
    ),
    "two_gradients": (
        LEARNED, lambda: bias(True), MATH,
        NO_FASTER + "the gradient of the bias and softmax_offset",
    ),
    "value_size": ({"value_size": 8}, {}, MATH, NO_FASTER + "values of another size than keys"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_kernel_and_reason_against_flash_are_recorded(tmp_path, name):
    options, arguments, kernel, reason = CASES[name]
    tensors = heads(options.get("value_size", SIZE), options.get("num_gqa_groups", HEADS))
    with debug.session(LEDGER, log_dir=tmp_path):
        _, ran = attend(
            attention(**options), tensors, **(arguments() if callable(arguments) else arguments)
        )
        debug.step()
    (state,) = states(tmp_path)
    assert ran.keys() & set(KERNELS.values()) == {KERNELS[kernel]}
    assert (state["layer"], state["iteration"]) == ("attn", 0)
    assert (state["kernel"], state.get("kernel cause", "")) == (kernel, reason)


@pytest.mark.parametrize(
    ("dropout", "gradient", "left"),
    [
        (0.1, True, "attention_dropout and the gradient of the bias"),
        (0.1, False, "attention_dropout"),
        (0.0, True, "the gradient of the bias"),
        (0.0, False, None),
    ],
)
def test_kernel_is_faster_without_the_named_reasons(tmp_path, dropout, gradient, left):
    with debug.session(LEDGER, log_dir=tmp_path):
        _, ran = attend(attention(attention_dropout=dropout), heads(), **bias(gradient))
        debug.step()
    (state,) = states(tmp_path)
    kernel = FLASH if left is None else MATH
    assert (state["kernel"], ran.keys() & set(KERNELS.values())) == (kernel, {KERNELS[kernel]})
    assert state.get("kernel cause", "") == (NO_FASTER + left if left else "")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_queries_keys_and_values_have_their_dtype(tmp_path, dtype):
    with debug.session(LEDGER, log_dir=tmp_path):
        attend(attention(), heads(dtype=dtype))
        debug.step()
    (state,) = states(tmp_path)
    name = {torch.float32: "FP32", torch.bfloat16: "BF16", torch.float64: "FP64"}[dtype]
    is_widened = dtype == torch.bfloat16 and not has_native_bf16()
    for tensor in ("query", "key", "value"):
        assert state[f"{tensor} requested"] == name
        assert state[f"{tensor} ran"] == ("FP32" if is_widened else name)
        if not is_widened:
            assert state[f"{tensor} cause"] == "as it came"
    assert state["output ran"] == name


@pytest.mark.parametrize("switch", ["variable", "torch"])
def test_a_switch_is_named(tmp_path, monkeypatch, switch):
    off = contextlib.nullcontext()
    if switch == "torch":
        off = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    else:
        monkeypatch.setenv("NVTE_FLASH_ATTN", "0")
    with debug.session(LEDGER, log_dir=tmp_path), off:
        attend(attention(), heads())
        debug.step()
    (state,) = states(tmp_path)
    who = "NVTE_FLASH_ATTN=0" if switch == "variable" else "torch.backends.cuda"
    assert (state["kernel"], state["kernel cause"]) == (MATH, f"{who} switches flash attention off")


def test_state_is_written_when_it_changes(tmp_path, monkeypatch):
    module = attention()
    with debug.session(LEDGER, log_dir=tmp_path):
        for iteration in range(5):
            monkeypatch.setenv("NVTE_FLASH_ATTN", str(int(iteration != 2)))
            attend(module, heads())
            debug.step()
    assert [(s["iteration"], s["kernel"]) for s in states(tmp_path)] == [
        (0, FLASH), (2, MATH), (3, FLASH),
    ]  # fmt: skip


def test_micro_batches_that_alternate_are_written_once(tmp_path):
    module = attention()
    with debug.session(LEDGER, log_dir=tmp_path):
        for _ in range(4):
            attend(module, heads())
            attend(module, heads(), **bias(True))
            debug.step()
    assert [(s["iteration"], s["kernel"]) for s in states(tmp_path)] == [(0, FLASH), (0, MATH)]


def test_names_heads_with_noncontiguous_elements(tmp_path):
    module = attention()
    apart = [
        each.detach().transpose(1, 3).contiguous().transpose(1, 3).requires_grad_()
        for each in heads()
    ]
    with debug.session(LEDGER, log_dir=tmp_path):
        attend(module, apart)
        debug.step()
    (state,) = states(tmp_path)
    assert state["kernel"] == MATH
    assert state["kernel cause"] == NO_FASTER + "heads whose elements are not contiguous"


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("checkpoint", [None, "core", "torch's", "ours"])
def test_query_keeps_bits_and_skips_recomputation(tmp_path, dropout, checkpoint):
    module = attention(attention_dropout=dropout)

    def call(*tensors):
        if checkpoint == "torch's":
            return torch.utils.checkpoint.checkpoint(module, *tensors, use_reentrant=False)
        if checkpoint == "ours":
            return te.checkpoint(module, *tensors)
        return module(*tensors, checkpoint_core_attention=checkpoint == "core")

    torch.manual_seed(7)
    plain, _ = attend(call, heads())
    with debug.session(LEDGER, log_dir=tmp_path):
        torch.manual_seed(7)
        watched, ran = attend(call, heads())
        debug.step()
    if dropout == 0 and checkpoint != "core":
        assert ran[ASKED] == 1
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))
    assert [s["kernel"] for s in states(tmp_path)] == [MATH if dropout else FLASH]


@pytest.mark.parametrize("config", [None, logging_of(["query", "scores"], ["max"]), LEDGER])
def test_no_query_without_a_ledger(tmp_path, config):
    off = contextlib.nullcontext()
    session = off if config is None else debug.session(config, log_dir=tmp_path)
    with session:
        _, ran = attend(attention(), heads())
    assert (ASKED in ran) == (config is LEDGER)


def test_ledger_of_other_layers_skips_attention(tmp_path):
    config = {"one": LEDGER["section"] | {"layers": {"layer_types": ["fc1"]}}}
    with debug.session(config, log_dir=tmp_path):
        _, ran = attend(attention(), heads())
        debug.step()
    assert ASKED not in ran


def test_command_lists_attentions_without_rules(tmp_path, build_folder):
    torch.manual_seed(1)
    layer = te.TransformerLayer(64, 128, 4, params_dtype=torch.bfloat16, attention_dropout=0.1)
    debug.infer_and_assign_layer_names(layer)
    config = config_of("PrecisionLedger", "telens", expect=["FP8"])
    with debug.session(config, log_dir=tmp_path):
        with te.autocast(enabled=True, recipe=Float8CurrentScaling()):
            out = layer(torch.randn(16, 2, 64, dtype=torch.bfloat16, requires_grad=True))
        out.float().square().sum().backward()
        debug.step()
    command = [build_folder / "bin/telens", "ledger", tmp_path, "--format", "json"]
    rows = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    of_attention = [row for row in rows if row["gemm"] == "attention"]
    assert [row["tensor"] for row in of_attention] == ["query", "key", "value"]
    for row in of_attention:
        assert row["layer"] == "model.self_attention.core_attention"
        ran = ("BF16", "") if has_native_bf16() else ("FP32", "yes")
        assert (row["requested"], row["ran"], row["fallback"]) == ("BF16", *ran)
        assert row["kernel"] == f"{MATH} ({NO_FASTER}attention_dropout)"
    assert len(rows) > len(of_attention)
