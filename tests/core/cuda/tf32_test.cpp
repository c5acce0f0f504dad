// FP32 products on CUDA use TF32 where torch's settings, old and new, allow it.
#include "core/kernels/cuda/gemm/tf32.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <string>

namespace telens::cuda {
namespace {

// torch's settings, whose names depend on its version.
struct Context8 {
  bool allowed;
  bool allowTF32CuBLAS() const { return allowed; }
};

struct Context9 {
  std::string of_products;
  bool allowTF32CuBLAS() const { throw std::runtime_error("mix of the legacy and new APIs"); }
  std::string float32Precision(const std::string& backend, const std::string& operation) const {
    return backend == "cuda" && operation == "matmul" ? of_products : "ieee";
  }
};

TEST(Tf32, is_asked_of_torch_by_the_api_of_its_version) {
  EXPECT_TRUE(detail::products_are_tf32(Context8{true}));
  EXPECT_FALSE(detail::products_are_tf32(Context8{false}));
  EXPECT_TRUE(detail::products_are_tf32(Context9{"tf32"}));
  EXPECT_FALSE(detail::products_are_tf32(Context9{"ieee"}));
  EXPECT_FALSE(detail::products_are_tf32(Context9{"none"}));
}

// Does what torch.backends.cuda.matmul.fp32_precision = "tf32" does in Python.
template <typename Context>
void set_precision_of_products(Context& context, const char* precision) {
  if constexpr (requires { context.setFloat32Precision("cuda", "matmul", precision); }) {
    context.setFloat32Precision("cuda", "matmul", precision);
  } else if constexpr (requires { &Context::setFloat32Precision; }) {
    const auto set = [&]<typename Backend, typename Operation, typename Precision>(
                         void (Context::*member)(Backend, Operation, Precision)) {
      const std::string name = precision;
      (context.*member)(Backend::CUDA, Operation::MATMUL,
                        name == "tf32"   ? Precision::TF32
                        : name == "ieee" ? Precision::IEEE
                                         : Precision::NONE);
    };
    set(&Context::setFloat32Precision);
  } else {
    context.setAllowTF32CuBLAS(std::string(precision) == "tf32");
  }
}

TEST(Tf32, follows_the_setting_of_products_whichever_api_set_it) {
  at::Context& context = at::globalContext();
  EXPECT_FALSE(allows_tf32());
  for (const bool allowed : {true, false}) {
    context.setAllowTF32CuBLAS(allowed);
    EXPECT_EQ(allows_tf32(), allowed);
  }
  for (const char* precision : {"tf32", "ieee", "tf32", "none"}) {
    set_precision_of_products(context, precision);
    EXPECT_EQ(allows_tf32(), std::string(precision) == "tf32") << precision;
  }
}

TEST(Tf32, is_refused_within_torchs_guard_against_it) {
  at::globalContext().setAllowTF32CuBLAS(true);
  {
    const at::NoTF32Guard guard;
    EXPECT_FALSE(allows_tf32());
  }
  EXPECT_TRUE(allows_tf32());
  at::globalContext().setAllowTF32CuBLAS(false);
}

}  // namespace
}  // namespace telens::cuda
