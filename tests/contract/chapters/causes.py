"""Findings of the rules of telens diagnose, and cases that they do not report."""

from statement import Statement

DIVERGENCE = "test_diagnose_divergence.py::"
GEMMS = "test_diagnose_gemms.py::"
GROWTH = "test_diagnose_growth.py::"
QUIET = "test_diagnose_quiet.py::"
SCALES = "test_diagnose_scales.py::"

STATEMENTS = (
    Statement(
        "A loss that rises by a fifth, by a jump or step by step, and stays up is reported.",
        DIVERGENCE + "test_a_loss_that_rises_and_stays_up",
    ),
    Statement(
        "A loss that rises by less, or falls again, is not reported.",
        DIVERGENCE + "test_a_loss_that_rises_little_or_for_a_moment",
    ),
    Statement(
        "An optimizer whose steps grow without its learning rate has lost its state, where "
        "`debug.watch_optimizer` records both.",
        DIVERGENCE + "test_growing_steps_mean_lost_optimizer_state",
    ),
    Statement(
        "Steps that grow with the learning rate, or briefly, are not reported.",
        DIVERGENCE + "test_steps_that_grow_for_another_reason",
    ),
    Statement(
        "Larger steps of weights that are trained only from some iteration on are not reported.",
        DIVERGENCE + "test_weights_that_are_trained_from_now_on_make_larger_steps",
    ),
    Statement(
        "The scale of a single micro-batch among several is not reported as wrong.",
        SCALES + "test_single_micro_batch_scale_is_not_wrong",
    ),
    Statement(
        "A tensor that outgrows scales that follow it is reported as clipped after 12 iterations.",
        SCALES + "test_growing_tensor_clips_after_12_iterations",
    ),
    Statement(
        "A scale that is held at the amax of a burst is stale from the next larger amax on.",
        SCALES + "test_scale_held_after_burst_becomes_stale",
    ),
    Statement(
        "A scale that a history with an amax that is not finite holds is not stale.",
        SCALES + "test_history_holds_scale_after_nonfinite_amax",
    ),
    Statement(
        "After 1024 iterations a history no longer contains that amax.",
        SCALES + "test_nonfinite_amax_leaves_the_history",
    ),
    Statement(
        "High precision that a recipe's `backward_override` requests is not reported.",
        "test_diagnose_precision.py::test_requested_high_precision_is_ignored",
    ),
    Statement(
        "A norm's gain that decays from the first step on is reported, also if that step was "
        "warm-up.",
        QUIET + "test_a_gain_that_decays_while_the_first_step_is_warm_up",
    ),
    Statement(
        "The output of an activation function does not count as a gain.",
        QUIET + "test_activation_function_output_is_not_a_gain",
    ),
    Statement(
        "A factor on the loss is also reported if scales let it through step by step.",
        QUIET + "test_current_scales_pass_factor_stepwise",
    ),
    Statement(
        "Growth step by step is reported with the iteration in which its steps begin.",
        GROWTH + "test_growth_starts_at_its_first_step",
    ),
    Statement(
        "A step back, for example by a batch that also affects the next layer, does not end the "
        "growth.",
        GROWTH + "test_growth_continues_after_one_step_back",
    ),
    Statement(
        "A burst of gradients that fades is not reported as an explosion.",
        GROWTH + "test_fading_burst_is_not_an_explosion",
    ),
    Statement(
        "Codes of a weight that are kept over optimizer steps are reported when their error is "
        "twice the error of fresh ones.",
        GEMMS + "test_codes_that_are_kept_while_the_weight_moves_on",
    ),
    Statement(
        "If the configuration's schedules end the recording of a weight's casts, its codes are "
        "not reported as kept.",
        GEMMS + "test_unmonitored_casts_are_not_kept_codes",
    ),
    Statement(
        "Kept codes of a weight that hardly changes are not reported.",
        GEMMS + "test_codes_that_cost_no_more_than_fresh_ones",
    ),
    Statement(
        "In a run without attention, its rules are not reported as skipped for missing data.",
        QUIET + "test_a_run_without_attention_lacks_nothing_of_it",
    ),
)
