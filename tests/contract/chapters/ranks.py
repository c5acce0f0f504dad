"""Ranks that share experts, sequences, heads or a vocabulary."""

from statement import Statement

EXPERTS = "test_moe_dispatcher.py::"
SENT = EXPERTS + "test_two_ranks_send_what_they_must_and_are_refused_what_does_not_fit"
SHARED = EXPERTS + "test_ranks_that_share_the_experts_compute_what_one_process_does"
ATTENDED = "test_context_parallel.py::test_attention_shared_by_2_ranks_is_the_whole_one"
LAYERS = "test_context_parallel_layers.py::test_layers_shared_by_2_ranks_are_the_whole_ones"
PARTIAL = "core/modules/attention/partial_attention.cpp"

STATEMENTS = (
    Statement(
        "Ranks of `ep_group` that would send each other rows that do not fit (another width, "
        "dtype, probabilities on some, other gradients) all raise one error before they send any.",
        SENT,
        "core/modules/moe/moe_dispatcher.cpp",
        "  check_dispatch_claims(kName, all.narrow(1, 0, kDispatchClaims));\n",
        "",
    ),
    Statement(
        "`MoEDispatcher` refuses a `dispatch` while another waits for its `combine`.",
        SENT,
        "python/telens/pytorch/moe_dispatcher.py",
        "if self._way_back is not None:",
        "if False:",
    ),
    Statement(
        "A rank whose experts get no row takes part in every exchange, and in the reduction of "
        "amaxes over `fp8_group`.",
        SHARED,
        "core/distributed/collectives.cpp",
        "  RowCounts rows = counts;\n",
        "  RowCounts rows = counts;\n  if (sent.numel() == 0) return PendingTensor(sent);\n",
    ),
    Statement(
        "Ranks of `cp_group` that are about to attend in different ways (method, format, mask, "
        "sizes, dtypes) all raise one error before they exchange anything.",
        ATTENDED,
        "core/modules/attention/dot_product_attention_context.cpp",
        "  compare_in_context(chunks, inputs, how);\n",
        "",
    ),
    Statement(
        "Under p2p the gradients of queries, keys and values are those of the weights that "
        "dropout kept.",
        LAYERS,
        PARTIAL,
        "    drop_partly(of_weights, how, rows);\n",
        "",
    ),
    Statement(
        "The ring takes sequences of any length, 256 queries at a time.",
        LAYERS,
        PARTIAL,
        "of_weights.sub_(rows.of(gradients.delta))",
        "of_weights.sub_(gradients.delta.narrow(2, 0, rows.count))",
    ),
    Statement(
        "Under context parallelism keys may have lengths of their own where the mask is not "
        "causal and there is no window; else they are refused.",
        LAYERS,
        "core/modules/attention/dot_product_attention_context.cpp",
        "if ((causal || span.has_window()) && !places.alike) {",
        "if (causal && !places.alike) {",
    ),
    Statement(
        "With them they compare what `cu_seqlens` hold.",
        ATTENDED,
        "core/modules/attention/dot_product_attention_context.cpp",
        ".details = contents}",
        ".details = {}}",
    ),
    Statement(
        "Under p2p `core_attention_bias` has the rows of the rank's own queries and the keys of "
        "all ranks, and a gradient.",
        ATTENDED,
        "core/modules/attention/ring_steps.cpp",
        ".of_all_keys = {owner * keys_, keys_},",
        ".of_all_keys = {at_.rank * keys_, keys_},",
    ),
    Statement(
        "Under context parallelism a decoder's cross attention sees an encoder's chunks.",
        LAYERS,
        "core/modules/attention/ring_steps.cpp",
        "step.key.of(how_.key.of({owner, at_.size}), 1)",
        "step.key.of(how_.key.of(at_), 1)",
    ),
    Statement(
        "FP8 attention goes with context parallelism: under p2p keys and values travel as codes, "
        "with the scale that their rank made them with.",
        "test_fp8_context_parallel.py::"
        "test_fp8_attention_shared_by_2_ranks_has_the_values_of_its_formulas",
        "core/modules/attention/fp8_ring_attention.cpp",
        "const at::Tensor key_scale_inv = CodeTravelers::scale_inv(present);",
        "const at::Tensor key_scale_inv = scale_inv_;",
    ),
    Statement(
        "Its casts are those of each step of the ring, as in Transformer Engine.",
        "test_fp8_context_parallel.py::"
        "test_fp8_attention_shared_by_2_ranks_has_the_values_of_its_formulas",
        "core/modules/attention/fp8_ring_attention.cpp",
        "PartedCast cast(delayed ? kept.fp8.quantizers.d_qkv : nullptr);",
        "PartedCast cast(delayed ? nullptr : nullptr);",
    ),
    Statement(
        "Under MXFP8BlockScaling each step casts its part in blocks, as in Transformer Engine.",
        "test_fp8_context_parallel.py::"
        "test_fp8_attention_shared_by_2_ranks_has_the_values_of_its_formulas",
        "core/modules/attention/ring_attention.cpp",
        "cast_backward(how, heads, of);",
        "if (false) cast_backward(how, heads, of);",
    ),
    Statement(
        "CollectiveCheck *(ours)* looks into the exchanges of experts' rows and of heads.",
        "test_collective_check.py::test_collectives_of_layers_bring_what_ranks_sent",
        "core/distributed/collectives.cpp",
        "collective_watches::begin({CollectiveKind::exchange, sent, group, &rows});",
        "CollectiveWatch::OnResult();",
    ),
    Statement(
        "So it does into each transfer of the ring of attention.",
        "test_collective_check.py::test_what_travels_round_a_ring_comes_as_it_was_sent",
        "core/distributed/collectives.cpp",
        "on_result = collective_watches::begin({CollectiveKind::pass, given, group, &rows});",
        "(void)rows;",
    ),
    Statement(
        "In a group of up to 11 ranks it names the rank whose rows came out otherwise, in a larger "
        "one a few that it is among.",
        "CollectiveVerdict.an_exchange_of_more_ranks_than_words",
        "features/collective_check/exchange_words.cpp",
        "exchanged.received ? get_factor(other, exchanged.rank)",
        "exchanged.received ? get_factor(exchanged.rank, other)",
    ),
    Statement(
        "`tp_group` and `cp_group` divide MultiheadAttention and TransformerLayer together.",
        "test_tensor_and_context_parallel.py::"
        "test_layers_divided_by_heads_and_by_sequence_are_the_whole_ones",
        "core/modules/transformer/multihead_attention.cpp",
        "return own_chunks(angles.narrow(0, 0, length * at.size), 0, at);",
        "return angles.narrow(0, 0, length);",
    ),
    Statement(
        "`parallel_cross_entropy` refuses parts of a vocabulary that are unequal, on all ranks.",
        "test_cross_entropy.py::test_a_divided_vocabulary_gives_the_loss_of_the_whole",
        "python/telens/pytorch/cross_entropy.py",
        "if not extremes.is_cuda and not is_even:",
        "if False:",
    ),
    Statement(
        "Ranks that divide a linear layer in other ways, run it under other recipes or bring "
        "inputs of other sizes are told in its first forward *(ours)*.",
        "test_parallel_alterations.py::test_ranks_whose_first_forward_differs_are_told_at_once",
        "core/modules/layer/linear_layer.cpp",
        "if (std::exchange(compared_forward_, true)) return;",
        "return;",
    ),
    Statement(
        "Where some ranks of `fp8_group` come to a recipe or a number of amaxes that others do not "
        "come to, a warning says so after 10 s, the first time that it is new *(ours)*.",
        "test_unlike_reductions.py"
        "::test_ranks_whose_reductions_do_not_fit_are_warned_and_others_are_not",
        "core/distributed/announced_reduction.cpp",
        "if (!note.reduces || announcement.wait()) return;",
        "return;",
    ),
    Statement(
        "Of an input that one rank refuses in a divided layer's first forward the others are told "
        "*(ours)*.",
        "test_parallel_alterations.py::test_an_input_that_one_rank_refuses_is_told_to_the_others",
        "core/modules/layer/linear_layer.cpp",
        "      tell_refusal(claim_forward({}), refusal.what(), group);\n",
        "",
    ),
    Statement(
        "A rank that refuses its arguments before it compares leaves no other waiting: in first "
        "calls of an attention under `cp_group` the others raise an error with its reason.",
        ATTENDED,
        "core/modules/attention/dot_product_attention.cpp",
        "if (std::exchange(first_in_context_, false)) tell_refusal_in_context(refusal.what());",
        "",
    ),
    Statement(
        "So do those of a MoEDispatcher's first `dispatch`.",
        SENT,
        "core/modules/moe/moe_dispatcher.cpp",
        "std::exchange(first_dispatch_, false)) tell_refusal",
        "false) tell_refusal",
    ),
    Statement(
        "Targets of one rank that are no classes are an error of `parallel_cross_entropy` on all.",
        "test_cross_entropy.py::test_a_divided_vocabulary_gives_the_loss_of_the_whole",
        "python/telens/pytorch/cross_entropy.py",
        'if options["refused"] is None else options["rank"] + 1.0',
        "",
    ),
    Statement(
        "`check_collective` takes sums of whole numbers as exact.",
        "test_collective_check.py::test_a_collective_that_brings_something_else_is_found",
        "features/collective_check/collective_sums.cpp",
        "  if (at::isIntegralType(dtype, /*includeBool=*/false)) return 0;\n",
        "",
    ),
)
