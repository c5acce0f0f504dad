"""Numbers that were once wrong: each row makes them wrong again, as they were or much like it."""

from mutant import Mutant

FP8_RING = (
    "tests/python/test_fp8_ring_of_4_ranks.py"
    "::test_fp8_attention_shared_by_4_ranks_has_the_values_of_its_formulas"
)
SHARDED = "tests/python/test_fsdp_of_codes.py::test_sharded_codes_train_as_whole_ones_do"

MENDED_NUMBERS = (
    Mutant(
        promise="values that a checkpoint has in pieces never get a scale of one piece",
        file="python/telens/pytorch/tensor/sharded_codes.py",
        before="    if to._piece is None:\n",
        after="    if True:\n",
        program="pytest",
        tests=SHARDED,
    ),
    Mutant(
        promise="values that a checkpoint has in pieces come to weights in blocks",
        file="python/telens/pytorch/tensor/sharded_codes.py",
        before="    if frame is None or frame.f_code.co_name != NARROW:\n",
        after="    if True:\n",
        program="pytest",
        tests=SHARDED,
    ),
    Mutant(
        promise="a step of the optimizer leaves the scale of gathered codes alone",
        file="python/telens/pytorch/tensor/sharded_codes.py",
        before="(self._storage.rowwise_scale_inv.clone(), outer_size[0])",
        after="(self._storage.rowwise_scale_inv, outer_size[0])",
        program="pytest",
        tests=SHARDED,
    ),
    Mutant(
        promise="silu and its like of |x| beyond 2^64: no product of zero and Inf (CPU)",
        file="core/kernels/cpu/norm_activation/activation_rows.cpp",
        before="    if constexpr (Coefficients::kCubic != 0) {\n      factor =",
        after="    if constexpr (true) {\n      factor =",
        program="activation_test",
        tests="ActivationRange.*",
    ),
    Mutant(
        promise="the gradient of gelu where x^2 overflows is that of torch (CPU)",
        file="core/kernels/cpu/norm_activation/activation_rows.cpp",
        before="hn::Min(hn::Mul(x, x), constant(ops::kLargestSquare));",
        after="hn::Mul(x, x);",
        program="activation_test",
        tests="ActivationRange.*",
    ),
    Mutant(
        promise="the gradient of relu is zero where x is not positive, whatever came (CPU)",
        file="core/kernels/cpu/norm_activation/activation_rows.cpp",
        before="    return hn::IfThenZeroElse(hn::Le(x, constant(0)), outer);",
        after="    return hn::Mul(outer, hn::IfThenZeroElse(hn::Le(x, constant(0)), constant(1)));",
        program="activation_test",
        tests="ActivationRange.*",
    ),
    Mutant(
        promise="silu and its like of |x| beyond 2^64: no product of zero and Inf (device code)",
        file="core/kernels/cuda/norm_activation/activation.cuh",
        before="    if constexpr (Coefficients::kCubic == 0) {\n"
        "      return x * Coefficients::kLinear;",
        after="    if constexpr (false) {\n      return x * Coefficients::kLinear;",
        program="device_code_test",
        tests="ActivationDeviceRange.*",
    ),
    Mutant(
        promise="a sigmoid's approximation stays finite where the exponential is not (device code)",
        file="core/kernels/cuda/norm_activation/activation.cuh",
        before="power < kLargestPower ? power : kLargestPower;",
        after="power + 0 * kLargestPower;",
        program="device_code_test",
        tests="ActivationDeviceRange.*",
    ),
    Mutant(
        promise="norms of rows whose squares leave FP32's range (CPU)",
        file="core/kernels/cpu/norm_activation/normalization_rows.cpp",
        before="  if (statistics.overflowed) statistics = measure_row<centered, true>(job, x);\n",
        after="",
        program="normalization_test",
        tests="Normalizing.equals_the_definition_over_the_whole_range*",
    ),
    Mutant(
        promise="bottom-right masks end at each sample's own lengths, not at the padded ones",
        file="core/modules/attention/mask_rule.cpp",
        before="(own_key.sum(3, /*keepdim=*/true) - own_query.sum(2, /*keepdim=*/true));",
        after="(own_key.size(3) - own_query.size(2));",
        program="modules_test",
        tests="AttentionMask.*",
    ),
    Mutant(
        promise="diagonals go by a sample's own keys, wherever its padding lies",
        file="core/modules/attention/mask_rule.cpp",
        before="key_place_ = own_key.cumsum(3)",
        after="key_place_ = own_key.logical_or(padded_key_).cumsum(3)",
        program="modules_test",
        tests="AttentionMask.*",
    ),
    Mutant(
        promise="diagonals go by a sample's own queries, wherever its padding lies",
        file="core/modules/attention/mask_rule.cpp",
        before="query_place_ = own_query.cumsum(2);",
        after="query_place_ = own_query.logical_or(padded_query_).cumsum(2);",
        program="modules_test",
        tests="AttentionMask.*",
    ),
    Mutant(
        promise="TF32 is asked of torch in a way that its new settings do not throw at",
        file="core/kernels/cuda/gemm/tf32.cpp",
        before="detail::products_are_tf32(at::globalContext());",
        after="at::globalContext().allowTF32CuBLAS();",
        program="cuda_gemm_test",
        tests="Tf32.*",
    ),
    Mutant(
        promise="scales far apart whose product is finite: no product of FP32's ends one by one",
        file="core/kernels/cpu/gemm/gemm.cpp",
        before="  if (leaves_fp32(a, b)) return product_in_double(a, b);\n",
        after="",
        program="gemm_operator_test",
        tests="GemmScaleRange.*",
    ),
    Mutant(
        promise="scales far apart: sums of 128-blocks under the left scale leave FP32's range",
        file="core/kernels/cpu/gemm/scale_range.cpp",
        before="!has_powers_of_two(b.scale_inv)) return sums_leave_fp32(a);",
        after="!has_powers_of_two(b.scale_inv)) return false && sums_leave_fp32(a);",
        program="gemm_operator_test",
        tests="GemmScaleRange.*",
    ),
    Mutant(
        promise="scales far apart: values under scales that are powers of two leave FP32's range",
        file="core/kernels/cpu/gemm/scale_range.cpp",
        before="    return largest_scale + exponent_of_largest_code(operand.format) > "
        "FP32::kMaxExponent;",
        after="    return largest_scale + exponent_of_largest_code(operand.format) > "
        "2 * FP32::kMaxExponent;",
        program="gemm_operator_test",
        tests="GemmScaleRange.*",
    ),
    Mutant(
        promise="samples/moe.py: what an expert learned of each rank's rows is added up over tp",
        file="samples/ranks.py",
        before="            if self.sequence_parallel and not is_divided:",
        after="            is_divided = is_divided or not getattr(parameter, 'allreduce', True)\n"
        "            if self.sequence_parallel and not is_divided:",
        program="pytest",
        tests="tests/samples/test_moe_in_parallel.py"
        "::test_ranks_that_share_the_experts_learn_what_one_does",
    ),
    Mutant(
        promise="samples/moe.py: experts are balanced by the tokens of all ranks of tp too",
        file="samples/ranks.py",
        before="        if self.sequence_parallel:\n            dist.all_reduce(numbers,",
        after="        if self.sequence_parallel and numbers.is_floating_point():\n"
        "            dist.all_reduce(numbers,",
        program="pytest",
        tests="tests/samples/test_moe_in_parallel.py"
        "::test_ranks_that_share_the_experts_learn_what_one_does",
    ),
    Mutant(
        promise="dropout in a ring of codes: softmax's gradient has the forward's choices",
        file="core/modules/attention/fp8_ring_attention.cpp",
        before="    drop_partly(of_weights, step.scores, rows);\n",
        after="",
        program="pytest",
        tests=FP8_RING,
    ),
    Mutant(
        promise="dropout in a ring of codes: the values' gradient has the forward's choices",
        file="core/modules/attention/fp8_ring_attention.cpp",
        before="    drop_partly(softmax, step.scores, rows);\n",
        after="",
        program="pytest",
        tests=FP8_RING,
    ),
    Mutant(
        promise="a margin that a custom recipe requested is part of scale_staleness",
        file="features/engine/one_pass_engine.cpp",
        before="followed != nullptr ? followed->margin",
        after="call_.recipe->as_delayed_scaling() != nullptr ? followed->margin",
        program="pytest",
        tests="tests/python/test_scale_health.py"
        "::test_every_statistic_is_that_of_a_reference_in_numpy",
    ),
    Mutant(
        promise="GemmError compares the rows of its rank with its own",
        file="core/modules/layer/gemm_operands.cpp",
        before="  return rank_in(*layer_.parallel.group) * values().size(0);",
        after="  return 0;",
        program="pytest",
        tests="tests/python/test_gemm_error_of_ranks.py"
        "::test_exact_products_have_no_error_on_any_rank_whatever_is_gathered",
    ),
    Mutant(
        promise="ranks compare the scales that follow a requested history",
        file="features/rank_agreement/rank_agreement.cpp",
        before="is_delayed = call.followed() != nullptr;",
        after="is_delayed =\n"
        "      call.followed() != nullptr && call.recipe->as_delayed_scaling() != nullptr;",
        program="pytest",
        tests="tests/python/test_rank_agreement.py"
        "::test_of_a_recipe_that_requests_inputs_their_scales_and_those_of_weights_are_compared",
    ),
    Mutant(
        promise="sequence_parallel takes a delayed scaling of weights alone without an fp8_group",
        file="core/modules/layer/linear_layer.cpp",
        before="  if (follows(TensorRole::input) || follows(TensorRole::grad_output)) {",
        after="  if (follows(TensorRole::input) || follows(TensorRole::weight)) {",
        program="pytest",
        tests="tests/python/test_tensor_parallel.py"
        "::test_codes_scales_refusals_attributes_and_random_states_of_divided_layers",
    ),
)
