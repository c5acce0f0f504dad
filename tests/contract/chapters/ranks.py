"""Experts, sequences, heads or a vocabulary that are divided among ranks."""

from statement import Statement

EXPERTS = "test_moe_dispatcher.py::"
SENT = EXPERTS + "test_two_ranks_exchange_rows_and_reject_mismatches"
SHARED = EXPERTS + "test_expert_parallel_ranks_match_a_single_process"
ATTENDED = "test_context_parallel.py::test_attention_shared_by_2_ranks_is_the_whole_one"
LAYERS = "test_context_parallel_layers.py::test_layers_shared_by_2_ranks_are_the_whole_ones"

STATEMENTS = (
    Statement(
        "Ranks of `ep_group` that would send each other rows that do not fit (another width, "
        "dtype, probabilities on some, other gradients) all raise one error before they send any.",
        SENT,
    ),
    Statement(
        "`MoEDispatcher` refuses a `dispatch` while another waits for its `combine`.",
        SENT,
    ),
    Statement(
        "A rank whose experts get no row takes part in every exchange, and in the reduction of "
        "amaxes over `fp8_group`.",
        SHARED,
    ),
    Statement(
        "Ranks of `cp_group` that are about to attend in different ways (method, format, mask, "
        "sizes, dtypes) all raise one error before they exchange anything.",
        ATTENDED,
    ),
    Statement(
        "Under p2p the gradients of queries, keys and values use the weights that dropout kept.",
        LAYERS,
    ),
    Statement(
        "The ring takes sequences of any length, 256 queries at a time.",
        LAYERS,
    ),
    Statement(
        "With context parallelism keys may have different lengths if the mask is not causal and "
        "has no window; otherwise they are rejected.",
        LAYERS,
    ),
    Statement(
        "If keys have different lengths, ranks of `cp_group` also compare the values of "
        "`cu_seqlens`.",
        ATTENDED,
    ),
    Statement(
        "Under p2p `core_attention_bias` has rows for this rank's queries and columns for every "
        "rank's keys, and a gradient.",
        ATTENDED,
    ),
    Statement(
        "With context parallelism a decoder's cross attention uses the chunks of an encoder.",
        LAYERS,
    ),
    Statement(
        "FP8 attention goes with context parallelism: under p2p keys and values travel as codes, "
        "with the scale that their rank made them with.",
        "test_fp8_context_parallel.py::test_fp8_attention_on_2_ranks_matches_its_formulas",
    ),
    Statement(
        "FP8 attention with context parallelism casts in each step of the ring, as in Transformer "
        "Engine.",
        "test_fp8_context_parallel.py::test_fp8_attention_on_2_ranks_matches_its_formulas",
    ),
    Statement(
        "With MXFP8BlockScaling each step casts its part in blocks, as in Transformer Engine.",
        "test_fp8_context_parallel.py::test_fp8_attention_on_2_ranks_matches_its_formulas",
    ),
    Statement(
        "CollectiveCheck *(ours)* checks the exchanges of experts' rows and of heads.",
        "test_collective_check.py::test_layer_collectives_are_verified",
    ),
    Statement(
        "CollectiveCheck *(ours)* checks each transfer of the ring of attention.",
        "test_collective_check.py::test_ring_messages_arrive_unchanged",
    ),
    Statement(
        "In a group of up to 11 ranks CollectiveCheck names the rank whose rows changed, in a "
        "larger group a few candidates.",
        "CollectiveVerdict.an_exchange_of_more_ranks_than_words",
    ),
    Statement(
        "`tp_group` and `cp_group` divide MultiheadAttention and TransformerLayer together.",
        "test_tensor_and_context_parallel.py::"
        "test_layers_divided_by_heads_and_by_sequence_are_the_whole_ones",
    ),
    Statement(
        "`parallel_cross_entropy` refuses parts of a vocabulary that are unequal, on all ranks.",
        "test_cross_entropy.py::test_a_divided_vocabulary_gives_the_loss_of_the_whole",
    ),
    Statement(
        "Ranks that divide a linear layer in other ways, run it under other recipes or pass "
        "inputs of other sizes are reported in its first forward *(ours)*.",
        "test_parallel_alterations.py::test_differing_first_forwards_are_reported",
    ),
    Statement(
        "Where some ranks of `fp8_group` come to a recipe or a number of amaxes that others do not "
        "come to, a warning says so after 10 s, the first time that it is new *(ours)*.",
        "test_unlike_reductions.py::test_mismatched_reductions_warn",
    ),
    Statement(
        "An input that one rank rejects in a divided layer's first forward is reported to the "
        "others *(ours)*.",
        "test_parallel_alterations.py::test_rejected_input_is_reported_to_other_ranks",
    ),
    Statement(
        "A rank that refuses its arguments before it compares leaves no other waiting: in first "
        "calls of an attention under `cp_group` the others raise an error with its reason.",
        ATTENDED,
    ),
    Statement(
        "In the first `dispatch` of a MoEDispatcher the others also raise an error with the "
        "reason of a rank that refuses its arguments.",
        SENT,
    ),
    Statement(
        "Invalid targets on one rank are an error of `parallel_cross_entropy` on all ranks.",
        "test_cross_entropy.py::test_a_divided_vocabulary_gives_the_loss_of_the_whole",
    ),
    Statement(
        "`check_collective` takes sums of whole numbers as exact.",
        "test_collective_check.py::test_a_collective_that_brings_something_else_is_found",
    ),
)
