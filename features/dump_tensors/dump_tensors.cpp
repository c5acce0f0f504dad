#include "features/dump_tensors/dump_tensors.h"

#include <memory>
#include <utility>

#include "core/quantization/recipe.h"
#include "features/dump_tensors/pending_dump.h"
#include "features/record/tensor_dump.h"

namespace telens::features {
namespace {

constexpr std::int64_t kSchemaVersion = 1;

// The options of a tensor that are worth a file.
struct Contents {
  bool high_precision = false;
  bool rowwise = false;
  bool columnwise = false;

  bool any() const { return high_precision || rowwise || columnwise; }
};

Contents contents_of(const InspectTensorCall& call, const DumpTensorsOptions& options) {
  // Where no gradient will be asked for, the second GEMM has no operand of its own.
  return {.high_precision = options.high_precision && call.tensor != nullptr,
          .rowwise = options.quantized && call.rowwise != nullptr,
          .columnwise =
              options.quantized && call.columnwise != nullptr && call.columnwise != call.rowwise};
}

PendingDump made_of(const FeatureCall& at, const InspectTensorCall& call, const Contents& contents,
                    int rank) {
  PendingDump dump;
  dump.set("schema", "telens tensor dump");
  dump.set("schema_version", kSchemaVersion);
  dump.set("telens_version", TELENS_VERSION);
  dump.set("layer", at.layer_name);
  dump.set("tensor", telens::name_of(call.tensor_name));
  dump.set("iteration", at.iteration);
  dump.set("rank", std::int64_t{rank});
  if (call.evaluation) dump.set("mode", name_of(config::Mode::eval));
  if (is_gemm_input(call.tensor_name)) {
    dump.set("recipe", call.recipe != nullptr ? call.recipe->name() : "none");
  }
  if (call.tensor != nullptr) dump.set("shape", call.tensor->sizes().vec());
  if (contents.high_precision) dump.add_values("high_precision", *call.tensor);
  const auto [first, second] = gemms_of(call.tensor_name);
  if (contents.rowwise) dump.add_operand("rowwise", first, *call.rowwise, /*rowwise=*/true);
  if (contents.columnwise) dump.add_operand("columnwise", second, *call.columnwise, false);
  if (call.bias != nullptr) dump.add_values("bias", *call.bias);
  return dump;
}

}  // namespace

DumpTensors::DumpTensors(const config::FeatureEntry& entry, FeatureServices& services,
                         HostCopies copies, std::size_t most_bytes)
    : ScheduledFeature(entry, {.inspect = true, .read_statistics = false}),
      services_(services),
      writer_(std::move(copies), most_bytes) {
  for (const TensorName tensor : kAllTensors) {
    if (const config::Selection* chosen = selection(std::nullopt, tensor)) {
      options_[static_cast<std::size_t>(tensor)] = chosen->options_as<DumpTensorsOptions>();
    }
  }
}

void DumpTensors::say_what_is_missing(const FeatureCall& at, const InspectTensorCall& call,
                                      const DumpTensorsOptions& options) {
  const auto say = [&](std::string_view what) {
    services_.log_message(
        fmt::format("DumpTensors: {}: {}", telens::name_of(call.tensor_name), what), at.layer_name,
        debug::LogLevel::info);
  };
  if (!options.high_precision && !options.quantized) {
    say("neither high_precision_tensor nor quantized_tensor is set, nothing is written");
  }
  if (options.high_precision && call.tensor == nullptr) {
    say("it is stored in low precision, there is no high-precision tensor");
  }
  if (options.quantized && call.rowwise == nullptr) {
    say("the output of a GEMM has no quantized tensor");
  }
}

void DumpTensors::inspect_tensor(const FeatureCall& at, const InspectTensorCall& call,
                                 TensorReading&) {
  const DumpTensorsOptions& options = options_[static_cast<std::size_t>(call.tensor_name)];
  say_what_is_missing(at, call, options);
  const Contents contents = contents_of(call, options);
  if (!contents.any()) return;
  const debug::InitializeOptions& session = services_.options();
  const std::string tensor =
      fmt::format("{}{}", telens::name_of(call.tensor_name), call.evaluation ? "_eval" : "");
  const bool waited = writer_.add({record::dump_folder(session.log_dir, session.rank, at.iteration),
                                   record::dump_name(at.layer_name, tensor)},
                                  made_of(at, call, contents, session.rank));
  if (!waited) return;
  services_.log_message(
      fmt::format("DumpTensors: more than {} MiB were on their way to the disk, so training waited "
                  "until they were written; dump fewer tensors an iteration to spare it that",
                  writer_.most_bytes() >> 20),
      {}, debug::LogLevel::warning);
}

FeatureRegistration dump_tensors() {
  return {dump_tensors_description(),
          [](const config::FeatureEntry& entry, FeatureServices& services) {
            return std::make_unique<DumpTensors>(entry, services);
          }};
}

}  // namespace telens::features
