"""Attention in a debug session: what is recorded of it, and that watching changes no bit."""

import math

import h5py
import pytest
import torch
import torch.utils.checkpoint
from attention_cases import HEADS, SIZE, Case
from attention_reference import allowed_pairs
from attention_statistics_reference import expected
from debug_helpers import Scalars, config_of, logging_of, message_log
from distributed_workers import run_ranks

import telens
import telens.debug as debug
import telens.pytorch as te

INPUTS = ["query", "key", "value"]
GRADIENTS = [f"{name}_gradient" for name in (*INPUTS, "attention_output")]
TENSORS = [*INPUTS, "attention_output", *GRADIENTS]
LINEAR = ["activation", "weight", "gradient", "output", "wgrad", "dgrad"]
SCORES = ["min", "max", "attention_entropy", "attention_entropy%", "one_key%", "first_key%",
          "undefined%", "blind%"]  # fmt: skip


def watching(tensors=TENSORS, stats=("l2_norm", "numel"), **keys) -> dict:
    return logging_of(list(tensors), list(stats), **keys)


def recorded(log_dir, **which) -> dict[tuple[str, str], float]:
    """The (tensor, statistic) values of a run of one iteration and one layer."""
    rows = telens.open_run(log_dir).records(**which)
    return {(str(r.tensor), str(r.statistic)): r.value for r in rows.itertuples()}


def attention(name="attn", **options) -> te.DotProductAttention:
    module = te.DotProductAttention(2, 8, qkv_format="bshd", **options)
    module.set_debug_name(name)
    return module


def inputs(seed=1, batch=2, seq=5, dtype=torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(batch, seq, 2, 8, dtype=dtype).requires_grad_() for _ in range(3)]


def run(module, tensors, call=None, **arguments):
    out = (call or module)(*tensors, **arguments)
    if out.requires_grad:
        out.square().sum().backward()
    return [out.detach(), *(t.grad for t in tensors)]


def norm(tensor) -> float:
    return tensor.double().norm().item()


@pytest.mark.parametrize("first", range(0, 150, 30))
def test_looking_at_everything_changes_no_bit(tmp_path, first):
    for number in range(first, first + 30):
        plain = Case(number).actual()
        config = watching([*TENSORS, "scores"], ["l2_norm", "max", "attention_entropy"])
        with debug.session(config, log_dir=tmp_path / str(number)):
            watched = Case(number).actual()
            debug.step()
        for a, b in zip([*plain[:2], *plain[2]], [*watched[:2], *watched[2]], strict=True):
            assert (a is None and b is None) or torch.equal(a, b), Case(number).of


@pytest.mark.parametrize("qkv_format", ["sbhd", "bshd", "thd"])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_tensors_and_gradients_are_those_that_were_given(tmp_path, qkv_format, checkpoint):
    leaves = inputs(seq=6)
    arguments = {"qkv_format": qkv_format, "checkpoint_core_attention": checkpoint}
    if qkv_format == "thd":
        leaves = [t.detach().flatten(0, 1).requires_grad_() for t in leaves]
        arguments |= {
            "attn_mask_type": "padding_causal",
            "cu_seqlens_q": torch.tensor([0, 5, 12], dtype=torch.int32),
        }
    with debug.session(watching(), log_dir=tmp_path):
        out = attention()(*leaves, **arguments)
        gradient = torch.randn_like(out)
        out.backward(gradient)
        debug.step()
    values = recorded(tmp_path, layer="attn")
    for name, tensor in zip(INPUTS, leaves, strict=True):
        assert values[name, "l2_norm"] == pytest.approx(norm(tensor), rel=1e-6)
        assert values[f"{name}_gradient", "l2_norm"] == pytest.approx(norm(tensor.grad), rel=1e-6)
        assert values[f"{name}_gradient", "numel"] == tensor.numel()
    assert values["attention_output", "l2_norm"] == pytest.approx(norm(out), rel=1e-6)
    assert values["attention_output_gradient", "l2_norm"] == pytest.approx(norm(gradient), rel=1e-6)
    assert {tensor for tensor, _ in values} == set(TENSORS)


