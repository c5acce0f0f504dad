"""Models of Hugging Face's transformers with our layers."""

from statement import Statement

HUGGING_FACE = "test_hugging_face_layers.py::"

STATEMENTS = (
    Statement(
        "`telens.pytorch.use_transformer_layers` gives Llama, Mixtral, BERT and T5 of Hugging Face "
        "our layers, with their weights and logits *(ours)*.",
        HUGGING_FACE + "test_logits_match_transformers",
    ),
    Statement(
        "T5's bias of scores is added in every block, and its table learns *(ours)*.",
        HUGGING_FACE + "test_gradients_of_t5_biases_match_transformers",
    ),
    Statement(
        "A converted T5 keeps the layout of its weights: AdamW steps match transformers *(ours)*.",
        HUGGING_FACE + "test_adamw_steps_match_transformers",
    ),
    Statement(
        "Frozen weights stay frozen when layers are replaced *(ours)*.",
        HUGGING_FACE + "test_frozen_parameters_stay_frozen",
    ),
    Statement(
        "`gradient_checkpointing_enable` of transformers recomputes our layers, with the recipe "
        "and scales of the first forward *(ours)*.",
        HUGGING_FACE + "test_gradient_checkpointing_gives_the_same_gradients",
    ),
    Statement(
        "`output_hidden_states` and `output_attentions` are refused by name where our layers do "
        "not hand them out *(ours)*.",
        HUGGING_FACE + "test_outputs_that_our_layers_do_not_hand_out_are_refused_by_name",
    ),
)
