// The routing protocol: when which feature is asked, and what a layer does with the answers.
#include <gmock/gmock.h>

#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using testing::FakeLayer;
using testing::Script;
using testing::section;
using Iterations = std::vector<std::int64_t>;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RoutingTest : public testing::SessionTest {
 protected:
  // Runs the layer once in each of the first `count` iterations. Returns the iterations that were
  // unfused, and notes in `routed` those in which the layer was not asleep.
  Iterations unfused_iterations(std::int64_t count, bool under_recipe = false) {
    Iterations unfused;
    for (std::int64_t i = 0; i < count; ++i) {
      if (!layer.hooks.sleeps({under_recipe})) routed.push_back(i);
      if (layer.run(at::ones({2, 4}), under_recipe)) unfused.push_back(i);
      debug::step();
    }
    return unfused;
  }

  void begin(const std::string& yaml) { debug::initialize(options(section(yaml))); }

  FakeLayer layer;
  Iterations asked, inspected, routed;
};

// A feature that inspects the activation, answers with `answer`, and notes the iterations of both.
Script watcher(Iterations& asked, Iterations& inspected,
               std::function<RoutingAnswer(std::int64_t)> answer) {
  Script script;
  script.inspect_enabled = [&asked, answer](std::int64_t iteration, TensorName tensor) {
    if (tensor != TensorName::activation) return RoutingAnswer::never();
    asked.push_back(iteration);
    return answer(iteration);
  };
  script.inspect = [&inspected](const FeatureCall& at, const InspectTensorCall&) {
    inspected.push_back(at.iteration);
  };
  return script;
}

TEST_F(RoutingTest, answer_holds_until_its_next_iteration) {
  const Script script = watcher(asked, inspected, [](std::int64_t i) {
    return RoutingAnswer{true, i + 5};
  });
  features.add("Watch", script);
  begin("Watch: {enabled: True}");
  EXPECT_THAT(unfused_iterations(12), ElementsAre(0, 5, 10));
  EXPECT_THAT(asked, ElementsAre(0, 5, 10));
  EXPECT_THAT(inspected, ElementsAre(0, 5, 10));
  EXPECT_THAT(routed, ElementsAre(0, 1, 5, 6, 10, 11));  // 1: finds that no feature is due until 5
}

TEST_F(RoutingTest, layer_with_only_observers_sleeps_between_due_iterations) {
  begin("LogTensorStats: {enabled: True, tensors: [activation], stats: [max], freq: 5}");
  EXPECT_THAT(unfused_iterations(12, /*under_recipe=*/true), ElementsAre(0, 5, 10));
  EXPECT_THAT(routed, ElementsAre(0, 1, 5, 6, 10, 11));
}

TEST_F(RoutingTest, a_routing_call_that_a_feature_leaves_out_is_never_asked) {
  Script script = watcher(asked, inspected, [](std::int64_t i) {
    return RoutingAnswer{true, i + 3};
  });
  script.calls = {.fp8_gemm = false, .modify = false, .inspect_postquantize = false};
  script.fp8_gemm = [](std::int64_t, Gemm) -> RoutingAnswer { throw UsageError("asked"); };
  script.modify_enabled = [](std::int64_t, Gemm, TensorName) -> RoutingAnswer {
    throw UsageError("asked");
  };
  features.add("Watch", script);
  begin("Watch: {enabled: True}");
  EXPECT_THAT(unfused_iterations(5, /*under_recipe=*/true), ElementsAre(0, 3));
  EXPECT_THAT(routed, ElementsAre(0, 1, 3, 4));
}

