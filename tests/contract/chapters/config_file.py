"""The grammar of the config file."""

from statement import Statement

SELECTOR = "hooks/config/layer_selector.cpp"
SELECTION = "hooks/config/selection.cpp"
SCHEDULE = "hooks/config/schedule.cpp"
LOAD = "hooks/config/load.cpp"
CONFIG = "hooks/config/config.cpp"

STATEMENTS = (
    # ---- sections
    Statement(
        "A file holds any number of sections under any names.",
        "Overlap.of_two_sections_is_an_error_that_names_both_when_the_layer_is_resolved",
        LOAD,
        "if (is_enabled(entry.value, entry.key_location)) sections.push_back(load_section(entry));",
        "if (is_enabled(entry.value, entry.key_location) && sections.empty()) "
        "sections.push_back(load_section(entry));",
    ),
    Statement(
        "`enabled` is required in a section and in a feature.",
        "FeatureMistakes.are_named_with_their_place",
        LOAD,
        "    if (!enabled) {",
        "    if (!enabled) return true;\n    if (false) {",
    ),
    Statement(
        "`enabled: False` skips a section or a feature unread.",
        "Config.a_disabled_section_or_feature_is_left_out_unread",
        LOAD,
        "if (!is_enabled(entry.value, entry.key_location)) return;",
        "is_enabled(entry.value, entry.key_location);",
    ),
    Statement(
        "`layers` is required.",
        "ConfigMistakes.of_a_section_are_named_with_their_place",
        LOAD,
        "    } else {\n      errors_.add(section_entry.key_location,",
        "    } else if (false) {\n      errors_.add(section_entry.key_location,",
    ),
    Statement(
        "Features stand in their namespace (`transformer_engine`, `telens`, one's own); one "
        "without namespace belongs to `base`, which may be written out.",
        "Config.features_come_in_the_order_of_the_text_from_any_namespace",
        LOAD,
        "load_feature(kBaseNamespace, entry, section);",
        "load_feature(kTelensNamespace, entry, section);",
    ),
    Statement(
        "A layer that two enabled sections select is an error that names both.",
        "Overlap.of_two_sections_is_an_error_that_names_both_when_the_layer_is_resolved",
        CONFIG,
        "if (!section.may_overlap && exclusive) {",
        "if (!section.may_overlap && exclusive && false) {",
    ),
    Statement(
        "A section that holds only features of the namespace `telens` may overlap others *(ours)*.",
        "Overlap.is_free_for_a_section_of_the_telens_namespace_alone",
        LOAD,
        "if (feature_namespace != kTelensNamespace) section.may_overlap = false;",
        "section.may_overlap = false;",
    ),
    # ---- layers
    Statement(
        "`exact_layer_names` decides if present, whatever else stands in `layers`.",
        "LayerSelector.exact_names_decide_over_everything_else",
        SELECTOR,
        "  if (exact_names_) {\n    return",
        "  if (exact_names_ && !regex_) {\n    return",
    ),
    Statement(
        "A layer that `exact_layer_names` does not list is merely not selected *(ours: the peer "
        "raises)*.",
        "test_config_against_peer.py::test_random_configs_select_what_the_peer_selects",
        SELECTOR,
        "return std::ranges::find(*exact_names_, layer_name, &LocatedName::name) != "
        "exact_names_->end();",
        "if (std::ranges::find(*exact_names_, layer_name, &LocatedName::name) == "
        'exact_names_->end()) raise<UsageError>("not listed");\n    return true;',
    ),
    Statement(
        "Else the regular expression decides, which is searched for in the name.",
        "LayerSelector.the_regex_searches_and_decides_over_numbers_and_types",
        SELECTOR,
        "if (regex_) return regex_->search(layer_name);",
        "if (regex_ && !types_) return regex_->search(layer_name);",
    ),
    Statement(
        "Regular expressions have Python's `re` syntax and meaning.",
        "test_python_regex.py::test_random_patterns_get_pythons_answer",
        "hooks/config/python_regex.cpp",
        "PCRE2_UTF",
        "PCRE2_UTF | PCRE2_CASELESS",
    ),
    Statement(
        "Else `layer_numbers` and `layer_types` together: both must fit.",
        "LayerSelector.numbers_and_types_must_both_fit",
        SELECTOR,
        "(!numbers_ || selects_number_of(layer_name)) && (!types_",
        "(!numbers_ || selects_number_of(layer_name)) || (!types_",
    ),
    Statement(
        'A layer type is a substring of the name *(ours: the peer\'s `"fc1"` selects `cat`)*.',
        "LayerSelector.a_type_is_a_substring_and_not_a_pattern",
        SELECTOR,
        "return text.find(part) != std::string_view::npos;",
        "return text.find_first_of(part) != std::string_view::npos;",
    ),
    Statement(
        "`layer_types: all`, in any case, is every layer.",
        "LayerSelector.all_in_any_case_selects_every_type",
        SELECTOR,
        "return std::tolower(a) == b;",
        "return a == b;",
    ),
    Statement(
        "`layer_numbers` takes numbers, ranges such as `5-8` *(ours)*, and `all`.",
        "LayerSelector.numbers_may_be_one_number_a_list_or_ranges",
        SELECTOR,
        "return NumberRange{*first, *last};",
        "return NumberRange{*first, *first};",
    ),
    Statement(
        "A name without a number is not selected by number.",
        "LayerSelector.all_numbers_are_those_of_names_that_have_one",
        SELECTOR,
        "  return number && std::ranges::any_of(*numbers_,",
        "  return !number || std::ranges::any_of(*numbers_,",
    ),
    Statement(
        "In a name with several numbers the first counts *(ours: the peer raises)*.",
        "LayerNumber.is_the_first_that_belongs_to_no_kind_of_layer",
        SELECTOR,
        "if (!belongs_to_kind) return",
        'if (!belongs_to_kind && layer_name.find_first_of("0123456789", end) == '
        "std::string_view::npos) return",
    ),
    Statement(
        "The digits of `fcN` and `gemm_i` never count.",
        "LayerNumber.is_the_first_that_belongs_to_no_kind_of_layer",
        SELECTOR,
        '{"fc", "gemm_"}',
        '{"fc", "gemm-"}',
    ),
    Statement(
        "A string stands for a list of one *(ours)*.",
        "Selections.a_string_stands_for_a_list_of_one",
        "hooks/config/parameter_check.cpp",
        "return value.is_list() ? value.as_list() : Value::List{value};",
        "return value.is_list() ? value.as_list() : Value::List{};",
    ),
    # ---- gemms and tensors
    Statement(
        "`gemms: []` and `tensors: []` choose none: the feature does nothing.",
        "Selections.an_empty_list_of_gemms_or_tensors_chooses_none",
        SELECTION,
        "return items != nullptr && items->is_list() && items->as_list().empty();",
        "return items != nullptr && items->is_list() && items->as_list().size() == 1;",
    ),
    Statement(
        "`gemms: [...]` and `tensors: [...]` select every pair of the two.",
        "Selections.gemms_times_tensors_with_defaults_filled_in",
        SELECTION,
        "if (known) continue;  // named twice in a plain list",
        "if (known || selections.size() == 2) continue;",
    ),
    Statement(
        "An item of `gemms_struct` or `tensors_struct` has keys of its own, which win over those "
        "beside the struct.",
        "Selections.an_items_own_keys_win_over_those_beside_the_struct",
        SELECTION,
        "for (const MapEntry& entry : item.as_map()) map = map.with(entry.key, entry.value);",
        "for (const MapEntry& entry : item.as_map()) {\n"
        "    if (!map.find(entry.key)) map = map.with(entry.key, entry.value);\n  }",
    ),
    Statement(
        "Keys beside a struct are defaults for its items.",
        "Selections.each_item_may_have_its_own_schedule",
        SELECTION,
        "const Value outer = map.without(axis.structure);",
        "const Value outer = Value(Value(Value::Map{}), map.location());",
    ),
    Statement(
        "`tensors` or `tensors_struct` may stand inside an item of `gemms_struct`.",
        "Selections.an_items_own_keys_win_over_those_beside_the_struct",
        SELECTION,
        "if (level != Level::tensor_item && selects_tensors(description_.selects)) "
        "add_axis(kTensorAxis);",
        "if (level == Level::feature && selects_tensors(description_.selects)) "
        "add_axis(kTensorAxis);",
    ),
    Statement(
        "`tensors` beside `gemms_struct` serves the items without their own *(ours)*.",
        "Selections.tensors_beside_gemms_struct_serve_the_items_without_their_own",
        SELECTION,
        "if (has_axis(item, kTensorAxis)) map = without_axis(map, kTensorAxis);",
        "map = without_axis(map, kTensorAxis);",
    ),
    Statement(
        "There are no defaults for `stats`, `tensors`, `gemms` and `quant_format`: each is "
        "required, in every item or beside it.",
        "OptionMistakes.say_what_is_right",
        "hooks/config/parameter_check.cpp",
        "if (!value && parameter.required) {",
        "if (!value && parameter.required && false) {",
    ),
    Statement(
        "`enabled` may not stand in an item of a struct.",
        "FeatureMistakes.are_named_with_their_place",
        SELECTION,
        "if (entry.key == kEnabled && level != Level::feature) {",
        "if (entry.key == kEnabled && level == Level::tensor_item) {",
    ),
    Statement(
        "A GEMM or tensor that stands twice in a struct is an error.",
        "FeatureMistakes.are_named_with_their_place",
        SELECTION,
        "if (name->is_string()) seen.push_back(name->as_string());",
        "",
    ),
    Statement(
        "Pairs that never meet, such as activation and dgrad, are legal and idle.",
        "AlteringFeaturesTest.pairs_that_never_meet_are_idle",
        "hooks/scheduled_feature.cpp",
        "return tensor && belongs_to(*tensor, gemm);",
        "return tensor.has_value();",
    ),
    Statement(
        "What is selected, with which keys and in which iterations, is what nvdlfw-inspect "
        "selects; 400 random configurations differ from it only where this page says *(ours)*.",
        "test_config_against_peer.py::test_random_configs_select_what_the_peer_selects",
        SELECTION,
        "choices.push_back({name.as_string(), outer.with(axis.item, name)});",
        "choices.push_back({name.as_string(), outer});",
    ),
    # ---- when
    Statement(
        "`freq` (default 1) runs where the absolute iteration is a multiple of it.",
        "Schedule.freq_counts_absolute_iterations_and_end_step_is_included",
        SCHEDULE,
        "return iteration % (freq_ * factor) == 0 &&",
        "return (iteration - ranges_.front().first) % (freq_ * factor) == 0 &&",
    ),
    Statement(
        "Without a schedule a feature runs in every iteration.",
        "Schedule.without_keys_every_iteration_is_due",
        SCHEDULE,
        "std::int64_t freq = 1;",
        "std::int64_t freq = 2;",
    ),
    Statement(
        "A `freq` below 1 is an error.",
        "Schedule.wrong_values_are_errors_with_their_place",
        SCHEDULE,
        "value->is_integer() && value->as_integer() >= 1",
        "value->is_integer() && value->as_integer() >= 0",
    ),
    Statement(
        "`start_step` (default 0) and `end_step` are both included.",
        "Schedule.freq_counts_absolute_iterations_and_end_step_is_included",
        SCHEDULE,
        "(!range.last || iteration <= *range.last)",
        "(!range.last || iteration < *range.last)",
    ),
    Statement(
        "`start_end_list: [[0, 20], [80, 100]]` replaces the two; both of a pair are included "
        "*(ours: the peer's two packages disagree)*.",
        "Schedule.a_list_replaces_start_and_end_and_includes_both_of_a_pair",
        SCHEDULE,
        "if (!ranges.empty()) return Schedule(freq, std::move(ranges));",
        "if (!ranges.empty() && range.first == 0) return Schedule(freq, std::move(ranges));",
    ),
    Statement(
        "An end of -1 or null is no end.",
        "Schedule.minus_one_and_null_are_no_end",
        SCHEDULE,
        "if (value.as_integer() == kNoEnd) return std::nullopt;",
        "",
    ),
    Statement(
        "Every item of a struct may have a schedule of its own.",
        "Selections.each_item_may_have_its_own_schedule",
        SELECTION,
        "selection.schedule = parse_schedule(tensor.keys, reported);",
        "selection.schedule = parse_schedule(config, reported);",
    ),
    Statement(
        "The Disable features take a schedule, too *(ours)*.",
        "AlteringFeaturesTest.a_schedule_disables_fp8_in_its_iterations_only",
        "hooks/scheduled_feature.cpp",
        "return {false, at.iteration + 1, off.for_ever};",
        "return RoutingAnswer::never();",
    ),
    Statement(
        "FakeQuant takes a schedule, too, in each item of a struct one of its own *(ours)*.",
        "AlteringFeaturesTest.fake_quant_follows_the_schedule_of_each_item",
        "hooks/scheduled_feature.cpp",
        "if (!matches(selection, gemm, tensor)) continue;",
        "",
    ),
    # ---- mistakes
    Statement(
        "An unknown section key, feature, statistic, tensor, GEMM or option, or a wrong type, is "
        "an error at load with file, line, column, what was expected and the nearest name "
        "*(ours: the peer ignores most unknown keys)*.",
        "FeatureMistakes.are_named_with_their_place",
        SELECTION,
        "suggestion(entry.key, known),",
        '"",',
    ),
    Statement(
        "An unknown feature is an error with the nearest name; one of another namespace is told "
        "where it belongs *(ours)*.",
        "FeatureMistakes.are_named_with_their_place",
        LOAD,
        "if (!elsewhere.empty()) {",
        "if (elsewhere.size() > 1) {",
    ),
    Statement(
        "An unknown statistic is an error with the nearest name *(ours)*.",
        "OptionMistakes.say_what_is_right",
        "features/log_stats/statistics_option.cpp",
        "config::suggestion(text, known), rules.feature,",
        '"", rules.feature,',
    ),
    Statement(
        "An unknown GEMM or tensor, or a tensor that the feature does not serve, is an error that "
        "says which there are *(ours)*.",
        "FeatureMistakes.are_named_with_their_place",
        SELECTION,
        "} else if (!names.empty() && std::ranges::find(names, name.as_string()) == names.end()) {",
        "} else if (!names.empty() && !gemm_from_name(name.as_string()) && "
        "!tensor_from_name(name.as_string())) {",
    ),
    Statement(
        "A value of the wrong type is an error that says what was expected *(ours)*.",
        "FeatureMistakes.are_named_with_their_place",
        "hooks/config/parameter_check.cpp",
        "  if (!fits(parameter.type, value)) {",
        "  if (!fits(parameter.type, value) && parameter.type == ParameterType::string) {",
    ),
    Statement(
        "An error at load names file, line and column *(ours)*.",
        "Schedule.wrong_values_are_errors_with_their_place",
        "hooks/config/value.cpp",
        'return fmt::format("{}:{}:{}", *location.source, location.line, location.column);',
        'return fmt::format("{}:{}", *location.source, location.line);',
    ),
    Statement(
        "All errors of a file come at once, in the order of its lines *(ours)*.",
        "ConfigMistakes.of_a_whole_file_come_together_in_the_order_of_the_text",
        LOAD,
        "      if (is_enabled(entry.value, entry.key_location)) sections",
        "      errors_.raise_if_any();\n"
        "      if (is_enabled(entry.value, entry.key_location)) sections",
    ),
    Statement(
        "A key that stands twice is an error that names both places *(ours)*.",
        "YamlReader.a_duplicate_key_is_an_error_that_names_both_places",
        "hooks/config/yaml_reader.cpp",
        "    if (is_new) return;\n",
        "    return;\n",
    ),
    Statement(
        "Anchors and merge keys work as in YAML 1.1.",
        "YamlReader.merge_keys_give_way_to_own_keys_and_earlier_maps_win",
        "hooks/config/yaml_reader.cpp",
        "        all[known->second] = entry;",
        "",
    ),
    Statement(
        "Two features that modify the same tensor in the same GEMM are an error at load.",
        "Modifiers.two_on_one_tensor_of_one_gemm_are_an_error_at_load",
        CONFIG,
        "if (!modify_the_same(**first, **second)) continue;",
        "if (!modify_the_same(**first, **second) || true) continue;",
    ),
    Statement(
        "Each of the ready files in configs/ loads, and its section selects layers.",
        "test_config_docs.py::test_every_ready_config_loads_and_is_named_after_its_section",
        "configs/fp8_forward_only.yaml",
        "layer_name_regex_pattern: '.*'",
        "layer_name_regex_pattern: 'nothing'",
    ),
)