def scores_of(case: Case):
    """Returns (scores, what is seen, sink) of a case, in FP64."""
    of = case.of
    allowed, distances = allowed_pairs(
        of["mask"], of["window"] or (-1, -1), of["bottom_right"] is not False,
        (*of["lengths"], *of["seq"]), case.arbitrary if of["mask"] == "arbitrary" else None,
    )  # fmt: skip
    scale = of["scale"] or SIZE**-0.5
    query, key = (t.permute(0, 2, 1, 3) for t in case.leaves[:2])
    scores = query @ key.repeat_interleave(HEADS // key.size(1), 1).mT * scale
    scores = scores + case.bias_of_scores(case.bias, distances, scale)
    sink = {"vanilla": None, "off-by-one": torch.zeros(HEADS), "learnable": case.sink}
    return scores, allowed.expand_as(scores), sink[of["softmax"]]


@pytest.mark.parametrize("first", range(0, 210, 30))
def test_score_statistics_match_fp64(tmp_path, first):
    for number in range(first, first + 30):
        with debug.session(watching(["scores"], SCORES), log_dir=tmp_path / str(number)):
            Case(number).actual()
            debug.step()
        check_scores(recorded(tmp_path / str(number), tensor="scores"), Case(number))


def check_scores(values, case):
    scores, seen, sink = scores_of(case)
    wanted = expected(scores, seen, sink)
    rows = sum(wanted[name] for name in ("blind", "nonfinite", "single", "choosing"))
    if wanted["numel"] == 0:
        assert not values
        return
    actual = {statistic: value for (_, statistic), value in values.items()}
    # The bound of test_attention.py: scores of at most 40 in FP32.
    close = {"rel": 1e-4, "abs": 1e-4}
    for name in ("min", "max"):
        assert actual[name] == pytest.approx(wanted[name], **close), case.of
    assert actual["blind%"] == pytest.approx(100 * wanted["blind"] / rows)
    assert actual["undefined%"] == 0
    if wanted["choosing"] == 0:
        assert "attention_entropy" not in actual
        return
    choosing = wanted["choosing"]
    assert actual["attention_entropy"] == pytest.approx(wanted["entropy"] / choosing, **close)
    assert actual["attention_entropy%"] == pytest.approx(
        100 * wanted["share"] / choosing, rel=1e-4, abs=1e-2
    )


def test_nonfinite_scores_are_counted_separately(tmp_path):
    query, key, value = (t.detach() for t in inputs(seq=4))
    query[0, 1, 0, 3] = math.nan
    key[1, 2, 1] = math.inf
    with debug.session(watching(["scores"], SCORES), log_dir=tmp_path):
        attention(attn_mask_type="no_mask")(query, key, value)
        debug.step()
    scores = query.transpose(1, 2).double() @ key.transpose(1, 2).double().mT / 8**0.5
    values = recorded(tmp_path)
    for name, count in {
        "nan": scores.isnan().sum(),
        "posinf": (scores == math.inf).sum(),
        "neginf": (scores == -math.inf).sum(),
    }.items():
        assert values["scores", name] == count.item(), name
    assert values["scores", "nonfinite"] > 0
    bad = scores.isnan().any(-1) | (scores.amax(-1) == math.inf)
    assert values["scores", "undefined%"] == pytest.approx(100 * bad.double().mean().item())
    shares = scores[~bad].softmax(-1)
    entropy = -(shares * shares.clamp_min(1e-300).log()).sum(-1).mean().item()
    assert values["scores", "attention_entropy"] == pytest.approx(entropy, rel=1e-5)


def test_micro_batches_add_up_to_the_whole_batch(tmp_path):
    whole = inputs(batch=6)
    for name, parts in (
        ("whole", [whole]),
        ("parts", list(zip(*(t.split(2) for t in whole), strict=True))),
    ):
        with debug.session(
            watching(["scores", "query"], [*SCORES, "std"]), log_dir=tmp_path / name
        ):
            for part in parts:
                attention()(*part)
            debug.step()
    a, b = (recorded(tmp_path / name) for name in ("whole", "parts"))
    assert a.keys() == b.keys()
    for key, value in a.items():
        assert b[key] == pytest.approx(value, rel=1e-6), key


def of_rank(rank: int, folder: str) -> None:
    whole = inputs(batch=4)
    part = [t[2 * rank : 2 * rank + 2] for t in whole]
    config = watching(["scores", "query"], [*SCORES, "std"])
    with debug.session(config, log_dir=folder):
        attention()(*part)
        debug.step()


def test_ranks_add_up_to_the_whole_batch(tmp_path):
    run_ranks(of_rank, str(tmp_path / "ranks"))
    with debug.session(watching(["scores", "query"], [*SCORES, "std"]), log_dir=tmp_path / "whole"):
        attention()(*inputs(batch=4))
        debug.step()
    whole = recorded(tmp_path / "whole")
    rows = telens.open_run(tmp_path / "ranks").records()
    seen = {(str(r.tensor), str(r.statistic)): r.value for r in rows.itertuples()}
    assert seen.keys() == whole.keys()
    for key, value in whole.items():
        assert seen[key] == pytest.approx(value, rel=1e-6), key


def block() -> te.TransformerLayer:
    torch.manual_seed(1)
    layer = te.TransformerLayer(32, 64, 4, hidden_dropout=0.0, attention_dropout=0.0)
    debug.infer_and_assign_layer_names(layer)
    return layer


def without_assigned_names(log: str) -> str:
    return "\n".join(line for line in log.splitlines() if "Assigned layer name" not in line)


def test_linear_tensor_configs_do_not_select_attention(tmp_path):
    x = torch.randn(6, 2, 32)
    with debug.session(watching(LINEAR, ["max"]), log_dir=tmp_path):
        block()(x).sum().backward()
        debug.step()
    rows = telens.open_run(tmp_path).records()
    assert not any("core_attention" in str(name) for name in rows["layer"].unique())
    assert set(map(str, rows["tensor"].unique())) == set(LINEAR)
    assert "core_attention" not in without_assigned_names(message_log(tmp_path))


def test_section_without_attention_tensors_records_nothing(tmp_path):
    config = logging_of(["activation"], ["max"])
    config["section"]["layers"] = {"layer_types": ["core_attention"]}
    with debug.session(config, log_dir=tmp_path):
        block()(torch.randn(6, 2, 32)).sum().backward()
        debug.step()
    log = message_log(tmp_path)
    assert "section 'section' selects none of the layers that ran: model.layernorm_mlp.fc1" in log
    assert "core_attention" not in without_assigned_names(log)
    assert len(telens.open_run(tmp_path).records()) == 0


def test_attention_is_named_after_its_module(tmp_path):
    x = torch.randn(6, 2, 32)
    with debug.session(watching(["query", "output"], ["max"]), log_dir=tmp_path):
        block()(x).sum().backward()
        debug.step()
    rows = telens.open_run(tmp_path).records(statistic="max")
    seen = {(str(r.layer), str(r.tensor)) for r in rows.itertuples()}
    assert ("model.self_attention.core_attention", "query") in seen
    assert {tensor for layer, tensor in seen if "core_attention" not in layer} == {"output"}


def test_attentions_without_names_take_no_numbers_of_linear_layers(tmp_path):
    linear = te.Linear(16, 16)
    with debug.session(watching(["query", "activation"], ["max"]), log_dir=tmp_path):
        te.DotProductAttention(2, 8, qkv_format="bshd")(*inputs())
        linear(torch.randn(4, 16))
        debug.step()
    rows = telens.open_run(tmp_path).records(statistic="max")
    assert {(str(r.layer), str(r.tensor)) for r in rows.itertuples()} == {
        ("Attention_1", "query"),
        ("Layer_1", "activation"),
    }


CHECKPOINTS = {
    "ours": te.checkpoint,
    "ours, reentrant": lambda f, *x: te.checkpoint(f, *x, use_reentrant=True),
    "torch's": lambda f, *x: torch.utils.checkpoint.checkpoint(f, *x, use_reentrant=False),
    "torch's, reentrant": lambda f, *x: torch.utils.checkpoint.checkpoint(
        f, *x, use_reentrant=True
    ),
    "torch's with our context_fn": lambda f, *x: torch.utils.checkpoint.checkpoint(
        f, *x, use_reentrant=False, context_fn=te.checkpoint_context_fn
    ),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_forward_that_is_computed_again_is_recorded_once(tmp_path, name):
    records = {}
    for kind in ("plain", "again"):
        config = watching([*TENSORS, "scores"], ["numel", "l2_norm", "attention_entropy"])
        with debug.session(config, log_dir=tmp_path / kind):
            module = attention()
            tensors = [t * 1 for t in inputs()]
            call = None if kind == "plain" else (lambda *x, m=module: CHECKPOINTS[name](m, *x))
            out = (call or module)(*tensors)
            out.square().sum().backward()
            debug.step()
        records[kind] = recorded(tmp_path / kind)
    assert len({tensor for tensor, _ in records["plain"]}) == len(TENSORS) + 1
    assert records["again"] == records["plain"]


def test_evaluations_are_recorded_only_on_request(tmp_path):
    module = attention()
    for mode in (None, "both"):
        config = watching(["query", "scores"], ["max"])
        if mode:
            config["section"]["mode"] = mode
        with debug.session(config, log_dir=tmp_path / str(mode)):
            run(module, inputs())
            module.eval()
            with torch.no_grad():
                module(*(10 * t for t in inputs()))
            module.train()
            debug.step()
    alone, both = (recorded(tmp_path / str(mode)) for mode in (None, "both"))
    assert ("query", "max_eval") not in alone
    assert both["query", "max_eval"] == pytest.approx(10 * alone["query", "max"])
    assert both["scores", "max_eval"] == pytest.approx(100 * alone["scores", "max"], rel=1e-5)
    assert both["query", "max"] == alone["query", "max"]


def test_forward_without_grad_is_recorded(tmp_path):
    with debug.session(watching([*TENSORS, "scores"], ["max"]), log_dir=tmp_path):
        with torch.no_grad():
            attention()(*inputs())
        debug.step()
    seen = {tensor for tensor, statistic in recorded(tmp_path) if statistic == "max"}
    assert seen == {*INPUTS, "attention_output", "scores"}


def test_autocast_records_the_attention_operands(tmp_path):
    with debug.session(watching(["query"], ["max"]), log_dir=tmp_path):
        query, key, value = inputs()
        with torch.autocast("cpu", torch.bfloat16):
            attention()(query, key, value)
        debug.step()
    assert recorded(tmp_path)["query", "max"] == query.bfloat16().max().item()


def test_in_place_output_keeps_the_output_gradient(tmp_path):
    results = []
    # Packed sequences, because the backward of others needs the unchanged output.
    arguments = {
        "qkv_format": "thd",
        "attn_mask_type": "padding",
        "cu_seqlens_q": torch.tensor([0, 5, 10], dtype=torch.int32),
    }
    for watched in (False, True):
        tensors = [t.detach().flatten(0, 1).requires_grad_() for t in inputs()]
        config = watching(["attention_output_gradient"], ["l2_norm"])
        with debug.session(config if watched else {}, log_dir=tmp_path / str(watched)):
            out = attention()(*tensors, **arguments)
            out.mul_(3)
            out.sum().backward()
            debug.step()
        results.append([out.detach(), *(t.grad for t in tensors)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    norm_of_threes = 3 * math.sqrt(out.numel())
    value = recorded(tmp_path / "True")["attention_output_gradient", "l2_norm"]
    assert value == pytest.approx(norm_of_threes, rel=1e-6)


# ------------------------------------------------------------------ features


def test_fp8_statistics_describe_a_potential_cast(tmp_path):
    stats = ["fp8_current_scaling_underflows%", "mxfp8_mse", "underflows%"]
    config = watching(["query", "key_gradient"], stats, feature="LogFp8TensorStats")
    with debug.session(config, log_dir=tmp_path):
        run(attention(), inputs())
        debug.step()
    values = recorded(tmp_path)
    assert values["query", "mxfp8_mse"] > 0
    assert values["key_gradient", "mxfp8_mse"] > 0
    assert ("query", "underflows%") not in values
    assert "underflows%: it runs unquantized here" in message_log(tmp_path)


def test_histograms_count_every_element(tmp_path):
    with debug.session(config_of("ValueHistogram", "telens", tensors=TENSORS), log_dir=tmp_path):
        run(attention(), inputs())
        debug.step()
    rows = telens.open_run(tmp_path).histograms()
    counts = rows.groupby(rows["tensor"].astype(str))["count"].sum()
    assert dict(counts) == dict.fromkeys(TENSORS, 2 * 5 * 2 * 8)


def test_dumps_hold_the_tensors_as_they_were_given(tmp_path):
    config = config_of("DumpTensors", tensors=TENSORS, high_precision_tensor=True)
    with debug.session(config, log_dir=tmp_path):
        tensors = inputs()
        out = attention()(*tensors)
        out.square().sum().backward()
        debug.step()
    wanted = dict(zip(INPUTS, tensors, strict=True))
    wanted |= {f"{name}_gradient": tensor.grad for name, tensor in wanted.items()}
    wanted |= {"attention_output": out.detach(), "attention_output_gradient": 2 * out.detach()}
    folder = tmp_path / "tensor_dumps/rank_0/iter_000000"
    for name, tensor in wanted.items():
        with h5py.File(folder / f"attn_{name}.h5") as file:
            dumped = torch.tensor(file["high_precision"][()])
        assert torch.equal(dumped.view(tensor.shape), tensor.detach()), name


def test_a_trigger_sees_scores_and_names_the_attention(tmp_path):
    config = config_of("Trigger", "telens", when="max of scores > 50", stop=True)
    with debug.session(config, log_dir=tmp_path):
        module = attention()
        run(module, inputs())
        debug.step()
        query, key, value = (t.detach() for t in inputs())
        module(100 * query, key, value)
        with pytest.raises(telens.RunStopped, match="max of scores of layer attn was"):
            debug.step()


def test_trigger_without_tensor_watches_only_linear_layers(tmp_path):
    config = config_of("Trigger", "telens", when="max > 50", stop=True)
    with debug.session(config, log_dir=tmp_path):
        attention()(*(1000 * t for t in inputs()))
        debug.step()


def test_loggers_get_the_statistics_of_scores(tmp_path):
    logger = Scalars()
    with debug.session(watching(["scores"], ["max"]), log_dir=tmp_path, statistics_logger=logger):
        attention()(*inputs())
        debug.step()
    assert logger.names() == {"attn_scores_max"}


def test_features_that_read_tensors_refuse_scores():
    for config in (
        config_of("ValueHistogram", "telens", tensors=["scores"]),
        config_of("DumpTensors", tensors=["scores"], high_precision_tensor=True),
        watching(["scores"], ["underflows%"], feature="LogFp8TensorStats"),
    ):
        with pytest.raises(telens.ConfigError, match="does not serve the tensor 'scores'"):
            debug.initialize(config)
    for feature, keys in (("FakeQuant", {"gemms": ["fprop"], "quant_format": "FP8E4M3"}),
                          ("PerTensorScaling", {"gemms": ["fprop"]})):  # fmt: skip
        with pytest.raises(telens.ConfigError, match="does not serve the tensor 'query'"):
            debug.initialize(config_of(feature, tensors=["query"], **keys))


def test_missing_statistics_warn_once(tmp_path):
    config = watching(["query", "scores"], ["std", "one_key%"])
    with debug.session(config, log_dir=tmp_path):
        attention()(*inputs())
        debug.step()
    values = recorded(tmp_path)
    assert {("query", "std"), ("scores", "one_key%")} <= values.keys()
    assert not {("scores", "std"), ("query", "one_key%")} & values.keys()
    log = message_log(tmp_path)
    assert "std: scores are never stored whole" in log
    assert "one_key%: only `scores` have it" in log
