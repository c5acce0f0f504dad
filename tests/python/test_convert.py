"""Models of plain torch modules in which our modules replace them."""

import collections
import copy
import pathlib
import pickle
import re

import peft
import pytest
import safetensors
import torch
import transformers
import transformers.trainer_pt_utils
from debug_helpers import section
from torch.nn.utils import prune

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import Float8CurrentScaling
from telens.pytorch.checkpoints.stored_histories import states_in


def make_model() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(32, 64),
        torch.nn.LayerNorm(64),
        torch.nn.Sequential(torch.nn.GELU(), torch.nn.Linear(64, 32, bias=False)),
        torch.nn.RMSNorm(32),
    )


def test_the_three_kinds_are_replaced_and_compute_the_same():
    model, x = make_model(), torch.randn(16, 32)
    expected = model(x)
    assert te.convert(model) is model
    assert [type(m) for m in (model[0], model[1], model[2][1], model[3])] == [
        te.Linear,
        te.LayerNorm,
        te.Linear,
        te.RMSNorm,
    ]
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)


def test_parameters_stay_the_same_objects():
    model = make_model()
    before = list(model.parameters())
    te.convert(model)
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))


def test_a_filter_chooses_by_module_and_name():
    model = te.convert(make_model(), lambda module, name: name == "2.1")
    assert type(model[0]) is torch.nn.Linear
    assert type(model[1]) is torch.nn.LayerNorm
    assert type(model[2][1]) is te.Linear


def test_subclasses_are_unchanged_and_a_single_module_is_converted():
    class Custom(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    model = te.convert(torch.nn.Sequential(Custom(16, 16)))
    assert type(model[0]) is Custom
    assert type(te.convert(torch.nn.Linear(16, 16))) is te.Linear


def test_hooks_and_evaluation_mode_move_along():
    model, seen = make_model().eval(), []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    te.convert(model)(torch.randn(4, 32))
    assert seen == [1]
    assert not model[0].training


@pytest.mark.parametrize("padded", [False, True])
def test_encoder_layer_in_eval_skips_torchs_fused_kernel(padded):
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(32, 2, 64, dropout=0, batch_first=True)
    model = te.convert(torch.nn.TransformerEncoder(layer, 2)).eval()
    mask = torch.zeros(4, 16, dtype=torch.bool)
    mask[0, 10:] = padded
    x = torch.randn(4, 16, 32)
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=mask)
        with te.autocast(recipe=Float8CurrentScaling()):
            in_fp8 = model(x, src_key_padding_mask=mask)
    assert plain.shape == x.shape
    assert not torch.equal(in_fp8, plain)
    torch.testing.assert_close(in_fp8, plain, rtol=0.2, atol=0.2)
    trained = model.train()(x, src_key_padding_mask=mask)
    torch.testing.assert_close(plain, trained, rtol=1e-5, atol=1e-5)


def test_a_pruned_linear_stays_pruned():
    module = torch.nn.Linear(32, 16)
    prune.l1_unstructured(module, "weight", amount=0.5)
    x = torch.randn(4, 32)
    expected, mask = module(x), module.weight_mask.clone()
    names = set(module.state_dict())
    made = te.convert(module)
    assert type(made) is te.Linear
    assert set(made.state_dict()) - {"_extra_state"} == names
    torch.testing.assert_close(made(x), expected)
    made(x).sum().backward()
    assert torch.equal(made.weight_orig.grad != 0, mask != 0)
    with torch.no_grad():
        made.weight_orig.mul_(2)
    torch.testing.assert_close(made(x) - made.bias, (expected - made.bias) * 2)
    prune.remove(made, "weight")
    assert int((made.weight == 0).sum()) == 256


def test_double_precision_is_taken_by_all_three():
    model, x = make_model().double(), torch.randn(8, 32, dtype=torch.float64, requires_grad=True)
    expected = model(x)
    te.convert(model)
    torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(model, (x,))


def test_shared_module_stays_shared():
    shared = torch.nn.Linear(16, 16)
    model = te.convert(torch.nn.ModuleDict({"a": shared, "b": shared}))
    assert model["a"] is model["b"]


CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
    ),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        attention_dropout=0.0,
        hidden_dropout=0.0,
    ),
}


@pytest.mark.parametrize("name", list(CONFIGS))
def test_a_model_of_huggingface_transformers_trains_converted_in_fp8(name):
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name]())
    tokens = torch.randint(0, 64, (2, 16))
    expected = model(tokens).logits
    te.convert(model)
    linears = [m for m in model.modules() if isinstance(m, te.Linear)]
    assert len(linears) >= 8
    torch.testing.assert_close(model(tokens).logits, expected, rtol=1e-3, atol=1e-4)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        with te.autocast():
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert all(m.get_extra_state().numel() > 0 for m in linears)


