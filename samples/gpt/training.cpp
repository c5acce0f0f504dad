#include "training.h"

#include <ATen/Context.h>
#include <ATen/DeviceGuard.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <deque>
#include <fstream>
#include <numbers>
#include <numeric>
#include <optional>
#include <string_view>

#include "adamw.h"
#include "checkpoint.h"
#include "core/gemm/gemm.h"
#include "core/modules/shared/parameter_options.h"
#include "hooks/debug.h"
#include "precision.h"
#include "progress.h"
#include "ranks.h"
#include "session.h"
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

// Linear warm-up over the first 5 % of the steps, then a cosine decay to 10 % of the rate.
double learning_rate(const TrainingOptions& options, std::int64_t step) {
  const double progress = static_cast<double>(step + 1) / static_cast<double>(options.steps);
  constexpr double kWarmUp = 0.05;
  constexpr double kFloor = 0.1;
  if (progress < kWarmUp) return options.learning_rate * progress / kWarmUp;
  const double phase = std::numbers::pi * (progress - kWarmUp) / (1 - kWarmUp);
  return options.learning_rate * (kFloor + (1 - kFloor) * 0.5 * (1 + std::cos(phase)));
}

// One line per step: the bits of the FP32 loss in hexadecimal.
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

// Each process uses one GPU of its machine.
at::Device get_device(const TrainingOptions& options, const Place& place) {
  const at::Device best = telens::default_device(at::hasCUDA());
  if (options.device == "cuda" && !best.is_cuda()) {
    telens::raise<telens::UsageError>(
        "--device cuda: {}", at::hasCUDA()
                                 ? "this build does not include CUDA kernels (TELENS_CUDA=OFF)"
                                 : "LibTorch cannot use a GPU");
  }
  constexpr std::array<std::string_view, 3> kOnCpuAlone{"mxfp8", "block", "nvfp4"};  // their GEMMs
  if (options.device == "auto" &&
      std::ranges::find(kOnCpuAlone, options.recipe) != kOnCpuAlone.end()) {
    return at::kCPU;
  }
  if (options.device == "cpu" || !best.is_cuda()) return at::kCPU;
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(place.local_rank));
}

// Returns the mean loss of the batch, of which each rank has a part.
float forward_and_backward(Model& model, const Precision& precision, const Batch& batch,
                           const Ranks& ranks) {
  const Batch own = ranks.own_part(batch);
  at::Tensor share;
  {
    const Precision::Region region(precision, ranks.world());
    const at::Tensor logits = model.forward(own.inputs).to(at::kFloat);
    share =
        at::cross_entropy_loss(logits.flatten(0, 1), own.targets.flatten()) * ranks.share_of_loss();
  }
  share.backward();
  ranks.add_gradients(model);
  return ranks.total(share).item<float>();
}

void check_whole_model(const TrainingOptions& options) {
  if (options.ranks.tp > 1 && !(options.save.empty() && options.resume.empty())) {
    telens::raise<telens::UsageError>(
        "--save and --resume want one rank (--tp 1): no rank has it all");
  }
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
  const Place place = place_in_world();
  const BatchShape shape{.sequence = options.sequence, .batch = options.batch};
  check(options.ranks, place, shape);
  check_whole_model(options);
  const at::Device device = get_device(options, place);
  const c10::DeviceGuard current(device);
  const Ranks ranks(options.ranks, place, device);
  if (ranks.is_first()) fmt::print("{} bytes of text from {}\n", text.size(), text.folder());

  at::manual_seed(options.seed);
  ModelOptions model_options = options.model;
  model_options.max_sequence = options.sequence;
  const std::shared_ptr<Model> model = make_model(model_options, ranks);
  model->to(device);
  AdamW adamw(named_parameters(*model), {});
  const Precision precision(options.recipe, device.type());
  const std::int64_t first_step =
      options.resume.empty() ? 0 : load_checkpoint(options.resume, *model, adamw);

  LossFile loss_file(ranks.is_first() ? options.loss_file : "");
  const std::int64_t save_at = options.save_at > 0 ? options.save_at : options.steps;
  std::deque<float> last_losses;
  {
    const Session session(
        {.config = options.config, .log_dir = options.log_dir, .first_step = first_step}, ranks);
    std::optional<Progress> progress;
    if (ranks.is_first()) progress.emplace(first_step, options.steps);
    for (std::int64_t step = first_step; step < options.steps; ++step) {
      const Batch batch = text.batch(options.seed, step, shape).to(device);
      const float loss = forward_and_backward(*model, precision, batch, ranks);
      adamw.step(learning_rate(options, step));
      telens::debug::step(loss);

      loss_file.write(loss);
      last_losses.push_back(loss);
      if (last_losses.size() > kLastSteps) last_losses.pop_front();
      if (progress) progress->show(step, loss);
      if (ranks.is_first() && !options.save.empty() && step + 1 == save_at) {
        save_checkpoint(options.save, *model, adamw, step + 1);
      }
    }
  }
  ranks.wait_for_all();
  if (!ranks.is_first()) return;
  const double bigram_entropy = text.bigram_entropy();
  print_result(last_losses, bigram_entropy);
  check_result(options, last_losses, bigram_entropy);
}

}  // namespace gpt
