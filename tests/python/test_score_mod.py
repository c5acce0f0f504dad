"""score_mod of DotProductAttention, in the forms that Transformer Engine's tests have."""

import pytest
import torch
from score_blocks import in_blocks

import telens
import telens.pytorch as te
from telens.common.recipe import Float8CurrentScaling

SEQ, HEADS, GROUPS, SIZE = 21, 4, 2, 8


def causal(graph, score, tensors):
    rows = graph.gen_index(input=score, axis=2)
    rows.set_data_type("INT32")
    keys = graph.gen_index(input=score, axis=3)
    keep = graph.cmp_ge(input=rows, comparison=keys, compute_data_type="BOOLEAN")
    return graph.binary_select(input0=score, input1=tensors["hidden"], mask=keep)


def causal_gradient(graph, score, tensors):
    return causal(graph, score, {"hidden": tensors["zero"]})


def relative(graph, score, tensors):
    distance = graph.sub(a=graph.gen_index(score, 2), b=graph.gen_index(score, 3))
    return graph.add(a=score, b=distance, compute_data_type="FLOAT")


def unchanged(graph, gradient, tensors):
    return gradient


class Softcap:
    """Its backward reads an attribute that its forward for the same block has set."""

    def forward(self, graph, score, tensors):
        self.inner = graph.div(a=score, b=tensors["cap"])
        return graph.mul(a=graph.tanh(input=self.inner), b=tensors["cap"])

    def backward(self, graph, gradient, tensors):
        loss = graph.mul(a=gradient, b=tensors["cap"])
        return graph.div(a=graph.tanh_backward(loss=loss, input=self.inner), b=tensors["cap"])


def by_torch(graph, score, tensors):
    """Uses operators of torch, a bias for each head and key, and the indices of samples and
    heads.
    """
    return (
        score * 0.5 + tensors["bias"] + 0.1 * graph.gen_index(score, 0) * graph.gen_index(score, 1)
    )


ONE = (1, 1, 1, 1)
CAP = {"cap": torch.full(ONE, 0.8)}
BIAS = torch.linspace(-2, 2, HEADS * SEQ).view(1, HEADS, 1, SEQ)
PLACE = torch.arange(SEQ).double()
SAMPLE_HEAD = torch.arange(2).view(2, 1, 1, 1) * torch.arange(HEADS).view(1, HEADS, 1, 1)
HIDDEN = {"hidden": torch.full(ONE, -torch.inf)}
# score_mod, its tensors, score_mod_bprop, its tensors, and the formula in torch.
CASES = {
    "causal": (
        causal, HIDDEN, None, None,
        lambda s: s.masked_fill(PLACE[:, None] < PLACE, -torch.inf),
    ),
    "causal with a gradient": (
        causal, HIDDEN, causal_gradient, {"zero": torch.zeros(ONE)},
        lambda s: s.masked_fill(PLACE[:, None] < PLACE, -torch.inf),
    ),
    "relative": (relative, None, unchanged, None, lambda s: s + PLACE[:, None] - PLACE),
    "softcap": (Softcap().forward, CAP, None, None, lambda s: 0.8 * (s / 0.8).tanh()),
    "softcap with a gradient": (*(lambda cap: (cap.forward, CAP, cap.backward, CAP))(Softcap()),
                                lambda s: 0.8 * (s / 0.8).tanh()),
    "torch": (by_torch, {"bias": BIAS}, None, None, lambda s: s * 0.5 + BIAS + 0.1 * SAMPLE_HEAD),
}  # fmt: skip


def heads(dtype=torch.float32):
    torch.manual_seed(37)
    return [torch.randn(2, SEQ, n, SIZE, dtype=dtype, requires_grad=True)
            for n in (HEADS, GROUPS, GROUPS)]  # fmt: skip


def attention(**options):
    return te.DotProductAttention(
        HEADS, SIZE, GROUPS, qkv_format="bshd", attn_mask_type="no_mask", **options
    )


