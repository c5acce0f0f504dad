"""Arguments of Transformer Engine that have no effect here are accepted with their neutral value,
others refused by name.
"""

import inspect

import pytest
import torch

import telens
import telens.pytorch as te
from telens.pytorch.layers.arguments import constructor_arguments, forward_arguments

# Name and default of all arguments of Transformer Engine 2.20's constructors except the device,
# typed from its sources.
PEER = {
    "Linear": "in_features out_features sequence_parallel=False fuse_wgrad_accumulation=False "
    "tp_group=None tp_size=1 get_rng_state_tracker=None rng_tracker_name=None init_method=None "
    "bias=True return_bias=False params_dtype=None parallel_mode=None parameters_split=None "
    "ub_overlap_ag=False ub_overlap_rs=False ub_overlap_rs_dgrad=False ub_bulk_dgrad=False "
    "ub_bulk_wgrad=False ub_name=None delay_wgrad_compute=False symmetric_ar_type=None "
    "save_original_input=False name=None",
    "GroupedLinear": "num_gemms in_features out_features sequence_parallel=False "
    "fuse_wgrad_accumulation=False tp_group=None tp_size=1 get_rng_state_tracker=None "
    "rng_tracker_name=None init_method=None bias=True return_bias=False params_dtype=None "
    "parallel_mode=None ub_overlap_rs=False ub_overlap_ag=False ub_name=None "
    "delay_wgrad_compute=False save_original_input=False single_grouped_weight=False "
    "single_grouped_bias=False name=None use_grouped_tensor=None",
    "LayerNorm": "normalized_shape eps=1e-05 sequence_parallel=None params_dtype=None "
    "zero_centered_gamma=False sm_margin=0",
    "RMSNorm": "normalized_shape eps=1e-05 sequence_parallel=None params_dtype=None "
    "zero_centered_gamma=False sm_margin=0",
    "LayerNormLinear": "in_features out_features eps=1e-05 sequence_parallel=False "
    "fuse_wgrad_accumulation=False tp_group=None tp_size=1 get_rng_state_tracker=None "
    "init_method=None bias=True normalization='LayerNorm' return_bias=False params_dtype=None "
    "parallel_mode=None return_layernorm_output=False return_layernorm_output_gathered=False "
    "parameters_split=None zero_centered_gamma=False ub_overlap_ag=False ub_overlap_rs=False "
    "ub_overlap_rs_dgrad=False ub_bulk_wgrad=False ub_bulk_dgrad=False ub_name=None "
    "delay_wgrad_compute=False symmetric_ar_type=None name=None",
    "LayerNormMLP": "hidden_size ffn_hidden_size eps=1e-05 sequence_parallel=False "
    "return_bias=False get_rng_state_tracker=None tp_group=None tp_size=1 init_method=None "
    "bias=True normalization='LayerNorm' activation='gelu' activation_params=None "
    "output_layer_init_method=None fuse_wgrad_accumulation=False params_dtype=None "
    "return_layernorm_output=False return_layernorm_output_gathered=False seq_length=None "
    "micro_batch_size=None set_parallel_mode=False zero_centered_gamma=False ub_overlap_ag=False "
    "name=None ub_overlap_rs=False ub_overlap_rs_dgrad=False ub_bulk_dgrad=False "
    "ub_bulk_wgrad=False delay_wgrad_compute=False symmetric_ar_type=None checkpoint=False",
    "DotProductAttention": "num_attention_heads kv_channels num_gqa_groups=None "
    "attention_dropout=0.0 qkv_format='sbhd' attn_mask_type='causal' window_size=None "
    "bottom_right_diagonal=None sequence_parallel=False tp_size=1 get_rng_state_tracker=None "
    "tp_group=None layer_number=None attention_type='self' cp_group=None cp_global_ranks=None "
    "cp_stream=None cp_comm_type='p2p' softmax_scale=None softmax_type='vanilla' "
    "return_max_logit=False name=None",
    "MultiheadAttention": "hidden_size num_attention_heads kv_channels=None attention_dropout=0.1 "
    "layernorm_epsilon=1e-05 init_method=None output_layer_init_method=None layer_number=None "
    "attn_mask_type='causal' window_size=None bottom_right_diagonal=None tp_group=None tp_size=1 "
    "num_gqa_groups=None fuse_wgrad_accumulation=False get_rng_state_tracker=None "
    "sequence_parallel=False params_dtype=None return_bias=False return_layernorm_output=False "
    "input_layernorm=False attention_type='self' set_parallel_mode=False fuse_qkv_params=False "
    "zero_centered_gamma=False qkv_weight_interleaved=True rotary_pos_interleaved=False "
    "ub_overlap_ag=False ub_overlap_rs=False ub_overlap_rs_dgrad=False ub_bulk_dgrad=False "
    "ub_bulk_wgrad=False bias=True normalization='LayerNorm' qkv_format='sbhd' name=None "
    "qk_norm_type=None qk_norm_eps=1e-06 qk_norm_before_rope=False seq_length=None "
    "micro_batch_size=None softmax_type='vanilla'",
    "TransformerLayer": "hidden_size ffn_hidden_size num_attention_heads num_gqa_groups=None "
    "layernorm_epsilon=1e-05 hidden_dropout=0.1 attention_dropout=0.1 init_method=None "
    "output_layer_init_method=None layer_number=None kv_channels=None self_attn_mask_type='causal' "
    "window_size=None bottom_right_diagonal=None enc_dec_attn_mask_type='no_mask' "
    "enc_dec_bottom_right_diagonal=None enc_dec_window_size=None tp_group=None tp_size=1 "
    "params_dtype=None get_rng_state_tracker=None fuse_wgrad_accumulation=False seq_length=None "
    "micro_batch_size=None sequence_parallel=False apply_residual_connection_post_layernorm=False "
    "output_layernorm=False parallel_attention_mlp=False layer_type='encoder' drop_path_rate=0.0 "
    "set_parallel_mode=False fuse_qkv_params=False rotary_pos_interleaved=False "
    "zero_centered_gamma=False qkv_weight_interleaved=True ub_tp_comm_overlap=False "
    "ub_overlap_ag=True ub_overlap_rs=True ub_overlap_rs_dgrad=False ub_bulk_dgrad=True "
    "ub_bulk_wgrad=True bias=True activation='gelu' activation_params=None "
    "normalization='LayerNorm' attn_input_format='sbhd' name=None qk_norm_type=None "
    "qk_norm_eps=1e-06 qk_norm_before_rope=False softmax_type='vanilla'",
}
# The same for forwards, without the inputs.
PEER_FORWARDS = {
    "Linear": "is_first_microbatch=None fp8_output=False fp8_grad=False",
    "GroupedLinear": "is_first_microbatch=None out=None dgrad_out=None",
    "LayerNormLinear": "is_first_microbatch=None fp8_output=False fp8_grad=False",
    "LayerNormMLP": "is_first_microbatch=None",
    "DotProductAttention": "attention_mask=None qkv_format=None cu_seqlens_q=None "
    "cu_seqlens_kv=None cu_seqlens_q_padded=None cu_seqlens_kv_padded=None max_seqlen_q=None "
    "max_seqlen_kv=None attn_mask_type=None window_size=None bottom_right_diagonal=None "
    "checkpoint_core_attention=False core_attention_bias_type='no_bias' core_attention_bias=None "
    "alibi_slopes=None fast_zero_fill=True inference_params=None pad_between_seqs=None "
    "fp8_output=False bf16_backward=False num_splits=1 score_mod=None score_mod_bprop=None "
    "score_mod_tensors=None score_mod_bprop_tensors=None qkv_layer=None kv_layer=None "
    "qkv_interleave_dim=-3",
    "MultiheadAttention": "attention_mask=None encoder_output=None attn_mask_type=None "
    "window_size=None bottom_right_diagonal=None is_first_microbatch=None "
    "checkpoint_core_attention=False inference_params=None rotary_pos_emb=None "
    "core_attention_bias_type='no_bias' core_attention_bias=None alibi_slopes=None "
    "cu_seqlens_q=None cu_seqlens_kv=None cu_seqlens_q_padded=None cu_seqlens_kv_padded=None "
    "max_seqlen_q=None max_seqlen_kv=None fast_zero_fill=True pad_between_seqs=None",
    "TransformerLayer": "attention_mask=None self_attn_mask_type=None window_size=None "
    "bottom_right_diagonal=None encoder_output=None enc_dec_attn_mask=None "
    "enc_dec_attn_mask_type=None enc_dec_window_size=None enc_dec_bottom_right_diagonal=None "
    "is_first_microbatch=None checkpoint_core_attention=False inference_params=None "
    "rotary_pos_emb=None core_attention_bias_type='no_bias' core_attention_bias=None "
    "alibi_slopes=None cu_seqlens_q=None cu_seqlens_kv=None cu_seqlens_q_padded=None "
    "cu_seqlens_kv_padded=None max_seqlen_q=None max_seqlen_kv=None fast_zero_fill=True "
    "pad_between_seqs=None",
}
# Values for the constructors' arguments without a default, and inputs for the modules made with
# them.
SIZES = {
    "normalized_shape": 32, "num_gemms": 2, "num_attention_heads": 2, "kv_channels": 16,
    "ffn_hidden_size": 64,
}  # fmt: skip
QKV = torch.zeros(16, 2, 2, 16)
INPUTS = {
    "GroupedLinear": (torch.zeros(16, 32), [8, 8]),
    "DotProductAttention": (QKV, QKV, QKV),
    "MultiheadAttention": (torch.zeros(16, 2, 32),),
    "TransformerLayer": (torch.zeros(16, 2, 32),),
}


