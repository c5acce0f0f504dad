// Sessions that begin, step and end while other threads run layers.
#include <gmock/gmock.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using std::chrono::milliseconds;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::FakeLayer;
using testing::get_values;
using ::testing::HasSubstr;
using testing::kMaxOfActivation;
using testing::Script;
using testing::section;
using testing::stored_values;
using testing::StoredValue;

class ThreadsTest : public testing::SessionTest {
 protected:
  // A session with a feature that calls this function with every activation.
  void watch(std::function<void()> inspect) {
    script_.inspect_enabled = [](std::int64_t, TensorName tensor) {
      return RoutingAnswer{tensor == TensorName::activation, std::nullopt};
    };
    script_.inspect = [inspect = std::move(inspect)](const auto&, const auto&) { inspect(); };
    features.add("Watch", script_);
    debug::initialize(options(section(std::string(kMaxOfActivation) + "Watch: {enabled: True}\n")));
  }

 private:
  Script script_;
};

void wait_for(const std::atomic<bool>& flag) {
  while (!flag.load()) std::this_thread::yield();
}

TEST_F(ThreadsTest, end_waits_for_running_calls_and_records_their_values) {
  std::atomic<bool> is_in_call = false;
  std::atomic<bool> has_left = false;
  watch([&] {
    is_in_call.store(true);
    std::this_thread::sleep_for(milliseconds(200));
    has_left.store(true);
  });
  std::thread training([] { FakeLayer().run(); });
  wait_for(is_in_call);
  debug::end_debug();
  EXPECT_TRUE(has_left.load());
  training.join();
  EXPECT_THAT(get_values("max", folder.str()), ElementsAre("0:layer=1"));
}

TEST_F(ThreadsTest, call_that_waits_for_the_ending_thread_stays_valid) {
  std::atomic<bool> is_in_call = false;
  std::atomic<bool> has_ended = false;
  watch([&] {
    is_in_call.store(true);
    wait_for(has_ended);
  });
  std::thread training([] { FakeLayer().run(); });
  wait_for(is_in_call);
  debug::end_debug();
  has_ended.store(true);
  training.join();
  EXPECT_THAT(messages(), HasSubstr("another thread has been in a layer for more than 5 s"));
  EXPECT_TRUE(record::RunReader(folder.str()).segments().at(0).end.has_value());
}

TEST_F(ThreadsTest, a_feature_may_end_the_session_that_calls_it) {
  watch([] { debug::end_debug(); });
  FakeLayer layer;
  EXPECT_TRUE(layer.run());
  EXPECT_FALSE(debug::is_initialized());
  EXPECT_FALSE(layer.run());
  EXPECT_TRUE(record::RunReader(folder.str()).segments().at(0).end.has_value());
}

// Runs layers in several threads, of which some share a layer, while this thread begins and ends
// sessions.
TEST_F(ThreadsTest, sessions_come_and_go_while_threads_run_layers) {
  std::atomic<bool> stop = false;
  std::atomic<int> watched = 0;
  FakeLayer shared("shared");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      FakeLayer own(fmt::format("layer{}", i));
      while (!stop.load()) watched += (i < 2 ? shared : own).run();
    });
  }
  for (int session = 0; session < 60; ++session) {
    debug::InitializeOptions begin = options(section(
        "LogTensorStats: {enabled: True, tensors: [activation, gradient], stats: [max, std]}\n"
        "FakeQuant: {enabled: True, gemms: [fprop], tensors: [weight], quant_format: FP8E4M3}\n"));
    begin.run_id = "run";
    debug::initialize(begin);
    for (int step = 0; step < 5; ++step) debug::step();
    if (session % 3 == 0) debug::initialize_training_step(100);
    debug::end_debug();
  }
  stop.store(true);
  for (std::thread& each : threads) each.join();
  EXPECT_GT(watched.load(), 0);
  std::vector<double> values;
  for (const StoredValue& each : stored_values(folder.str())) {
    if (each.statistic == "max") values.push_back(each.value);
  }
  EXPECT_THAT(values, Each(1.0));
}

// One thread may name a model while another ends the session.
TEST_F(ThreadsTest, foreign_layers_are_noted_during_session_changes) {
  std::atomic<bool> stop = false;
  std::atomic<int> noted = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!stop.load()) {
        debug::note_foreign_layer("model.head", "torch's Linear");
        ++noted;
      }
    });
  }
  for (int session = 0; session < 100; ++session) {
    debug::InitializeOptions begin = options();
    begin.run_id = "run";
    debug::initialize(begin);
    debug::end_debug();
  }
  stop.store(true);
  for (std::thread& each : threads) each.join();
  EXPECT_GT(noted.load(), 100);
}

