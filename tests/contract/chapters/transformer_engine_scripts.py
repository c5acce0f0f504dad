"""Unchanged scripts and checkpoints of Transformer Engine."""

from statement import Statement

RUN_AS_TE = "test_run_as_te.py::"
STATE = "test_transformer_engine_state.py::"
TRACKER = "test_rng_tracker.py::"
OFFLOAD = "test_cpu_offload.py::"
GRAPHED = "test_graphed_callables.py::"
GRAPHED_CALLS = "test_graphed_calls.py::"
GRAPHED_WGRADS = "test_graphed_wgrads.py::"
GRAPHED_PENDING = "test_graphed_pending.py::"
GRAPHED_MAIN_GRADS = "test_graphed_main_grads.py::"
RECORDED = "test_recorded_graphs.py::"
PERMUTED = "test_permutation.py::"
ATTENTION = "test_attention.py::"
CACHED = "test_inference_params.py::test_cached_steps_equal_recomputing_whole_sequences"
DRAWN = ATTENTION + "test_random_cases_match_fp64"

STATEMENTS = (
    Statement(
        "Under `python -m telens.run_as_te`, `transformer_engine`, `nvdlfw_inspect` and their "
        "modules come from telens, installed or not.",
        RUN_AS_TE + "test_names_of_transformer_engine_are_ours",
    ),
    Statement(
        "The script has its own arguments, its folder in the path, and is `__main__`; its exit "
        "status is the command's.",
        RUN_AS_TE + "test_a_script_runs_as_python_runs_it",
    ),
    Statement(
        "Layers name Transformer Engine's modules as theirs (`__module__`).",
        RUN_AS_TE + "test_layers_name_transformer_engines_modules",
    ),
    Statement(
        "Libraries that ask importlib.metadata find both packages, in the version whose names are "
        "followed.",
        RUN_AS_TE + "test_whoever_asks_finds_the_packages_installed",
    ),
    Statement(
        "A missing name is an ImportError that names the nearest one, or a replacement.",
        RUN_AS_TE + "test_missing_name_is_an_import_error_with_a_hint",
    ),
    Statement(
        "With `--config`, `step()` of the script's optimizer ends an iteration.",
        RUN_AS_TE + "test_optimizer_step_ends_an_iteration",
    ),
    Statement(
        "If several optimizers alternate, the first to step ends iterations.",
        RUN_AS_TE + "test_first_optimizer_ends_iterations",
    ),
    Statement(
        "A script that calls `nvdlfw_inspect.api.step()` is the only one that steps from there on.",
        RUN_AS_TE + "test_a_script_that_steps_itself_is_the_only_one_that_does",
    ),
    Statement(
        "Layers are named after their place in the model that is called first, unless the script "
        "names them.",
        RUN_AS_TE + "test_names_that_a_script_gives_stay",
    ),
    Statement(
        "With `--convert` a model's first forward converts it, with `--recipe NAME` its "
        "forwards run in FP8, and with `--device cpu` the CPU replaces CUDA devices *(ours)*.",
        RUN_AS_TE + "test_a_nano_gpt_for_a_gpu_trains_in_fp8_on_the_cpu",
    ),
    Statement(
        "Loss, learning rate and gradient norm of a Trainer of Hugging Face are recorded *(ours)*.",
        RUN_AS_TE + "test_the_trainer_of_transformers_records_loss_rate_and_norm",
    ),
    Statement(
        "Hugging Face accelerate's Transformer Engine backend trains in FP8, watched by a config.",
        RUN_AS_TE + "test_accelerate_te_backend_trains_in_fp8",
    ),
    Statement(
        "Scales and amax histories of a checkpoint of Transformer Engine are taken over.",
        STATE + "test_a_module_takes_scales_and_histories_over",
    ),
    Statement(
        "States of a GroupedLinear before 2.4 are converted to the present order.",
        STATE + "test_old_grouped_linear_with_role_order_loads",
    ),
    Statement(
        "Nothing that such a pickle names is executed *(ours)*.",
        STATE + "test_invalid_state_is_rejected_without_running_it",
    ),
    Statement(
        "A warning lists values that cannot be carried over.",
        STATE + "test_warns_about_values_that_cannot_be_restored",
    ),
    Statement(
        "`telens.pytorch.to_transformer_engine_state_dict` writes states that Transformer "
        "Engine reads *(ours)*.",
        STATE + "test_transformer_engine_reads_exported_states",
    ),
    Statement(
        "Numbers drawn inside `fork(name)` of a `CudaRNGStatesTracker` advance only that state, "
        "on any device *(ours)*.",
        TRACKER + "test_forks_continue_their_stream_and_keep_the_default",
    ),
    Statement(
        "Weights are drawn inside the fork of a module's `get_rng_state_tracker`.",
        TRACKER + "test_weights_are_drawn_inside_the_fork",
    ),
    Statement(
        "The dropout of attention, standalone and inside a TransformerLayer, is also drawn inside "
        "the fork, but not under sequence parallelism: there the caller forks.",
        TRACKER + "test_only_attention_forks_inside_a_transformer_layer",
    ),
    Statement(
        "`checkpoint` restores a tracker's states for the recomputation, and the present ones "
        "after it.",
        TRACKER + "test_recomputation_drops_the_same_elements_and_changes_no_state",
    ),
    Statement(
        "`checkpoint(use_reentrant=True)` runs its forward without a graph.",
        TRACKER + "test_a_reentrant_checkpoint_runs_its_forward_without_a_graph",
    ),
    Statement(
        "`get_cpu_offload_context` frees a layer's saved tensors when Transformer Engine's "
        "schedule says.",
        OFFLOAD + "test_places_are_free_when_the_schedule_says",
    ),
    Statement(
        "The saved tensors are restored when Transformer Engine's schedule says, and gradients "
        "have the same bits.",
        OFFLOAD + "test_copies_back_start_in_the_scheduled_layer",
    ),
    Statement(
        "On a CPU `make_graphed_callables` trains layers as without it, in fixed buffers.",
        GRAPHED + "test_outputs_are_buffers_that_the_next_call_overwrites",
    ),
    Statement(
        "Warming up leaves random states, amax histories, scales and gradients as they were.",
        GRAPHED + "test_warm_up_restores_random_states_histories_and_gradients",
    ),
    Statement(
        "On a GPU layers are captured, and steps that a replay skips run outside of it: amaxes "
        "and scales are updated when the autocast ends. This is tested with recorded operators on "
        "a CPU.",
        RECORDED + "test_layers_train_as_without_graphs",
    ),
    Statement(
        "Quantized weights that later micro-batches reuse have separate graphs.",
        RECORDED + "test_cached_weights_have_separate_graphs",
    ),
    Statement(
        "`backward_dw` of graphed callables replays a graph and adds to `.grad` or `main_grad`, "
        "like the module's.",
        GRAPHED_WGRADS + "test_layers_train_as_without_graphs",
    ),
    Statement(
        "Fractions in an `_order` schedule the weight gradients of a pipeline.",
        GRAPHED_WGRADS + "test_order_schedules_weight_gradients",
    ),
    Statement(
        "A `backward_dw` that is missing, or in another order than the backwards, is an error "
        "*(ours)*.",
        GRAPHED_WGRADS + "test_one_that_is_missing_or_comes_in_another_order_is_an_error",
    ),
    Statement(
        "A forward or backward of any callable is an error if it would overwrite data that a "
        "`backward_dw` still needs: a pass captured before the backward that deferred it, or "
        "after the position of the `backward_dw` in an `_order` *(ours)*.",
        GRAPHED_PENDING + "test_a_forward_whose_memory_another_callable_needs_is_an_error",
    ),
    Statement(
        "A failed `make_graphed_callables` leaves no weight's gradient to a later `backward_dw`.",
        GRAPHED_PENDING + "test_failed_call_leaves_no_gradient",
    ),
    Statement(
        "Outside of the mode of its graphs a module's `backward_dw` is its own.",
        GRAPHED_PENDING + "test_backward_dw_in_the_other_mode_calls_the_module",
    ),
    Statement(
        "Making callables leaves `main_grad` as it was, also under `overwrite_main_grad`.",
        GRAPHED_MAIN_GRADS + "test_making_callables_leaves_it_as_it_was",
    ),
    Statement(
        "A `main_grad` that is another than when it was captured is an error *(ours)*.",
        GRAPHED_MAIN_GRADS + "test_another_one_after_the_capture_is_an_error_or_is_filled",
    ),
    Statement(
        "Hooks of parameters are called with each gradient of a call, and not in a warm-up.",
        GRAPHED_WGRADS + "test_parameter_hooks_run_per_gradient_but_not_in_warm_up",
    ),
    Statement(
        "After its `reset()` a graphed module runs as before, and a function of an `_order` no "
        "more.",
        GRAPHED_CALLS + "test_function_of_an_order_cannot_be_called_after_reset",
    ),
    Statement(
        "`capture_time_hooks` are called around warm-ups and captures, in no graph.",
        GRAPHED_CALLS + "test_hooks_run_around_warm_ups_and_captures",
    ),
    Statement(
        "`cuda_graph_stream` of a call is the stream of its replays, and `cuda_graph_event` the "
        "event that the caller waits for.",
        GRAPHED_CALLS + "test_a_call_may_name_the_stream_of_its_replays",
    ),
    Statement(
        "Arguments that a graph cannot hold are rejected by name.",
        RECORDED + "test_uncapturable_arguments_are_rejected",
    ),
    Statement(
        "A parameter that moves after a capture is an error of the next call; of a weight that is "
        "stored as codes, its codes and scales count.",
        RECORDED + "test_stored_weights_that_move_after_the_capture_are_an_error",
    ),
    Statement(
        "An `_order` that no pipeline has is an error that names the place.",
        GRAPHED + "test_an_order_that_no_pipeline_has_is_an_error",
    ),
    Statement(
        "A negative entry of an index map or a mask is an empty slot, which takes no row.",
        "test_permutation.py::test_an_empty_slot_of_an_index_takes_no_row",
    ),
    Statement(
        "`moe_permute` makes the `row_id_map` of Transformer Engine, by mask and by index.",
        PERMUTED + "test_a_mask_has_the_row_id_map_of_transformer_engine",
    ),
    Statement(
        "`moe_permute` and `moe_sort_chunks_by_index` copy rows bit for bit.",
        PERMUTED + "test_rows_are_bit_equal_copies",
    ),
    Statement(
        "`moe_unpermute` adds a token's rows in FP32 and rounds once.",
        PERMUTED + "test_unpermuting_adds_a_tokens_rows_in_fp32_and_rounds_once",
    ),
    Statement(
        "The gradients of these functions, also for the probabilities, can be differentiated "
        "again *(ours)*.",
        PERMUTED + "test_gradients_and_second_gradients_match_finite_differences",
    ),
    Statement(
        "`moe_permute_and_pad_with_probs` pads each expert's rows, and `moe_unpermute` leaves the "
        "padding out.",
        PERMUTED + "test_padded_rows_are_zero_and_unpermuting_leaves_them_out",
    ),
    Statement(
        "`MoEDispatcher` *(ours)* brings the experts of a rank the rows that one process with all "
        "experts gives them, bit for bit, and each token the same sum and gradients.",
        "test_moe_dispatcher.py::test_expert_parallel_ranks_match_a_single_process",
    ),
    Statement(
        "`Fp8Padding` and `Fp8Unpadding` pad parts to 16 rows, to 32 under MXFP8.",
        PERMUTED + "test_parts_of_a_grouped_gemm_are_padded_and_unpadded",
    ),
    Statement(
        "Attention takes `window_size`, with every mask.",
        DRAWN,
    ),
    Statement(
        "`bottom_right_diagonal` moves the diagonal of windows and ALiBi, by each sample's lengths "
        "under padding.",
        DRAWN,
    ),
    Statement(
        "`core_attention_bias_type` is pre_scale_bias, post_scale_bias or alibi, with optional "
        "custom slopes.",
        DRAWN,
    ),
    Statement(
        "A bias keeps FP32 precision with tensors in BF16 *(ours)*.",
        ATTENTION + "test_fp32_bias_keeps_its_digits_with_bf16_tensors",
    ),
    Statement(
        "`softmax_type` is vanilla, off-by-one or learnable, whose `softmax_offset` is trained.",
        DRAWN,
    ),
    Statement(
        "Packed sequences (thd) are attended one by one, with and without gaps between them.",
        DRAWN,
    ),
    Statement(
        "`return_max_logit` returns each head's largest score that a query sees.",
        DRAWN,
    ),
    Statement(
        "`checkpoint_core_attention` changes no bit, with dropout.",
        ATTENTION + "test_checkpointed_attention_repeats_dropout_and_bits",
    ),
    Statement(
        "`qk_norm_type` normalizes each head of query and key, before or after the rotary "
        "embedding.",
        "test_multihead_attention.py::test_query_and_key_are_normalized_head_by_head",
    ),
    Statement(
        "`drop_path_rate` drops whole branches for an index of the first dimension, in training.",
        "test_transformer_attention.py::test_a_path_is_dropped_for_whole_positions_and_only_in_training",
    ),
    Statement(
        "Generation with `InferenceParams`, paged or not, matches a full recomputation, while "
        "sequences end and others begin.",
        CACHED,
    ),
    Statement(
        "Rotary embeddings of new tokens follow their position in the sequence.",
        CACHED,
    ),
    Statement(
        "Packed sequences (thd) are cached too, with gaps between them.",
        "test_inference_params.py::test_packed_steps_equal_recomputing_whole_sequences",
    ),
    Statement(
        "`cache_manager.cache` has the keys and values per layer, and accepts reordered ones.",
        "test_inference_params.py::test_cache_manager_holds_keys_by_layer_and_takes_reordered_ones",
    ),
    Statement(
        "`m_splits` of GroupedLinear is a list or a tensor.",
        "test_grouped_linear.py::test_m_splits_may_be_a_tensor",
    ),
)
