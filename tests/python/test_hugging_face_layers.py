"""Models of transformers with random weights, in which our layers replace theirs."""

import copy

import pytest
import torch

import telens
import telens.pytorch as te
from telens.common.recipe import Float8CurrentScaling
from telens.pytorch.hugging_face.parts import Replacement

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def llama(**changes) -> torch.nn.Module:
    options = {**SMALL, "num_key_value_heads": 2, "use_cache": False, **changes}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**options))


def mixtral(**changes) -> torch.nn.Module:
    options = {**SMALL, "num_key_value_heads": 2, "num_local_experts": 4, "use_cache": False}
    config = transformers.MixtralConfig(**options, num_experts_per_tok=2, sliding_window=None)
    return transformers.MixtralForCausalLM(config)


def bert(**changes) -> torch.nn.Module:
    options = {**SMALL, "hidden_act": "gelu_pytorch_tanh", **changes}
    return transformers.BertForMaskedLM(transformers.BertConfig(**options))


def t5(**changes) -> torch.nn.Module:
    options = {"vocab_size": 96, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2}
    options |= {"num_heads": 4, "feed_forward_proj": "gated-gelu", "use_cache": False, **changes}
    config = transformers.T5Config(**options, decoder_start_token_id=0, pad_token_id=0)
    return transformers.T5ForConditionalGeneration(config)


def logits(model: torch.nn.Module, tokens: torch.Tensor, **arguments) -> torch.Tensor:
    """An encoder and decoder reads tokens and writes them in reverse order."""
    if model.config.is_encoder_decoder:
        arguments["decoder_input_ids"] = tokens.flip(1)
    return model(tokens, **arguments).logits


MODELS = {
    "llama": llama,
    "llama with wide heads": lambda: llama(head_dim=32, rope_theta=500.0),
    "mixtral": mixtral,
    "bert": bert,
    "t5": t5,
    "t5 with relu": lambda: t5(feed_forward_proj="relu", d_kv=64),
}


