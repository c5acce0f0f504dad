#include "features/dump_tensors.h"

#include <memory>
#include <utility>

#include "core/quantization/recipe.h"
#include "features/record/tensor_dump.h"

namespace telens::features {
namespace {

using record::DumpAttribute;
using record::DumpType;

constexpr std::int64_t kSchemaVersion = 1;

DumpType type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kByte:
      return DumpType::uint8;
    case at::kBFloat16:
      return DumpType::uint16;
    case at::kHalf:
      return DumpType::float16;
    case at::kFloat:
      return DumpType::float32;
    case at::kDouble:
      return DumpType::float64;
    default:
      raise<RecordError>(
          "a tensor of dtype {} cannot be dumped; expected BFloat16, Half, Float or "
          "Double",
          c10::toString(tensor.scalar_type()));
  }
}

// Of the elements of a plain tensor.
std::string_view format_of(const at::Tensor& tensor) {
  switch (type_of(tensor)) {
    case DumpType::uint16:
      return "BF16";
    case DumpType::float16:
      return "FP16";
    case DumpType::float32:
      return "FP32";
    default:
      return "FP64";
  }
}

std::string_view format_of_scales(ScalingMode mode) {
  switch (mode) {
    case ScalingMode::mxfp8:
      return "E8M0";
    case ScalingMode::nvfp4:
      return "E4M3";
    default:
      return "FP32";
  }
}

DumpAttribute text(std::string name, std::string_view value) {
  return {std::move(name), std::string(value)};
}
DumpAttribute number(std::string name, std::int64_t value) { return {std::move(name), value}; }

// Puts a dump together, and keeps what it refers to.
class Dump {
 public:
  void set(DumpAttribute attribute) { dump_.attributes.push_back(std::move(attribute)); }

  // Values, once: another name of the same tensor becomes a link.
  void add_values(const std::string& path, const at::Tensor& tensor) {
    for (const auto& [known_path, known] : values_) {
      if (known.is_alias_of(tensor) && known.sizes() == tensor.sizes() &&
          known.strides() == tensor.strides() && known.data_ptr() == tensor.data_ptr()) {
        dump_.links.emplace_back(path, known_path);
        return;
      }
    }
    values_.emplace_back(path, tensor);
    add(path, tensor, format_of(tensor));
  }

  // What feeds one GEMM.
  void add_operand(const std::string& group, Gemm gemm, const Operand& operand, bool rowwise) {
    std::vector<DumpAttribute> attributes{text("gemm", telens::name_of(gemm))};
    const auto* quantized = std::get_if<QuantizedTensor>(&operand);
    if (quantized != nullptr) describe(*quantized, rowwise, attributes);
    dump_.groups.emplace_back(group, std::move(attributes));
    if (quantized == nullptr) {
      add_values(group + "/values", std::get<at::Tensor>(operand));
      return;
    }
    const QuantizedData& data = rowwise ? quantized->rowwise : quantized->columnwise;
    add(group + "/codes", data.codes, telens::name_of(quantized->format));
    add(group + "/scale_inv", data.scale_inv, format_of_scales(quantized->mode));
    if (data.tensor_scale.defined()) add(group + "/tensor_scale", data.tensor_scale, "FP32");
  }

  const record::TensorDump& finished() const { return dump_; }

 private:
  static void describe(const QuantizedTensor& tensor, bool rowwise,
                       std::vector<DumpAttribute>& attributes) {
    attributes.push_back(text("format", telens::name_of(tensor.format)));
    attributes.push_back(text("scaling", telens::name_of(tensor.mode)));
    attributes.push_back(number("transposed", rowwise ? 0 : 1));
    attributes.push_back(number("block_height", block_height(tensor.mode)));
    attributes.push_back(number("block_length", block_length(tensor.mode)));
    if (!rowwise && tensor.blocks.hadamard_signs) {
      attributes.push_back(number("hadamard_signs", *tensor.blocks.hadamard_signs));
    }
  }

  void add(const std::string& path, const at::Tensor& tensor, std::string_view format) {
    const at::Tensor& dense = dense_.emplace_back(tensor.detach().to(at::kCPU).contiguous());
    record::DumpDataset dataset{
        .path = path, .type = type_of(dense), .shape = {}, .data = {}, .attributes = {}};
    for (const std::int64_t size : dense.sizes()) {
      dataset.shape.push_back(static_cast<std::uint64_t>(size));
    }
    dataset.data = {static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()};
    dataset.attributes.push_back(text("format", format));
    dump_.datasets.push_back(std::move(dataset));
  }

  record::TensorDump dump_;
  std::vector<std::pair<std::string, at::Tensor>> values_;
  std::vector<at::Tensor> dense_;
};

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

Dump made_of(const FeatureCall& at, const InspectTensorCall& call, const Contents& contents,
             int rank) {
  Dump dump;
  dump.set(text("schema", "telens tensor dump"));
  dump.set(number("schema_version", kSchemaVersion));
  dump.set(text("telens_version", TELENS_VERSION));
  dump.set(text("layer", at.layer_name));
  dump.set(text("tensor", telens::name_of(call.tensor_name)));
  dump.set(number("iteration", at.iteration));
  dump.set(number("rank", rank));
  if (is_gemm_input(call.tensor_name)) {
    dump.set(text("recipe", call.recipe != nullptr ? call.recipe->name() : "none"));
  }
  if (call.tensor != nullptr) dump.set({"shape", call.tensor->sizes().vec()});
  if (contents.high_precision) dump.add_values("high_precision", *call.tensor);
  const auto [first, second] = gemms_of(call.tensor_name);
  if (contents.rowwise) dump.add_operand("rowwise", first, *call.rowwise, /*rowwise=*/true);
  if (contents.columnwise) dump.add_operand("columnwise", second, *call.columnwise, false);
  if (call.bias != nullptr) dump.add_values("bias", *call.bias);
  return dump;
}

}  // namespace

DumpTensors::DumpTensors(const config::FeatureEntry& entry, FeatureServices& services)
    : ScheduledFeature(entry, {.inspect = true, .read_statistics = false}), services_(services) {
  for (const TensorName tensor : kAllTensors) {
    if (const config::Selection* chosen = selection(std::nullopt, tensor)) {
      options_[static_cast<std::size_t>(tensor)] = DumpTensorsOptions::from(chosen->parameters);
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
  const Dump dump = made_of(at, call, contents, session.rank);
  record::write_tensor_dump(record::dump_folder(session.log_dir, session.rank, at.iteration),
                            record::dump_name(at.layer_name, telens::name_of(call.tensor_name)),
                            dump.finished());
}

FeatureRegistration dump_tensors() {
  return {dump_tensors_description(),
          [](const config::FeatureEntry& entry, FeatureServices& services) {
            return std::make_unique<DumpTensors>(entry, services);
          }};
}

}  // namespace telens::features
