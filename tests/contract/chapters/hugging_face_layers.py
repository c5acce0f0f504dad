"""Models of Hugging Face's transformers that take our layers."""

from statement import Statement

HUGGING_FACE = "test_hugging_face_layers.py::"
LAYERS = "python/telens/pytorch/hugging_face.py"
LAYER_PARTS = "python/telens/pytorch/hugging_face_parts.py"

STATEMENTS = (
    Statement(
        "`telens.pytorch.use_transformer_layers` gives Llama, Mixtral, BERT and T5 of Hugging Face "
        "our layers, with their weights and logits *(ours)*.",
        HUGGING_FACE + "test_logits_are_those_of_transformers",
        LAYERS,
        '("mlp.gate_proj.weight", "mlp.up_proj.weight")',
        '("mlp.up_proj.weight", "mlp.gate_proj.weight")',
    ),
    Statement(
        "T5's bias of scores is added in every block, and its table learns *(ours)*.",
        HUGGING_FACE + "test_gradients_of_t5s_biases_are_those_of_transformers",
        "python/telens/pytorch/hugging_face_t5.py",
        'seen["core_attention_bias"] = position_bias',
        'seen["core_attention_bias"] = position_bias.detach()',
    ),
    Statement(
        "A converted T5 has its weights as they are: steps of AdamW are those of transformers "
        "*(ours)*.",
        HUGGING_FACE + "test_steps_of_adamw_are_those_of_transformers",
        "python/telens/pytorch/hugging_face_t5.py",
        "            softmax_scale=1.0,",
        "            softmax_scale=0.5,",
    ),
    Statement(
        "Frozen weights stay frozen when layers are replaced *(ours)*.",
        HUGGING_FACE + "test_what_is_frozen_stays_frozen",
        LAYER_PARTS,
        "requires_grad_(trained.pop())",
        "requires_grad_(True)",
    ),
    Statement(
        "`gradient_checkpointing_enable` of transformers recomputes our layers, with the recipe "
        "and scales of the first forward *(ours)*.",
        HUGGING_FACE + "test_gradient_checkpointing_runs_our_layers_twice_with_the_same_gradients",
        LAYER_PARTS,
        "return checkpoint(self._replace, *args, **options, **kwargs)",
        "return self._replace(*args, **kwargs)",
    ),
    Statement(
        "`output_hidden_states` and `output_attentions` are refused by name where our layers do "
        "not hand them out *(ours)*.",
        HUGGING_FACE + "test_outputs_that_our_layers_do_not_hand_out_are_refused_by_name",
        LAYER_PARTS,
        "    if asked:",
        "    if not asked and collected:",
    ),
)
