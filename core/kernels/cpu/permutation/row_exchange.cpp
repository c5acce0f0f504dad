// Permutes token rows to experts and back on the CPU. A task processes whole tokens, so two tasks
// never write the same row.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/kernels/cpu/element_type.h"
#include "core/kernels/cpu/grain.h"
#include "core/ops/checks.h"
#include "core/ops/row_exchange.h"

namespace telens {
namespace {

// Calls visitor.operator()<T>() for BF16, FP16, FP32 and FP64, the dtypes that the checks accept.
template <typename Visitor>
void dispatch_summed_type(at::ScalarType dtype, const Visitor& visitor) {
  if (dtype == at::kDouble) {
    visitor.template operator()<double>();
  } else {
    dispatch_element_type(ops::check_high_precision("row_exchange", "x", dtype), visitor);
  }
}

template <typename T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

// The destination rows of the tokens among `rows` rows, and their weights.
class Places {
 public:
  Places(const at::Tensor& places, std::int64_t rows)
      : places_(places.const_data_ptr<std::int32_t>()),
        tokens_(places.size(0)),
        slots_(places.size(1)),
        token_stride_(places.stride(0)),
        slot_stride_(places.stride(1)),
        rows_(rows) {}

  std::int64_t tokens() const { return tokens_; }
  std::int64_t slots() const { return slots_; }

  // Calls visit(slot, row) for each destination of the token that is not empty.
  template <typename Visit>
  void of_token(std::int64_t token, const Visit& visit) const {
    const std::int32_t* place = places_ + token * token_stride_;
    for (std::int64_t slot = 0; slot < slots_; ++slot, place += slot_stride_) {
      if (*place >= 0 && *place < rows_) visit(slot, std::int64_t{*place});
    }
  }

  // Calls work(token) for all tokens, on several threads if rows of this width are worth it.
  template <typename Work>
  void for_each_token(std::int64_t width, const Work& work) const {
    const std::int64_t grain =
        std::max<std::int64_t>(1, kernels::kGrain / std::max<std::int64_t>(1, width));
    at::parallel_for(0, tokens_, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t token = begin; token < end; ++token) work(token);
    });
  }

  // The rows to which no token is assigned.
  std::vector<std::int64_t> free_rows() const {
    std::vector<bool> named(static_cast<std::size_t>(rows_));
    for (std::int64_t token = 0; token < tokens_; ++token) {
      of_token(token, [&](std::int64_t, std::int64_t row) {
        named[static_cast<std::size_t>(row)] = true;
      });
    }
    std::vector<std::int64_t> free;
    for (std::int64_t row = 0; row < rows_; ++row) {
      if (!named[static_cast<std::size_t>(row)]) free.push_back(row);
    }
    return free;
  }

 private:
  const std::int32_t* places_;
  std::int64_t tokens_;
  std::int64_t slots_;
  std::int64_t token_stride_;
  std::int64_t slot_stride_;
  std::int64_t rows_;
};

at::Tensor contiguous_weights(const std::optional<at::Tensor>& weights) {
  return weights ? weights->contiguous() : at::Tensor();
}

std::int64_t bytes_of_row(const at::Tensor& x) {
  return x.size(1) * static_cast<std::int64_t>(x.element_size());
}

void spread_copies(const at::Tensor& x, const Places& places, at::Tensor& y) {
  const std::int64_t bytes = bytes_of_row(x);
  const auto* from = static_cast<const char*>(x.const_data_ptr());
  auto* to = static_cast<char*>(y.mutable_data_ptr());
  places.for_each_token(x.size(1), [&](std::int64_t token) {
    places.of_token(token, [&](std::int64_t, std::int64_t row) {
      std::memcpy(to + row * bytes, from + token * bytes, static_cast<std::size_t>(bytes));
    });
  });
}

template <typename T>
void spread_products(const at::Tensor& x, const Places& places, const at::Tensor& weights,
                     at::Tensor& y) {
  const std::int64_t width = x.size(1);
  const T* from = x.const_data_ptr<T>();
  const auto* weight = weights.const_data_ptr<Sum<T>>();
  T* to = y.mutable_data_ptr<T>();
  places.for_each_token(width, [&](std::int64_t token) {
    places.of_token(token, [&](std::int64_t slot, std::int64_t row) {
      const Sum<T> factor = weight[token * places.slots() + slot];
      for (std::int64_t j = 0; j < width; ++j) {
        to[row * width + j] = static_cast<T>(factor * static_cast<Sum<T>>(from[token * width + j]));
      }
    });
  });
}

at::Tensor spread_rows(const at::Tensor& x, const at::Tensor& places,
                       const std::optional<at::Tensor>& weights, std::int64_t rows) {
  ops::check_spread_rows(x, places, weights, rows);
  const at::Tensor source = x.contiguous();
  at::Tensor y = at::empty({rows, x.size(1)}, x.options());
  const Places where(places, rows);
  const std::int64_t bytes = bytes_of_row(y);
  for (const std::int64_t row : where.free_rows()) {
    std::memset(static_cast<char*>(y.mutable_data_ptr()) + row * bytes, 0,
                static_cast<std::size_t>(bytes));
  }
  if (!weights) {
    spread_copies(source, where, y);
  } else {
    dispatch_summed_type(x.scalar_type(), [&]<typename T>() {
      spread_products<T>(source, where, contiguous_weights(weights), y);
    });
  }
  return y;
}

