// Device code. Permutes token rows to experts and back (core/ops/row_exchange.h). A block processes
// a token at a time, so that all its threads read the same places. Sums are FP32, in slot order.
#pragma once

#include "core/kernels/cuda/norm_activation/normalization.cuh"
#include "core/kernels/cuda/words.cuh"

namespace telens::cuda {

// The rows of tokens: places [tokens, slots], with strides in elements; weights are contiguous.
struct RowPlaces {
  const std::int32_t* places;
  std::int64_t tokens;
  std::int64_t slots;
  std::int64_t token_stride;
  std::int64_t slot_stride;
  std::int64_t rows;
  const float* weights;  // nullptr: all weights are 1

  // Returns a value below 0 if the place is empty.
  TELENS_DEVICE std::int64_t row(std::int64_t token, std::int64_t slot) const {
    const std::int64_t row = places[token * token_stride + slot * slot_stride];
    return row < rows ? row : -1;
  }
  TELENS_DEVICE float weight(std::int64_t token, std::int64_t slot) const {
    return weights == nullptr ? 1.0F : weights[token * slots + slot];
  }
};

// Contiguous: [rows, width] and [tokens, width].
struct RowExchangeArguments {
  RowPlaces places;
  const void* x;
  std::int64_t width;
  void* y;
};

struct RowProductsArguments {
  RowPlaces places;
  const void* x;  // [rows, width]
  const void* y;  // [tokens, width]
  std::int64_t width;
  float* products;  // [tokens, slots]
};

// Copies the bytes of tokens to their rows. `width` is in bytes and a multiple of pack_width;
// addresses are aligned to pack_width.
template <int pack_width, typename Thread>
TELENS_DEVICE void spread_copies(const RowExchangeArguments& arguments, const Thread& thread) {
  const auto* x = static_cast<const std::uint8_t*>(arguments.x);
  auto* y = static_cast<std::uint8_t*>(arguments.y);
  const RowPlaces& places = arguments.places;
  for (std::int64_t token = thread.block(); token < places.tokens; token += thread.blocks()) {
    for_each_pack_of_row<pack_width>(thread, arguments.width, [&](std::int64_t column) {
      const auto pack = load_words<pack_width>(x + token * arguments.width + column);
      for (std::int64_t slot = 0; slot < places.slots; ++slot) {
        const std::int64_t row = places.row(token, slot);
        if (row >= 0) store_words(y + row * arguments.width + column, pack);
      }
    });
  }
}

// Copies the bytes of a token's only row, or zeros. Requires one slot.
template <int pack_width, typename Thread>
TELENS_DEVICE void combine_copies(const RowExchangeArguments& arguments, const Thread& thread) {
  const auto* x = static_cast<const std::uint8_t*>(arguments.x);
  auto* y = static_cast<std::uint8_t*>(arguments.y);
  for (std::int64_t token = thread.block(); token < arguments.places.tokens;
       token += thread.blocks()) {
    const std::int64_t row = arguments.places.row(token, 0);
    for_each_pack_of_row<pack_width>(thread, arguments.width, [&](std::int64_t column) {
      Words<std::uint8_t, pack_width> pack{};
      if (row >= 0) pack = load_words<pack_width>(x + row * arguments.width + column);
      store_words(y + token * arguments.width + column, pack);
    });
  }
}

// Writes weight * token to the token's rows.
template <typename Format, int pack_width, typename Thread>
TELENS_DEVICE void spread_products(const RowExchangeArguments& arguments, const Thread& thread) {
  using Bits = typename Format::Bits;
  const auto* x = static_cast<const Bits*>(arguments.x);
  auto* y = static_cast<Bits*>(arguments.y);
  const RowPlaces& places = arguments.places;
  for (std::int64_t token = thread.block(); token < places.tokens; token += thread.blocks()) {
    for_each_pack_of_row<pack_width>(thread, arguments.width, [&](std::int64_t column) {
      const auto pack = load_words<pack_width>(x + token * arguments.width + column);
      for (std::int64_t slot = 0; slot < places.slots; ++slot) {
        const std::int64_t row = places.row(token, slot);
        if (row < 0) continue;
        const float weight = places.weight(token, slot);
        float products[pack_width];
        TELENS_UNROLL
        for (int j = 0; j < pack_width; ++j) products[j] = weight * widen_at<Format>(pack, j);
        store_words(y + row * arguments.width + column, narrow_all<Format>(products));
      }
    });
  }
}

// Computes the weighted sum of a token's rows. The first row is copied, so -0 stays -0.
template <typename Format, int pack_width, typename Thread>
TELENS_DEVICE void combine_sums(const RowExchangeArguments& arguments, const Thread& thread) {
  using Bits = typename Format::Bits;
  const auto* x = static_cast<const Bits*>(arguments.x);
  auto* y = static_cast<Bits*>(arguments.y);
  const RowPlaces& places = arguments.places;
  for (std::int64_t token = thread.block(); token < places.tokens; token += thread.blocks()) {
    for_each_pack_of_row<pack_width>(thread, arguments.width, [&](std::int64_t column) {
      float sums[pack_width] = {};
      bool first = true;
      for (std::int64_t slot = 0; slot < places.slots; ++slot) {
        const std::int64_t row = places.row(token, slot);
        if (row < 0) continue;
        const float weight = places.weight(token, slot);
        const auto pack = load_words<pack_width>(x + row * arguments.width + column);
        TELENS_UNROLL
        for (int j = 0; j < pack_width; ++j) {
          const float value = widen_at<Format>(pack, j);
          // The first term is a product without an addition: adding zero would turn -0 into +0.
          sums[j] = first ? weight * value : multiply_add(weight, value, sums[j]);
        }
        first = false;
      }
      store_words(y + token * arguments.width + column, narrow_all<Format>(sums));
    });
  }
}

template <typename Format, int pack_width, typename Thread>
TELENS_DEVICE void row_products(const RowProductsArguments& arguments, const Thread& thread,
                                NormShared& shared) {
  using Bits = typename Format::Bits;
  const RowPlaces& places = arguments.places;
  for (std::int64_t token = thread.block(); token < places.tokens; token += thread.blocks()) {
    const auto* y = static_cast<const Bits*>(arguments.y) + token * arguments.width;
    for (std::int64_t slot = 0; slot < places.slots; ++slot) {
      const std::int64_t row = places.row(token, slot);
      float sum = 0;
      if (row >= 0) {  // uniform across the block
        const auto* x = static_cast<const Bits*>(arguments.x) + row * arguments.width;
        for_each_pack_of_row<pack_width>(thread, arguments.width, [&](std::int64_t column) {
          const auto of_row = load_words<pack_width>(x + column);
          const auto of_token = load_words<pack_width>(y + column);
          TELENS_UNROLL
          for (int j = 0; j < pack_width; ++j) {
            sum = multiply_add(widen_at<Format>(of_row, j), widen_at<Format>(of_token, j), sum);
          }
        });
        sum = sum_of_block(thread, {sum, 0}, shared).first;
      }
      if (thread.index() == 0) arguments.products[token * places.slots + slot] = sum;
    }
  }
}

}  // namespace telens::cuda
