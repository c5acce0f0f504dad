"""The layers that te.convert keeps so that the model runs in FP8, and telens.summary."""

import re

import pytest
import torch
from nano_gpt import NanoGPT

import telens
import telens.pytorch as te
from telens.common.recipe import Float8CurrentScaling, MXFP8BlockScaling


def left_by(model: torch.nn.Module) -> dict[str, str]:
    return {each.name: each.reason for each in te.conversion_report(model).left}


class Tagger(torch.nn.Module):
    """An embedding, a body, and a last linear layer of the given name."""

    def __init__(self, head: str, outputs: int, rows: int = 64) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(rows, 32)
        self.body = torch.nn.Linear(32, 80)
        self.add_module(head, torch.nn.Linear(80, outputs))


@pytest.mark.parametrize(
    ("head", "outputs", "reason"),
    [
        ("lm_head", 32, "its name says so"),
        ("head", 48, "its name says so"),
        ("decoder", 64, "it has 64 outputs, and an embedding as many rows"),
    ],
)
def test_convert_leaves_the_last_linear_to_a_vocabulary(head, outputs, reason):
    model = te.convert(Tagger(head, outputs))
    assert type(model.body) is te.Linear
    assert left_by(model) == {
        head: f"an output head: {reason}; a filter= that returns True converts it"
    }


def test_convert_leaves_the_last_linear_inside_of_a_head_module():
    model = torch.nn.ModuleDict({"fc": torch.nn.Linear(32, 32)})
    model["cls_head"] = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 16))
    te.convert(model)
    assert list(left_by(model)) == ["cls_head.1"]
    assert type(model["cls_head"][0]) is te.Linear


class Decoder(torch.nn.Module):
    """A model with heads in all places where models have them."""

    def __init__(self, words: int = 160) -> None:
        super().__init__()
        self.output = torch.nn.Linear(32, words, bias=False)
        self.tok_embeddings = torch.nn.Embedding(words, 32)
        self.position_embeddings = torch.nn.Embedding(512, 32)
        self.layers = torch.nn.ModuleList(Attention(words) for _ in range(2))
        self.value_head = torch.nn.Linear(32, 16)


class Attention(torch.nn.Module):
    """A block whose projections are named like heads, one of them with as many outputs as there are
    words.
    """

    def __init__(self, words: int) -> None:
        super().__init__()
        for name in ("q_head", "k_head", "v_head"):
            self.add_module(name, torch.nn.Linear(32, 32))
        self.up, self.down = torch.nn.Linear(32, words), torch.nn.Linear(words, 32)


def test_head_before_the_blocks_and_a_value_head_stay():
    model = te.convert(Decoder())
    assert left_by(model).keys() == {"output", "value_head"}
    assert "160 outputs" in left_by(model)["output"]


def test_projections_called_heads_inside_of_blocks_are_converted():
    model = te.convert(Decoder())
    for layer in model.layers:
        assert all(type(each) is te.Linear for each in layer.children())


def test_all_heads_of_words_and_at_the_end_stay():
    model = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(160, 32)})
    model["mtp_heads"] = torch.nn.ModuleList(torch.nn.Linear(32, 160) for _ in range(3))
    model["inner_head"] = torch.nn.Linear(32, 64)
    model["fc"] = torch.nn.Linear(64, 32)
    model["policy_head"], model["value_head"] = torch.nn.Linear(32, 48), torch.nn.Linear(32, 16)
    left = left_by(te.convert(model))
    assert left.keys() == {*(f"mtp_heads.{i}" for i in range(3)), "policy_head", "value_head"}


def test_an_embedding_of_positions_makes_no_head():
    model = Tagger("proj", outputs=64, rows=100)
    model.positions = torch.nn.Embedding(64, 32)
    te.convert(model)
    assert left_by(model) == {}


def test_convert_takes_a_last_linear_that_is_not_a_head():
    model = te.convert(Tagger("overhead_proj", 48))
    assert type(model.overhead_proj) is te.Linear
    assert left_by(model) == {}


@pytest.mark.parametrize("shape", [(65, 32), (32, 65), (24, 32)])
def test_convert_leaves_dimensions_that_fp8_cannot_take(shape, capsys):
    rows, columns = shape
    model = te.convert(torch.nn.Sequential(torch.nn.Linear(columns, rows)))
    assert type(model[0]) is torch.nn.Linear
    reason = f"weight [{rows}, {columns}]: FP8 GEMMs need multiples of 16"
    assert left_by(model) == {"0": reason}
    assert f"telens.convert: left 0 (Linear): {reason}\n" in capsys.readouterr().out


def test_convert_skips_layers_that_the_recipe_does_not_support():
    parts = [torch.nn.Linear(48, 64), torch.nn.Linear(64, 32)]
    model = te.convert(torch.nn.Sequential(*parts), recipe=MXFP8BlockScaling())
    assert left_by(model) == {"0": "weight [64, 48]: FP8 GEMMs need multiples of 32"}
    assert type(te.convert(torch.nn.Sequential(torch.nn.Linear(48, 64)))[0]) is te.Linear


@pytest.mark.parametrize("recipe", [None, Float8CurrentScaling()])
def test_filter_converts_heads_but_no_unsupported_dimensions(recipe):
    model = torch.nn.ModuleDict({"fc": torch.nn.Linear(32, 24), "head": torch.nn.Linear(32, 32)})
    te.convert(model, lambda module, name: True, recipe)
    assert left_by(model) == {"fc": "weight [24, 32]: FP8 GEMMs need multiples of 16"}
    assert type(model["head"]) is te.Linear