// Sums the rows of a token. The first row is copied, so that a single row without a weight keeps
// its bits.
template <typename T>
void combine_sums(const at::Tensor& x, const Places& places, const at::Tensor& weights,
                  at::Tensor& y) {
  const std::int64_t width = x.size(1);
  const T* from = x.const_data_ptr<T>();
  const auto* weight = weights.defined() ? weights.const_data_ptr<Sum<T>>() : nullptr;
  T* to = y.mutable_data_ptr<T>();
  places.for_each_token(width * std::max<std::int64_t>(1, places.slots()), [&](std::int64_t token) {
    thread_local std::vector<Sum<T>> sums;
    sums.resize(static_cast<std::size_t>(width));
    Sum<T>* sum = sums.data();
    bool first = true;
    places.of_token(token, [&](std::int64_t slot, std::int64_t row) {
      const T* values = from + row * width;
      const Sum<T> factor = weight == nullptr ? Sum<T>{1} : weight[token * places.slots() + slot];
      if (first) {
        for (std::int64_t j = 0; j < width; ++j) sum[j] = factor * static_cast<Sum<T>>(values[j]);
      } else {
        for (std::int64_t j = 0; j < width; ++j) sum[j] += factor * static_cast<Sum<T>>(values[j]);
      }
      first = false;
    });
    T* result = to + token * width;
    if (first) {
      std::fill_n(result, width, static_cast<T>(Sum<T>{0}));
    } else {
      for (std::int64_t j = 0; j < width; ++j) result[j] = static_cast<T>(sum[j]);
    }
  });
}

void combine_copies(const at::Tensor& x, const Places& places, at::Tensor& y) {
  const std::int64_t bytes = bytes_of_row(x);
  const auto* from = static_cast<const char*>(x.const_data_ptr());
  auto* to = static_cast<char*>(y.mutable_data_ptr());
  places.for_each_token(x.size(1), [&](std::int64_t token) {
    bool found = false;
    places.of_token(token, [&](std::int64_t, std::int64_t row) {
      std::memcpy(to + token * bytes, from + row * bytes, static_cast<std::size_t>(bytes));
      found = true;
    });
    if (!found) std::memset(to + token * bytes, 0, static_cast<std::size_t>(bytes));
  });
}

at::Tensor combine_rows(const at::Tensor& x, const at::Tensor& places,
                        const std::optional<at::Tensor>& weights) {
  ops::check_combine_rows(x, places, weights);
  const at::Tensor source = x.contiguous();
  at::Tensor y = at::empty({places.size(0), x.size(1)}, x.options());
  const Places where(places, x.size(0));
  if (!weights && where.slots() == 1) {
    combine_copies(source, where, y);
  } else {
    dispatch_summed_type(x.scalar_type(), [&]<typename T>() {
      combine_sums<T>(source, where, contiguous_weights(weights), y);
    });
  }
  return y;
}

// Sixteen interleaved partial sums, which the compiler vectorizes, then their total.
template <typename T>
Sum<T> inner_product(const T* x, const T* y, std::int64_t width) {
  constexpr std::int64_t kLanes = 16;
  std::array<Sum<T>, kLanes> sums{};
  const std::int64_t whole = width - width % kLanes;
  for (std::int64_t j = 0; j < whole; j += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      sums[static_cast<std::size_t>(lane)] +=
          static_cast<Sum<T>>(x[j + lane]) * static_cast<Sum<T>>(y[j + lane]);
    }
  }
  for (std::int64_t j = whole; j < width; ++j) {
    sums[static_cast<std::size_t>(j - whole)] +=
        static_cast<Sum<T>>(x[j]) * static_cast<Sum<T>>(y[j]);
  }
  Sum<T> all{0};
  for (const Sum<T> sum : sums) all += sum;
  return all;
}

at::Tensor row_products(const at::Tensor& x, const at::Tensor& y, const at::Tensor& places) {
  ops::check_row_products(x, y, places);
  const at::Tensor rows = x.contiguous();
  const at::Tensor tokens = y.contiguous();
  at::Tensor products =
      at::empty(places.sizes(), x.options().dtype(ops::summed_dtype(x.scalar_type())));
  products.zero_();
  const Places where(places, x.size(0));
  const std::int64_t width = x.size(1);
  dispatch_summed_type(x.scalar_type(), [&]<typename T>() {
    const T* of_row = rows.const_data_ptr<T>();
    const T* of_token = tokens.const_data_ptr<T>();
    auto* product = products.mutable_data_ptr<Sum<T>>();
    where.for_each_token(width * std::max<std::int64_t>(1, where.slots()), [&](std::int64_t token) {
      where.of_token(token, [&](std::int64_t slot, std::int64_t row) {
        product[token * where.slots() + slot] =
            inner_product(of_row + row * width, of_token + token * width, width);
      });
    });
  });
  return products;
}

}  // namespace
}  // namespace telens

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("spread_rows", telens::spread_rows);
  library.impl("combine_rows", telens::combine_rows);
  library.impl("row_products", telens::row_products);
}
