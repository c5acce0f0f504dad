"""What misled or harmed people who used the product: each row undoes a mend."""

from mutant import Mutant

CONVERT = "tests/python/test_convert.py::test_"

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