TEST_F(ThreadsTest, several_threads_may_step) {
  debug::initialize(options(section(kMaxOfActivation)));
  FakeLayer layer;
  layer.run();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int step = 0; step < 50; ++step) debug::step();
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(debug::iteration(), 200);
  debug::end_debug();
  EXPECT_THAT(get_values("max", folder.str()), ElementsAre("0:layer=1"));
}

// A logger that calls a function of the session by which it is called.
class CallingLogger final : public debug::ScalarLogger {
 public:
  explicit CallingLogger(std::function<void()> call) : call_(std::move(call)) {}
  void log_scalar(std::string_view, double, std::int64_t) override { call_(); }

 private:
  std::function<void()> call_;
};

TEST_F(ThreadsTest, a_logger_may_end_the_session_which_then_ends_with_the_step) {
  debug::InitializeOptions begin = options(section(kMaxOfActivation));
  begin.statistics_logger = std::make_shared<CallingLogger>([] { debug::end_debug(); });
  debug::initialize(begin);
  FakeLayer().run();
  debug::step();
  EXPECT_FALSE(debug::is_initialized());
  EXPECT_THAT(get_values("max", folder.str()), ElementsAre("0:layer=1"));
  EXPECT_TRUE(record::RunReader(folder.str()).segments().at(0).end.has_value());
  debug::initialize(options());
}

TEST_F(ThreadsTest, nested_step_in_a_logger_is_ignored_with_a_message) {
  debug::InitializeOptions begin = options(section(kMaxOfActivation));
  begin.statistics_logger = std::make_shared<CallingLogger>([] { debug::step(); });
  debug::initialize(begin);
  FakeLayer().run();
  debug::step();
  EXPECT_EQ(debug::iteration(), 1);
  EXPECT_THAT(messages(), HasSubstr("it was called by a feature or a logger"));
}

TEST_F(ThreadsTest, an_end_waits_for_the_step_of_another_thread) {
  std::atomic<bool> is_in_step = false;
  debug::InitializeOptions begin = options(section(kMaxOfActivation));
  begin.statistics_logger = std::make_shared<CallingLogger>([&] {
    is_in_step.store(true);
    std::this_thread::sleep_for(milliseconds(200));
  });
  debug::initialize(begin);
  FakeLayer().run();
  std::thread stepping([] { debug::step(); });
  wait_for(is_in_step);
  debug::end_debug();
  stepping.join();
  EXPECT_THAT(get_values("max", folder.str()), ElementsAre("0:layer=1"));
  EXPECT_TRUE(record::RunReader(folder.str()).segments().at(0).end.has_value());
}

TEST_F(ThreadsTest, an_end_that_a_step_waits_for_comes_when_the_step_is_done) {
  std::atomic<bool> is_in_step = false;
  std::atomic<bool> has_returned = false;
  debug::InitializeOptions begin = options(section(kMaxOfActivation));
  begin.statistics_logger = std::make_shared<CallingLogger>([&] {
    is_in_step.store(true);
    wait_for(has_returned);
  });
  debug::initialize(begin);
  FakeLayer().run();
  std::thread stepping([] { debug::step(); });
  wait_for(is_in_step);
  debug::end_debug();
  EXPECT_THROW(debug::initialize(options()), UsageError) << "it has not ended yet";
  has_returned.store(true);
  stepping.join();
  EXPECT_THAT(get_values("max", folder.str()), ElementsAre("0:layer=1"));
  EXPECT_TRUE(record::RunReader(folder.str()).segments().at(0).end.has_value());
  debug::initialize(options());
}

// A feature whose step() calls a function.
class SteppingFeature final : public Feature {
 public:
  explicit SteppingFeature(std::function<void()> call) : call_(std::move(call)) {}
  void step(std::int64_t) override { call_(); }

 private:
  std::function<void()> call_;
};

// Ends a thread as Python ends daemon threads at its exit.
TEST_F(ThreadsTest, a_session_ends_though_a_thread_has_ended_within_its_step) {
  features.add("Leave", [](FeatureServices&) {
    return std::make_unique<SteppingFeature>([] { pthread_exit(nullptr); });
  });
  debug::initialize(options(section("Leave: {enabled: True}\n")));
  std::thread([] { debug::step(); }).join();
  debug::end_debug();
  EXPECT_TRUE(record::RunReader(folder.str()).segments().at(0).end.has_value());
  debug::initialize(options());
}