def parsed(text: str) -> tuple[list[str], dict]:
    """The names without a default, and the defaults of the others."""
    required = [each for each in text.split() if "=" not in each]
    pairs = [each.split("=", 1) for each in text.split() if "=" in each]
    return required, {name: eval(value) for name, value in pairs}


def make(name: str, /, **arguments):
    required, _ = parsed(PEER[name])
    sizes = {each: SIZES.get(each, 32) for each in required}
    return (
        getattr(te, name)(**sizes, device="cpu", **arguments)
        if name != ("DotProductAttention")
        else te.DotProductAttention(**sizes, **arguments)
    )


@pytest.mark.parametrize("name", PEER)
def test_every_argument_of_transformer_engine_is_taken_at_its_default(name):
    _, defaults = parsed(PEER[name])
    make(name, **defaults)
    signature = inspect.signature(getattr(te, name)).parameters
    assert set(defaults) <= set(signature)
    ours = {each: signature[each].default for each in constructor_arguments(name)}
    assert {each: defaults.get(each) for each in ours} == ours


@pytest.mark.parametrize("name", PEER_FORWARDS)
def test_every_argument_of_a_forward_is_taken_at_its_default(name):
    module = make(name)
    inputs = INPUTS.get(name, (torch.zeros(16, 32),))
    _, defaults = parsed(PEER_FORWARDS[name])
    plain, spelt = module(*inputs), module(*inputs, **defaults)
    first = [each[0] if isinstance(each, tuple) else each for each in (plain, spelt)]
    assert torch.equal(*first)


