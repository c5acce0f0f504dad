"""fuse_wgrad_accumulation: wgrad is added to weight.main_grad, with Megatron's attributes."""

import pytest
import torch
import torch.distributed as dist
from fused_helpers import ACTIVATION_CAST, GRADIENT_CAST, NORM_CASTS

import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling

IN, OUT, TOKENS = 32, 48, 64


def integers(*sizes, dtype=torch.float32):
    """Their products and sums are exact in FP32."""
    return torch.randint(-4, 5, sizes).to(dtype)


def fused_linear(dtype=torch.float32, **options):
    return te.Linear(
        IN, OUT, params_dtype=dtype, device="cpu", fuse_wgrad_accumulation=True, **options
    )


def give_main_grads(module):
    weights = {name: each for name, each in module.named_parameters() if each.dim() == 2}
    for weight in weights.values():
        weight.main_grad = torch.zeros(weight.shape, dtype=torch.float32)
    return weights


# An exception of a backward in C++ reaches Python as torch's engine translates it.
IN_THE_BACKWARD = RuntimeError


def exact_wgrad(g, x):
    return (g.double().T @ x.double()).float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_main_grad_is_the_exact_sum_over_micro_batches(dtype):
    torch.manual_seed(51)
    layer = fused_linear(dtype)
    layer.weight.main_grad = torch.zeros(OUT, IN)
    expected = torch.zeros(OUT, IN)
    for _ in range(3):
        x, g = integers(TOKENS, IN, dtype=dtype), integers(TOKENS, OUT, dtype=dtype)
        layer(x).backward(g)
        expected += exact_wgrad(g, x)
        assert torch.equal(layer.weight.main_grad, expected)
    assert layer.weight.grad is None
    assert layer.bias.grad is not None


@pytest.mark.parametrize("stored", [False, True])
def test_main_grad_under_fp8_is_within_fp8_rounding(stored):
    torch.manual_seed(52)
    with te.fp8_model_init(enabled=stored):
        layer = fused_linear(torch.bfloat16)
    layer.weight.main_grad = torch.zeros(OUT, IN)
    x, g = torch.randn(TOKENS, IN).bfloat16(), torch.randn(TOKENS, OUT).bfloat16()
    with te.fp8_autocast(fp8_recipe=Float8CurrentScaling()):
        out = layer(x)
    out.backward(g)
    # E4M3 keeps 4 significant bits, E5M2 3: the error of each product is at most 2^-4 + 2^-3.
    magnitude = g.float().abs().T @ x.float().abs()
    error = (layer.weight.main_grad - exact_wgrad(g, x)).abs()
    assert layer.weight.main_grad.abs().max() > 1
    assert torch.all(error <= magnitude * (2**-4 + 2**-3 + 2**-7))
    assert layer.weight.grad is None


def test_post_accumulate_hook_runs():
    torch.manual_seed(53)
    layer = fused_linear()
    layer.weight.main_grad = torch.zeros(OUT, IN)
    layer.weight.grad_added_to_main_grad = False
    seen = []
    layer.weight.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad))
    x, g = integers(TOKENS, IN), integers(TOKENS, OUT)
    layer(x).backward(g)
    assert layer.weight.grad_added_to_main_grad is True
    assert len(seen) == 1
    assert torch.equal(seen[0], torch.zeros(OUT, IN))
    assert torch.equal(layer.weight.main_grad, exact_wgrad(g, x))


def test_overwrite_main_grad_replaces_the_old_value():
    torch.manual_seed(54)
    x, g = integers(TOKENS, IN), integers(TOKENS, OUT)
    layer = fused_linear()
    for first, overwrite in [(True, False), (None, True)]:
        layer.weight.main_grad = torch.full((OUT, IN), float("nan"))
        layer.weight.overwrite_main_grad = overwrite
        layer(x, is_first_microbatch=first).backward(g)
        assert torch.equal(layer.weight.main_grad, exact_wgrad(g, x))


def test_sharded_main_grad_is_requested_in_the_backward():
    layer = fused_linear()
    buffer = torch.zeros(OUT, IN)
    layer.weight.__fsdp_param__ = True
    layer.weight.get_main_grad = lambda: buffer
    layer(torch.ones(TOKENS, IN)).backward(torch.ones(TOKENS, OUT))
    assert layer.weight.main_grad is buffer
    assert torch.all(buffer == TOKENS)


