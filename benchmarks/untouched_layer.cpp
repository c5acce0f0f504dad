// Forward and backward of a tiny Linear that no feature touches, with and without a session; and
// what 1,000 layers look up whose features wait.
//   untouched_layer                     wall times, side by side
//   untouched_layer --count <folder>    under callgrind, which dumps what it counted in the same
//                                       steps as "no session", "session" and "no session, idle
//                                       thread", and in look-ups as "look-up, no session" and
//                                       "look-up, 100 sections wait"
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <valgrind/callgrind.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "benchmarks/arguments.h"
#include "benchmarks/large_config.h"
#include "benchmarks/sessions.h"
#include "benchmarks/side_by_side.h"
#include "core/hook_points.h"
#include "core/modules/linear/linear.h"

namespace {

constexpr std::int64_t kSize = 16;
constexpr int kCounted = 100;  // steps that callgrind counts

class TinyStep {
 public:
  TinyStep() : linear_(options()), x_(at::randn({kSize, kSize}).requires_grad_()) {}

  void run() {
    x_.mutable_grad() = at::Tensor();
    for (at::Tensor& parameter : linear_.parameters()) parameter.mutable_grad() = at::Tensor();
    linear_.forward(x_).backward(gradient_);
  }

 private:
  static telens::LinearOptions options() {
    telens::LinearOptions options;
    options.in_features = options.out_features = kSize;
    options.parameters.params_dtype = at::kFloat;
    options.parameters.device = at::Device(at::kCPU);
    options.name = "tiny";
    return options;
  }

  telens::Linear linear_;
  at::Tensor x_;
  at::Tensor gradient_ = at::ones({kSize, kSize});
};

void begin(const std::string& folder) {
  telens::benchmark::begin_session(telens::benchmark::another_layer(), folder);
}

// Warm, then counted; a session takes its steps outside of what is counted.
void count(TinyStep& step) {
  for (int i = 0; i < 2 * kCounted; ++i) {
    if (i >= kCounted) CALLGRIND_TOGGLE_COLLECT;
    step.run();
    if (i >= kCounted) CALLGRIND_TOGGLE_COLLECT;
    telens::debug::step();
  }
}

// A session brings a thread of its own, the writer's, and the C library's malloc then works
// otherwise: this is what a thread alone costs.
void count_beside_an_idle_thread(TinyStep& step) {
  std::jthread idle([](std::stop_token stop) {
    std::mutex mutex;
    std::condition_variable_any never;
    std::unique_lock lock(mutex);
    never.wait(lock, stop, [] { return false; });
  });
  count(step);
  CALLGRIND_DUMP_STATS_AT("no session, idle thread");
}

// ---- look-ups

class ManyLayers {
 public:
  ManyLayers() {
    for (const std::string& name : telens::benchmark::large_config_layers()) {
      layers_.emplace_back(name);
    }
  }

  // True if any layer has to do more than look. A function of its own, as a forward is.
  [[gnu::noinline]] bool any_is_due() {
    bool any = false;
    for (telens::LayerHooks& layer : layers_) any |= layer.begin_forward({}) != nullptr;
    return any;
  }

 private:
  std::deque<telens::LayerHooks> layers_;
};

// Warm, in which every layer asks its features once; then counted in one iteration, and in the
// next.
void count_lookups(ManyLayers& layers, const char* mark) {
  CALLGRIND_STOP_INSTRUMENTATION;
  for (int i = 0; i < 2; ++i) {
    if (layers.any_is_due()) telens::raise<telens::Error>("a feature is due");
    telens::debug::step();
  }
  CALLGRIND_START_INSTRUMENTATION;
  for (int i = 0; i < 2; ++i) {
    CALLGRIND_TOGGLE_COLLECT;
    layers.any_is_due();
    CALLGRIND_TOGGLE_COLLECT;
    telens::debug::step();
  }
  CALLGRIND_DUMP_STATS_AT(mark);
}

void count_all_lookups(const std::string& folder) {
  ManyLayers layers;
  count_lookups(layers, "look-up, no session");
  CALLGRIND_STOP_INSTRUMENTATION;
  telens::benchmark::begin_session(telens::benchmark::large_config(/*start_step=*/1000), folder);
  count_lookups(layers, "look-up, 100 sections wait");
  telens::debug::end_debug();
}

// ---- all

void count_all(TinyStep& step, const std::string& folder) {
  CALLGRIND_START_INSTRUMENTATION;
  count(step);
  CALLGRIND_DUMP_STATS_AT("no session");
  begin(folder);
  count(step);
  CALLGRIND_DUMP_STATS_AT("session");
  telens::debug::end_debug();
  count_beside_an_idle_thread(step);
  count_all_lookups(folder);
}

}  // namespace

int main(int argc, char** argv) {
  const bool counting = argc > 2 && std::string(argv[1]) == "--count";
  at::set_num_threads(1);
  TinyStep step;
  if (counting) {
    count_all(step, argv[2]);
    return 0;
  }
  const auto arguments =
      telens::benchmark::parse_arguments(argc, argv, "An untouched layer beside a session.");
  const auto warm = [&] {
    for (int i = 0; i < 50; ++i) step.run();
  };
  telens::benchmark::compare("untouched layer",
                             {{"no session", [&] { step.run(); }, warm},
                              {"session", [&] { step.run(); },
                               [&] {
                                 begin(arguments.folder);
                                 warm();
                               },
                               [] { telens::debug::end_debug(); }}},
                             {.rounds = arguments.rounds, .runs = 500});
  return 0;
}
