"""Numbers that were once wrong: each row makes them wrong again, as they were or much like it."""

from mutant import Mutant

MENDED_NUMBERS = (
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
)
