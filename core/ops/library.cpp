// The operator library `telens`: every schema in one explicit list, ordered by purpose.
#include <torch/library.h>

namespace telens::ops {
namespace {

void define_casts(torch::Library& library) {
  library.def("amax(Tensor x) -> Tensor");
  library.def("quantize_fp8(Tensor x, Tensor scale, Tensor(a!)? amax, int format) -> Tensor");
  library.def(
      "quantize_fp8_both(Tensor x, Tensor scale, Tensor(a!)? amax, int format) "
      "-> (Tensor codes, Tensor transposed)");
  library.def("transpose_codes(Tensor(a) codes) -> Tensor(a)");
  library.def(
      "dequantize_fp8(Tensor codes, Tensor scale_inv, int format, ScalarType dtype) -> Tensor");
  library.def("decode_fp8(Tensor codes, int format, ScalarType dtype) -> Tensor");
  library.def(
      "quantize_mxfp8(Tensor x, int format, int scale_rounding, bool two_dimensional, bool "
      "rowwise, "
      "bool columnwise) -> (Tensor codes, Tensor scale_inv, Tensor column_codes, "
      "Tensor column_scale_inv)");
  library.def(
      "quantize_mxfp6(Tensor x, int format, int scale_rounding, bool two_dimensional, bool "
      "rowwise, bool columnwise) -> (Tensor codes, Tensor scale_inv, Tensor column_codes, "
      "Tensor column_scale_inv)");
  library.def(
      "quantize_fp8_blocks(Tensor x, int format, bool two_dimensional, bool power_of_2_scales, "
      "float amax_epsilon, bool rowwise, bool columnwise) -> (Tensor codes, Tensor scale_inv, "
      "Tensor column_codes, Tensor column_scale_inv)");
  library.def(
      "quantize_nvfp4(Tensor x, bool two_dimensional, int? hadamard_signs, Tensor? random_state, "
      "bool rowwise, bool columnwise, Tensor? amaxes=None, bool row_scaled=False) -> "
      "(Tensor codes, Tensor scale_inv, Tensor tensor_scale, "
      "Tensor column_codes, Tensor column_scale_inv, Tensor column_tensor_scale)");
  library.def(
      "quantize_four_over_six(Tensor x, bool two_dimensional, bool squared_error, "
      "float largest_scale, bool rowwise, bool columnwise, Tensor? amaxes=None, "
      "bool row_scaled=False) -> (Tensor codes, Tensor scale_inv, Tensor tensor_scale, "
      "Tensor column_codes, Tensor column_scale_inv, Tensor column_tensor_scale)");
  library.def("hadamard_transform(Tensor x, int signs, bool inverse) -> Tensor");
  library.def(
      "dequantize_blocks(Tensor codes, Tensor scale_inv, Tensor? tensor_scale, int format, "
      "int mode, ScalarType dtype) -> Tensor");
}

void define_statistics(torch::Library& library) {
  library.def("statistics(Tensor x, Tensor[] scales, int[] formats) -> Tensor");
  library.def(
      "accumulate_statistics(Tensor x, Tensor[] scales, int[] formats, Tensor(a!) accumulator) "
      "-> ()");
  library.def("accumulate_central_moments(Tensor x, Tensor(a!) accumulator) -> ()");
  library.def(
      "blockwise_dynamic_range(Tensor x, int block_size, int dims, bool both_orientations) "
      "-> Tensor");
  library.def(
      "accumulate_blockwise_dynamic_range(Tensor x, int block_size, int dims, "
      "bool both_orientations, Tensor(a!) accumulator) -> ()");
  library.def(
      "accumulate_block_cast_statistics(Tensor x, Tensor codes, Tensor scale_inv, "
      "Tensor? tensor_scale, int format, int mode, Tensor(a!) accumulator) -> ()");
  library.def(
      "accumulate_what_if_statistics(Tensor x, int[] formats, int[] modes, int[] squares, "
      "int[] columnwise, Tensor(a!)[] accumulators) -> ()");
  library.def(
      "block_cast_errors(Tensor x, Tensor codes, Tensor scale_inv, Tensor? tensor_scale, "
      "int format, int mode) -> Tensor");
  library.def(
      "block_copies_difference(Tensor codes, Tensor scale_inv, Tensor? tensor_scale, "
      "Tensor column_codes, Tensor column_scale_inv, Tensor? column_tensor_scale, int format, "
      "int mode, int? hadamard_signs) -> Tensor");
  library.def("exponent_histogram(Tensor x, Tensor(a!) counts) -> ()");
  library.def("code_histogram(Tensor x, Tensor(a!) counts) -> ()");
}

void define_scales(torch::Library& library) {
  library.def(
      "scale_from_amax(Tensor amax, float fp8_max, float epsilon, bool power_of_two) -> Tensor");
  library.def("amax_of_history(Tensor amax_history, str algorithm) -> Tensor");
  library.def(
      "update_scale(Tensor amax, Tensor(a!) scale, Tensor fp8_max, int margin, bool power_of_two) "
      "-> ()");
  library.def("advance_history(Tensor(a!) amax_history) -> ()");
  library.def(
      "update_windows(Tensor(a!)[] amax_histories, Tensor(b!)[] scales, float[] fp8_max, "
      "str algorithm, int margin, bool power_of_two) -> ()");
}

void define_products(torch::Library& library) {
  library.def(
      "gemm(Tensor a, Tensor a_scale_inv, Tensor? a_tensor_scale, int a_format, int a_mode, "
      "Tensor b, Tensor b_scale_inv, Tensor? b_tensor_scale, int b_format, int b_mode, "
      "Tensor? bias, ScalarType out_dtype, bool split_accumulator=True, "
      "bool power_of_2_scales=False) -> Tensor");
  library.def(
      "gemm_accumulate(Tensor a, Tensor a_scale_inv, Tensor? a_tensor_scale, int a_format, "
      "int a_mode, Tensor b, Tensor b_scale_inv, Tensor? b_tensor_scale, int b_format, int b_mode, "
      "Tensor(a!) out, bool split_accumulator=True, bool power_of_2_scales=False) -> ()");
  library.def("gemm_algorithms(Tensor x) -> str[]");
  library.def("matmul(Tensor a, Tensor b, Tensor? bias, ScalarType out_dtype) -> Tensor");
  library.def(
      "grouped_matmul(Tensor a, Tensor[] b, Tensor[] bias, int[] rows, Tensor(a!) out) -> ()");
  library.def("matmul_accumulate(Tensor a, Tensor b, Tensor(a!) out) -> ()");
}

void define_norms_and_activations(torch::Library& library) {
  library.def(
      "layer_norm_forward(Tensor x, Tensor weight, Tensor? bias, float eps, "
      "bool zero_centered_gamma) -> (Tensor y, Tensor mean, Tensor rstd)");
  library.def(
      "layer_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor mean, Tensor rstd, "
      "bool zero_centered_gamma) -> (Tensor dx, Tensor dweight, Tensor dbias)");
  library.def(
      "rms_norm_forward(Tensor x, Tensor weight, float eps, bool zero_centered_gamma) "
      "-> (Tensor y, Tensor rstd)");
  library.def(
      "rms_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor rstd, "
      "bool zero_centered_gamma) -> (Tensor dx, Tensor dweight)");
  library.def("activation_forward(Tensor x, str activation) -> Tensor");
  library.def("activation_backward(Tensor grad, Tensor x, str activation) -> Tensor");
}

void define_fused_casts(torch::Library& library) {
  library.def(
      "layer_norm_quantize(Tensor x, Tensor weight, Tensor? bias, float eps, "
      "bool zero_centered_gamma, Tensor scale, Tensor(a!)? amax, int format, bool columnwise) "
      "-> (Tensor codes, Tensor transposed, Tensor mean, Tensor rstd)");
  library.def(
      "rms_norm_quantize(Tensor x, Tensor weight, float eps, bool zero_centered_gamma, "
      "Tensor scale, Tensor(a!)? amax, int format, bool columnwise) "
      "-> (Tensor codes, Tensor transposed, Tensor rstd)");
  library.def(
      "activation_quantize(Tensor x, str activation, Tensor scale, Tensor(a!)? amax, int format, "
      "bool columnwise) -> (Tensor codes, Tensor transposed)");
  library.def(
      "activation_backward_quantize(Tensor grad, Tensor x, str activation, Tensor scale, "
      "Tensor(a!)? amax, int format, bool columnwise, ScalarType? bias_dtype) "
      "-> (Tensor codes, Tensor transposed, Tensor dbias)");
  library.def("bias_gradient(Tensor grad, ScalarType dtype) -> Tensor");
}

void define_attention(torch::Library& library) {
  library.def(
      "keyed_dropout_(Tensor(a!) weights, int seed, float probability, int[] place) -> Tensor(a!)");
  library.def(
      "attention_statistics(Tensor query, Tensor key, Tensor? allowed, Tensor? blind, "
      "Tensor? bias, Tensor? offset, bool is_causal, bool has_sink, float scale) -> Tensor");
}

void define_rows(torch::Library& library) {
  library.def("spread_rows(Tensor x, Tensor places, Tensor? weights, int rows) -> Tensor");
  library.def("combine_rows(Tensor x, Tensor places, Tensor? weights) -> Tensor");
  library.def("row_products(Tensor x, Tensor y, Tensor places) -> Tensor");
  library.def(
      "moe_permute_mask(Tensor inp, Tensor? probs, Tensor routing_map, int num_out_tokens, "
      "Tensor? pad_offsets, int padded_rows) "
      "-> (Tensor output, Tensor permuted_probs, Tensor row_id_map)");
  library.def(
      "moe_permute_index(Tensor inp, Tensor index, int num_out_tokens) "
      "-> (Tensor output, Tensor row_id_map)");
  library.def(
      "moe_unpermute_mask(Tensor inp, Tensor row_id_map, Tensor? probs, Tensor? pad_offsets) "
      "-> Tensor");
  library.def("moe_unpermute_index(Tensor inp, Tensor row_id_map, Tensor? probs) -> Tensor");
  library.def(
      "moe_sort_chunks(Tensor inp, Tensor? probs, Tensor split_sizes, Tensor sorted_index) "
      "-> (Tensor output, Tensor permuted_probs)");
}

}  // namespace
}  // namespace telens::ops

TORCH_LIBRARY(telens, library) {
  library.def("is_capturing(Tensor x) -> bool");
  telens::ops::define_casts(library);
  telens::ops::define_statistics(library);
  telens::ops::define_scales(library);
  telens::ops::define_products(library);
  telens::ops::define_norms_and_activations(library);
  telens::ops::define_fused_casts(library);
  telens::ops::define_attention(library);
  telens::ops::define_rows(library);
}