WRONG = {
    "parallel_mode": "diagonal", "sequence_parallel": "yes", "set_parallel_mode": 1,
    "return_layernorm_output_gathered": "no", "get_rng_state_tracker": 3, "sm_margin": -1,
    "attention_type": "both", "cp_comm_type": "all_gather", "cp_group": object(), "num_splits": 0,
    "tp_size": 0, "tp_group": object(), "pad_between_seqs": "yes", "checkpoint": "yes",
    "save_original_input": "yes", "use_grouped_tensor": "yes", "bf16_backward": "yes",
}  # fmt: skip
# Arguments for which any value is accepted, each by itself.
FREE = {
    "seq_length", "micro_batch_size", "ub_name", "layer_number", "name", "cp_global_ranks",
    "cp_stream", "cp_comm_type", "fast_zero_fill", "inference_params",
    "qkv_layer", "kv_layer", "qkv_interleave_dim",  # test_packed_heads.py
    "score_mod_tensors", "score_mod_bprop_tensors",  # test_score_mod.py
}  # fmt: skip


def refused(arguments) -> list[str]:
    return [each for each in arguments if each not in FREE]


@pytest.mark.parametrize(
    ("name", "argument"),
    [(name, each) for name in PEER for each in refused(constructor_arguments(name))],
)
def test_another_value_is_refused_by_the_name_of_the_argument(name, argument):
    value = WRONG.get(argument, True)
    with pytest.raises(
        telens.UsageError, match=rf"{name}: {argument}=.* is not supported: .+supported is "
    ):
        make(name, **{argument: value})