def test_a_recomputed_forward_adds_its_wgrad_once():
    torch.manual_seed(55)
    x, g = integers(TOKENS, IN), integers(TOKENS, OUT)
    layer = fused_linear()
    layer.weight.main_grad = torch.zeros(OUT, IN)
    te.checkpoint(layer, x.requires_grad_()).backward(g)
    assert torch.equal(layer.weight.main_grad, exact_wgrad(g, x.detach()))


@pytest.mark.parametrize("fuse_qkv", [True, False])
def test_transformer_layer_accumulates_every_weight_gradient(fuse_qkv):
    def make(fuse):
        torch.manual_seed(56)
        return te.TransformerLayer(
            32,
            64,
            2,
            hidden_dropout=0,
            attention_dropout=0,
            params_dtype=torch.float32,
            device="cpu",
            fuse_qkv_params=fuse_qkv,
            fuse_wgrad_accumulation=fuse,
        )

    accumulating, plain = make(fuse=True), make(fuse=False)
    plain.load_state_dict(accumulating.state_dict())
    weights = give_main_grads(accumulating)
    assert len(weights) == (4 if fuse_qkv else 6)
    x = torch.randn(16, 2, 32)
    for layer in (accumulating, plain):
        layer(x).square().sum().backward()
    expected = dict(plain.named_parameters())
    for name, parameter in accumulating.named_parameters():
        found = parameter.main_grad if name in weights else parameter.grad
        torch.testing.assert_close(found, expected[name].grad)


def rounded_sums(buffer, gradients, dtype):
    """The expected sums: each exact gradient is added in FP64, and the sum is rounded once."""
    for gradient in gradients:
        buffer = (buffer.double() + gradient.double()).to(dtype)
    return buffer


