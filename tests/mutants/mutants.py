"""The mutants: for each promise of the design, the line it hangs on, broken.

A mutant is survived by a test suite that does not test the promise. Each row says what to break
(`before` must stand in `file` exactly once), and the test that must notice.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    promise: str  # the promise that hangs on the line
    file: str
    before: str
    after: str
    program: str  # the GoogleTest program, as its CMake target is called
    tests: str  # --gtest_filter


MUTANTS = (
    Mutant(
        promise="free when off: a layer that no feature touches is not asked",
        file="core/hook_points.h",
        before="    if (sleeps(request)) [[likely]] {",
        after="    if (hook_points::current_tick.load() == 0) [[likely]] {",
        program="routing_test",
        tests="*a_layer_that_no_section_selects_is_asked_about_once",
    ),
    Mutant(
        promise="looking changes nothing: what is inspected is what the GEMMs got",
        file="core/modules/prepared_tensor.cpp",
        before="return wanted && !modifies(gemm) && !layer.plan.runs_in_high_precision(gemm);",
        after="return wanted && !modifies(gemm) && !layer.plan.inspects(request.tensor_name);",
        program="linear_test",
        tests="WatchedLinear.observed_in_everything*",
    ),
    Mutant(
        promise="looking changes nothing: a whole training run",
        file="core/modules/linear_function.cpp",
        before="return pass.plan ? pass_output(std::move(output), name,",
        after="return pass.plan ? pass_output(output.nextafter(output + 1), name,",
        program="observed_training_test",
        tests="*observing_everything_changes_no_bit*",
    ),
    Mutant(
        promise="one pass: features share one read of a tensor",
        file="features/statistics_engine.cpp",
        before="    engine_.observation(layer_name_, call_, iteration_).read(x",
        after="    ops::statistics(x, casts);\n"
        "    engine_.observation(layer_name_, call_, iteration_).read(x",
        program="one_pass_test",
        tests="OnePassTest.features_share_one_read*",
    ),
    Mutant(
        promise="one pass: merged variance keeps the distance between the parts' means",
        file="core/ops/statistics_layout.h",
        before="into.m2 += delta * delta * a * (b / (a + b));",
        after="into.m2 -= delta * delta * a * (b / (a + b));",
        program="statistics_test",
        tests="*shifted*:*definitions*",
    ),
    Mutant(
        promise="a NaN never vanishes in a minimum or maximum",
        file="core/ops/statistics_layout.h",
        before="into.nan += part.nan;",
        after="",
        program="statistics_test",
        tests="*",
    ),
    Mutant(
        promise="never stalls: a full queue drops the newest rows and counts them",
        file="features/record/run_writer_impl.cpp",
        before="counters_.dropped += rows;",
        after="",
        program="run_writer_test",
        tests="*a_full_queue_drops_the_newest*",
    ),
    Mutant(
        promise="survives a crash: a row is on disk after two seconds",
        file="features/record/run_writer_impl.cpp",
        before="constexpr auto kLongestWait = std::chrono::milliseconds(1000);",
        after="constexpr auto kLongestWait = std::chrono::milliseconds(60000);",
        program="run_writer_test",
        tests="*an_unflushed_record_is_on_disk_after_two_seconds",
    ),
    Mutant(
        promise="same numbers everywhere: rounding to nearest even",
        file="core/formats/convert.h",
        before="return (value + below_half + odd) >> shift;",
        after="return (value + below_half + 1) >> shift;",
        program="formats_test",
        tests="*",
    ),
    Mutant(
        promise="exact FP8 without a GPU: the scales reach the product",
        file="core/kernels/cpu/gemm.cpp",
        before="if (operand.mode == ScalingMode::tensor) return *operand.scale_inv",
        after="if (operand.mode != ScalingMode::tensor) return *operand.scale_inv",
        program="linear_test",
        tests="Linear.in_fp8_runs_three_gemms*",
    ),
    Mutant(
        promise="exact FP8 without a GPU: three FP8 GEMMs a layer and step",
        file="core/modules/linear_function.cpp",
        before="return !high_precision.wgrad && has_quantizers(",
        after="return high_precision.wgrad && has_quantizers(",
        program="linear_test",
        tests="Linear.in_fp8_runs_three_gemms*",
    ),
    Mutant(
        promise="gradients are those of torch.nn in FP32",
        file="core/gemm/gemm.cpp",
        before="return at::mm(cast(a), cast(b));",
        after="return at::mm(cast(a), cast(b)).mul_(1.001);",
        program="linear_test",
        tests="Linear.gradients_equal*",
    ),
    Mutant(
        promise="a resumed delayed-scaling run is the uninterrupted one",
        file="core/quantization/extra_state.cpp",
        before="writer.put_floats(window.scale);",
        after="writer.put_floats(at::ones_like(window.scale));",
        program="linear_test",
        tests="DelayedScaling.resumed_from_its_state*",
    ),
    Mutant(
        promise="evaluation updates nothing",
        file="core/modules/linear_operation.cpp",
        before="trains || pass.calibrating, state->hooks.name());",
        after="true, state->hooks.name());",
        program="linear_test",
        tests="DelayedScaling.is_left_as_it_is_by_an_evaluation",
    ),
    Mutant(
        promise="a recomputation uses the scales of its first forward",
        file="core/modules/recomputation.cpp",
        before="delayed->frozen_at(delayed->known_scale().clone())",
        after="delayed->frozen_at(delayed->known_scale())",
        program="linear_test",
        tests="DelayedScaling.a_recomputed_forward*",
    ),
    Mutant(
        promise="never takes the training down: an observer that throws is switched off",
        file="hooks/session.cpp",
        before="    switch_off(feature, layer_name, call_name);\n  }\n}",
        after="    throw;\n  }\n}",
        program="routing_test",
        tests="*an_observer_that_throws*",
    ),
    Mutant(
        promise="never takes the training down: a process ends in order after a full disk",
        file="features/record/hdf5.cpp",
        before="void do_without_exit_handler() { H5dont_atexit(); }",
        after="void do_without_exit_handler() {}",
        program="record_crash_test",
        tests="*a_write_that_fails*",
    ),
    Mutant(
        promise="next to nothing between: a routing call that a feature leaves out is never asked",
        file="hooks/layer_routing.cpp",
        before="if (answers(features[i]->feature->routing_calls(), call)) {",
        after="if (answers(RoutingCalls{}, call)) {",
        program="routing_test",
        tests="*leaves_out*",
    ),
    Mutant(
        promise="next to nothing between: what is asked under a recipe only keeps no layer awake",
        file="hooks/layer_routing.cpp",
        before="    if (question.call == Call::fp8_gemm && !under_recipe) continue;\n",
        after="    static_cast<void>(under_recipe);\n",
        program="routing_test",
        tests="*only_fp8_gemm_enabled_is_about*",
    ),
    Mutant(
        promise="a layer that sleeps for good wakes up in the next session",
        file="hooks/session.cpp",
        before="*wake <= hook_points::kLastIteration;",
        after="*wake != LayerRouting::kNever;",
        program="routing_test",
        tests="*beyond_all_iterations*",
    ),
    Mutant(
        promise="one collective: what reduces nothing costs none",
        file="hooks/session.cpp",
        before="each->feature->reads_statistics(tensor, iteration);",
        after="true;",
        program="reduction_test",
        tests="*what_reduces_nothing*",
    ),
    Mutant(
        promise="one collective: a due iteration has its header, whether or not a layer ran",
        file="hooks/session.cpp",
        before="  if (read(/*weights=*/false)) {",
        after="  if (read(/*weights=*/false) && steps_ > 1) {",
        program="reduction_test",
        tests="*a_due_statistic*",
    ),
    Mutant(
        promise="statistics of weights are those of all shards",
        file="features/statistics_engine.cpp",
        before="return reductions.weights ? weight_group_ : nullptr;",
        after="return nullptr;",
        program="reduction_test",
        tests="*tensor_parallel_group",
    ),
    Mutant(
        promise="log_tensor_stats without a group answers on the last rank",
        file="hooks/session.cpp",
        before="logs = group != nullptr || options_.rank + 1 == options_.world_size;",
        after="logs = true;",
        program="reduction_test",
        tests="*without_a_group*",
    ),
    Mutant(
        promise="a forked child's layers run as if nobody watched",
        file="hooks/debug.cpp",
        before="[] { hook_points::install(nullptr, 0); }",
        after="[] {}",
        program="session_test",
        tests="*forked_childs_layers*",
    ),
    Mutant(
        promise="never takes the training down: a handler and ours do not call each other for ever",
        file="hooks/termination_flush.cpp",
        before="= is_nested ? buried : previous;",
        after="= is_nested ? previous : previous;",
        program="session_test",
        tests="*called_once_in_a_later_session*",
    ),
    Mutant(
        promise="a failed read switches off only those who asked for it",
        file="hooks/session.cpp",
        before="if (noted.wanted()) readers",
        after="readers",
        program="routing_test",
        tests="*a_read_that_fails*",
    ),
    Mutant(
        promise="nothing grows without end: messages are forgotten in the end",
        file="hooks/text_log.cpp",
        before="if (oldest_first_.size() > kMost) {",
        after="if (false) {",
        program="session_test",
        tests="*forgotten_in_the_end",
    ),
)