TEST_F(RoutingTest, unreachable_next_iteration_means_never) {
  std::int64_t next = 0;
  const Script script = watcher(asked, inspected, [&](std::int64_t) {
    return RoutingAnswer{true, next};
  });
  features.add("Watch", script);
  for (const int bits : {40, 41, 62}) {
    next = std::int64_t{1} << bits;
    routed.clear();
    begin("Watch: {enabled: True}");
    // the new session woke the layer up
    EXPECT_THAT(unfused_iterations(4), ElementsAre(0)) << bits;
    EXPECT_THAT(routed, ElementsAre(0, 1)) << bits;
    debug::end_debug();
  }
}

TEST_F(RoutingTest, a_feature_that_says_never_again_is_never_asked_again) {
  const Script script =
      watcher(asked, inspected, [](std::int64_t) { return RoutingAnswer::always(); });
  features.add("Watch", script);
  begin("Watch: {enabled: True}");
  EXPECT_THAT(unfused_iterations(5), ElementsAre(0));
  EXPECT_THAT(asked, ElementsAre(0));
}

TEST_F(RoutingTest, every_micro_batch_of_a_due_iteration_asks) {
  const Script script = watcher(asked, inspected, [](std::int64_t i) {
    return RoutingAnswer{true, i + 2};
  });
  features.add("Watch", script);
  begin("Watch: {enabled: True}");
  for (int i = 0; i < 3; ++i) {
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) layer.run();
    debug::step();
  }
  EXPECT_THAT(asked, ElementsAre(0, 0, 2, 2));
  EXPECT_THAT(inspected, ElementsAre(0, 0, 2, 2));
}

TEST_F(RoutingTest, a_next_iteration_that_is_over_means_the_next_one) {
  const Script script = watcher(asked, inspected, [](std::int64_t) {
    return RoutingAnswer{true, 0};
  });
  features.add("Watch", script);
  begin("Watch: {enabled: True}");
  EXPECT_THAT(unfused_iterations(3), ElementsAre(0, 1, 2));
}

