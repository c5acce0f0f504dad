#include "features/dump_tensors/dump_tensors.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/names.h"
#include "core/base/tensor_handle.h"
#include "core/base/version.h"
#include "features/builtin_features.h"
#include "features/dump_tensors/dump_writer.h"
#include "hooks/tensor_ops.h"
#include "record/tensor_dump.h"

namespace telens::features {
namespace {

// Keeps the operands of a layer's GEMMs before their casts, from inspect_tensor until the last GEMM
// that reads them. Belongs to one forward and its backward. Holds references to tensors, not
// copies.
class KeptOperands {
 public:
  // tensor: undefined for a weight that is stored in low precision. first_row: as in
  // ObservedTensor.
  void keep(TensorName name, const TensorHandle& tensor, std::optional<std::int64_t> first_row,
            bool evaluation);

  enum class State : std::uint8_t { unseen, no_high_precision, changed, there };
  struct Original {
    State state = State::unseen;
    TensorHandle tensor = {};  // defined if the state is `there`
    std::optional<std::int64_t> first_row = std::nullopt;
  };
  // changed: written in place since keep(). The call with the last of get_gemms(name) releases the
  // tensor.
  Original find(TensorName name, Gemm gemm);

  bool evaluation() const { return evaluation_; }

 private:
  struct Kept {
    bool seen = false;
    TensorHandle tensor = {};
    std::uint32_t version = 0;
    std::optional<std::int64_t> first_row = std::nullopt;
  };
  std::array<Kept, kAllTensors.size()> kept_;
  bool evaluation_ = false;
};

}  // namespace

void KeptOperands::keep(TensorName name, const TensorHandle& tensor,
                        std::optional<std::int64_t> first_row, bool evaluation) {
  evaluation_ = evaluation;
  Kept& kept = kept_[static_cast<std::size_t>(name)];
  kept = {.seen = true, .first_row = first_row};
  if (!tensor.defined()) return;
  kept.tensor = tensor;  // a detached tensor may count its writes separately
  kept.version = tensor_ops::get_version(tensor);
}

KeptOperands::Original KeptOperands::find(TensorName name, Gemm gemm) {
  Kept& kept = kept_[static_cast<std::size_t>(name)];
  if (!kept.seen) return {};
  Original original{.state = State::no_high_precision, .first_row = kept.first_row};
  if (kept.tensor.defined()) {
    const bool changed = tensor_ops::get_version(kept.tensor) != kept.version;
    original.state = changed ? State::changed : State::there;
    if (!changed) original.tensor = kept.tensor;
  }
  if (get_gemms(name).second == gemm) kept = {};
  return original;
}

namespace {

constexpr std::int64_t kSchemaVersion = 1;
constexpr const char* kFirstRow = "first_row";  // if GEMMs read rows from all ranks

// The options of a tensor for which there is data to write.
struct Contents {
  bool high_precision = false;
  bool rowwise = false;
  bool columnwise = false;