# ---------------------------------------------------------------------- Hugging Face


def gpt2() -> torch.nn.Module:
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=2, **NO_DROPOUT
    )
    torch.manual_seed(1)
    return transformers.GPT2LMHeadModel(config).train()


NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def classes_of(model: torch.nn.Module) -> collections.Counter:
    kinds = (torch.nn.Linear, torch.nn.LayerNorm, transformers.pytorch_utils.Conv1D)
    return collections.Counter(type(m).__name__ for m in model.modules() if isinstance(m, kinds))


def test_conv1d_is_taken_with_its_transposed_weight():
    model, tokens = gpt2(), torch.randint(0, 64, (2, 16))
    expected, before = model(tokens).logits, list(model.parameters())
    expected.square().mean().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    names, state = set(model.state_dict()), model.state_dict()
    te.convert(model)
    converted = [m for m in model.modules() if type(m).__name__ == "Conv1D"]
    assert len(converted) == 8
    assert all(isinstance(m, te.Module) for m in converted)
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    assert set(model.state_dict()) == names
    model.load_state_dict(state)
    assert converted[0].weight.shape == (32, 96)

    model.zero_grad()
    logits = model(tokens).logits
    # Sums of up to 128 products of FP32 in another order.
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=128 * 2**-24)
    logits.square().mean().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_converted_conv1d_is_copied_pickled_and_runs_in_fp8(copied, tmp_path):
    torch.manual_seed(1)
    layer = te.convert(transformers.pytorch_utils.Conv1D(48, 32))
    x = torch.randn(16, 32)
    with te.autocast(recipe=Float8CurrentScaling()):
        expected = layer(x)
        again = copied(layer)(x)
    plain = torch.addmm(layer.bias, x, layer.weight)
    assert torch.equal(again, expected)
    assert not torch.equal(expected, plain)
    torch.testing.assert_close(expected, plain, rtol=0.2, atol=0.02)
    config = {"enabled": True, "tensors": ["weight", "wgrad"], "stats": ["numel", "cur_amax"]}
    layer.set_debug_name("c_fc")
    with debug.session(section({"LogTensorStats": config}), log_dir=tmp_path):
        layer(x).sum().backward()
        debug.step()
    assert layer.weight.grad.shape == (32, 48)
    rows = telens.open_run(tmp_path).records(statistic="cur_amax", tensor="wgrad")
    assert rows["value"].tolist() == [layer.weight.grad.abs().max().item()]


NORMS = {
    "llama": (transformers.models.llama.modeling_llama.LlamaRMSNorm, False),
    "t5": (transformers.models.t5.modeling_t5.T5LayerNorm, False),
    "gemma": (transformers.models.gemma.modeling_gemma.GemmaRMSNorm, True),
    "gemma3n": (transformers.models.gemma3n.modeling_gemma3n.Gemma3nRMSNorm, False),
    "qwen2": (transformers.models.qwen2.modeling_qwen2.Qwen2RMSNorm, False),
    "qwen3_next": (transformers.models.qwen3_next.modeling_qwen3_next.Qwen3NextRMSNorm, True),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_transformers_norms_are_recognized_by_their_formula(name, eps):
    norm_class, zero_centered = NORMS[name]
    torch.manual_seed(1)
    norm = norm_class(32, eps=eps)
    with torch.no_grad():
        norm.weight.add_(0.1 * torch.randn(32))
    x = torch.randn(2, 8, 32) * torch.tensor([1.0, 1e-3]).view(2, 1, 1)
    expected, weight = norm(x), norm.weight
    before = torch.get_rng_state()
    made = te.convert(norm)
    assert torch.equal(torch.get_rng_state(), before)
    assert type(made) is te.RMSNorm
    assert made.zero_centered_gamma is zero_centered
    assert made.weight is weight
    torch.testing.assert_close(made(x), expected, rtol=1e-5, atol=1e-6)


def test_norms_that_compute_something_else_are_left_with_the_reason():
    gated = transformers.models.qwen3_next.modeling_qwen3_next.Qwen3NextRMSNormGated(32)
    cohere = transformers.models.cohere.modeling_cohere.CohereLayerNorm(32)
    model = te.convert(torch.nn.ModuleDict({"gated": gated, "cohere": cohere}))
    assert model["gated"] is gated
    assert model["cohere"] is cohere
    reasons = {each.name: each.reason for each in te.conversion_report(model).left}
    assert set(reasons) == {"gated", "cohere"}
    assert all("not RMSNorm with weight or 1 + weight" in reason for reason in reasons.values())


def test_every_norm_of_a_t5_is_taken_and_the_model_computes_the_same():
    torch.manual_seed(1)
    t5 = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=64,
            d_model=32,
            d_kv=16,
            d_ff=64,
            num_layers=2,
            num_heads=2,
            dropout_rate=0.0,
            decoder_start_token_id=0,
            pad_token_id=0,
        )
    )
    tokens = torch.randint(0, 64, (2, 16))
    expected = t5(input_ids=tokens, labels=tokens).loss
    report = te.conversion_report(te.convert(t5))
    assert sum(each.was == "T5LayerNorm" for each in report.converted) == 12
    torch.testing.assert_close(t5(input_ids=tokens, labels=tokens).loss, expected)