TEST_F(RoutingTest, each_observer_runs_in_its_own_iterations_only) {
  Iterations asked_other, inspected_other;
  const Script often = watcher(asked, inspected, [](std::int64_t i) {
    return RoutingAnswer{true, i + 2};
  });
  const Script seldom = watcher(asked_other, inspected_other, [](std::int64_t i) {
    return RoutingAnswer{true, i + 3};
  });
  features.add("Often", often);
  features.add("Seldom", seldom);
  begin("Often: {enabled: True}\nSeldom: {enabled: True}");
  EXPECT_THAT(unfused_iterations(7), ElementsAre(0, 2, 3, 4, 6));
  EXPECT_THAT(inspected, ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(inspected_other, ElementsAre(0, 3, 6));
  EXPECT_THAT(asked_other, ElementsAre(0, 3, 6));
}

TEST_F(RoutingTest, a_layer_that_no_section_selects_is_asked_about_once) {
  debug::initialize(
      options("s:\n  enabled: True\n  layers: {exact_layer_names: [other]}\n"
              "  transformer_engine:\n    LogTensorStats: {enabled: True, "
              "tensors: [activation], stats: [max]}\n"));
  EXPECT_FALSE(layer.run());
  EXPECT_NE(layer.hooks.state(), nullptr);
  layer.hooks.state().reset();  // another question would make a new plan
  EXPECT_FALSE(layer.run());
  debug::step();
  EXPECT_FALSE(layer.run());
  EXPECT_EQ(layer.hooks.state(), nullptr);
}

TEST_F(RoutingTest, a_layer_without_features_wakes_up_in_the_next_session) {
  debug::initialize(options());
  EXPECT_FALSE(layer.run());
  debug::end_debug();
  EXPECT_FALSE(layer.run());
  const Script script =
      watcher(asked, inspected, [](std::int64_t) { return RoutingAnswer::always(); });
  features.add("Watch", script);
  begin("Watch: {enabled: True}");
  EXPECT_TRUE(layer.run());
}

TEST_F(RoutingTest, setting_the_iteration_wakes_a_sleeping_layer_also_backwards) {
  const Script script = watcher(asked, inspected, [](std::int64_t i) {
    return RoutingAnswer{true, i + 100};
  });
  features.add("Watch", script);
  begin("Watch: {enabled: True}");
  unfused_iterations(2);
  debug::initialize_training_step(50);
  EXPECT_TRUE(layer.run());
  debug::initialize_training_step(7);
  EXPECT_TRUE(layer.run());
  EXPECT_THAT(asked, ElementsAre(0, 50, 7));
}

// ---- may_watch_wgrad

// The backward pass also asks for a layer whose forward may have run before the session began.
TEST_F(RoutingTest, unnamed_layer_resolves_wgrad_at_its_first_forward) {
  const std::string watch = "LogTensorStats: {enabled: True, tensors: [wgrad], stats: [max]}\n";
  for (const bool is_watched : {false, true}) {
    LayerHooks unnamed;
    debug::initialize(options("s:\n  enabled: True\n  layers: {exact_layer_names: [" +
                              std::string(is_watched ? "Layer_1" : "other") +
                              "]}\n  transformer_engine:\n    " + watch));
    EXPECT_TRUE(unnamed.may_watch_wgrad()) << "nobody can tell yet";
    unnamed.begin_forward({});
    EXPECT_EQ(unnamed.may_watch_wgrad(), is_watched);
    debug::step();
    EXPECT_EQ(unnamed.may_watch_wgrad(), is_watched);
    debug::end_debug();
    EXPECT_FALSE(unnamed.may_watch_wgrad());
  }
}

TEST_F(RoutingTest, unnamed_layer_is_resolved_early_if_wgrad_is_unwatched) {
  begin("LogTensorStats: {enabled: True, tensors: [activation], stats: [max]}");
  EXPECT_FALSE(LayerHooks().may_watch_wgrad());
}

// ---- fp8_gemm_enabled

Script disabler(Iterations& asked, RoutingAnswer answer) {
  Script script;
  script.fp8_gemm = [&asked, answer](std::int64_t iteration, Gemm gemm) {
    if (gemm != Gemm::fprop) return RoutingAnswer::always();
    asked.push_back(iteration);
    return answer;
  };
  return script;
}

std::uint8_t high_precision(FakeLayer& layer, bool under_recipe = true) {
  const auto plan = layer.hooks.begin_forward({under_recipe});
  return plan ? plan->high_precision : 0;
}

TEST_F(RoutingTest, a_false_from_fp8_gemm_enabled_holds_until_its_next_iteration) {
  const Script script = disabler(asked, {false, 2});
  features.add("Disable", script);
  begin("Disable: {enabled: True}");
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(high_precision(layer), RoutingPlan::get_bit(Gemm::fprop)) << i;
    debug::step();
  }
  // the answer names iteration 2, which is over, so 2 asks again
  EXPECT_THAT(asked, ElementsAre(0, 2, 3));
}

TEST_F(RoutingTest, false_without_next_iteration_is_permanent) {
  const Script script = disabler(asked, {false, std::nullopt});
  features.add("Disable", script);
  begin("Disable: {enabled: True}");
  for (int i = 0; i < 5; ++i, debug::step()) EXPECT_NE(high_precision(layer), 0);
  EXPECT_THAT(asked, ElementsAre(0));
}

TEST_F(RoutingTest, any_false_from_fp8_gemm_enabled_wins) {
  Iterations asked_other;
  const Script on = disabler(asked, RoutingAnswer::always());
  const Script off = disabler(asked_other, {false, std::nullopt});
  features.add("On", on);
  features.add("Off", off);
  begin("Off: {enabled: True}\nOn: {enabled: True}");
  EXPECT_EQ(high_precision(layer), RoutingPlan::get_bit(Gemm::fprop));
}