@pytest.mark.parametrize("computation", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_main_grad_is_rounded_once_per_micro_batch(dtype, computation):
    torch.manual_seed(59)
    layer = fused_linear(computation)
    layer.weight.main_grad = torch.full((OUT, IN), 0.3, dtype=dtype)
    micro_batches = [
        # Large values, whose wgrad has more digits than 16 bits hold.
        [torch.randint(-64, 65, (TOKENS, each)).to(computation) for each in (IN, OUT)]
        for _ in range(3)
    ]
    for x, g in micro_batches:
        layer(x).backward(g)
    start = torch.full((OUT, IN), 0.3, dtype=dtype)
    wgrads = [exact_wgrad(g, x) for x, g in micro_batches]
    assert torch.equal(layer.weight.main_grad, rounded_sums(start, wgrads, dtype))
    # Rounding each gradient before the sum gives something else.
    assert not torch.equal(
        layer.weight.main_grad, rounded_sums(start, [each.to(dtype) for each in wgrads], dtype)
    )
    assert layer.weight.grad is None


def test_16_bit_main_grad_handles_overflow_nan_and_empty():
    layer = fused_linear(torch.bfloat16)
    layer.weight.main_grad = torch.full((OUT, IN), 65504.0, dtype=torch.float16)
    layer.weight.main_grad[0] = float("nan")
    layer(torch.full((1, IN), 64.0).bfloat16()).backward(torch.ones(1, OUT).bfloat16())
    assert layer.weight.main_grad[0].isnan().all()
    assert layer.weight.main_grad[1:].isposinf().all()
    before = layer.weight.main_grad[1:].clone()
    layer(torch.ones(0, IN).bfloat16()).backward(torch.ones(0, OUT).bfloat16())
    assert torch.equal(layer.weight.main_grad[1:], before)


PARTS = {"q": 16, "k": 8, "v": 24}


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_of_a_split_weight_have_separate_main_grads(dtype, delayed):
    torch.manual_seed(60)
    layer = fused_linear(parameters_split=PARTS, delay_wgrad_compute=delayed)
    for name in PARTS:
        weight = getattr(layer, f"{name}_weight")
        weight.main_grad = torch.full(weight.shape, 0.3, dtype=dtype)
    layer.k_weight.grad_added_to_main_grad = False
    x, g = integers(TOKENS, IN), integers(TOKENS, OUT)
    layer(x).backward(g)
    if delayed:
        layer.backward_dw()
    parts = exact_wgrad(g, x).split(list(PARTS.values()))
    for name, wgrad in zip(PARTS, parts, strict=True):
        weight = getattr(layer, f"{name}_weight")
        start = torch.full(weight.shape, 0.3, dtype=dtype)
        assert torch.equal(weight.main_grad, rounded_sums(start, [wgrad], dtype)), name
    assert layer.k_weight.grad_added_to_main_grad is True
    assert torch.equal(layer.k_weight.grad, torch.zeros(8, IN))


def test_part_without_main_grad_fails_before_any_write():
    layer = fused_linear(parameters_split=PARTS)
    layer.q_weight.main_grad = torch.zeros(16, IN)
    layer.k_weight.main_grad = torch.zeros(8, IN)
    with pytest.raises(
        IN_THE_BACKWARD, match=r"weight \[24, 32\] to its main_grad, which is missing"
    ):
        layer(torch.ones(TOKENS, IN)).backward(torch.ones(TOKENS, OUT))
    assert not layer.q_weight.main_grad.any()


def train_mlp(normalization, fuse):
    """Returns the MLP, its gradients after two micro-batches, and how often each operator ran."""
    torch.manual_seed(58)
    module = te.LayerNormMLP(
        32,
        64,
        normalization=normalization,
        activation="swiglu",
        params_dtype=torch.float32,
        device="cpu",
        fuse_wgrad_accumulation=fuse,
    )
    give_main_grads(module)
    recipe = DelayedScaling(amax_history_len=4)
    with torch.profiler.profile(acc_events=True) as profile:
        for _ in range(2):
            x = torch.randn(TOKENS, 32, requires_grad=True)
            with te.autocast(enabled=True, recipe=recipe):
                out = module(x)
            out.square().sum().backward()
    gradients = {"x": x.grad}
    for name, parameter in module.named_parameters():
        fused = fuse and hasattr(parameter, "main_grad")
        gradients[name] = parameter.main_grad if fused else parameter.grad
        assert not fused or parameter.grad is None
    return gradients, {event.key: event.count for event in profile.key_averages()}


@pytest.mark.parametrize("normalization", ["LayerNorm", "RMSNorm"])
def test_fused_casts_accumulate_into_main_grad(normalization):
    actual, counts = train_mlp(normalization, fuse=True)
    expected, plain = train_mlp(normalization, fuse=False)
    norms = sum(counts.get(name, 0) for name in NORM_CASTS)
    assert (norms, counts.get(ACTIVATION_CAST), counts.get(GRADIENT_CAST)) == (2, 2, 2)
    assert counts.get("telens::gemm_accumulate") == 4
    assert "telens::gemm_accumulate" not in plain
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        if name.endswith(("fc1_weight", "fc2_weight")):
            torch.testing.assert_close(actual[name], gradient, rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(actual[name], gradient), name


def test_layer_stays_usable_after_a_main_grad_error():
    layer = fused_linear(name="decoder.qkv")

    def train():
        layer(torch.ones(TOKENS, IN)).backward(torch.ones(TOKENS, OUT))

    with pytest.raises(IN_THE_BACKWARD, match=r"decoder\.qkv: .* which is missing; set"):
        train()
    for wrong in (torch.zeros(IN, OUT), torch.zeros(OUT, IN).double()):
        layer.weight.main_grad = wrong
        with pytest.raises(IN_THE_BACKWARD, match=r"decoder\.qkv: main_grad has shape"):
            train()
    layer.weight.main_grad = torch.zeros(OUT, IN)
    train()
    assert torch.all(layer.weight.main_grad == TOKENS)


def test_torchs_ddp_is_rejected(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        layer = fused_linear()
        layer.weight.main_grad = torch.zeros(OUT, IN)
        model = torch.nn.parallel.DistributedDataParallel(layer)
        with pytest.raises(IN_THE_BACKWARD, match=r"Parallel averages \.grad"):
            model(torch.ones(TOKENS, IN)).sum().backward()
    finally:
        dist.destroy_process_group()
