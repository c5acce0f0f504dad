"""delay_wgrad_compute: backward_dw computes the gradients of weights, separately from the
backward.
"""

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from debug_helpers import section

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common import recipe as recipes

MAKERS = {
    "Linear": lambda **o: te.Linear(32, 64, **o),
    "Linear in parts": lambda **o: te.Linear(32, 64, parameters_split={"a": 16, "b": 48}, **o),
    "GroupedLinear": lambda **o: te.GroupedLinear(3, 32, 64, **o),
    "LayerNormLinear": lambda **o: te.LayerNormLinear(32, 64, **o),
    "LayerNormMLP": lambda **o: te.LayerNormMLP(32, 64, **o),
    "MultiheadAttention": lambda **o: te.MultiheadAttention(32, 2, input_layernorm=True, **o),
    "TransformerLayer": lambda **o: te.TransformerLayer(32, 64, 2, hidden_dropout=0, **o),
    "fused TransformerLayer": lambda **o: te.TransformerLayer(
        32, 64, 2, hidden_dropout=0, fuse_qkv_params=True, **o
    ),
}
PRECISIONS = {
    "FP32": (torch.float32, None),
    "BF16": (torch.bfloat16, None),
    "delayed": (torch.float32, recipes.DelayedScaling),
    "MXFP8": (torch.bfloat16, recipes.MXFP8BlockScaling),
}


def made(kind, dtype=torch.float32, **options):
    torch.manual_seed(3)
    if "TransformerLayer" in kind or kind == "MultiheadAttention":
        options["attention_dropout"] = 0
    return MAKERS[kind](params_dtype=dtype, device="cpu", **options)


def forward(layer, dtype, recipe, seed=1):
    x = torch.randn(32, 2, 32, generator=torch.Generator().manual_seed(seed)).to(dtype)
    extra = ([0, 48, 16],) if isinstance(layer, te.GroupedLinear) else ()
    with te.fp8_autocast(recipe is not None, fp8_recipe=recipe() if recipe else None):
        return layer(x.requires_grad_(), *extra), x


def is_gemm_weight(name):
    return "weight" in name and "norm_weight" not in name


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_gradients_have_the_bits_of_those_that_the_backward_makes(name, precision):
    dtype, recipe = PRECISIONS[precision]
    whole, delayed = made(name, dtype), made(name, dtype, delay_wgrad_compute=True)
    assert (whole.need_backward_dw(), delayed.need_backward_dw()) == (False, True)
    inputs = []
    for layer in (whole, delayed):
        # Two micro-batches between forward and backward_dw at a time, as in a pipeline.
        outs = [forward(layer, dtype, recipe, seed) for seed in (1, 2)]
        for out, _ in outs:
            out.sin().sum().backward()
        inputs.append([x.grad for _, x in outs])
    for name_of, parameter in delayed.named_parameters():
        assert (parameter.grad is None) == is_gemm_weight(name_of), name_of
        assert hasattr(parameter, "skip_backward_post_hook") == is_gemm_weight(name_of)
    for _ in range(2):
        whole.backward_dw()  # nothing to do
        delayed.backward_dw()
    for of_whole, of_delayed in zip(*inputs, strict=True):
        assert torch.equal(of_whole, of_delayed)
    expected = dict(whole.named_parameters())
    for name_of, parameter in delayed.named_parameters():
        assert torch.equal(parameter.grad, expected[name_of].grad), name_of
    with pytest.raises(telens.UsageError, match="none is left; call it once after each backward"):
        delayed.backward_dw()


def test_each_call_computes_gradients_of_the_oldest_backward():
    layer = made("Linear", delay_wgrad_compute=True, bias=False)
    for seed in (1, 2):
        forward(layer, torch.float32, None, seed)[0].sum().backward()
    sums = []
    for seed in (1, 2):
        layer.backward_dw()
        sums.append(layer.weight.grad.clone())
        other = made("Linear", bias=False)
        forward(other, torch.float32, None, seed)[0].sum().backward()
        before = sums[-2] if len(sums) > 1 else torch.zeros_like(other.weight)
        assert torch.equal(sums[-1], before + other.weight.grad)


@pytest.mark.parametrize("name", ["Linear", "GroupedLinear", "LayerNormMLP"])
def test_main_grad_is_added_to_then(name):
    layer = made(name, delay_wgrad_compute=True, fuse_wgrad_accumulation=True)
    plain = made(name)
    weights = {n: p for n, p in layer.named_parameters() if is_gemm_weight(n)}
    for weight in weights.values():
        weight.main_grad = torch.zeros_like(weight)
    for each in (layer, plain):
        forward(each, torch.float32, None)[0].sum().backward()
    assert all(weight.main_grad.count_nonzero() == 0 for weight in weights.values())
    layer.backward_dw()
    for name_of, weight in weights.items():
        assert weight.grad is None
        torch.testing.assert_close(weight.main_grad, plain.get_parameter(name_of).grad)


