#include "training.h"

#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <deque>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <numeric>
#include <string_view>
#include <system_error>

#include "adamw.h"
#include "checkpoint.h"
#include "core/gemm/gemm.h"
#include "core/modules/shared/parameter_options.h"
#include "hooks/debug.h"
#include "precision.h"
#include "progress.h"
#include "text.h"

namespace gpt {
namespace {

constexpr std::size_t kLastSteps = 50;  // whose mean loss is reported

AdamW::NamedTensors named_parameters(const Model& model) {
  AdamW::NamedTensors parameters;
  for (const auto& item : model.named_parameters()) {
    parameters.emplace_back(item.key(), item.value());
  }
  return parameters;
}

// Linear warm-up over the first twentieth, then a cosine down to a tenth.
double learning_rate(const TrainingOptions& options, std::int64_t step) {
  const double progress = static_cast<double>(step + 1) / static_cast<double>(options.steps);
  constexpr double kWarmUp = 0.05;
  constexpr double kFloor = 0.1;
  if (progress < kWarmUp) return options.learning_rate * progress / kWarmUp;
  const double phase = std::numbers::pi * (progress - kWarmUp) / (1 - kWarmUp);
  return options.learning_rate * (kFloor + (1 - kFloor) * 0.5 * (1 + std::cos(phase)));
}

// One line a step: the hexadecimal bits of the loss in FP32.
class LossFile {
 public:
  explicit LossFile(const std::string& path) {
    if (path.empty()) return;
    stream_.open(path);
    if (!stream_) telens::raise<telens::UsageError>("cannot write the loss file {}", path);
  }
  void write(float loss) {
    if (!stream_.is_open()) return;
    stream_ << fmt::format("{:08x}\n", std::bit_cast<std::uint32_t>(loss)) << std::flush;
  }

 private:
  std::ofstream stream_;
};

// False where the session could not write: it warned of that, and the training went on.
bool has_run_file(const std::filesystem::path& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".h5") return true;
  }
  return false;
}

// A debug session for the lifetime of the object, if there is a configuration.
class Session {
 public:
  Session(const TrainingOptions& options, std::int64_t first_step) : on_(!options.config.empty()) {
    if (!on_) return;
    telens::debug::initialize({.config_file = options.config,
                               .log_dir = options.log_dir,
                               .init_training_step = first_step});
  }
  ~Session() {
    if (!on_) return;
    const std::string path = telens::debug::run_path();
    telens::debug::end_debug();
    fmt::print("{} in {}\n", has_run_file(path) ? "recorded" : "nothing could be recorded", path);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

 private:
  bool on_;
};

at::Device get_device(const TrainingOptions& options) {
  const at::Device best = telens::default_device(at::hasCUDA());
  if (options.device == "cuda" && !best.is_cuda()) {
    telens::raise<telens::UsageError>(
        "--device cuda: {}", at::hasCUDA() ? "this build has no CUDA kernels (TELENS_CUDA=OFF)"
                                           : "there is no GPU that LibTorch can use");
  }
  constexpr std::array<std::string_view, 3> kOnCpuAlone{"mxfp8", "block", "nvfp4"};  // their GEMMs
  if (options.device == "auto" &&
      std::ranges::find(kOnCpuAlone, options.recipe) != kOnCpuAlone.end()) {
    return at::kCPU;
  }
  return options.device == "cpu" ? at::kCPU : best;
}

float forward_and_backward(Model& model, const Precision& precision, const Batch& batch) {
  at::Tensor loss;
  {
    const Precision::Region region(precision);
    const at::Tensor logits = model.forward(batch.inputs).to(at::kFloat);
    loss = at::cross_entropy_loss(logits.flatten(0, 1), batch.targets.flatten());
  }
  loss.backward();
  return loss.item<float>();
}

double compute_mean(const std::deque<float>& losses) {
  return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
}

void print_result(const std::deque<float>& losses, double bigram_entropy) {
  if (losses.empty()) return;
  const double mean = compute_mean(losses);
  fmt::print("mean loss of the last {} steps: {:.4f} nats a byte\n", losses.size(), mean);
  fmt::print("bigram entropy of the text:    {:.4f} nats a byte\n", bigram_entropy);
  const telens::GemmCounts gemms = telens::gemm_counts();
  fmt::print("GEMMs of the linear layers:    {} in FP8, {} in high precision\n", gemms.quantized,
             gemms.high_precision);
}

// A NaN is not below anything.
void check_result(const TrainingOptions& options, const std::deque<float>& losses,
                  double bigram_entropy) {
  if (!options.below_bigrams || losses.empty()) return;
  const double below = bigram_entropy - compute_mean(losses);
  if (below >= *options.below_bigrams) return;
  telens::raise<telens::Error>(
      "the mean loss of the last {} steps is {:.4f} nats below the text's bigram entropy; expected "
      "at least {} (--below-bigrams): train for more --steps, or look for what went wrong with "
      "`telens info {}`",
      losses.size(), below, *options.below_bigrams, options.log_dir);
}

}  // namespace

void train(const TrainingOptions& options) {
  const Text text = Text::load(options.text, options.text_bytes);
  const double bigram_entropy = text.bigram_entropy();
  fmt::print("{} bytes of text from {}\n", text.size(), text.folder());

  at::manual_seed(options.seed);
  ModelOptions model_options = options.model;
  model_options.max_sequence = options.sequence;
  Model model(model_options);
  const at::Device device = get_device(options);
  model.to(device);
  AdamW adamw(named_parameters(model), {});
  const Precision precision(options.recipe, device.type());
  const std::int64_t first_step =
      options.resume.empty() ? 0 : load_checkpoint(options.resume, model, adamw);

  LossFile loss_file(options.loss_file);
  const Session session(options, first_step);
  const BatchShape shape{.sequence = options.sequence, .batch = options.batch};
  const std::int64_t save_at = options.save_at > 0 ? options.save_at : options.steps;
  std::deque<float> last_losses;
  {
    Progress progress(first_step, options.steps);
    for (std::int64_t step = first_step; step < options.steps; ++step) {
      const Batch batch = text.batch(options.seed, step, shape).to(device);
      const float loss = forward_and_backward(model, precision, batch);
      adamw.step(learning_rate(options, step));
      telens::debug::step(loss);

      loss_file.write(loss);
      last_losses.push_back(loss);
      if (last_losses.size() > kLastSteps) last_losses.pop_front();
      progress.show(step, loss);
      if (!options.save.empty() && step + 1 == save_at) {
        save_checkpoint(options.save, model, adamw, step + 1);
      }
    }
  }
  print_result(last_losses, bigram_entropy);
  check_result(options, last_losses, bigram_entropy);
}

}  // namespace gpt