def test_output_heads_stay_and_the_report_says_why(capsys):
    model = te.convert(gpt2())
    assert type(model.lm_head) is torch.nn.Linear
    report = te.conversion_report(model)
    (left,) = report.left
    assert (left.name, left.kind) == ("lm_head", "Linear")
    assert "it shares its weight with transformer.wte; a filter= that returns" in left.reason
    counts = collections.Counter((each.was, each.now) for each in report.converted)
    assert counts == {("Conv1D", "Conv1D"): 8, ("LayerNorm", "LayerNorm"): 5}
    printed = capsys.readouterr().out
    assert "telens.convert: converted 13 modules: 5 LayerNorm, 8 Conv1D" in printed
    assert "telens.convert: left lm_head (Linear): an output head" in printed


def test_untied_head_is_unchanged_unless_a_filter_selects_it():
    llama = transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"]())
    assert type(te.convert(llama).lm_head) is torch.nn.Linear
    assert "get_output_embeddings() returns it" in te.conversion_report(llama).left[0].reason
    te.convert(llama, filter=lambda module, name: name == "lm_head")
    assert type(llama.lm_head) is te.Linear


def test_report_lists_other_and_filtered_modules():
    class Experts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_up_proj = torch.nn.Parameter(torch.zeros(4, 32, 64))

    patched = torch.nn.Linear(16, 16)
    patched.forward = lambda x: x
    parts = {"experts": Experts(), "attention": torch.nn.MultiheadAttention(32, 2)}
    model = torch.nn.ModuleDict(parts | {"patched": patched, "fc": torch.nn.Linear(16, 16)})
    te.convert(model, filter=lambda module, name: name != "fc")
    reasons = {each.name: each.reason for each in te.conversion_report(model).left}
    assert "its parameter gate_up_proj [4, 32, 64]" in reasons["experts"]
    assert "in_proj_weight" in reasons["attention"]
    assert "a subclass of nn.Linear" in reasons["attention.out_proj"]
    assert reasons["patched"] == "its forward was replaced on the object"
    assert reasons["fc"] == "filter"


def test_report_requires_a_converted_module():
    with pytest.raises(telens.UsageError, match="this Linear was not given to"):
        te.conversion_report(torch.nn.Linear(16, 16))
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, not str"):
        te.convert("gpt2")


def test_converted_layers_are_torchs_classes_too():
    model = te.convert(make_model())
    assert isinstance(model[0], torch.nn.Linear)
    assert isinstance(model[1], torch.nn.LayerNorm)
    assert isinstance(model[3], torch.nn.RMSNorm)
    # Parameters that the Trainer of transformers exempts from weight decay.
    plain = transformers.trainer_pt_utils.get_parameter_names(make_model(), [torch.nn.LayerNorm])
    ours = transformers.trainer_pt_utils.get_parameter_names(model, [torch.nn.LayerNorm])
    assert ours == plain


# ---- save_pretrained and from_pretrained


def fp8_step(model: torch.nn.Module, seed: int = 1) -> float:
    tokens = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(seed))
    with te.autocast():
        loss = model(tokens, labels=tokens).loss
    loss.backward()
    return loss.item()


def test_model_that_never_ran_fp8_saves_plain_keys(tmp_path):
    model = gpt2()
    names = set(model.state_dict())
    te.convert(model).save_pretrained(tmp_path)
    with safetensors.safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert not [key for key in file.keys() if "_extra_state" in key]  # noqa: SIM118
    assert set(model.state_dict()) == names