  bool any() const { return high_precision || rowwise || columnwise; }
};

Contents get_contents(const ObservedTensor& call, const DumpTensorsOptions& options) {
  // If no gradient is required, the second GEMM does not have a separate operand.
  return {.high_precision = options.high_precision && call.tensor.defined(),
          .rowwise = options.quantized && call.rowwise.defined(),
          .columnwise = options.quantized && call.columnwise.defined() &&
                        !call.columnwise.is_same(call.rowwise)};
}

// Returns a dump with the attributes with which all dumps begin. `kind`: "tensor" or "gemm";
// `name`: which one.
PendingDump begun(const FeatureCall& at, std::string_view kind, std::string_view name, int rank,
                  bool evaluation) {
  PendingDump dump;
  dump.set("schema", fmt::format("telens {} dump", kind));
  dump.set("schema_version", kSchemaVersion);
  dump.set("telens_version", std::string(kVersion));
  dump.set("layer", at.layer_name);
  dump.set(std::string(kind), name);
  dump.set("iteration", at.iteration);
  dump.set("rank", std::int64_t{rank});
  if (evaluation) dump.set("mode", get_name(config::Mode::eval));
  return dump;
}

std::string_view get_name(const std::optional<ObservedRecipe>& recipe) {
  return recipe ? recipe->name : "none";
}

PendingDump make_from(const FeatureCall& at, const ObservedTensor& call, const Contents& contents,
                      int rank) {
  PendingDump dump = begun(at, "tensor", telens::get_name(call.tensor_name), rank, call.evaluation);
  if (is_gemm_input(call.tensor_name)) dump.set("recipe", get_name(call.recipe));
  if (call.tensor.defined()) {
    const std::span<const std::int64_t> sizes = call.tensor.sizes();
    dump.set("shape", std::vector<std::int64_t>(sizes.begin(), sizes.end()));
  }
  if (call.first_row) dump.set(kFirstRow, *call.first_row);
  if (call.summed) dump.set("summed_over_ranks", std::int64_t{1});
  if (contents.high_precision) dump.add_values("high_precision", call.tensor);
  const auto [first, second] =
      is_of_attention(call.tensor_name) ? GemmsOfTensor{} : get_gemms(call.tensor_name);
  const auto feeds = [](Gemm gemm) {
    return std::vector<record::DumpAttribute>{{"gemm", std::string(telens::get_name(gemm))}};
  };
  if (contents.rowwise) dump.add_operand("rowwise", feeds(first), call.rowwise, /*rowwise=*/true);
  if (contents.columnwise) dump.add_operand("columnwise", feeds(second), call.columnwise, false);
  if (call.bias.defined()) dump.add_values("bias", call.bias);
  return dump;
}

bool asks_for_operands(const config::FeatureEntry& entry) {
  return std::ranges::any_of(entry.selections, [](const config::Selection& each) {
    return each.options_as<DumpTensorsOptions>().operands;
  });
}

}  // namespace

DumpTensors::DumpTensors(const config::FeatureEntry& entry, FeatureServices& services,
                         HostCopies copies, std::size_t most_bytes)
    : ScheduledObserver(
          entry,
          {.inspect = true, .read_statistics = false, .inspect_gemm = asks_for_operands(entry)}),
      services_(services),
      writer_(std::move(copies), most_bytes) {
  for (const TensorName tensor : kAllTensors) {
    if (const config::Selection* chosen = selection(std::nullopt, tensor)) {
      options_[static_cast<std::size_t>(tensor)] = chosen->options_as<DumpTensorsOptions>();
    }
  }
}

void DumpTensors::say_what_is_missing(const FeatureCall& at, const ObservedTensor& call,
                                      const DumpTensorsOptions& options) {
  const auto say = [&](std::string_view what) {
    this->say(at, telens::get_name(call.tensor_name), what);
  };
  if (!options.high_precision && !options.quantized && !options.operands) {
    say("neither high_precision_tensor nor quantized_tensor is set, nothing is written");
  }
  if (options.high_precision && !call.tensor.defined()) {
    say("it is stored in low precision only");
  }
  if (options.quantized && !call.rowwise.defined()) {
    say(is_of_attention(call.tensor_name) ? "an attention has no quantized tensors"
                                          : "the output of a GEMM has no quantized tensor");
  }
}

void DumpTensors::say(const FeatureCall& at, std::string_view about, std::string_view what) {
  services_.log_message(fmt::format("DumpTensors: {}: {}", about, what), at.layer_name,
                        debug::LogLevel::info);
}

void DumpTensors::observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                                 TensorReading&) {
  const DumpTensorsOptions& options = options_[static_cast<std::size_t>(call.tensor_name)];
  say_what_is_missing(at, call, options);
  if (options.operands && is_gemm_input(call.tensor_name)) {
    if (!*at.kept) *at.kept = std::make_shared<KeptOperands>();
    static_cast<KeptOperands*>(at.kept->get())
        ->keep(call.tensor_name, call.tensor, call.first_row, call.evaluation);
  }
  const Contents contents = get_contents(call, options);
  if (!contents.any()) return;
  const std::string name =
      fmt::format("{}{}", telens::get_name(call.tensor_name), call.evaluation ? "_eval" : "");
  write(at, name, make_from(at, call, contents, services_.options().rank));
}

bool DumpTensors::wants(const FeatureCall& at, const ObservedGemm& call) const {
  return std::ranges::all_of(kAllTensors, [&](TensorName tensor) {
    if (!belongs_to(tensor, call.gemm)) return true;
    const config::Selection* chosen = selection(call.gemm, tensor);
    return chosen != nullptr && options_[static_cast<std::size_t>(tensor)].operands &&
           chosen->schedule.due(at.iteration, thinning_factor());
  });
}

void DumpTensors::add_operand(const FeatureCall& at, Gemm gemm, TensorName name,
                              const std::string& group, const ObservedOperand& operand,
                              PendingDump& dump) {
  const auto original = static_cast<KeptOperands*>(at.kept->get())->find(name, gemm);
  std::vector<record::DumpAttribute> attributes{{"tensor", std::string(telens::get_name(name))}};
  if (original.first_row) attributes.emplace_back(kFirstRow, *original.first_row);
  dump.add_operand(group, std::move(attributes), operand, get_gemms(name).first == gemm);
  if (original.state == KeptOperands::State::there) {
    dump.add_values(group + "/high_precision", original.tensor);
  } else if (original.state == KeptOperands::State::changed) {
    say(at, telens::get_name(name),
        fmt::format("it was written in place between its cast and {}, whose file lacks it in high "
                    "precision",
                    telens::get_name(gemm)));
  }
}

void DumpTensors::observe_gemm(const FeatureCall& at, const ObservedGemm& call,
                               std::span<const Alteration>) {
  if (!*at.kept || !wants(at, call)) return;
  const bool evaluation = static_cast<KeptOperands*>(at.kept->get())->evaluation();
  const std::string_view gemm = telens::get_name(call.gemm);
  PendingDump dump = begun(at, "gemm", gemm, services_.options().rank, evaluation);
  dump.set("recipe", get_name(call.recipe));
  dump.set("kernel", call.kernel);
  dump.set("kernel_reason", call.kernel_reason);
  dump.set("split_accumulator", std::int64_t{call.split_accumulator});
  add_operand(at, call.gemm, call.a_name, "a", call.a, dump);
  add_operand(at, call.gemm, call.b_name, "b", call.b, dump);
  if (call.bias.defined()) dump.add_values("bias", call.bias);
  dump.add_values("result", call.output);
  write(at, fmt::format("{}{}_gemm", gemm, evaluation ? "_eval" : ""), std::move(dump));
}

void DumpTensors::write(const FeatureCall& at, std::string_view name, PendingDump dump) {
  const debug::InitializeOptions& session = services_.options();
  const bool waited = writer_.add({record::dump_folder(session.log_dir, session.rank, at.iteration),
                                   record::dump_name(at.layer_name, name)},
                                  std::move(dump));
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
