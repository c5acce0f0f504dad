"""Models of plain torch modules with ours put in their place."""

import pytest
import torch
import transformers
from torch.nn.utils import prune

import telens.pytorch as te
from telens.common.recipe import Float8CurrentScaling


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


def test_subclasses_are_left_alone_and_a_single_module_is_returned_converted():
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
def test_an_encoder_layer_in_evaluation_runs_the_modules_and_not_torchs_fused_kernel(padded):
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


def test_a_module_that_stands_in_two_places_stays_one():
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
    assert len(linears) >= 9
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