def test_hooks_run_when_the_delayed_gradient_is_computed():
    layer = made("LayerNormMLP", delay_wgrad_compute=True)
    seen = []
    # In the backward, autograd calls the hook without a gradient, as with fuse_wgrad_accumulation.

    def before(grad):
        seen.extend(["fc1"] if grad is not None else [])

    def behind(weight):
        seen.extend(["fc2"] if weight.grad is not None else [])

    layer.fc1_weight.register_hook(before)
    layer.fc2_weight.register_post_accumulate_grad_hook(behind)
    layer.register_wgrad_accumulation_and_reduce_hooks(lambda: seen.append("reduce"))
    forward(layer, torch.float32, None)[0].sum().backward()
    assert seen == []
    layer.backward_dw()
    assert seen == ["fc2", "fc1", "reduce"], "the last layer first"
    with pytest.raises(telens.UsageError, match="hook must be a function, not 3"):
        layer.register_wgrad_accumulation_and_reduce_hooks(3)


def test_frozen_weights_defer_nothing():
    layer = made("LayerNormMLP", delay_wgrad_compute=True)
    layer.fc1_weight.requires_grad_(False)
    forward(layer, torch.float32, None)[0].sum().backward()
    layer.backward_dw()
    assert layer.fc1_weight.grad is None
    assert layer.fc2_weight.grad is not None


def test_pending_gradients_do_not_keep_layers_alive():
    layer = made("Linear", delay_wgrad_compute=True)
    forward(layer, torch.float32, None)[0].sum().backward()
    weight = weakref.ref(layer.weight)
    del layer
    gc.collect()
    assert weight() is None


def test_a_session_sees_wgrad_when_it_is_made(tmp_path):
    config = {"LogTensorStats": {"enabled": True, "tensors": ["wgrad"], "stats": ["cur_amax"]}}
    with debug.session(section(config), log_dir=tmp_path):
        layer = made("Linear", name="fc1", delay_wgrad_compute=True)
        forward(layer, torch.float32, None)[0].sum().backward()
        layer.backward_dw()
        debug.step()
    records = telens.open_run(tmp_path).records()
    seen = records[(records["tensor"] == "wgrad") & (records["statistic"] == "cur_amax")]
    assert seen["value"].tolist() == [layer.weight.grad.abs().max().item()]


def test_shared_layer_computes_both_gradients_at_once():
    gradients = []
    for delayed in (False, True):
        torch.manual_seed(3)
        layer = te.Linear(16, 16, device="cpu", delay_wgrad_compute=delayed)
        for seed in (1, 2):  # two backwards wait
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))
            layer(layer(x)).sum().backward()
            if not delayed:
                gradients.append(layer.weight.grad.clone())
    assert layer.weight.grad is None
    for expected in gradients:
        layer.backward_dw()
        # Autograd first adds the two gradients of a backward; here each is added to .grad, so
        # roundings differ.
        torch.testing.assert_close(layer.weight.grad, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(telens.UsageError, match="none is left"):
        layer.backward_dw()


@pytest.mark.parametrize("what", ["input", "gradient"])
def test_changed_operands_of_pending_gradients_are_reported(what):
    layer = made("Linear", delay_wgrad_compute=True)
    x = torch.randn(4, 2, 32)
    gradient = torch.randn(4, 2, 64)
    layer(x).backward(gradient)
    {"input": x, "gradient": gradient}[what].add_(1)
    shown = {"input": "its input", "gradient": "the gradient of its output"}[what]
    with pytest.raises(telens.UsageError, match=f"Linear: {shown} was changed in place between"):
        layer.backward_dw()
    layer(x).backward(gradient)
    layer.backward_dw()
    torch.testing.assert_close(layer.weight.grad, gradient.flatten(0, 1).T @ x.flatten(0, 1))


def test_codes_that_wait_are_the_layers_own():
    layer, x = made("Linear", delay_wgrad_compute=True), torch.randn(32, 32)
    with te.fp8_autocast(fp8_recipe=recipes.Float8CurrentScaling()):
        layer(x).backward(torch.ones(32, 64))
    x.zero_()
    layer.backward_dw()
    assert layer.weight.grad.count_nonzero() > 0


def test_the_gradient_that_waits_becomes_no_leafs_own():
    """Autograd uses the gradient tensor itself as .grad of a leaf if nothing else holds it."""
    layer, leaf = made("Linear", delay_wgrad_compute=True), torch.zeros(4, 2, 64).requires_grad_()
    x = torch.randn(4, 2, 32)
    early = leaf + 0  # its backward comes behind the layer's
    (layer(x) + early).sin().sum().backward()
    expected = leaf.grad.flatten(0, 1).T @ x.flatten(0, 1)
    leaf.grad.zero_()
    layer.backward_dw()
    torch.testing.assert_close(layer.weight.grad, expected)


def test_torchs_ddp_is_rejected(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        layer = te.Linear(16, 16, device="cpu", delay_wgrad_compute=True)
        model = torch.nn.parallel.DistributedDataParallel(layer)
        with pytest.raises(RuntimeError, match="delay_wgrad_compute leaves"):
            model(torch.ones(16, 16)).sum().backward()
    finally:
        dist.destroy_process_group()
