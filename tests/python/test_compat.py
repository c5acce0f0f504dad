"""Functions and attributes of Transformer Engine's inner modules that frameworks use."""

import copy
import pickle

import pytest
import torch

import telens
import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling
from telens.pytorch import constants, module_base
from telens.pytorch.attention.rope import apply_fused_qkv_rotary_pos_emb, apply_rotary_pos_emb
from telens.pytorch.compat import expert_parallel, gemm, graph_state, ranks, utils
from telens.pytorch.layers.initialization import DEFAULT_WEIGHT_STD


def make_linear(**options) -> te.Linear:
    torch.manual_seed(1)
    return te.Linear(32, 32, device="cpu", **options)


# ------------------------------------------------------------------------------ missing names


def test_missing_names_import_but_raise_when_used():
    class OfUser(te.ops.FusibleOperation):
        pass

    for use in (te.ops.GELU, OfUser, expert_parallel.ep_dispatch, expert_parallel.EpBuffer):
        with pytest.raises(telens.UsageError, match=r"telens has no transformer_engine\.pytorch\."):
            use()
    assert issubclass(te.ops.Sequential, torch.nn.Module)
    assert not expert_parallel.is_ep_bootstrapped()
    manager = te.FP8GlobalStateManager
    manager.set_skip_fp8_weight_update_tensor(False)
    with pytest.raises(telens.UsageError, match="skip=True is not supported"):
        manager.set_skip_fp8_weight_update_tensor(True)
    with pytest.raises(telens.UsageError, match="add_fp8_tensors_to_global_buffer"):
        manager.add_fp8_tensors_to_global_buffer({})


# ------------------------------------------------------------------------------ attributes


@pytest.mark.parametrize(
    "make",
    [
        make_linear,
        lambda **options: te.LayerNormLinear(32, 32, device="cpu", **options),
        lambda **options: te.GroupedLinear(2, 32, 32, device="cpu", **options),
    ],
)
def test_layers_report_bias_and_input_attributes(make):
    module = make()
    assert module.apply_bias
    assert not make(bias=False).apply_bias
    assert not make(return_bias=True).apply_bias
    assert module.save_original_input is False
    module.save_original_input = True
    assert pickle.loads(pickle.dumps(module)).save_original_input
    assert copy.deepcopy(module).save_original_input


def test_an_argument_sets_the_attribute_and_children_have_its_default():
    assert make_linear(save_original_input=True).save_original_input
    assert te.MultiheadAttention(32, 2, device="cpu").proj.save_original_input is False


def test_weights_are_listed_by_name():
    assert make_linear().weight_names == ["weight"]
    split = make_linear(parameters_split={"query": 16, "key": 16})
    assert split.weight_names == ["query_weight", "key_weight"]
    assert split.bias_names == ["query_bias", "key_bias"]
    assert te.LayerNormMLP(32, 64, device="cpu").weight_names == ["fc1_weight", "fc2_weight"]


def test_low_precision_weights_are_recognized():
    assert not make_linear().primary_weights_in_fp8
    with te.quantized_model_init():
        assert make_linear().primary_weights_in_fp8


def test_layers_report_the_region_that_they_run_in():
    block = te.TransformerLayer(32, 64, 2, device="cpu")
    layers = [block.self_attention.proj, block.layernorm_mlp]

    def read():
        return {(each.fp8, each.fp8_calibration, each.activation_dtype) for each in layers}

    assert read() == {(False, False, torch.float32)}
    x = torch.randn(16, 1, 32)
    with te.autocast(recipe=DelayedScaling()):
        assert read() == {(True, False, torch.float32)}
        assert not layers[0].fp8_initialized
        block(x)
    with te.autocast(enabled=False, calibrating=True), torch.autocast("cpu", torch.bfloat16):
        assert read() == {(False, True, torch.bfloat16)}
    assert all(each.fp8_initialized for each in layers)


def test_attributes_that_forwards_compute_can_be_assigned():
    layer = make_linear()
    for name in ("fp8", "fp8_calibration", "fp8_initialized", "primary_weights_in_fp8"):
        setattr(layer, name, not getattr(layer, name))
        assert getattr(layer, name) is False
    layer.activation_dtype = torch.float16
    assert layer.activation_dtype == torch.float32


def test_activation_dtype_without_parameters_is_the_default():
    layer = make_linear(bias=False)
    del layer.weight
    assert layer.activation_dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.activation_dtype == torch.bfloat16


def test_default_deviation_is_the_one_that_layers_document():
    deviation = utils.get_default_init_method()(torch.empty(1 << 16)).std().item()
    assert deviation == pytest.approx(DEFAULT_WEIGHT_STD, rel=0.02)
    assert f"mean 0 and deviation {DEFAULT_WEIGHT_STD}" in te.Linear.__doc__