def randomized(model: torch.nn.Module) -> torch.nn.Module:
    """Also norms and biases, which begin as ones and zeros, with which a swap would not be seen."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.2 / parameter.size(-1) ** 0.5 if parameter.dim() > 1 else 0.2
            noise = torch.randn_like(parameter) * scale
            parameter.add_(noise * 4 if parameter.dim() > 1 else noise)
    return model.eval()


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(0, 96, (2, 24), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_logits_match_transformers(name, padded, tokens):
    model = randomized(MODELS[name]())
    mask = torch.ones_like(tokens)
    if padded:
        mask[1, 17:] = 0
    with torch.no_grad():
        expected = logits(model, tokens, attention_mask=mask)
        converted = te.use_transformer_layers(copy.deepcopy(model))
        found = logits(converted, tokens, attention_mask=mask)
    # Outputs at padding are never read.
    seen = torch.ones_like(mask).bool() if model.config.is_encoder_decoder else mask.bool()
    # FP32 sums may have another order.
    torch.testing.assert_close(found[seen], expected[seen], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(expected[0, 3], expected[0, 4], atol=1e-2)


@pytest.mark.parametrize("name", MODELS)
def test_bf16_logits_are_as_accurate_as_transformers(name, tokens):
    model = randomized(MODELS[name]())
    with torch.no_grad():
        exact = logits(model, tokens)
        theirs = logits(model.bfloat16(), tokens).float()
        ours = logits(te.use_transformer_layers(model), tokens).float()
    error = (theirs - exact).square().mean().sqrt()
    assert error > 0
    assert (ours - exact).square().mean().sqrt() < 1.5 * error


STEPPED = {
    "llama": lambda: llama(),
    "t5": lambda: t5(dropout_rate=0.0),
    "t5 with heads of 128": lambda: t5(dropout_rate=0.0, d_kv=128),
}


@pytest.mark.parametrize("name", STEPPED)
def test_adamw_steps_match_transformers(name, tokens):
    torch.manual_seed(1)
    model = STEPPED[name]()
    losses = []
    for each in (te.use_transformer_layers(copy.deepcopy(model)), model):
        each.train()
        # AdamW's step does not depend on the size of the gradient, so a wrong factor in a weight
        # shows.
        optimizer = torch.optim.AdamW(each.parameters(), lr=1e-3)
        losses.append([])
        for _ in range(4):
            loss = each(tokens, labels=tokens.flip(1)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[1][-1] < 0.9 * losses[1][0]


FROZEN = {
    "llama": ["self_attn.q_proj.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight"],
    "mixtral": ["input_layernorm.weight", "experts.down_proj"],
    "bert": ["output.dense.bias"],
    "t5": ["SelfAttention.v.weight", "DenseReluDense.wo.weight"],
}


@pytest.mark.parametrize("name", FROZEN)
def test_frozen_parameters_stay_frozen(name, tokens):
    model = MODELS[name]()
    for own, parameter in model.named_parameters():
        if any(own.endswith(each) for each in FROZEN[name]):
            parameter.requires_grad_(False)
    held = sum(each.numel() for each in model.parameters() if not each.requires_grad)
    model = te.use_transformer_layers(model)
    assert sum(each.numel() for each in model.parameters() if not each.requires_grad) == held
    model(tokens, labels=tokens).loss.backward()
    assert all((each.grad is None) != each.requires_grad for each in model.parameters())
    assert held > 0


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["llama", "mixtral", "bert", "t5"])
def test_gradient_checkpointing_gives_the_same_gradients(name, reentrant, tokens):
    torch.manual_seed(3)
    model = te.use_transformer_layers(MODELS[name]()).train()
    calls = []
    for module in model.modules():
        if isinstance(module, te.DotProductAttention):
            module.register_forward_hook(lambda *_: calls.append(1))
    gradients = []
    for recomputes in (False, True):
        if recomputes:
            options = {"use_reentrant": reentrant}
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
        calls.clear()
        torch.manual_seed(4)  # dropout draws the same
        with te.autocast(recipe=Float8CurrentScaling()):
            loss = model(tokens, labels=tokens).loss
        forwards = len(calls)
        loss.backward()
        assert len(calls) == forwards * (2 if recomputes else 1) > 0
        gradients.append([each.grad.clone() for each in model.parameters()])
        model.zero_grad()
    assert all(map(torch.equal, *gradients))
    calls.clear()
    model.eval()(tokens, labels=tokens).loss.backward()
    assert len(calls) == forwards


@pytest.mark.parametrize("name", ["llama", "mixtral", "bert", "t5"])
def test_outputs_that_our_layers_do_not_hand_out_are_refused_by_name(name, tokens):
    for argument in ("output_hidden_states", "output_attentions"):
        model = te.use_transformer_layers(MODELS[name]())
        with pytest.raises(telens.UsageError, match=f"{argument} is not there: our layers hand"):
            logits(model, tokens, **{argument: True})
        (layer, *_) = (each for each in model.modules() if isinstance(each, Replacement))
        with pytest.raises(telens.UsageError, match=f"{argument} is not there"):
            layer(torch.zeros(2, 24, 64), **{argument: True})
        configs = [model.config, *([model.encoder.config] if name == "t5" else [])]
        for config in configs:
            config._attn_implementation = "eager"
            setattr(config, argument, True)
        with pytest.raises(telens.UsageError, match=f"{argument} is not there: our layers hand"):
            logits(model, tokens)


@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model_trains_in_fp8(name, tokens):
    torch.manual_seed(1)
    model = te.use_transformer_layers(MODELS[name]()).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(4):
        with te.autocast(recipe=Float8CurrentScaling()):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_the_layers_are_ours():
    model = te.use_transformer_layers(llama())
    kinds = [type(module) for module in model.modules()]
    assert kinds.count(te.TransformerLayer) == 2
    model = te.use_transformer_layers(mixtral())
    kinds = [type(module) for module in model.modules()]
    assert kinds.count(te.MultiheadAttention) == 2
    assert kinds.count(te.GroupedLinear) == 4
    model = te.use_transformer_layers(t5())
    kinds = [type(module) for module in model.modules()]
    assert (kinds.count(te.MultiheadAttention), kinds.count(te.LayerNormMLP)) == (2 + 2 * 2, 4)
    assert torch.nn.Linear not in {type(module) for module in model.encoder.modules()}


def test_unsupported_options_are_rejected(tokens):
    for model, message in (
        (t5(feed_forward_proj="gated-tanh"), "the activation 'tanh'"),
        (llama(attention_bias=True), "biases of Llama's linear layers"),
        (llama(hidden_act="tanh"), "the activation 'tanh'"),
        (llama(rope_scaling={"rope_type": "linear", "factor": 2.0}), "of type 'linear'"),
        (torch.nn.Linear(2, 2), "has none of the layers that are known: LlamaDecoderLayer"),
    ):
        with pytest.raises(telens.UsageError, match=message):
            te.use_transformer_layers(model)
    half = llama()
    half.model.layers[0].mlp.up_proj.weight.requires_grad_(False)
    with pytest.raises(
        telens.UsageError, match=r"gate_proj\.weight and mlp\.up_proj\.weight, one f"
    ):
        te.use_transformer_layers(half)
    for cached in (llama(use_cache=True), t5(use_cache=True)):
        with pytest.raises(telens.UsageError, match=r"set model\.config\.use_cache = False"):
            logits(te.use_transformer_layers(cached), tokens)


def test_gradients_of_t5_biases_match_transformers(tokens):
    model = randomized(t5())
    converted = te.use_transformer_layers(copy.deepcopy(model))
    for each in (model, converted):
        logits(each, tokens).square().sum().backward()
    for name in ("encoder", "decoder"):
        theirs = getattr(model, name).block[0].layer[0].SelfAttention
        ours = getattr(converted, name).block[0].bias
        torch.testing.assert_close(
            ours.relative_attention_bias.weight.grad,
            theirs.relative_attention_bias.weight.grad,
            rtol=1e-3,
            atol=1e-3 * theirs.relative_attention_bias.weight.grad.abs().max().item(),
        )


def test_a_checkpoint_of_safetensors_and_one_of_dcp_come_back(tmp_path, tokens):
    safetensors = pytest.importorskip("safetensors.torch")
    import torch.distributed.checkpoint as dcp

    model = te.use_transformer_layers(randomized(llama())).train()
    with te.autocast():
        model(tokens, labels=tokens).loss.backward()
    model.eval()
    state = model.state_dict()
    assert any(key.endswith("_extra_state") for key in state)
    safetensors.save_model(model, str(tmp_path / "model.safetensors"))
    dcp.save(model.state_dict(), checkpoint_id=tmp_path / "dcp", no_dist=True)

    fresh = te.use_transformer_layers(llama()).eval()
    safetensors.load_model(fresh, str(tmp_path / "model.safetensors"))
    of_dcp = te.use_transformer_layers(llama()).eval()
    loaded = {key: torch.empty_like(value) for key, value in state.items()}
    dcp.load(loaded, checkpoint_id=tmp_path / "dcp", no_dist=True)
    of_dcp.load_state_dict(loaded)
    for other in (fresh, of_dcp):
        with torch.no_grad(), te.autocast():
            assert torch.equal(other(tokens).logits, model(tokens).logits)
        for key, value in other.state_dict().items():
            assert torch.equal(value, state[key])
