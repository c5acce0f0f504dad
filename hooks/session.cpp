#include "hooks/session.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <exception>
#include <utility>

#include "hooks/builtin.h"
#include "hooks/plugin_loader.h"

namespace telens::debug {
namespace {

config::Config load_config(const InitializeOptions& options,
                           const config::Descriptions& descriptions) {
  if (options.config_text) {
    return config::load_config_text(*options.config_text, "config", descriptions);
  }
  if (options.config_file.empty()) return {};
  return config::load_config_file(options.config_file, descriptions);
}

void check_iteration(std::string_view what, std::int64_t iteration) {
  if (iteration < 0 || iteration > hook_points::kLastIteration) {
    raise<UsageError>("debug.{}: the iteration cannot be {}; iterations count from 0 to {}", what,
                      iteration, hook_points::kLastIteration);
  }
}

}  // namespace

Session::Session(InitializeOptions options)
    : options_(std::move(options)),
      notices_([this] { return iteration(); }),
      guard_(notices_),
      statistics_(
          make_statistics_engine(series_, &registry_.statistics(),
                                 [this](const std::string& text, std::string_view layer_name) {
                                   notices_.announce("statistic_off", text, layer_name);
                                 })),
      outbox_(series_),
      layers_(options_.init_training_step, features_, *statistics_, guard_, notices_) {
  accept_on_all_ranks(options_, [this] { accept(); });
  // From here on nothing is refused: files of an earlier run may be touched.
  const auto on_error = [this](const std::string& error) {
    notices_.log(error, {}, LogLevel::warning);
  };
  delivery_.emplace(make_run_file_sink(options_, config_.text(), on_error), options_);
  notices_.open(delivery_->run_file(), options_.log_dir, options_.rank);
  termination_flush_.emplace([this] { flush(); });
  layers_.start();
}

Session::~Session() {
  layers_.stop();
  termination_flush_.reset();
}

void Session::accept() {
  check_iteration("initialize, init_training_step", options_.init_training_step);
  load_plugins(options_.feature_dirs, registry_);
  config_ = load_config(options_, registry_.descriptions());
  features_.make(config_, registry_, *this, guard_, notices_);
}

void Session::flush() {
  delivery_->run_file().flush();
  notices_.flush();
}

void Session::stop_run(std::string text) {
  const std::lock_guard lock(pending_mutex_);
  stop_texts_.push_back(std::move(text));
}

// ---- what the training program calls

void Session::log_message(std::string_view message, std::string_view layer_name, LogLevel level,
                          std::string_view once_per) {
  notices_.message(message, layer_name, level, once_per);
}

void Session::record_scalar(std::string_view name, double value) {
  delivery_->run_file().scalar(iteration(), name, value);
  note_number(name, value);
}

void Session::log_scalar(std::string_view name, double value, std::int64_t iteration) {
  outbox_.add(name, value, iteration);
}

std::vector<NamedValue> Session::log_tensor(std::string_view layer_name,
                                            std::string_view tensor_name, const at::Tensor& tensor,
                                            const LogTensorStatsOptions& options) {
  const at::NoGradGuard no_grad;
  const std::int64_t iteration = options.iteration.value_or(this->iteration());
  ReductionGroup group;
  bool logs = true;
  if (!options.skip_reduction) {
    group = chosen_group_for(layer_name, options);
    logs = group != nullptr || options_.rank + 1 == options_.world_size;
    if (group == nullptr) group = options_.world;
  }
  layers_.note_script(layer_name);
  std::vector<NamedValue> values;
  for (FeatureInstance* instance : features_.running_for(layer_name)) {
    auto* feature = dynamic_cast<ScriptDrivenFeature*>(instance->feature.get());
    if (feature == nullptr) continue;
    for (NamedValue& each :
         feature->log_tensor({layer_name, iteration}, tensor_name, tensor, group)) {
      values.push_back(std::move(each));
    }
  }
  if (!logs) return {};
  const std::string group_name = name_of(group);
  Logged logged;
  for (const NamedValue& each : values) {
    const Series& series = series_.find_or_add(
        {.layer = layer_name, .tensor = tensor_name, .statistic = each.name, .group = group_name});
    logged.rows.push_back({iteration, &series, each.value});
  }
  delivery_->deliver(logged);
  return values;
}

void Session::set_iteration(std::int64_t iteration) {
  check_iteration("initialize_training_step", iteration);
  layers_.set_iteration(iteration);
  statistics_->begin_iteration(iteration);
}

void Session::set_reduction_group(ReductionGroup group, std::string_view layer_name) {
  if (layer_name.empty()) {
    chosen_group_ = std::move(group);
  } else if (group) {
    layer_groups_.insert_or_assign(std::string(layer_name), std::move(group));
  } else {
    layer_groups_.erase(std::string(layer_name));
  }
}

ReductionGroup Session::chosen_group_for(std::string_view layer_name,
                                         const LogTensorStatsOptions& options) const {
  if (options.reduction_group) return options.reduction_group;
  const auto of_layer = layer_groups_.find(layer_name);
  return of_layer == layer_groups_.end() ? chosen_group_ : of_layer->second;
}

Reductions Session::reductions_in(std::int64_t iteration) {
  return Reductions{.world = options_.world,
                    .tensors = reduction_group(),
                    .tensors_of_layers = layer_groups_,
                    .weights = reduce_weights_,
                    .tensors_are_due = features_.reads_statistics(/*of_weights=*/false, iteration),
                    .weights_are_due = features_.reads_statistics(/*of_weights=*/true, iteration),
                    .decisions = features_.decisions().words(),
                    .decisions_are_due = features_.decisions().waiting()};
}

Logged Session::take_logged(std::vector<Row> collected) {
  sections().keep(iteration(), collected);
  Logged logged = outbox_.take();
  logged.rows.insert(logged.rows.begin(), collected.begin(), collected.end());
  return logged;
}

// A number of the running iteration, for those who decide.
void Session::note_number(std::string_view name, double value) {
  if (!features_.decisions().any()) return;
  const std::lock_guard lock(pending_mutex_);
  numbers_.push_back({std::string(name), value});
}

// The end of an iteration, for those who decide about what follows.
void Session::decide(const Logged& logged,
                     std::span<const std::vector<std::int64_t>> words_of_ranks) {
  Decisions& decisions = features_.decisions();
  if (!decisions.any()) return;
  std::vector<NamedNumber> numbers = [this] {
    const std::lock_guard lock(pending_mutex_);
    return std::exchange(numbers_, {});
  }();
  for (const NamedScalar& each : logged.scalars) numbers.push_back({each.name, each.value});
  if (!words_of_ranks.empty()) decisions.follow(iteration(), words_of_ranks);
  decisions.decide({iteration(), logged.rows, numbers});
  if (!has_several_ranks(options_.world)) decisions.follow_own(iteration());
  delivery_->run_file().rows(sections().take_written());
}

// The iteration ends before a logger is called: one that throws leaves the session in order.
void Session::step(std::optional<double> loss) {
  const std::int64_t ending = iteration();
  for (const auto& each : features_.all()) {
    const CostTimer cost(each->section->budget());
    guard_.observe(*each, {}, "step", [&] { each->feature->step(ending); });
  }
  const double begin = sections().measures() ? seconds_now() : 0;
  if (loss) delivery_->run_file().scalar(ending, "loss", *loss);
  if (loss) note_number("loss", *loss);
  // Who decides about this iteration has to see it.
  const Waiting waiting = features_.decisions().look_at_rows(ending) ? Waiting::yes : Waiting::no;
  Collected collected = statistics_->collect(ending, reductions_in(ending), waiting);
  const Logged logged = take_logged(std::move(collected.rows));
  decide(logged, collected.decisions);
  layers_.end_iteration();
  if (sections().end_iteration()) layers_.wake();
  statistics_->begin_iteration(iteration());
  // A logger that throws on one rank must not leave that rank behind in what all ranks decide.
  std::exception_ptr from_a_logger;
  try {
    delivery_->deliver(logged);
  } catch (...) {
    from_a_logger = std::current_exception();
  }
  if (sections().measures()) {
    sections().end_step(seconds_now() - begin - collected.exchange_seconds);
  }
  stop_if_asked();
  if (from_a_logger) std::rethrow_exception(from_a_logger);
}

void Session::stop_if_asked() {
  const std::vector<std::string> texts = [this] {
    const std::lock_guard lock(pending_mutex_);
    return std::exchange(stop_texts_, {});
  }();
  if (texts.empty()) return;
  const std::string message = fmt::format("{}", fmt::join(texts, "\n"));
  notices_.log(message, {}, LogLevel::error);
  delivery_->run_file().event(iteration() - 1, "stopped", message, {});
  flush();
  throw RunStopped(message);
}

void Session::end() {
  layers_.stop();
  for (const auto& each : features_.all()) {
    guard_.observe(*each, {}, "end", [&] { each->feature->end(); });
  }
  // Layers of other ranks are not known here.
  const LogLevel level = options_.world_size > 1 ? LogLevel::info : LogLevel::warning;
  for (const std::string& text : layers_.idle_sections(config_)) notices_.message(text, {}, level);
  // The other ranks may be gone: what was not stepped stays this rank's.
  delivery_->deliver(take_logged(statistics_->collect(iteration(), {}, Waiting::yes).rows));
  for (const std::string& text : stop_texts_) notices_.message(text, {}, LogLevel::error);
  flush();
}

}  // namespace telens::debug
