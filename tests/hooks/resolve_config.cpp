// Tells the tests in Python what a configuration selects. Reads a list of questions as JSON from
// stdin and writes one JSON answer per line:
//   {config: YAML text, layers: [name, ...], steps: n}
//     -> {layers: {name: {error: text} or [entry, ...]}} or {error: text}
//   {pattern: regex, texts: [text, ...]}
//     -> {matches: [bool, ...]} or {error: text}
//   {yaml: text}
//     -> {value: what the text holds} or {error: text}
#include <fmt/format.h>

#include <iostream>
#include <iterator>
#include <string>

#include "core/base/error.h"
#include "features/builtin_options.h"
#include "hooks/config/config.h"
#include "hooks/config/yaml_reader.h"

namespace telens::config {
namespace {

Value due_steps(const Schedule& schedule, std::int64_t steps) {
  Value::List due;
  for (std::int64_t step = 0; step < steps; ++step) {
    if (schedule.due(step)) due.emplace_back(step);
  }
  return Value(std::move(due));
}

Value answer(const Selection& selection, const FeatureEntry& entry, std::int64_t steps) {
  const Value gemm = selection.gemm ? Value(get_name(*selection.gemm)) : Value();
  const Value tensor = selection.tensor ? Value(*selection.tensor) : Value();
  const auto config = matched_config(entry.config, selection.gemm, selection.tensor);
  return Value(Value::Map{{"gemm", gemm},
                          {"tensor", tensor},
                          {"parameters", selection.parameters},
                          {"due", due_steps(selection.schedule, steps)},
                          {"config", config.value_or(Value())}});
}

Value answer_layer(const Config& config, const std::string& layer, std::int64_t steps) {
  Value::List entries;
  try {
    for (const FeatureEntry* entry : config.entries_for(layer)) {
      Value::List selections;
      for (const Selection& selection : entry->selections) {
        selections.push_back(answer(selection, *entry, steps));
      }
      entries.push_back(Value(Value::Map{{"feature", qualified_name(*entry->description)},
                                         {"section", entry->section},
                                         {"selections", Value(std::move(selections))}}));
    }
  } catch (const ConfigError& error) {
    return Value(Value::Map{{"error", error.what()}});
  }
  return Value(std::move(entries));
}

Value answer_config(const Value& question, const Descriptions& descriptions) {
  const Config config =
      load_config_text(question.find("config")->as_string(), "config.yaml", descriptions);
  Value::Map layers;
  for (const Value& layer : question.find("layers")->as_list()) {
    layers.push_back({layer.as_string(), answer_layer(config, layer.as_string(),
                                                      question.find("steps")->as_integer())});
  }
  return Value(Value::Map{{"layers", Value(std::move(layers))}});
}

Value answer_pattern(const Value& question) {
  const PythonRegex regex(question.find("pattern")->as_string());
  Value::List matches;
  for (const Value& text : question.find("texts")->as_list()) {
    matches.emplace_back(regex.search(text.as_string()));
  }
  return Value(Value::Map{{"matches", Value(std::move(matches))}});
}

Value answer_yaml(const Value& question) {
  ErrorList errors;
  Value value = read_yaml(question.find("yaml")->as_string(), "config.yaml", errors);
  errors.raise_if_any();
  return Value(Value::Map{{"value", std::move(value)}});
}

Value answer(const Value& question, const Descriptions& descriptions) {
  if (question.find("pattern")) return answer_pattern(question);
  if (question.find("yaml")) return answer_yaml(question);
  return answer_config(question, descriptions);
}

}  // namespace
}  // namespace telens::config

int main() {
  using namespace telens::config;
  const std::string text(std::istreambuf_iterator<char>(std::cin), {});
  ErrorList errors;
  const Value questions = read_yaml(text, "stdin", errors);
  errors.raise_if_any();
  const Descriptions descriptions = telens::features::builtin_descriptions();
  for (const Value& question : questions.as_list()) {
    Value reply;
    try {
      reply = answer(question, descriptions);
    } catch (const telens::UsageError& error) {
      reply = Value(Value::Map{{"error", error.what()}});
    }
    std::cout << to_json(reply) << '\n';
  }
}