def test_wgrad_store_reports_pending_entries():
    layer = make_linear(delay_wgrad_compute=True)
    assert layer.wgrad_store.delay_wgrad_compute()
    assert layer.wgrad_store.is_empty()
    layer(torch.ones(4, 32)).sum().backward()
    assert not layer.wgrad_store.is_empty()
    layer.backward_dw()
    assert layer.wgrad_store.is_empty()
    assert not make_linear().wgrad_store.delay_wgrad_compute()


# ------------------------------------------------------------------------------ GEMMs


@pytest.mark.parametrize("layout", ["TN", "NN", "NT"])
def test_general_gemm_multiplies_in_each_layout(layout):
    torch.manual_seed(1)
    n, m, k = 3, 4, 5
    a = torch.randn(n, k) if layout[0] == "T" else torch.randn(k, n)
    b = torch.randn(k, m) if layout[1] == "T" else torch.randn(m, k)
    plain_a, plain_b = (a.t() if layout[0] == "T" else a), (b.t() if layout[1] == "T" else b)
    bias = torch.randn(n)
    product, none, *_ = gemm.general_gemm(a, b, layout=layout, bias=bias)
    torch.testing.assert_close(product, plain_b @ plain_a + bias)
    assert none is None
    out = torch.ones(m, n)
    gemm.general_gemm(a, b, layout=layout, out=out, accumulate=True, alpha=2.0, beta=3.0)
    torch.testing.assert_close(out, 2 * plain_b @ plain_a + 3)
    low, *_ = gemm.general_gemm(a, b, torch.bfloat16, layout=layout)
    assert low.dtype == torch.bfloat16


def test_single_process_collectives_return_the_tensor():
    assert not torch.distributed.is_initialized()
    x = torch.randn(4, 3)
    assert ranks.gather_along_first_dim(x, None) == (x, None)
    assert ranks.reduce_scatter_along_first_dim(x, None) == (x, None)


def test_general_gemm_computes_in_fp32_inside_autocast():
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        product, *_ = gemm.general_gemm(a, b, layout="TN")
    assert torch.equal(product, b @ a.t())


def test_general_gemm_flattens_leading_dimensions():
    a, b = torch.randn(5, 2, 8), torch.randn(5, 2, 12)
    product, *_ = gemm.general_gemm(a, b, layout="NT")
    assert torch.equal(product, b.flatten(0, 1).t() @ a.flatten(0, 1))


def test_general_gemm_takes_codes_and_gives_a_bias_its_gradient():
    torch.manual_seed(1)
    quantizer = te.Float8CurrentScalingQuantizer(te.DType.kFloat8E4M3, "cpu")
    a, b = quantizer(torch.randn(16, 32)), quantizer(torch.randn(16, 64))
    product, gradient, *_ = gemm.general_gemm(a, b, layout="NT", grad=True, bias=torch.zeros(64))
    torch.testing.assert_close(product, b.dequantize().t() @ a.dequantize())
    torch.testing.assert_close(gradient, b.dequantize().sum(0))
    made, *_ = gemm.general_gemm(a, b, layout="NT", quantization_params=quantizer)
    assert isinstance(made, te.Float8Tensor)
    with pytest.raises(telens.UsageError, match="gelu must be its default"):
        gemm.general_gemm(a, b, layout="NT", gelu=True)
    with pytest.raises(telens.UsageError, match="accumulate=True without out"):
        gemm.general_gemm(a, b, layout="NT", accumulate=True)
    assert gemm.get_workspace().numel() == gemm.get_cublas_workspace_size_bytes() == 0


def test_a_dummy_gradient_has_its_shape_and_zeros_on_demand():
    dummy = module_base.get_dummy_wgrad([2, 3], torch.bfloat16, zero=True)
    assert (dummy.shape, dummy.dtype, dummy.abs().max()) == ((2, 3), torch.bfloat16, 0)


def test_a_tensor_made_like_another_has_its_scale():
    quantizer = te.Float8Quantizer(torch.tensor([4.0]), torch.zeros(1), te.DType.kFloat8E4M3)
    made = quantizer(torch.randn(4, 8))
    codes = torch.zeros_like(made._data)
    like = te.Float8Tensor.make_like(made, data=codes)
    assert like._scale_inv == made._scale_inv
    assert like.dequantize().abs().max() == 0
    assert torch.equal(te.Float8Tensor.make_like(made).dequantize(), made.dequantize())


# ------------------------------------------------------------------------------ recomputation