def expected(tensors, formula):
    query, *others = [t.detach().double().requires_grad_() for t in tensors]
    key, value = (t.repeat_interleave(HEADS // GROUPS, 2).transpose(1, 2) for t in others)
    scores = query.transpose(1, 2) @ key.transpose(-1, -2) / SIZE**0.5
    out = (formula(scores).softmax(-1) @ value).transpose(1, 2).flatten(2)
    out.square().sum().backward()
    return [out.detach(), *(t.grad for t in (query, *others))]


@pytest.mark.parametrize("of_block", [1, 60, 1 << 19])
@pytest.mark.parametrize("name", CASES)
def test_it_is_the_formula_in_blocks_of_any_size(name, of_block):
    function, tensors, gradient, of_gradient, formula = CASES[name]
    inputs = heads()
    with in_blocks(of_block):
        out = attention()(
            *inputs, score_mod=function, score_mod_tensors=tensors, score_mod_bprop=gradient,
            score_mod_bprop_tensors=of_gradient,
        )  # fmt: skip
    out.square().sum().backward()
    for one, other in zip([out, *(t.grad for t in inputs)], expected(heads(), formula),
                          strict=True):  # fmt: skip
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


def test_a_gradient_that_is_given_is_used():
    inputs = heads()
    out = attention()(*inputs, score_mod=unchanged, score_mod_bprop=lambda g, d, t: d * 0)
    out.sum().backward()
    assert not inputs[0].grad.any()
    assert inputs[2].grad.any()


def test_scores_that_none_of_it_come_from_get_no_gradient():
    inputs = heads()
    out = attention()(*inputs, score_mod=lambda graph, score, tensors: torch.zeros_like(score))
    out.sum().backward()
    assert not inputs[0].grad.any()
    assert inputs[2].grad.any()


GIVEN = {"score_mod": unchanged}
REFUSED = {
    "an attn_mask_type": ({}, GIVEN | {"attn_mask_type": "causal"}),
    "a window_size": ({}, GIVEN | {"window_size": (3, 3)}),
    "a core_attention_bias_type": ({}, GIVEN | {"core_attention_bias_type": "alibi"}),
    "a softmax_type": ({"softmax_type": "off-by-one"}, GIVEN),
    "attention_dropout": ({"attention_dropout": 0.1}, GIVEN),
    "return_max_logit": ({"return_max_logit": True}, GIVEN),
    "checkpoint_core_attention": ({}, GIVEN | {"checkpoint_core_attention": True}),
    "qkv_format thd": ({}, GIVEN | {"qkv_format": "thd"}),
    "score_mod_bprop needs score_mod": ({}, {"score_mod_bprop": unchanged}),
    "score_mod_tensors needs score_mod": ({}, {"score_mod_tensors": {}}),
    "score_mod_bprop_tensors needs score_mod_bprop": (
        {}, GIVEN | {"score_mod_bprop_tensors": {}}),
    "score_mod must be a function": ({}, {"score_mod": 3}),
    "score_mod_tensors must be a dict": ({}, GIVEN | {"score_mod_tensors": {"a": 1}}),
    "score_mod returned a NoneType": ({}, {"score_mod": lambda graph, score, tensors: None}),
    r"score_mod returned \[2, 4, 1, 21\]": (
        {}, {"score_mod": lambda graph, score, tensors: score[:, :, :1]}),
    "graph.exp takes input,": ({}, {"score_mod": lambda graph, score, tensors: graph.exp(a=score)}),
    "does not have an operation erfc; it has gen_index": (
        {}, {"score_mod": lambda graph, score, tensors: graph.erfc(score)}),
    r"score_mod_tensors\['x'\] is \[3\]": (
        {}, GIVEN | {"score_mod_tensors": {"x": torch.zeros(3)}}),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_incompatible_options_are_rejected(message):
    options, arguments = REFUSED[message]
    with pytest.raises((telens.UsageError, telens.ShapeError), match=message):
        attention(**options)(*heads(), **arguments)


def test_fp8_does_not_go_with_it():
    with (
        te.autocast(recipe=Float8CurrentScaling(fp8_dpa=True)),
        pytest.raises(telens.UsageError, match=r"fp8_dpa.* does not go with score_mod"),
    ):
        attention()(*heads(), score_mod=unchanged)


def test_errors_of_the_function_reach_the_caller_forward_and_backward():
    def broken(graph, score, tensors):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        attention()(*heads(), score_mod=broken)
    out = attention()(*heads(), score_mod=unchanged, score_mod_bprop=broken)
    with pytest.raises(KeyError, match="mine"):
        out.sum().backward()


def test_tensors_that_were_changed_before_the_backward_are_an_error():
    cap = {"cap": torch.full(ONE, 0.8)}
    out = attention()(*heads(), score_mod=Softcap().forward, score_mod_tensors=cap)
    cap["cap"].mul_(2)
    with pytest.raises(telens.UsageError, match=r"score_mod_tensors\['cap'\] was changed"):
        out.sum().backward()
