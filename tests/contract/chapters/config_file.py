"""The grammar of the config file."""

from statement import Statement

STATEMENTS = (
    # ---- sections
    Statement(
        "A file holds any number of sections under any names.",
        "Overlap.is_an_error_that_names_both_sections",
    ),
    Statement(
        "`enabled` is required in a section and in a feature.",
        "FeatureMistakes.are_named_with_their_place",
    ),
    Statement(
        "`enabled: False` skips a section or a feature unread.",
        "Config.a_disabled_section_or_feature_is_left_out_unread",
    ),
    Statement(
        "`layers` is required.",
        "ConfigMistakes.in_a_section_are_reported_with_position",
    ),
    Statement(
        "Features are listed under their namespace (`transformer_engine`, `telens`, a custom "
        "one); one without namespace belongs to `base`, which may be written out.",
        "Config.features_come_in_the_order_of_the_text_from_any_namespace",
    ),
    Statement(
        "A layer that two enabled sections select is an error that names both.",
        "Overlap.is_an_error_that_names_both_sections",
    ),
    Statement(
        "A section that holds only features of the namespace `telens` may overlap others *(ours)*.",
        "Overlap.is_allowed_for_sections_with_only_telens_features",
    ),
    # ---- layers
    Statement(
        "`exact_layer_names` decides if present, for any other keys in `layers`.",
        "LayerSelector.exact_names_decide_over_everything_else",
    ),
    Statement(
        "A layer that `exact_layer_names` does not list is merely not selected *(ours: the peer "
        "raises)*.",
        "test_config_against_peer.py::test_random_configs_match_the_peer",
    ),
    Statement(
        "Otherwise the regular expression decides, which is searched for in the name.",
        "LayerSelector.the_regex_searches_and_decides_over_numbers_and_types",
    ),
    Statement(
        "Regular expressions have Python's `re` syntax and meaning.",
        "test_python_regex.py::test_random_patterns_get_pythons_answer",
    ),
    Statement(
        "Otherwise `layer_numbers` and `layer_types` together: both must match.",
        "LayerSelector.numbers_and_types_must_both_fit",
    ),
    Statement(
        'A layer type is a substring of the name *(ours: the peer\'s `"fc1"` selects `cat`)*.',
        "LayerSelector.a_type_is_a_substring_and_not_a_pattern",
    ),
    Statement(
        "`layer_types: all`, in upper or lower case, is every layer.",
        "LayerSelector.all_is_case_insensitive_and_selects_every_type",
    ),
    Statement(
        "`layer_numbers` takes numbers, ranges such as `5-8` *(ours)*, and `all`.",
        "LayerSelector.numbers_may_be_one_number_a_list_or_ranges",
    ),
    Statement(
        "A name without a number is not selected by number.",
        "LayerSelector.all_numbers_select_only_names_with_a_number",
    ),
    Statement(
        "In a name with several numbers the first counts *(ours: the peer raises)*.",
        "LayerNumber.is_the_first_that_belongs_to_no_kind_of_layer",
    ),
    Statement(
        "The digits of `fcN` and `gemm_i` never count.",
        "LayerNumber.is_the_first_that_belongs_to_no_kind_of_layer",
    ),
    Statement(
        "A string is accepted as a list with one element *(ours)*.",
        "Selections.string_is_accepted_as_one_element_list",
    ),
    # ---- gemms and tensors
    Statement(
        "`gemms: []` and `tensors: []` select nothing: the feature does nothing.",
        "Selections.an_empty_list_of_gemms_or_tensors_chooses_none",
    ),
    Statement(
        "`gemms: [...]` and `tensors: [...]` select every pair of the two.",
        "Selections.gemms_times_tensors_with_defaults_filled_in",
    ),
    Statement(
        "An item of `gemms_struct` or `tensors_struct` has separate keys, which override the "
        "keys next to the struct.",
        "Selections.keys_of_an_item_override_keys_next_to_the_struct",
    ),
    Statement(
        "Keys next to a struct are defaults for its items.",
        "Selections.each_item_may_have_its_own_schedule",
    ),
    Statement(
        "`tensors` or `tensors_struct` may be inside an item of `gemms_struct`.",
        "Selections.keys_of_an_item_override_keys_next_to_the_struct",
    ),
    Statement(
        "`tensors` next to `gemms_struct` applies to items without tensors *(ours)*.",
        "Selections.tensors_next_to_gemms_struct_are_the_default_for_items",
    ),
    Statement(
        "`stats`, `tensors`, `gemms` and `quant_format` do not have defaults: each is required, "
        "in every item or next to it.",
        "OptionMistakes.list_the_valid_values",
    ),
    Statement(
        "`enabled` is not allowed in an item of a struct.",
        "FeatureMistakes.are_named_with_their_place",
    ),
    Statement(
        "A GEMM or tensor that occurs twice in a struct is an error.",
        "FeatureMistakes.are_named_with_their_place",
    ),
    Statement(
        "Pairs that never meet, such as activation and dgrad, are legal and idle.",
        "AlteringFeaturesTest.pairs_that_never_meet_are_idle",
    ),
    Statement(
        "Selections, keys and iterations match nvdlfw-inspect; 400 random configurations differ "
        "from it only in points marked *(ours)* on this page.",
        "test_config_against_peer.py::test_random_configs_match_the_peer",
    ),
    # ---- when
    Statement(
        "`freq` (default 1) runs if the absolute iteration is a multiple of it.",
        "Schedule.freq_counts_absolute_iterations_and_end_step_is_included",
    ),
    Statement(
        "A feature without a schedule runs in every iteration.",
        "Schedule.default_runs_in_every_iteration",
    ),
    Statement(
        "A `freq` below 1 is an error.",
        "Schedule.wrong_values_are_errors_with_their_place",
    ),
    Statement(
        "`start_step` (default 0) and `end_step` are both included.",
        "Schedule.freq_counts_absolute_iterations_and_end_step_is_included",
    ),
    Statement(
        "`start_end_list: [[0, 20], [80, 100]]` replaces the two; both of a pair are included "
        "*(ours: the peer's two packages disagree)*.",
        "Schedule.a_list_replaces_start_and_end_and_includes_both_of_a_pair",
    ),
    Statement(
        "An end of -1 or null means that the range does not end.",
        "Schedule.minus_one_and_null_mean_endless",
    ),
    Statement(
        "Every item of a struct may have a separate schedule.",
        "Selections.each_item_may_have_its_own_schedule",
    ),
    Statement(
        "The Disable features take a schedule, too *(ours)*.",
        "AlteringFeaturesTest.a_schedule_disables_fp8_in_its_iterations_only",
    ),
    Statement(
        "FakeQuant accepts a schedule, also a separate one in each item of a struct *(ours)*.",
        "AlteringFeaturesTest.fake_quant_items_have_separate_schedules",
    ),
    # ---- mistakes
    Statement(
        "An unknown section key, feature, statistic, tensor, GEMM or option, or a wrong type, "
        "is an error at load with file, line, column, the expected value and the nearest name "
        "*(ours: the peer ignores most unknown keys)*.",
        "FeatureMistakes.are_named_with_their_place",
    ),
    Statement(
        "An unknown feature is an error with the nearest name; for one of another namespace it "
        "names that namespace *(ours)*.",
        "FeatureMistakes.are_named_with_their_place",
    ),
    Statement(
        "An unknown statistic is an error with the nearest name *(ours)*.",
        "OptionMistakes.list_the_valid_values",
    ),
    Statement(
        "An unknown GEMM or tensor, or a tensor that the feature does not serve, is an error that "
        "says which there are *(ours)*.",
        "FeatureMistakes.are_named_with_their_place",
    ),
    Statement(
        "A value of the wrong type is an error that names the expected type *(ours)*.",
        "FeatureMistakes.are_named_with_their_place",
    ),
    Statement(
        "An error at load names file, line and column *(ours)*.",
        "Schedule.wrong_values_are_errors_with_their_place",
    ),
    Statement(
        "All errors of a file come at once, in the order of its lines *(ours)*.",
        "ConfigMistakes.in_a_file_are_reported_together_in_text_order",
    ),
    Statement(
        "A key that occurs twice is an error that names both places *(ours)*.",
        "YamlReader.a_duplicate_key_is_an_error_that_names_both_places",
    ),
    Statement(
        "Anchors and merge keys work as in YAML 1.1.",
        "YamlReader.merge_keys_give_way_to_own_keys_and_earlier_maps_win",
    ),
    Statement(
        "Two features that modify the same tensor in the same GEMM are an error at load.",
        "Modifiers.two_on_the_same_tensor_and_gemm_are_an_error_at_load",
    ),
    Statement(
        "Each of the ready files in configs/ loads, and its section selects layers.",
        "test_config_docs.py::test_every_ready_config_loads_and_is_named_after_its_section",
    ),
)
