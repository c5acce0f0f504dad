// telens new-plugin: creates a plugin project that builds and passes its test.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <memory>
#include <string>

#include "core/base/error.h"
#include "core/base/text.h"
#include "features/builtin_options.h"
#include "inspector_cli/commands/embedded_files.h"
#include "inspector_cli/commands/python.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {
namespace {

// The names of the feature, its files and its section in the templates.
constexpr std::string_view kTemplateName = "MyFeature";
constexpr std::string_view kTemplateFile = "my_feature";

// Names that a class in C++ or Python cannot have, or that the templates use. Each name is between
// two spaces.
constexpr std::string_view kClasses =
    " BUFSIZ EDOM EOF ERANGE False Feature FeatureCall FeatureServices INFINITY InspectTensorCall "
    "MetricLogger NAN NULL None ObservedTensor Observer Registry ScheduledFeature "
    "ScheduledObserver Series TEConfigAPIMapper TensorReading True ";

// https://en.cppreference.com/w/cpp/keyword
constexpr std::string_view kCpp =
    " alignas alignof and and_eq asm atomic_cancel atomic_commit atomic_noexcept auto bitand bitor "
    "bool break case catch char char8_t char16_t char32_t class co_await co_return co_yield compl "
    "concept const const_cast consteval constexpr constinit continue decltype default delete do "
    "double dynamic_cast else enum explicit export extern false float for friend goto if inline "
    "int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private "
    "protected public register reinterpret_cast requires return short signed sizeof static "
    "static_assert static_cast struct switch template this thread_local throw true try typedef "
    "typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq ";

// https://docs.python.org/3/reference/lexical_analysis.html#keywords, except C++'s keywords
constexpr std::string_view kPython =
    " as assert async await def del elif except finally from global import in is lambda none "
    "nonlocal pass raise with yield ";

constexpr std::string_view kYaml = " yes no on off null ";

// https://cmake.org/cmake/help/latest/policy/CMP0037.html
constexpr std::string_view kCMake =
    " all clean edit_cache help install list_install_components package package_source "
    "rebuild_cache test ";

bool contains_word(std::string_view words, std::string_view name) {
  return words.find(fmt::format(" {} ", name)) != std::string_view::npos;
}

// Returns true if a plugin class cannot have this name.
bool is_reserved_class(std::string_view name) { return contains_word(kClasses, name); }

// Returns true if files, CMake targets and config sections cannot have this name.
bool is_reserved_file(std::string_view name) {
  return contains_word(kCpp, name) || contains_word(kPython, name) || contains_word(kYaml, name) ||
         contains_word(kCMake, name);
}

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
        "'{}' is not a valid feature name: expected letters and digits, beginning with a capital "
        "letter, such as LogOutliers",
        name);
  }
}

// Converts "LogFP8Outliers" to "log_fp8_outliers". A word begins at a capital letter after a small
// letter or digit, and at the last capital letter in a sequence if a small letter follows.
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
    raise<UsageError>("the name '{}' is taken by a built-in feature; choose another", name);
  }
  if (is_reserved_class(name) || is_reserved_file(snake_case(name))) {
    raise<UsageError>(
        "the name '{}' cannot be used: '{}' is reserved in C++, Python, YAML or CMake; choose "
        "another, such as Log{}",
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

// Writes the project to a temporary folder and renames it, so that a failure leaves no files.
void make_project(const NewPluginOptions& options, const std::filesystem::path& project) {
  const std::filesystem::path parent = project.parent_path();
  const bool parent_is_new = !std::filesystem::exists(parent);
  const std::filesystem::path part = parent / fmt::format(".{}.part", project.filename().string());
  const auto clean_up = [&] {
    std::error_code ignored;
    std::filesystem::remove_all(part, ignored);
    if (parent_is_new) std::filesystem::remove(parent, ignored);  // if it is empty
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

constexpr std::string_view kPythonPackage =
    "$(python3 -c \"import telens, pathlib; print(pathlib.Path(telens.__file__).parent)\")";

// Returns the command that configures a C++ project. If pip installed this command, it contains the
// folders of that environment.
std::string configure_command() {
  const auto package = find_pip_package();
  if (!package) return "cmake -B build -G Ninja -DPython3_EXECUTABLE=$(command -v python3)";
  return fmt::format("cmake -B build -G Ninja {} {}",
                     shell_word("-DPython3_EXECUTABLE=" + (command_folder() / "python3").string()),
                     shell_word("-DCMAKE_PREFIX_PATH=" + package->string()));
}

void run_new_plugin(const NewPluginOptions& options) {
  if (options.cpp == options.python) {
    raise<UsageError>("new-plugin: choose a language: --cpp or --python");
  }
  check_name(options.name);
  check_not_taken(options.name);
  const std::filesystem::path project =
      std::filesystem::path(options.folder) / snake_case(options.name);
  if (std::filesystem::exists(project)) {
    raise<UsageError>("{} already exists; choose another name or --dir", project.string());
  }
  make_project(options, project);
  fmt::print("{}\n", printable(project.string()));
  const std::string next =
      options.cpp
          ? fmt::format("{} && cmake --build build && ctest --test-dir build", configure_command())
          : std::string("python -m pytest");
  fmt::print("next: cd {} && {}\n", shell_word(project.string()), next);
  if (options.python) fmt::print("if pytest is missing: python -m pip install pytest\n");
  if (options.cpp && !find_pip_package()) {
    fmt::print(
        "CMake searches /usr and /usr/local. After `make install PREFIX=DIR` add "
        "-DCMAKE_PREFIX_PATH=DIR, after `pip install` add -DCMAKE_PREFIX_PATH={}\n",
        kPythonPackage);
  }
}

}  // namespace

void add_new_plugin(CLI::App& app) {
  auto options = std::make_shared<NewPluginOptions>();
  CLI::App* command = app.add_subcommand(
      "new-plugin", "Create a plugin project: source, config and a passing test.");
  command
      ->add_option("NAME", options->name,
                   "The feature's name, such as LogOutliers; its folder becomes log_outliers")
      ->required();
  CLI::Option* cpp = command->add_flag("--cpp", options->cpp, "Write a C++ shared library");
  command->add_flag("--python", options->python, "Write a Python class")->excludes(cpp);
  command->add_option("--dir", options->folder, "Create the project's folder here (default: .)")
      ->type_name("FOLDER");
  command->footer(
      "Examples:\n"
      "  telens new-plugin LogOutliers --python\n"
      "  telens new-plugin LogOutliers --cpp --dir plugins");
  command->callback([options] { run_new_plugin(*options); });
}

}  // namespace telens::cli