@pytest.mark.parametrize(
    ("name", "argument"),
    [(name, each) for name in PEER_FORWARDS for each in refused(forward_arguments(name))],
)
def test_other_values_in_a_forward_are_rejected_by_argument(name, argument):
    module = make(name)
    inputs = INPUTS.get(name, (torch.zeros(16, 32),))
    with pytest.raises(telens.UsageError, match=rf"{name}.forward: {argument}=.* is not supported"):
        module(*inputs, **{argument: WRONG.get(argument, True)})


def test_parallelism_over_one_rank_is_none():
    for mode in ("row", "column", None):
        make("Linear", tp_size=1, parallel_mode=mode, sequence_parallel=True)
    make("TransformerLayer", tp_size=1, set_parallel_mode=True, sequence_parallel=True)
    make("LayerNormMLP", return_layernorm_output_gathered=True)
    with pytest.raises(telens.UsageError, match="Linear: tp_size is 0; expected at least 1"):
        make("Linear", tp_size=0)


HINTS = [
    ("LayerNorm", {"sm_margin": 4}, {}),
    ("RMSNorm", {"sm_margin": {"forward": 2, "backward": 0, "inference": 2}}, {}),
    ("Linear", {"save_original_input": True}, {}),
    ("DotProductAttention", {}, {"num_splits": 4}),
    ("DotProductAttention", {}, {"bf16_backward": True}),
]


@pytest.mark.parametrize(("name", "of_constructor", "of_forward"), HINTS)
def test_hints_change_no_bit(name, of_constructor, of_forward):
    inputs = tuple(torch.randn_like(each) for each in INPUTS.get(name, (torch.zeros(16, 32),)))
    results = []
    for options, arguments in (({}, {}), (of_constructor, of_forward)):
        torch.manual_seed(1)
        results.append(make(name, **options)(*inputs, **arguments))
    assert torch.equal(*results)


WITHOUT_EFFECT = [
    *({"window_size": window} for window in ((-1, -1), [-1, 0], (-1, 0))),
    *({"bottom_right_diagonal": value} for value in (True, False)),
]


@pytest.mark.filterwarnings("ignore:window_size")
@pytest.mark.parametrize("arguments", WITHOUT_EFFECT)
@pytest.mark.parametrize("mask", ["causal", "causal_bottom_right", "no_mask"])
def test_arguments_of_masks_are_accepted_for_every_mask(mask, arguments):
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 8, 2, 2, 16)
    plain = make("DotProductAttention", attn_mask_type=mask)
    expected = plain(q[:5], k, v)
    made = make("DotProductAttention", attn_mask_type=mask, **arguments)
    assert torch.equal(made(q[:5], k, v), expected)
    assert torch.equal(plain(q[:5], k, v, **arguments), expected)