def test_convert_rejects_a_non_recipe():
    with pytest.raises(telens.UsageError, match="convert: recipe must be a recipe"):
        te.convert(torch.nn.Linear(32, 32), recipe="mxfp8")


# ---------------------------------------------------------------------- nanoGPT


@pytest.mark.parametrize("vocabulary", [65, 68, 50257])
@pytest.mark.parametrize("tied", [True, False])
def test_nano_gpt_of_any_vocabulary_trains_in_fp8_once_converted(vocabulary, tied):
    torch.manual_seed(1)
    model = te.convert(NanoGPT(vocabulary, tied=tied))
    assert list(left_by(model)) == ["lm_head"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.randint(0, vocabulary, (2, 17))
    losses = []
    for _ in range(6):
        with te.autocast():
            _, loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    linears = [m for m in model.modules() if isinstance(m, te.Linear)]
    assert len(linears) == 8
    assert all(m.fp8_meta["scaling_fwd"].scale[0] != 1 for m in linears)


def test_call_in_the_shape_error_makes_the_model_run():
    recipe = MXFP8BlockScaling()
    tokens = torch.randint(0, 65, (2, 17))

    def run(model):
        with te.autocast(recipe=recipe):
            model(tokens[:, :-1], tokens[:, 1:])[1].backward()

    with pytest.raises(telens.ShapeError, match=r"weight has shape \[144, 48\]") as error:
        run(te.convert(NanoGPT(65, width=48)))
    model = NanoGPT(65, width=48)
    (call,) = re.findall(r"te\.convert\(.*\)", str(error.value))
    run(eval(call, {"te": te, "model": model, "recipe": recipe}))
    assert type(model.lm_head) is torch.nn.Linear


# ---------------------------------------------------------------------- telens.summary

OF_A_NANO_GPT = """\
layer                        class      K -> N    parameters  FP8
---------------------------------------------------------------------
transformer.h.{0,1}.c_attn   Linear x2  32 -> 96       6,336  {fp8}
transformer.h.{0,1}.c_proj   Linear x2  32 -> 32       2,112  {fp8}
transformer.h.{0,1}.mlp_fc   Linear x2  32 -> 128      8,448  {fp8}
transformer.h.{0,1}.mlp_out  Linear x2  128 -> 32      8,256  {fp8}
lm_head                      Linear     32 -> 68       2,176  no (1)

(1) an output head: its name says so; a filter= that returns True converts it
8 of 9 layers run in FP8 {when}
1 of 9 layers cannot or should not run in FP8"""


def lines_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if not line.startswith("--")]


def test_summary_prints_gemms_and_their_fp8_support():
    model = NanoGPT(68, tied=False)
    before = OF_A_NANO_GPT.replace("{fp8}", "after te.convert")
    assert lines_of(str(telens.summary(model))) == lines_of(
        before.replace("{when}", "after te.convert(model)")
    )
    after = OF_A_NANO_GPT.replace("{fp8}", "yes")
    assert lines_of(str(telens.summary(te.convert(model)))) == lines_of(
        after.replace("{when}", "inside of te.autocast()")
    )


def test_summary_is_data():
    summary = telens.summary(NanoGPT(68, tied=False))
    row = summary.rows[0]
    assert (row.layer, row.in_features, row.out_features) == ("transformer.h.0.c_attn", 32, 96)
    table = summary.to_pandas()
    assert len(table) == 9
    assert table["fp8"].tolist() == ["after te.convert"] * 8 + ["no"]
    assert table["parameters"].sum() == 2 * (3168 + 1056 + 4224 + 4128) + 2176


def test_summary_lists_weights_of_fused_and_other_modules():
    parts = {
        "block": te.LayerNormMLP(32, 64),
        "experts": te.GroupedLinear(4, 32, 32),
        "attention": torch.nn.MultiheadAttention(32, 2),
        "norm": torch.nn.LayerNorm(32),
        "narrow": te.Linear(32, 24),
    }
    rows = {r.layer: r for r in telens.summary(torch.nn.ModuleDict(parts)).rows}
    assert set(rows) == {
        "block.fc1_weight",
        "block.fc2_weight",
        "experts",
        "attention",
        "attention.out_proj",
        "narrow",
    }
    assert rows["block.fc2_weight"][2:4] == (64, 32)
    assert rows["experts"].gemms == 4
    assert rows["attention"].in_features is None
    assert rows["narrow"].reason == "weight [24, 32]: FP8 GEMMs need multiples of 16"
    with_recipe = telens.summary(te.Linear(48, 32), MXFP8BlockScaling())
    assert with_recipe.rows[0].reason.endswith("multiples of 32")


def test_summary_of_a_model_without_gemms_says_so():
    assert str(telens.summary(torch.nn.ReLU())) == "no layer with a GEMM"
    with pytest.raises(telens.UsageError, match=r"summary: model must be a torch\.nn\.Module"):
        telens.summary("gpt2")


def test_repr_of_a_converted_layer_names_telens():
    model = te.convert(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU()))
    assert repr(model[0]) == "telens.Linear(in_features=16, out_features=32)"
    assert "(0): telens.Linear(" in repr(model)