TEST_F(ThreadsTest, end_deferred_by_an_exited_thread_runs_with_the_next_call) {
  std::atomic<bool> is_in_step = false;
  std::atomic<bool> has_returned = false;
  features.add("Leave", [&](FeatureServices&) {
    return std::make_unique<SteppingFeature>([&] {
      is_in_step.store(true);
      wait_for(has_returned);
      pthread_exit(nullptr);
    });
  });
  debug::initialize(options(section("Leave: {enabled: True}\n")));
  std::thread stepping([] { debug::step(); });
  wait_for(is_in_step);
  debug::end_debug();
  has_returned.store(true);
  stepping.join();
  debug::end_debug();
  EXPECT_TRUE(record::RunReader(folder.str()).segments().at(0).end.has_value());
  debug::initialize(options());
}

// A logger that ends the session and throws one interruption, and another one in a call during this
// end.
class EndingLogger final : public debug::ScalarLogger {
 public:
  struct FirstInterruption : Interruption {};

  void log_scalar(std::string_view, double, std::int64_t) override {
    if (!debug::is_initialized()) throw Interruption();
    debug::log_scalar("another", 1, 0);
    debug::end_debug();
    throw FirstInterruption();
  }
};

TEST_F(ThreadsTest, step_error_is_kept_if_the_end_also_throws) {
  debug::InitializeOptions begin = options(section(kMaxOfActivation));
  begin.statistics_logger = std::make_shared<EndingLogger>();
  debug::initialize(begin);
  FakeLayer().run();
  EXPECT_THROW(debug::step(), EndingLogger::FirstInterruption);
  EXPECT_TRUE(record::RunReader(folder.str()).segments().at(0).end.has_value());
  debug::initialize(options());
}

TEST_F(ThreadsTest, interrupt_in_a_feature_propagates_without_disabling_it) {
  int calls = 0;
  watch([&] {
    ++calls;
    throw Interruption();
  });
  EXPECT_THROW(FakeLayer().run(), Interruption);
  EXPECT_THROW(FakeLayer().run(), Interruption);
  EXPECT_EQ(calls, 2);
}

// ---- observing features must not change tensors

class UntouchedTest : public testing::SessionTest {
 protected:
  void watch(std::function<void(const at::Tensor&)> look) {
    script_.inspect_enabled = [](std::int64_t, TensorName tensor) {
      return RoutingAnswer{tensor == TensorName::activation, std::nullopt};
    };
    script_.inspect = [this, look = std::move(look)](const auto&, const InspectTensorCall& call) {
      ++calls;
      look(*call.tensor);
    };
    features.add("Watch", script_);
    debug::initialize(options(section("Watch: {enabled: True}\n")));
  }
  int calls = 0;

 private:
  Script script_;
};

TEST_F(UntouchedTest, feature_that_writes_to_its_input_is_disabled) {
  watch([](const at::Tensor& tensor) { tensor.add_(1); });
  FakeLayer layer;
  // Autograd is off as in the forward of a layer.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  layer.run();
  layer.run();
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(messages(), HasSubstr("it wrote to a tensor that it may only read"));
}

TEST_F(UntouchedTest, a_feature_that_works_on_copies_stays) {
  watch([](const at::Tensor& tensor) { tensor.clone().add_(1); });
  FakeLayer layer;
  layer.run();
  layer.run();
  EXPECT_EQ(calls, 2);
}

TEST_F(UntouchedTest, random_state_is_restored_after_a_feature_with_one_warning) {
  watch([](const at::Tensor&) { at::rand({3}); });
  at::manual_seed(7);
  const at::Tensor expected = at::rand({4});
  at::manual_seed(7);
  FakeLayer layer;
  layer.run();
  layer.run();
  EXPECT_TRUE(at::equal(at::rand({4}), expected));
  EXPECT_EQ(calls, 2) << "it stays on";
  const std::string log = messages();
  const std::size_t told = log.find("it drew from torch's random number generator");
  ASSERT_NE(told, log.npos);
  EXPECT_EQ(log.find("random numbers", told + 10), log.npos);
}

TEST_F(UntouchedTest, random_numbers_of_a_routing_call_are_put_back_too) {
  Script script;
  script.inspect_enabled = [](std::int64_t, TensorName) {
    return RoutingAnswer{at::rand({1}).item<float>() < 2, std::nullopt};
  };
  features.add("Draws", script);
  debug::initialize(options(section("Draws: {enabled: True}\n")));
  at::manual_seed(7);
  const at::Tensor expected = at::rand({4});
  at::manual_seed(7);
  FakeLayer().run();
  EXPECT_TRUE(at::equal(at::rand({4}), expected));
}

}  // namespace
}  // namespace telens