def test_other_names_of_arguments_are_taken():
    for norm in (te.LayerNorm, te.RMSNorm):
        made = norm(hidden_size=32, dtype=torch.bfloat16, device="cpu")
        assert made.weight.shape == (32,)
        assert made.weight.dtype == torch.bfloat16
        assert norm(32, params_dtype=None, dtype=torch.float64).weight.dtype == torch.float64
        assert norm(32, params_dtype=torch.float64, dtype=None).weight.dtype == torch.float64


@pytest.mark.parametrize("norm", [te.LayerNorm, te.RMSNorm])
@pytest.mark.parametrize(
    ("by_position", "arguments", "names"),
    [
        ((), {"normalized_shape": 64, "hidden_size": 32}, ("hidden_size", "normalized_shape")),
        ((64,), {"hidden_size": 64}, ("hidden_size", "normalized_shape")),
        (
            (64,),
            {"params_dtype": torch.float64, "dtype": torch.float32},
            ("dtype", "params_dtype"),
        ),
    ],
)
def test_two_names_for_an_argument_are_rejected(norm, by_position, arguments, names):
    with pytest.raises(
        telens.UsageError, match="{}: {} is another name of {}".format(norm.__name__, *names)
    ):
        norm(*by_position, **arguments)


# The arguments that may be passed by position: as many as in Transformer Engine, in its order.
BY_POSITION = {
    te.Linear: (16, 16, True),
    te.GroupedLinear: (2, 16, 16),
    te.LayerNormLinear: (16, 16, 1e-5),
    te.LayerNormMLP: (16, 32, 1e-5),
    te.LayerNorm: (16, 1e-5),
    te.RMSNorm: (16, 1e-5),
    te.DotProductAttention: (2, 8, 2, 0.0, "bshd", "causal"),
    te.MultiheadAttention: (16, 2, 8, 0.0, 1e-5, None, None, 1, "no_mask"),
    te.TransformerLayer: (16, 32, 2, 2, 1e-5, 0.0, 0.0, None, None, 1, 8, "no_mask"),
}


@pytest.mark.parametrize("module", BY_POSITION)
def test_later_arguments_are_keyword_only(module):
    agreed = BY_POSITION[module]
    module(*agreed)
    with pytest.raises(TypeError, match=f"at most {len(agreed)} arguments by position"):
        module(*agreed, None)
    kinds = [each.kind for each in inspect.signature(module).parameters.values()]
    assert kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD) == len(agreed)


def test_third_argument_of_linear_is_the_bias_of_torch():
    for bias in (True, False):
        names = dict(te.Linear(16, 16, bias).named_parameters())
        assert names.keys() == dict(torch.nn.Linear(16, 16, bias).named_parameters()).keys()


@pytest.mark.parametrize("module", [te.LayerNormLinear, te.LayerNormMLP, te.GroupedLinear])
def test_a_bool_by_position_names_both_meanings(module):
    for value in (True, False):
        with pytest.raises(TypeError, match=f"bias={value} or sequence_parallel={value}"):
            module(*BY_POSITION[module], value)


def test_init_method_by_position_fills_all_but_output_weights():
    def ones(weight):
        weight.fill_(1.0)

    layer = te.TransformerLayer(16, 32, 2, None, 1e-5, 0.0, 0.0, ones, device="cpu")
    filled = {name for name, p in layer.named_parameters() if (p == 1).all() and p.dim() == 2}
    assert filled == {
        "self_attention.layernorm_qkv.query_weight",
        "self_attention.layernorm_qkv.key_weight",
        "self_attention.layernorm_qkv.value_weight",
        "layernorm_mlp.fc1_weight",
    }
    attention = te.MultiheadAttention(16, 2, 8, 0.0, 1e-5, ones, ones, device="cpu")
    assert all((p == 1).all() for p in attention.parameters() if p.dim() == 2)


