// Forward and backward of a tiny Linear that no feature touches, with and without a session.
//   untouched_layer                     wall times, side by side
//   untouched_layer --count <folder>    the same steps under callgrind, which dumps what it counted
//                                       in them as "no session", "session" and "no session, idle
//                                       thread"
#include <ATen/ATen.h>
#include <valgrind/callgrind.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "benchmarks/arguments.h"
#include "benchmarks/sessions.h"
#include "benchmarks/side_by_side.h"
#include "core/modules/linear.h"

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

void count_all(TinyStep& step, const std::string& folder) {
  CALLGRIND_START_INSTRUMENTATION;
  count(step);
  CALLGRIND_DUMP_STATS_AT("no session");
  begin(folder);
  count(step);
  CALLGRIND_DUMP_STATS_AT("session");
  telens::debug::end_debug();
  count_beside_an_idle_thread(step);
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