def test_warns_if_from_pretrained_drops_histories(tmp_path):
    model = te.convert(gpt2())
    for seed in range(3):
        fp8_step(model, seed)
    model.save_pretrained(tmp_path)
    states = {k: v for k, v in model.state_dict().items() if k.endswith("_extra_state")}
    assert len(states) == 8
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, **NO_DROPOUT).train()
    with pytest.warns(UserWarning, match=r"scales of 8 layers, .*load_fp8_state\(model, "):
        te.convert(again)
    assert not any(k.endswith("_extra_state") for k in again.state_dict())
    assert len(te.load_fp8_state(again, tmp_path)) == 8
    for name, state in states.items():
        assert torch.equal(again.state_dict()[name], state)
    assert fp8_step(again, 7) == fp8_step(model, 7)


def memory_of_its_own() -> int:
    """The resident memory of this process that is not backed by a file, in bytes."""
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"RssAnon:\s+(\d+)", status)[1])


STATE = torch.arange(4, dtype=torch.uint8)


def test_searching_histories_reads_no_weights(tmp_path):
    weights = torch.ones(2**24)  # 64 MiB
    torch.save({"fc.weight": weights, "fc._extra_state": STATE}, tmp_path / "pytorch_model.bin")
    before = memory_of_its_own()
    states = states_in(tmp_path)
    key, state = next(states)  # the checkpoint is open as long as there may be more
    assert memory_of_its_own() - before < weights.nbytes / 4
    assert key == "fc._extra_state"
    assert torch.equal(state, STATE)
    assert list(states) == []


def test_histories_in_a_checkpoint_of_torchs_first_format_are_found(tmp_path):
    state = {"fc._extra_state": STATE, "empty._extra_state": STATE[:0]}
    torch.save(state, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    ((key, found),) = states_in(tmp_path / "old.bin")
    assert key == "fc._extra_state"
    assert torch.equal(found, STATE)


def test_load_fp8_state_rejects_unusable_checkpoints(tmp_path):
    model = te.convert(gpt2())
    with pytest.raises(telens.UsageError, match="is not a checkpoint: expected a file"):
        te.load_fp8_state(model, tmp_path)
    with pytest.raises(telens.UsageError, match="checkpoint must be a path or a state dict"):
        te.load_fp8_state(model, 3)
    state = {"h.0.fc._extra_state": torch.ones(3, dtype=torch.uint8)}
    with pytest.raises(
        telens.UsageError, match=r"the state of 1 layers, the first of them .h\.0\.fc"
    ):
        te.load_fp8_state(model, state)
    assert te.load_fp8_state(model, {}) == []


# ---- PEFT


def lora(model: torch.nn.Module, targets: list[str], **options) -> torch.nn.Module:
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=targets, **options)
    return peft.get_peft_model(model, config)


LORA_TARGETS = {"llama": ["q_proj", "v_proj"], "gpt2": ["c_attn", "c_proj"]}


def make(name: str) -> torch.nn.Module:
    torch.manual_seed(1)
    if name == "gpt2":
        return gpt2()
    return transformers.AutoModelForCausalLM.from_config(CONFIGS[name]())


@pytest.mark.parametrize("name", LORA_TARGETS)
def test_peft_lora_trains_and_merges_into_a_converted_model(name):
    model = lora(te.convert(make(name)), LORA_TARGETS[name], fan_in_fan_out=name == "gpt2")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        losses.append(fp8_step(model))
        optimizer.step()
    assert losses[-1] < losses[0]
    tokens = torch.randint(0, 64, (2, 16))
    with torch.no_grad():
        adapted = model(tokens).logits
        merged = model.merge_and_unload()
        kept = [m for m in merged.modules() if isinstance(m, te.Module)]
        assert len(kept) >= 8
        torch.testing.assert_close(merged(tokens).logits, adapted, rtol=1e-4, atol=1e-4)


def test_a_model_with_adapters_is_converted_and_computes_the_same():
    model, tokens = lora(make("llama"), LORA_TARGETS["llama"]), torch.randint(0, 64, (2, 16))
    expected = model(tokens).logits
    te.convert(model)
    torch.testing.assert_close(model(tokens).logits, expected, rtol=1e-3, atol=1e-4)
    assert sum(isinstance(m, te.Linear) for m in model.modules()) == 14
    # A rank of 8 is not a multiple of 16, so the adapters stay torch's and the model runs in FP8.
    left = {each.name for each in te.conversion_report(model).left}
    assert sum("lora_" in name for name in left) == 8
    fp8_step(model)