def test_later_arguments_of_forward_are_keyword_only():
    layer = te.TransformerLayer(16, 32, 2, device="cpu")
    x = torch.randn(4, 1, 16)
    layer(x, None, "no_mask")
    with pytest.raises(TypeError, match=r"at most 3 arguments by position, got 4.*encoder_output="):
        layer(x, None, "no_mask", (-1, -1))


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: te.Linear(16, True), "out_features"),
        (lambda: te.Linear(16, 16, tp_size=True), "tp_size"),
        (lambda: te.GroupedLinear(64, 64, True), "out_features"),
        (lambda: te.GroupedLinear(2, 16, 16)(torch.ones(3, 16), [2, True]), "m_splits"),
        (lambda: te.LayerNormLinear(16, 16, True), "eps"),
        (lambda: te.LayerNorm(True), "normalized_shape"),
        (lambda: te.LayerNorm([2, True]), "normalized_shape"),
        (lambda: te.DotProductAttention(2, True), "kv_channels"),
        (lambda: te.DotProductAttention(2, 8, window_size=(True, 0)), "window_size"),
        (lambda: te.MultiheadAttention(16, 2, num_gqa_groups=True), "num_gqa_groups"),
        (lambda: te.TransformerLayer(16, True, 2), "ffn_hidden_size"),
        (lambda: te.Linear(16, torch.tensor(True)), "out_features"),
        (lambda: te.Linear(16, 16, parameters_split={"a": 15, "b": True}), "parameters_split"),
    ],
)
def test_a_bool_is_not_a_size(make, argument):
    with pytest.raises(TypeError, match=f"argument '{argument}.*' must be .*, not "):
        make()


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: te.RotaryPositionEmbedding(True), "dim"),
        (lambda: te.Fp8Padding(True), "num_gemms"),
        (lambda: te.Fp8Unpadding(2, True), "align_size"),
        (lambda: te.MoEDispatcher(True), "num_experts"),
        (
            lambda: te.moe_permute(torch.ones(2, 4), torch.ones(2, 2, dtype=torch.int32), True),
            "num_out_tokens",
        ),
        (lambda: te.get_cpu_offload_context(True, True), "num_layers"),
    ],
)
def test_a_bool_is_not_a_size_of_a_utility(make, argument):
    with pytest.raises(telens.UsageError, match=f"{argument} must be an integer"):
        make()


@pytest.mark.parametrize("module", [te.Linear, te.LayerNormLinear])
@pytest.mark.parametrize("split", [{"query_": 8, "key_": 4, "value": 4}, ("query_", "key")])
def test_parts_lose_trailing_underscores(module, split):
    layer = module(16, 16, parameters_split=split, device="cpu")
    names = [name for name, _ in layer.named_parameters() if not name.startswith("layer_norm")]
    bare = [part.rstrip("_") for part in split]
    assert sorted(names) == sorted(f"{part}_{kind}" for part in bare for kind in ("weight", "bias"))
    assert layer(torch.ones(2, 16)).shape == (2, 16)


def test_duplicate_part_names_are_rejected():
    with pytest.raises(telens.UsageError, match="has the part 'query' twice"):
        te.Linear(16, 16, parameters_split=("query", "query_"))


def test_modules_have_the_import_paths_of_scripts():
    from telens.pytorch.attention import DotProductAttention, MultiheadAttention
    from telens.pytorch.distributed import checkpoint
    from telens.pytorch.fp8 import DelayedScaling, check_fp8_support
    from telens.pytorch.modules import TransformerLayer

    assert te.attention.DotProductAttention is te.DotProductAttention is DotProductAttention
    assert te.fp8.check_fp8_support is check_fp8_support
    assert (MultiheadAttention, TransformerLayer) == (te.MultiheadAttention, te.TransformerLayer)
    assert checkpoint is te.checkpoint
    assert DelayedScaling().delayed()
