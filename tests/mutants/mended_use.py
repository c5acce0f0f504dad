"""What misled or harmed people who used the product: each row undoes a mend."""

from mutant import Mutant

CONVERT = "tests/python/test_convert.py::test_"
EXITS = "tests/python/test_threads_and_exits.py::test_"

MENDED_USE = (
    # ---- threads and processes
    Mutant(
        promise="a session's end waits for the calls of other threads",
        file="core/base/call_gate.cpp",
        before="[&] { return opening_->calls <= own; }",
        after="[&] { return opening_->calls >= own; }",
        program="call_gate_test",
        tests="CallGate.closing_waits*",
    ),
    Mutant(
        promise="a logger that raises is told and not called again; training goes on",
        file="hooks/session/sink_fanout.cpp",
        before="      if (std::erase(loggers_, logger) == 0) continue;",
        after="      if (std::erase(loggers_, logger) == 0) continue;\n      throw;",
        program="pytest",
        tests=EXITS + "a_logger_that_raises_is_told_once_and_not_called_again",
    ),
    Mutant(
        promise="what ends the program passes through an observing feature",
        file="hooks/session/observer_isolation.h",
        before="      let_interruptions_pass();\n",
        after="",
        program="pytest",
        tests=EXITS + "what_ends_the_program_passes_through_an_observing_feature",
    ),
    Mutant(
        promise="an observing feature that writes to its tensor is noticed",
        file="hooks/untouched.cpp",
        before="[](const auto& each) { return each.first._version() != each.second; }",
        after="[](const auto& each) { return each.first._version() < each.second; }",
        program="pytest",
        tests=EXITS + "an_observing_feature_that_writes_to_its_tensor_is_switched_off",
    ),
    Mutant(
        promise="random numbers that an observing feature draws are put back",
        file="hooks/untouched.cpp",
        before="    generator.set_state(state);",
        after="    generator.set_state(get_state(generator));",
        program="pytest",
        tests=EXITS + "random_numbers_of_an_observing_feature_do_not_change_the_training",
    ),
    # ---- rankings and alarms
    Mutant(
        promise="values of warm-up count for no ranking",
        file="inspector_cli/report/warm_up.cpp",
        before="  return found != layers_.end() && found->second.contains(iteration);",
        after="  return found != layers_.end() && found->second.contains(-iteration - 1);",
        program="pytest",
        tests="tests/inspector_cli/report/test_severity.py",
    ),
    Mutant(
        promise="the first value that is not finite comes first in every ranking",
        file="inspector_cli/report/severity.cpp",
        before="  if (a.first_bad && *a.first_bad != *b.first_bad) return",
        after="  if (a.first_bad && *a.first_bad < *b.first_bad - 1e9) return",
        program="pytest",
        tests="tests/inspector_cli/report/test_severity.py",
    ),
    Mutant(
        promise="a loss that is not finite is told in its step",
        file="hooks/session/loss_watch.cpp",
        before="  if (!was_finite) return std::nullopt;",
        after="  if (!was_finite || finite_) return std::nullopt;",
        program="pytest",
        tests="tests/python/test_loss_not_finite.py"
        "::test_a_loss_that_is_not_finite_is_told_in_its_step",
    ),
    Mutant(
        promise="an evaluation between two steps leaves the statistics of the training alone",
        file="core/modules/layer/linear_layer.cpp",
        before="  return !at::GradMode::is_enabled() || (has_trained_ && weight.requires_grad());",
        after="  return has_trained_ && !weight.requires_grad() && !weight.defined();",
        program="pytest",
        tests="tests/python/test_evaluation_mode.py",
    ),
    # ---- models
    Mutant(
        promise="convert takes Hugging Face's Conv1D",
        file="python/telens/pytorch/conversion.py",
        before="    if _is_conv1d(module):\n        return _conv1d\n",
        after="",
        program="pytest",
        tests=CONVERT + "conv1d_is_taken_with_its_transposed_weight",
    ),
    Mutant(
        promise="convert leaves output heads",
        file="python/telens/pytorch/conversion.py",
        before="            id(module) in self._heads or self._sharers_of_weight(module)",
        after="            id(module) in self._heads and not module",
        program="pytest",
        tests=CONVERT + "output_heads_stay_and_the_report_says_why",
    ),
    Mutant(
        promise="a history that from_pretrained leaves out is told",
        file="python/telens/pytorch/conversion.py",
        before="    if count:\n",
        after="    if count < 0:\n",
        program="pytest",
        tests=CONVERT + "a_history_that_from_pretrained_leaves_out_is_told_and_can_be_restored",
    ),
    Mutant(
        promise="arguments of Transformer Engine at their neutral value are taken",
        file="python/telens/pytorch/neutral_arguments.py",
        before="        neutral = _is_one_of(value, (self.default, *self.also))",
        after="        neutral = _is_one_of(value, self.also)",
        program="pytest",
        tests="tests/python/test_neutral_arguments.py",
    ),
    Mutant(
        promise="other values of such arguments are refused by name",
        file="python/telens/pytorch/neutral_arguments.py",
        before="        neutral = _is_one_of(value, (self.default, *self.also))",
        after="        neutral = True",
        program="pytest",
        tests="tests/python/test_neutral_arguments.py",
    ),
    Mutant(
        promise="rows that are no multiple of 16 are padded inside",
        file="core/quantization/token_padding.cpp",
        before="  return {tokens, rounded_up(tokens, multiple), multiple};",
        after="  return {tokens, tokens, multiple};",
        program="modules_test",
        tests="TokensOfAnyNumber.*:TokenPadding.*",
    ),
    # ---- the configuration
    Mutant(
        promise="an end before the start is told",
        file="hooks/config/schedule.cpp",
        before="  } else if (is_reversed(schedule.ranges().front())) {",
        after="  } else if (schedule.ranges().empty()) {",
        program="config_test",
        tests="LoadWarnings.*",
    ),
)
