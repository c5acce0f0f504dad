// Errors that are thrown in calls of a layer name the layer and keep their type.
#include "core/modules/shared/autograd_utils.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "core/base/error.h"
#include "core/modules/linear/linear.h"
#include "core/modules/norm/norm.h"
#include "core/ops/device.h"
#include "core/quantization/autocast.h"
#include "core/quantization/layer_quantization.h"

namespace telens {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

constexpr const char* kLayer = "layers.0.fc1";

template <typename E>
auto throwing(const char* text) {
  return [text] { naming_layer(kLayer, [text]() -> int { throw E(text); }); };
}

struct Derived : Error {
  using Error::Error;
};

TEST(NamedErrors, get_the_layer_name_and_keep_their_type) {
  constexpr const char* kNamed = "layers.0.fc1: no room";
  EXPECT_THAT(throwing<ShapeError>("no room"), ThrowsMessage<ShapeError>(kNamed));
  EXPECT_THAT(throwing<UsageError>("no room"), ThrowsMessage<UsageError>(kNamed));
  EXPECT_THAT(throwing<InternalError>("no room"), ThrowsMessage<InternalError>(kNamed));
  EXPECT_THAT(throwing<Error>("no room"), ThrowsMessage<Error>(kNamed));
}

TEST(NamedErrors, named_or_foreign_errors_are_unchanged) {
  EXPECT_THAT(throwing<UsageError>("layers.0.fc1: told"),
              ThrowsMessage<UsageError>("layers.0.fc1: told"));
  EXPECT_THAT(throwing<Derived>("stop"), ThrowsMessage<Derived>("stop"));
  EXPECT_THAT(throwing<std::logic_error>("own"), ThrowsMessage<std::logic_error>("own"));
}

TEST(NamedErrors, libtorch_errors_keep_their_type) {
  const auto out_of_memory = [] {
    naming_layer(kLayer, []() -> int { TORCH_CHECK_WITH(OutOfMemoryError, false, "no room"); });
  };
  EXPECT_THAT(out_of_memory, ThrowsMessage<c10::OutOfMemoryError>(
                                 AllOf(HasSubstr("no room"), HasSubstr("layer layers.0.fc1"))));
}

TEST(NamedErrors, results_pass_through) {
  EXPECT_EQ(naming_layer(kLayer, [] { return 7; }), 7);
}

template <typename Options>
Options on_cpu(Options options) {
  options.parameters.device = at::kCPU;
  return options;
}

LinearOptions named_linear() {
  LinearOptions options;
  options.in_features = 32;
  options.out_features = 16;
  options.name = kLayer;
  return on_cpu(options);
}

// Neither our kernels nor LibTorch's products take this dtype.
at::Tensor of_a_kind_that_nobody_multiplies() { return at::ones({16, 32}).to_sparse(); }

TEST(NamedErrors, kernel_errors_name_the_layer) {
  Linear linear(named_linear());
  EXPECT_THAT([&] { linear.forward(of_a_kind_that_nobody_multiplies()); },
              ThrowsMessage<c10::Error>(HasSubstr("layers.0.fc1")));
}

TEST(NamedErrors, quantizer_errors_name_the_layer) {
  auto recipe = std::make_shared<CustomRecipe>();
  recipe->qfactory = [](const QuantizerRole&) -> std::shared_ptr<Quantizer> {
    raise<UsageError>("no quantizer today");
  };
  Linear linear(named_linear());
  AutocastOptions options;
  options.recipe = recipe;
  const Autocast autocast(options);
  EXPECT_THAT(
      [&] {
        linear.forward(at::ones({16, 32}));
      },
      ThrowsMessage<UsageError>(
          AllOf(StartsWith("layers.0.fc1: "), HasSubstr("no quantizer today"))));
}

TEST(NamedErrors, norm_errors_name_their_kind) {
  LayerNorm layer_norm(on_cpu(NormModuleOptions{.normalized_shape = {32}}));
  RMSNorm rms_norm(on_cpu(NormModuleOptions{.normalized_shape = {32}}));
  EXPECT_THAT([&] { layer_norm.forward({of_a_kind_that_nobody_multiplies()}); },
              ThrowsMessage<c10::Error>(HasSubstr("in the layer LayerNorm")));
  EXPECT_THAT([&] { rms_norm.forward({of_a_kind_that_nobody_multiplies()}); },
              ThrowsMessage<c10::Error>(HasSubstr("in the layer RMSNorm")));
}

TEST(Backends, missing_backend_error_names_layer_and_fix) {
  const at::Device lacking(at::kMPS);
  ASSERT_FALSE(ops::runs_on(lacking));
  EXPECT_THAT([&] { ops::check_runs_on(lacking, kLayer); },
              ThrowsMessage<UsageError>(
                  AllOf(StartsWith("layers.0.fc1: "), HasSubstr("mps"), HasSubstr("CUDA=ON"))));
  EXPECT_NO_THROW(ops::check_runs_on(at::kCPU, kLayer));
  EXPECT_NO_THROW(ops::check_runs_on(at::kMeta, kLayer));
}

}  // namespace
}  // namespace telens
