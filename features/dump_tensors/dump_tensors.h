// DumpTensors: writes tensors and GEMMs with their operands, one file each.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "features/dump_tensors/dump_tensors_options.h"
#include "features/dump_tensors/dump_writer.h"
#include "hooks/feature_registry.h"
#include "hooks/observer.h"

namespace telens::features {

class DumpTensors final : public ScheduledObserver {
 public:
  DumpTensors(const config::FeatureEntry& entry, FeatureServices& services,
              HostCopies copies = copy_to_host, std::size_t most_bytes = DumpWriter::kMostBytes);

  // Writes tensors on the host before it returns, tensors on a device in a later step() or in
  // end(). Each of these throws RecordError if the disk cannot store the file; the session then
  // warns and disables the feature.
  void observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                      TensorReading& reading) override;
  // Writes the file of a GEMM if `operands` selects it.
  void observe_gemm(const FeatureCall& at, const ObservedGemm& call,
                    std::span<const Alteration> alterations) override;
  void step(std::int64_t iteration) override { writer_.write_arrived(); }
  void end() override { writer_.finish(); }

 private:
  // Logs the parts that the options request but this tensor does not have.
  void say_what_is_missing(const FeatureCall& at, const ObservedTensor& call,
                           const DumpTensorsOptions& options);
  void say(const FeatureCall& at, std::string_view about, std::string_view what);
  // `name`: the name of the tensor or the GEMM.
  void write(const FeatureCall& at, std::string_view name, PendingDump dump);
  // Returns true if `operands` is set for the three tensors of the GEMM and they are due in this
  // iteration.
  bool wants(const FeatureCall& at, const ObservedGemm& call) const;
  // Adds an operand of the GEMM, after its cast and before it.
  void add_operand(const FeatureCall& at, Gemm gemm, TensorName name, const std::string& group,
                   const ObservedOperand& operand, PendingDump& dump);

  FeatureServices& services_;
  DumpWriter writer_;
  std::array<DumpTensorsOptions, kAllTensors.size()> options_;
};

}  // namespace telens::features
