"""What the rules of telens diagnose tell, and what they keep silent about."""

from statement import Statement

DIVERGENCE = "test_diagnose_divergence.py::"
GEMMS = "test_diagnose_gemms.py::"
GROWTH = "test_diagnose_growth.py::"
QUIET = "test_diagnose_quiet.py::"
SCALES = "test_diagnose_scales.py::"

STATEMENTS = (
    Statement(
        "A loss that rises by a fifth, by a jump or step by step, and stays up is told.",
        DIVERGENCE + "test_a_loss_that_rises_and_stays_up",
    ),
    Statement(
        "One that rises by less, or falls again, is no finding.",
        DIVERGENCE + "test_a_loss_that_rises_little_or_for_a_moment",
    ),
    Statement(
        "An optimizer whose steps grow without its learning rate has lost its state, where "
        "`debug.watch_optimizer` records both.",
        DIVERGENCE + "test_growing_steps_mean_lost_optimizer_state",
    ),
    Statement(
        "Steps that grow with the learning rate, or for a moment, are no finding.",
        DIVERGENCE + "test_steps_that_grow_for_another_reason",
    ),
    Statement(
        "Nor are the larger steps of weights that are trained from some iteration on.",
        DIVERGENCE + "test_weights_that_are_trained_from_now_on_make_larger_steps",
    ),
    Statement(
        "A scale of one of several micro-batches is not called wrong.",
        SCALES + "test_single_micro_batch_scale_is_not_wrong",
    ),
    Statement(
        "A tensor that outgrows scales which follow it is clipped for good after 12 iterations.",
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
        "Behind 1024 iterations no history holds that amax any more.",
        SCALES + "test_nonfinite_amax_leaves_the_history",
    ),
    Statement(
        "High precision that a recipe's `backward_override` asks for is no finding.",
        "test_diagnose_precision.py::test_requested_high_precision_is_ignored",
    ),
    Statement(
        "A gain of a norm that decays from the first step on is told, also where that step was "
        "warm-up.",
        QUIET + "test_a_gain_that_decays_while_the_first_step_is_warm_up",
    ),
    Statement(
        "What an activation function gives is no gain.",
        QUIET + "test_activation_function_output_is_not_a_gain",
    ),
    Statement(
        "A factor on the loss is told where scales let it through step by step, too.",
        QUIET + "test_current_scales_pass_factor_stepwise",
    ),
    Statement(
        "Growth step by step is told from the iteration on in which its steps begin.",
        GROWTH + "test_growth_starts_at_its_first_step",
    ),
    Statement(
        "A step back, as of a batch that shakes the layer behind as well, does not end it.",
        GROWTH + "test_growth_continues_after_one_step_back",
    ),
    Statement(
        "A burst of gradients that fades is no explosion.",
        GROWTH + "test_fading_burst_is_not_an_explosion",
    ),
    Statement(
        "Codes of a weight that are kept over steps of the optimizer are told as soon as they are "
        "twice as far off as fresh ones.",
        GEMMS + "test_codes_that_are_kept_while_the_weight_moves_on",
    ),
    Statement(
        "A weight whose casts are not looked at any more, by the schedules of the configuration, "
        "has no kept codes.",
        GEMMS + "test_unmonitored_casts_are_not_kept_codes",
    ),
    Statement(
        "Those of a weight that hardly moves are no finding.",
        GEMMS + "test_codes_that_cost_no_more_than_fresh_ones",
    ),
    Statement(
        "A run without attention lacks nothing for the rules about it.",
        QUIET + "test_a_run_without_attention_lacks_nothing_of_it",
    ),
)
