// telens new-plugin: writes a project for a feature of one's own, which builds and passes its test.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <memory>
#include <string>

#include "core/base/characters.h"
#include "core/base/error.h"
#include "core/base/shell_word.h"
#include "features/builtin_options.h"
#include "inspector_cli/commands/plugin_templates.h"
#include "inspector_cli/commands/reserved_names.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/terminal/output.h"

namespace telens::cli {
namespace {

// The name that the templates give to the feature, its files and its section.
constexpr std::string_view kTemplateName = "MyFeature";
constexpr std::string_view kTemplateFile = "my_feature";

struct NewPluginOptions {
  std::string name;
  bool cpp = false;
  bool python = false;
  std::string folder = ".";
};

bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }

void check_name(const std::string& name) {
  const bool is_word = !name.empty() && is_upper(name[0]) && std::ranges::all_of(name, [](char c) {
    return is_letter(c) || is_digit(c);
  });
  if (!is_word) {
    raise<UsageError>(
        "'{}' is no name for a feature: expected letters and digits, beginning with a capital "
        "letter, as in LogOutliers",
        name);
  }
}

// "LogFP8Outliers" -> "log_fp8_outliers": a word begins at a capital letter behind a small one or a
// digit, and at the last of several capital letters that a small one follows.
std::string snake_case(std::string_view name) {
  std::string snake;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool begins = i > 0 && is_upper(name[i]) &&
                        (!is_upper(name[i - 1]) || (i + 1 < name.size() && is_lower(name[i + 1])));
    if (begins) snake += '_';
    snake += static_cast<char>(std::tolower(static_cast<unsigned char>(name[i])));
  }
  return snake;
}

void check_not_taken(const std::string& name) {
  if (!features::builtin_descriptions().find_all(name).empty()) {
    raise<UsageError>("the name '{}' is taken by the built-in feature; choose another", name);
  }
  if (is_reserved_class(name) || is_reserved_file(snake_case(name))) {
    raise<UsageError>(
        "the name '{}' is taken: a class, a file or a target of C++, Python, YAML or CMake cannot "
        "be called '{}'; choose another, as in Log{}",
        name, is_reserved_class(name) ? name : snake_case(name), name);
  }
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

void write_project(const NewPluginOptions& options, const std::filesystem::path& folder,
                   std::string_view file_name) {
  const auto named = [&](std::string_view text) {
    return replaced(replaced(std::string(text), kTemplateName, options.name), kTemplateFile,
                    file_name);
  };
  for (const TemplateFile& file : options.cpp ? kCppPlugin : kPythonPlugin) {
    write_file((folder / named(file.path)).string(), named(file.text));
  }
}

// Builds the project beside its place, so that one which could not be written whole leaves nothing.
void make_project(const NewPluginOptions& options, const std::filesystem::path& project) {
  const std::filesystem::path parent = project.parent_path();
  const bool parent_is_new = !std::filesystem::exists(parent);
  const std::filesystem::path part = parent / fmt::format(".{}.part", project.filename().string());
  const auto clean_up = [&] {
    std::error_code ignored;
    std::filesystem::remove_all(part, ignored);
    if (parent_is_new) std::filesystem::remove(parent, ignored);  // where it is empty
  };
  try {
    write_project(options, part, project.filename().string());
    std::filesystem::rename(part, project);
  } catch (const std::filesystem::filesystem_error& error) {
    clean_up();
    raise<UsageError>("cannot write {}: {}", project.string(), error.code().message());
  } catch (...) {
    clean_up();
    throw;
  }
}

void run_new_plugin(const NewPluginOptions& options) {
  if (options.cpp == options.python) {
    raise<UsageError>("new-plugin: say in which language: --cpp or --python");
  }
  check_name(options.name);
  check_not_taken(options.name);
  const std::filesystem::path project =
      std::filesystem::path(options.folder) / snake_case(options.name);
  if (std::filesystem::exists(project)) {
    raise<UsageError>("{} exists already; choose another name or --dir", project.string());
  }
  make_project(options, project);
  fmt::print("{}\n", project.string());
  fmt::print("next: cd {} && {}\n", shell_word(project.string()),
             options.cpp
                 ? "cmake -B build -G Ninja -DTELENS_TORCH_PYTHON=$(command -v python3) && cmake "
                   "--build build && ctest --test-dir build"
                 : "python -m pytest");
  if (options.python) fmt::print("where pytest is missing: python -m pip install pytest\n");
  if (options.cpp) {
    fmt::print(
        "CMake looks for telens in /usr and /usr/local; elsewhere add "
        "-DCMAKE_PREFIX_PATH=<where make install put it>\n");
  }
}

}  // namespace

void add_new_plugin(CLI::App& app) {
  auto options = std::make_shared<NewPluginOptions>();
  CLI::App* command = app.add_subcommand(
      "new-plugin",
      "Writes a project for a feature of your own: source, config and a test that passes.");
  command
      ->add_option("NAME", options->name,
                   "The feature's name, as in LogOutliers; its folder and files become "
                   "log_outliers")
      ->required();
  CLI::Option* cpp = command->add_flag("--cpp", options->cpp, "A shared library in C++");
  command->add_flag("--python", options->python, "A class in Python")->excludes(cpp);
  command->add_option("--dir", options->folder, "Where the project's folder goes; default: here");
  command->footer(
      "Examples:\n"
      "  telens new-plugin LogOutliers --python\n"
      "  telens new-plugin LogOutliers --cpp --dir plugins");
  command->callback([options] { run_new_plugin(*options); });
}

}  // namespace telens::cli