TEST_F(RoutingTest, fp8_gemm_enabled_is_asked_only_under_a_recipe) {
  const Script script = disabler(asked, {false, std::nullopt});
  features.add("Disable", script);
  begin("Disable: {enabled: True}");
  EXPECT_EQ(high_precision(layer, false), 0);
  EXPECT_THAT(asked, ElementsAre());
  EXPECT_NE(high_precision(layer, true), 0);
  EXPECT_EQ(high_precision(layer, false), 0);
}

TEST_F(RoutingTest, layer_with_only_fp8_gemm_enabled_sleeps_without_recipe) {
  const Script script = disabler(asked, {false, std::nullopt});
  features.add("Disable", script);
  begin("Disable: {enabled: True}");
  EXPECT_THAT(unfused_iterations(4), ElementsAre());
  EXPECT_THAT(routed, ElementsAre(0, 1));
  EXPECT_EQ(high_precision(layer, true), RoutingPlan::get_bit(Gemm::fprop));
  EXPECT_TRUE(layer.hooks.sleeps({.under_recipe = false}));
}

TEST_F(RoutingTest, fp8_gemm_enabled_is_skipped_if_both_operands_are_modified) {
  Script script = disabler(asked, {false, std::nullopt});
  script.modify_enabled = [](std::int64_t, Gemm gemm, TensorName tensor) {
    return gemm == Gemm::fprop && is_gemm_input(tensor) ? RoutingAnswer::always()
                                                        : RoutingAnswer::never();
  };
  features.add("Modify", script);
  begin("Modify: {enabled: True}");
  EXPECT_EQ(high_precision(layer), 0);
  EXPECT_THAT(asked, ElementsAre());
}

// ---- errors

Script modifier() {
  Script script;
  script.modify_enabled = [](std::int64_t, Gemm gemm, TensorName tensor) {
    return gemm == Gemm::dgrad && tensor == TensorName::weight ? RoutingAnswer::always()
                                                               : RoutingAnswer::never();
  };
  return script;
}

TEST_F(RoutingTest, two_features_that_modify_the_same_operand_are_an_error) {
  const Script script = modifier();
  features.add("First", script);
  features.add("Second", script);
  begin("First: {enabled: True}\nSecond: {enabled: True}");
  try {
    layer.run();
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("layer 'layer'"));
    EXPECT_THAT(error.what(), HasSubstr("'First'"));
    EXPECT_THAT(error.what(), HasSubstr("'Second'"));
    EXPECT_THAT(error.what(), HasSubstr("weight of dgrad"));
  }
}

TEST_F(RoutingTest, unsupported_modification_is_an_error_that_names_the_tensor) {
  const Script script = modifier();
  features.add("Modify", script);
  begin("Modify: {enabled: True}");
  try {
    layer.run();
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("feature 'Modify' of section 'section' in layer 'layer', modify_tensor: "
                          "modify_tensor_enabled answered true for the weight of dgrad, but the "
                          "class has no modify_tensor; override it, or answer false"));
  }
}

TEST_F(RoutingTest, modification_error_names_feature_and_layer) {
  Script script = modifier();
  script.modify = [](const FeatureCall&, const ModifyTensorCall&) -> Operand {
    throw std::runtime_error("no memory left");
  };
  features.add("Modify", script);
  begin("Modify: {enabled: True}");
  try {
    layer.run();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("feature 'Modify' of section 'section' in layer 'layer'"));
    EXPECT_THAT(error.what(), HasSubstr("no memory left"));
    EXPECT_THROW(std::rethrow_if_nested(error), std::runtime_error);
  }
}

TEST_F(RoutingTest, an_exception_in_an_altering_routing_call_passes_through) {
  Script script;
  script.fp8_gemm = [](std::int64_t, Gemm) -> RoutingAnswer { throw UsageError("bad option"); };
  features.add("Disable", script);
  begin("Disable: {enabled: True}");
  EXPECT_THROW(layer.run(at::ones({2, 4}), true), UsageError);
}