def test_a_recomputation_uses_the_scales_of_its_forward():
    layer, x = make_linear(), torch.randn(16, 32)
    recipe = DelayedScaling(amax_history_len=2)
    with te.autocast(recipe=recipe):
        layer(x)
    with te.autocast(recipe=recipe), ranks.activation_recompute_forward(True):
        assert ranks.is_fp8_activation_recompute_enabled()
        with torch.no_grad():
            first = layer(x)
    with te.autocast(recipe=recipe):
        layer(100 * x)
    scales = layer.fp8_meta["scaling_fwd"].scale.clone()
    with te.autocast(recipe=recipe), ranks.activation_recompute_forward(True, True):
        assert ranks.in_fp8_activation_recompute_phase()
        again = layer(x)
    assert torch.equal(again, first)
    assert torch.equal(layer.fp8_meta["scaling_fwd"].scale, scales)
    assert not ranks.is_fp8_activation_recompute_enabled()
    with (
        pytest.raises(telens.UsageError, match="a recomputation without a forward of Linear"),
        ranks.activation_recompute_forward(True, True),
    ):
        layer(x)


class Recomputed(torch.autograd.Function):
    """A checkpoint as frameworks write it, which runs ``function`` again in its backward."""

    @staticmethod
    def forward(ctx, function, recipe, x):
        ctx.function, ctx.recipe = function, recipe
        ctx.save_for_backward(x)
        with torch.no_grad(), te.autocast(recipe=recipe), ranks.activation_recompute_forward(True):
            return function(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with (
            torch.enable_grad(),
            te.autocast(recipe=ctx.recipe),
            ranks.activation_recompute_forward(True, True),
        ):
            output = ctx.function(x)
        output.backward(gradient)
        return None, None, x.grad


def test_1f1b_recomputes_each_microbatch_with_its_scales():
    recipe = DelayedScaling(amax_history_len=4)
    inputs = [torch.randn(16, 32) * scale for scale in (1.0, 7.0, 49.0)]
    gradients = {}
    for kind in ("activation_recompute_forward", "te.checkpoint"):
        torch.manual_seed(1)
        model = torch.nn.Sequential(make_linear(), torch.nn.GELU(), make_linear())
        x = [each.clone().requires_grad_() for each in inputs]

        def forward(value, model=model, kind=kind):
            if kind == "activation_recompute_forward":
                return Recomputed.apply(model, recipe, value)
            with te.autocast(recipe=recipe):
                return te.checkpoint(model, value, use_reentrant=True)

        # 1F1B on a first stage: two forwards, then a backward after each further forward.
        outputs = [forward(each) for each in x[:2]]
        outputs[0].sum().backward()
        outputs.append(forward(x[2]))
        for output in outputs[1:]:
            output.sum().backward()
        gradients[kind] = [each.grad for each in (*x, *model.parameters())]
    for mine, expected in zip(*gradients.values(), strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=0)


def test_failed_forward_leaves_no_recomputation():
    layer, x = make_linear(), torch.randn(16, 32)
    recipe = DelayedScaling()

    def fail(x):
        layer(x)
        raise ZeroDivisionError

    with te.autocast(recipe=recipe):
        with pytest.raises(ZeroDivisionError):
            ranks.activation_recompute_forward(True)(fail)(x)
        with pytest.raises(telens.UsageError, match="without a forward"):
            ranks.activation_recompute_forward(True, True)(layer)(x)


def test_saved_scales_and_histories_are_restored():
    layer, fresh, x = make_linear(), make_linear(), torch.randn(16, 32)
    recipe = DelayedScaling(amax_history_len=2)
    with te.autocast(recipe=recipe):
        layer(x)
    saved = graph_state.save_fp8_tensors([layer, fresh], recipe)
    before = layer.fp8_meta["scaling_fwd"].scale.clone()
    with te.autocast(recipe=recipe):
        layer(100 * x)
        fresh(x)
    assert not torch.equal(layer.fp8_meta["scaling_fwd"].scale, before)
    graph_state.restore_fp8_tensors([layer, fresh], saved)
    assert torch.equal(layer.fp8_meta["scaling_fwd"].scale, before)
    assert torch.equal(fresh.fp8_meta["scaling_fwd"].scale, torch.ones(3))
    assert graph_state.save_fp8_tensors([layer], Float8CurrentScaling()) is None
    with pytest.raises(telens.UsageError, match="1 layers with the state of 2"):
        graph_state.restore_fp8_tensors([layer], saved)


def test_a_framework_notes_its_capture():
    graph_state.set_capture_start()
    assert graph_state.is_graph_capturing()
    graph_state.set_capture_end()
    assert not graph_state.is_graph_capturing()


# ------------------------------------------------------------------------------ attention


@pytest.mark.parametrize("tensor_format", ["sbhd", "bshd"])
def test_a_fused_projection_is_split_and_rotated(tensor_format):
    torch.manual_seed(1)
    qkv = torch.randn(6, 6, 2, 8 * 4, requires_grad=True)
    angles = te.RotaryPositionEmbedding(8)(6)
    q, k, v = apply_fused_qkv_rotary_pos_emb(qkv, angles, angles, [16, 8, 8], tensor_format)
    parts = qkv.split([16, 8, 8], dim=-1)
    expected = apply_rotary_pos_emb(parts[0].reshape(6, 6, 4, 8), angles, tensor_format)
    assert torch.equal(q, expected)
    assert torch.equal(k, apply_rotary_pos_emb(parts[1], angles, tensor_format))
    assert torch.equal(v, parts[2])
    with pytest.raises(telens.ShapeError, match=r"\[8, 8, 8\] for 32 channels"):
        apply_fused_qkv_rotary_pos_emb(qkv, angles, angles, [8, 8, 8])


def test_split_along_dim_is_torchs_split_and_its_gradient():
    x = torch.randn(2, 6, requires_grad=True)
    parts = utils.SplitAlongDim.apply(x, 1, [2, 4])
    assert [each.shape[1] for each in parts] == [2, 4]
    weights = torch.randn(2, 6)
    (parts[0] * weights[:, :2]).sum().backward()
    assert torch.equal(x.grad, torch.cat([weights[:, :2], torch.zeros(2, 4)], 1))
    squeezed = utils.SplitAlongDim.apply(x, 1, 1, True)
    assert squeezed[5].shape == (2,)
    assert torch.autograd.gradcheck(
        lambda t: utils.SplitAlongDim.apply(t, 0, 1, True), x.detach().double().requires_grad_()
    )


# ------------------------------------------------------------------------------ utils, constants


def test_initializations_have_their_moments():
    torch.manual_seed(1)
    tensor = torch.empty(100, 100)
    for init, sigma in (
        (utils.get_default_init_method(), 0.023),
        (utils.init_method_normal(2.0), 2.0),
        (utils.scaled_init_method_normal(2.0, 8), 0.5),
    ):
        init(tensor)
        assert tensor.std().item() == pytest.approx(sigma, rel=0.05)
    utils.init_method_constant(3.0)(tensor)
    assert (tensor == 3).all()


def test_interleaved_rows_come_back():
    rows = torch.arange(12)
    mixed = utils.interleave_glu_tensor(rows, 2)
    assert mixed.tolist() == [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]
    assert torch.equal(utils.deinterleave_glu_tensor(mixed, 2), rows)
    with pytest.raises(telens.ShapeError, match="12 rows with interleave_size=5"):
        utils.interleave_glu_tensor(rows, 5)


def test_small_functions_of_numbers_and_tensors():
    assert utils.divide(12, 4) == utils.ceil_div(11, 4) == 3
    with pytest.raises(telens.UsageError, match="12 is not a multiple of 5"):
        utils.divide(12, 5)
    assert utils.round_up_to_nearest_multiple(17, 8) == 24
    x = torch.ones(2, requires_grad=True)
    assert utils.cast_if_needed(x, x.dtype) is x
    assert utils.cast_if_needed(None, torch.half) is None
    assert utils.requires_grad(None, x)
    masked = utils.attention_mask_func(torch.zeros(2), torch.tensor([True, False]))
    assert masked.tolist() == [-10000, 0]
    assert utils.make_weak_ref({"a": [x, 1, None]})["a"][0] is x
    with pytest.raises(telens.UsageError, match="make_weak_ref: x must be"):
        utils.make_weak_ref(object())


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without a GPU")
def test_gpu_properties_are_zero_on_cpu():
    assert utils.get_device_compute_capability() == (0, 0)
    assert utils.get_cudnn_version() == (0, 0, 0)
    assert utils.get_sm_count() == 0
    utils.nvtx_range_push("nothing")
    utils.nvtx_range_pop()


def test_constants_match_module_arguments():
    assert constants.TE_DType[torch.float8_e5m2] == te.DType.kFloat8E5M2
    assert constants.TE_DType_To_Torch[te.DType.kBFloat16] == torch.bfloat16
    assert len(set(constants.QKVLayouts)) == len(constants.QKVLayouts) == 25
    for mask in constants.AttnMaskTypes:
        te.DotProductAttention(2, 16, attn_mask_type=mask)
    assert te.QuantizerRole is telens.common.recipe.QuantizerRole
    with pytest.raises(telens.UsageError, match="fp8_dtype must be"):
        te.MXFP8Quantizer(te.DType.kBFloat16)


def test_graph_generators_include_every_tracker():
    tracker = te.CudaRNGStatesTracker("cpu")
    tracker.add("mine", 3)
    tracker.generators()
    assert ranks.get_all_rng_states()["mine"] is tracker._generators["mine"]
