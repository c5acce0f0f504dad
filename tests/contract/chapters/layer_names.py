"""Names of layers."""

from statement import Statement

STATEMENTS = (
    Statement(
        "A layer is called by its `name=`.",
        "test_debug_session.py::test_logger_receives_statistics_with_iteration",
    ),
    Statement(
        "An unnamed layer is `Layer_<n>`, counted from 1 in the order of first forwards.",
        "SessionTest.successive_sessions_share_no_state",
    ),
    Statement(
        "The two layers of an unnamed LayerNormMLP share their number: `Layer_2.fc1`, "
        "`Layer_2.fc2`.",
        "test_feature_classes.py::test_parts_of_an_unnamed_layer_share_its_automatic_name",
    ),
    Statement(
        "A LayerNormMLP is two layers, `<name>.fc1` and `<name>.fc2`.",
        "test_contract_layer_names.py::test_a_layernorm_mlp_is_two_layers",
    ),
    Statement(
        "A GroupedLinear has a layer per GEMM, `<name>.gemm_<i>`, each with separate sections.",
        "test_grouped_linear.py::test_a_section_may_be_about_one_of_its_gemms",
    ),
    Statement(
        "A GEMM of a GroupedLinear that receives no rows is not shown to features *(ours)*.",
        "test_grouped_linear.py::test_its_gemms_are_layers_and_one_without_rows_records_nothing",
    ),
    Statement(
        "A named TransformerLayer passes its name on to its attention and its MLP.",
        "test_contract_layer_names.py::test_a_named_transformer_layer_passes_its_name_on",
    ),
    Statement(
        "In a named attention the layers are `.layernorm_linear_qkv`, `.linear_qkv`, "
        "`.layernorm_linear_q`, `.linear_q`, `.linear_kv` and `.proj`.",
        "test_contract_layer_names.py::test_a_named_attention_passes_its_name_on",
    ),
    Statement(
        "`infer_and_assign_layer_names(model)` calls the root `model` and the others by their "
        "attributes, as the peer does.",
        "test_contract_layer_names.py::test_inferred_names_match_the_peer",
    ),
    Statement(
        "With `keep_names=True` a named layer keeps its name, also under an unnamed parent "
        "*(ours)*.",
        "test_contract_layer_names.py::test_layers_that_have_a_name_keep_it_if_so_wished",
    ),
    Statement(
        "A child of a ModuleList is called by its `layer_number` if that is not None, else by its "
        "index.",
        "test_debug_session.py::test_layer_names_follow_the_structure_of_the_model",
    ),
    Statement(
        "`layer_number=None` counts as none *(ours: the peer calls all such children `None`)*.",
        "test_contract_layer_names.py::test_a_layer_number_of_none_counts_as_none",
    ),
    Statement(
        "A DotProductAttention is a layer, in a named attention `<name>.core_attention` *(ours)*.",
        "test_attention_watched.py::test_attention_is_named_after_its_module",
    ),
    Statement(
        "An unnamed DotProductAttention is `Attention_<n>`, which is counted separately from "
        "linear layers *(ours)*.",
        "test_attention_watched.py::test_attentions_without_names_take_no_numbers_of_linear_layers",
    ),
    Statement(
        "`infer_and_assign_layer_names` accepts a list of models and names each like a single "
        "model.",
        "test_contract_layer_names.py::test_a_list_of_models_is_named_one_by_one",
    ),
    Statement(
        "A wrapper such as DistributedDataParallel adds `.module`.",
        "test_contract_layer_names.py::test_a_wrapper_adds_module",
    ),
)