TEST_F(RoutingTest, throwing_observer_is_disabled_with_one_warning) {
  Script bad = watcher(asked, inspected, [](std::int64_t i) { return RoutingAnswer{true, i + 1}; });
  int thrown = 0;
  bad.inspect = [&](const FeatureCall&, const InspectTensorCall&) {
    ++thrown;
    throw std::runtime_error("cannot look");
  };
  Iterations asked_good, inspected_good;
  const Script good = watcher(asked_good, inspected_good, [](std::int64_t i) {
    return RoutingAnswer{true, i + 1};
  });
  features.add("Bad", bad);
  features.add("Good", good);
  begin("Bad: {enabled: True}\nGood: {enabled: True}");
  EXPECT_THAT(unfused_iterations(4), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(thrown, 1);
  EXPECT_THAT(asked, ElementsAre(0));
  EXPECT_THAT(inspected_good, ElementsAre(0, 1, 2, 3));
  debug::end_debug();

  EXPECT_THAT(messages(), HasSubstr("feature 'Bad' of section 'section' in layer 'layer', "
                                    "inspect_tensor: cannot look"));
  const record::RunReader run(folder.str());
  ASSERT_EQ(run.events().size(), 1U);
  EXPECT_EQ(run.names(record::Dictionary::word)[run.events()[0].kind], "feature_off");
}

TEST_F(RoutingTest, a_read_that_fails_switches_off_only_those_who_asked_for_it) {
  const Script script = watcher(asked, inspected, [](std::int64_t i) {
    return RoutingAnswer{true, i + 1};
  });
  features.add("Watch", script);
  begin(
      "LogTensorStats: {enabled: True, tensors: [activation], stats: [max]}\n"
      "Watch: {enabled: True}");
  for (int i = 0; i < 3; ++i) {
    layer.run(at::ones({2, 4}, at::kLong));  // integer tensors have no statistics
    debug::step();
  }
  EXPECT_THAT(inspected, ElementsAre(0, 1, 2));
  debug::end_debug();
  EXPECT_THAT(messages(), HasSubstr("feature 'LogTensorStats' of section 'section' in layer"));
  EXPECT_THAT(messages(), ::testing::Not(HasSubstr("feature 'Watch'")));
}

TEST_F(RoutingTest, an_observer_that_throws_in_its_routing_call_is_switched_off) {
  Script script;
  int calls = 0;
  script.inspect_enabled = [&](std::int64_t, TensorName) -> RoutingAnswer {
    ++calls;
    throw 42;
  };
  features.add("Bad", script);
  begin("Bad: {enabled: True}");
  EXPECT_THAT(unfused_iterations(3), ElementsAre());
  EXPECT_EQ(calls, 1);
}

TEST_F(RoutingTest, a_backward_after_the_session_calls_nobody) {
  const Script script =
      watcher(asked, inspected, [](std::int64_t) { return RoutingAnswer::always(); });
  features.add("Watch", script);
  begin("Watch: {enabled: True}");
  const auto plan = layer.hooks.begin_forward({});
  ASSERT_TRUE(plan);
  debug::end_debug();
  layer.input(*plan, TensorName::activation, at::ones({2, 2}));
  debug::initialize(options());
  layer.input(*plan, TensorName::activation, at::ones({2, 2}));
  EXPECT_THAT(inspected, ElementsAre());
}

TEST_F(RoutingTest, late_backward_calls_the_features_of_its_forward) {
  const Script script = watcher(asked, inspected, [](std::int64_t i) {
    return RoutingAnswer{i == 0, i + 1};
  });
  features.add("Watch", script);
  begin("Watch: {enabled: True}");
  const auto plan = layer.hooks.begin_forward({});
  debug::step();
  EXPECT_EQ(layer.hooks.begin_forward({}), nullptr);
  layer.input(*plan, TensorName::activation, at::ones({2, 2}));
  EXPECT_THAT(inspected, ElementsAre(0));
}

}  // namespace
}  // namespace telens
