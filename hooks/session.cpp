#include "hooks/session.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "hooks/builtin.h"
#include "hooks/feature_failure.h"
#include "hooks/plugin_loader.h"

namespace telens::debug {
namespace {

constexpr int kForwardsBeforeWarning = 1000;
constexpr int kMostWarnings = 1000;  // in the run file

config::Config load_config(const InitializeOptions& options,
                           const config::Descriptions& descriptions) {
  if (options.config_text) {
    return config::load_config_text(*options.config_text, "config", descriptions);
  }
  if (options.config_file.empty()) return {};
  return config::load_config_file(options.config_file, descriptions);
}

// statistics_logger takes the place of tb_writer, and that of the text file.
std::vector<std::shared_ptr<ScalarLogger>> make_loggers(const InitializeOptions& options) {
  std::vector<std::shared_ptr<ScalarLogger>> loggers;
  if (options.statistics_logger) {
    loggers.push_back(options.statistics_logger);
  } else if (options.tb_writer) {
    loggers.push_back(options.tb_writer);
  }
  if (loggers.empty() || options.default_logging_enabled) {
    loggers.push_back(std::make_shared<StatisticsLog>(options.log_dir, options.rank));
  }
  return loggers;
}

// The parts of "<layer>_<tensor>_<statistic>"; empty for another name. Of several words that name a
// tensor the last one counts: layers are called after weights, statistics after nothing.
std::optional<SeriesTable::Names> names_in(std::string_view name) {
  std::optional<SeriesTable::Names> names;
  std::size_t last = 0;
  for (const TensorName tensor : kAllTensors) {
    const std::string middle = fmt::format("_{}_", telens::name_of(tensor));
    const std::size_t at = name.rfind(middle);
    if (at == name.npos || at <= last || at + middle.size() == name.size()) continue;
    last = at;
    names = {.layer = name.substr(0, at),
             .tensor = telens::name_of(tensor),
             .statistic = name.substr(at + middle.size())};
  }
  return names;
}

// The common reading, as one feature sees it: keeps in mind whether the feature wanted anything.
class NotedReading final : public TensorReading {
 public:
  explicit NotedReading(TensorReading& reading) : reading_(reading) {}

  std::optional<std::string> want(const StatisticsRequest& request) override {
    wanted_ = true;
    return reading_.want(request);
  }
  void read() override { reading_.read(); }

  bool wanted() const { return wanted_; }

 private:
  TensorReading& reading_;
  bool wanted_ = false;
};

// A budget makes a feature run more seldom, which must change nothing that is computed.
void check_budget(const FeatureInstance& instance) {
  const RoutingCalls calls = instance.feature->routing_calls();
  if (instance.section->budget() == nullptr || (!calls.modify && !calls.fp8_gemm)) return;
  raise<ConfigError>(
      "{}: section '{}': {} may change what is computed (it answers modify_tensor_enabled or "
      "fp8_gemm_enabled); a section with a '{}' may only watch",
      to_string(instance.entry->location), instance.entry->section, instance.entry->written_name,
      config::kBudget);
}

void check_iteration(std::string_view what, std::int64_t iteration) {
  if (iteration < 0 || iteration > hook_points::kLastIteration) {
    raise<UsageError>("debug.{}: the iteration cannot be {}; iterations count from 0 to {}", what,
                      iteration, hook_points::kLastIteration);
  }
}

std::string context_of(const FeatureInstance& feature, std::string_view layer_name,
                       std::string_view call) {
  return fmt::format("{} in layer '{}', {}", feature.title(), layer_name, call);
}

}  // namespace

Session::Session(InitializeOptions options)
    : options_(std::move(options)),
      statistics_(make_statistics_engine(series_)),
      iteration_(options_.init_training_step) {
  accept_on_all_ranks(options_, [this] { accept(); });
  // From here on nothing is refused: files of an earlier run may be touched.
  run_file_ = make_run_file_sink(options_, config_.text(), [this](const std::string& error) {
    messages_.write(error, {}, LogLevel::warning);
  });
  messages_.open(options_.log_dir, options_.rank);
  loggers_ = make_loggers(options_);
  termination_flush_.emplace([this] {
    run_file_->flush();
    messages_.flush();
  });
  install();
  first_number_ = jump_number_ = number_;
}

Session::~Session() {
  hook_points::install(nullptr, 0);
  termination_flush_.reset();
}

void Session::accept() {
  check_iteration("initialize, init_training_step", options_.init_training_step);
  load_plugins(options_.feature_dirs, registry_);
  config_ = load_config(options_, registry_.descriptions());
  make_features();
}

void Session::make_features() {
  sections_.emplace(config_);
  sections_->make_budgets([this](const std::string& text) { announce_budget(text); });
  for (SectionState* state : sections_->with_budget()) {
    decisions_.add(*state->budget(), {.runs = [state] { return state->runs(); },
                                      .guard = [](const auto& decide) { decide(); }});
  }
  for (const config::Section& section : config_.sections()) {
    for (const config::FeatureEntry& entry : section.features) {
      features_.push_back(std::make_unique<FeatureInstance>(&entry));
      FeatureInstance& instance = *features_.back();
      instance.section = &sections_->state(section.name);
      instance.feature = registry_.make(entry, *this);
      check_budget(instance);
      if (Decider* decider = instance.feature->decider()) {
        decisions_.add(*decider, {.runs = [&instance] { return instance.section->runs(); },
                                  .guard =
                                      [this, &instance](const auto& decide) {
                                        observe(instance, {}, "decide", decide);
                                      }});
      }
    }
  }
}

// Anew for every change of the iteration from outside: a layer that sleeps wakes up in a session
// with a larger number.
void Session::install() { number_ = hook_points::install(this, iteration()); }

// The same where other sections run than before; what was forwarded already keeps its plan.
void Session::wake() { number_ = hook_points::renew(iteration()); }

std::vector<FeatureInstance*> Session::features_of(std::string_view layer_name) const {
  std::vector<FeatureInstance*> features;
  for (const config::FeatureEntry* entry : config_.entries_for(layer_name)) {
    const auto instance =
        std::ranges::find(features_, entry, [](const auto& each) { return each->entry; });
    if ((*instance)->section->runs()) features.push_back(instance->get());
  }
  return features;
}

// ---- what layers call

LayerRouting& Session::routing_of(LayerHooks& layer) {
  const std::lock_guard lock(layers_mutex_);
  auto* known = static_cast<LayerRouting*>(layer.state().get());
  if (known != nullptr && known->session() == number_) return *known;

  std::string name = layer.name();
  if (name.empty()) {
    LayerHooks::AutomaticName& automatic = layer.automatic_name();
    if (automatic.session < first_number_) {
      automatic = {number_, fmt::format("Layer_{}", ++unnamed_layers_)};
    }
    name = automatic.name + layer.automatic_suffix();
  }
  const std::vector<FeatureInstance*> features = features_of(name);
  const bool grew = known != nullptr && known->session() >= jump_number_;
  auto routing =
      std::make_unique<LayerRouting>(number_, std::move(name), features, grew ? known : nullptr);
  LayerRouting& result = *routing;
  layer.state() = std::move(routing);
  return result;
}

RoutingPlan Session::route(LayerHooks& layer, const RoutingRequest& request) {
  SharedCost cost(sections_->measures());
  LayerRouting& routing = routing_of(layer);
  const std::int64_t now = iteration();
  RoutingPlan plan =
      routing.route(now, request.under_recipe,
                    [this](FeatureInstance& feature, std::string_view layer_name,
                           std::string_view call) { switch_off(feature, layer_name, call); });
  for (const PlanAnswers::Part& part : PlanAnswers::of(plan).parts) {
    if (part.on()) cost.add(part.feature->section->budget());
  }
  if (plan.empty()) {
    if (const auto wake = routing.sleep_until(now, request.under_recipe)) {
      const bool ever = *wake <= hook_points::kLastIteration;
      layer.sleep_until(
          ever ? hook_points::tick_of(number_, *wake) : hook_points::tick_of(number_ + 1, 0),
          request);
    }
  }
  log_plan(routing, plan, request.under_recipe);
  if (routing.count_forward(steps_.load(std::memory_order_relaxed)) == kForwardsBeforeWarning) {
    log_message(fmt::format("{} forwards without a call of debug.step(): the iteration is still "
                            "{}; call step() at the end of every forward-backward",
                            kForwardsBeforeWarning, now),
                {}, LogLevel::warning);
  }
  return plan;
}

// One message for each input of each GEMM: how it gets there.
void Session::log_plan(LayerRouting& routing, const RoutingPlan& plan, bool under_recipe) {
  enum Kind { quantize, high_precision, modify, kKinds };
  static constexpr std::array<std::string_view, kKinds> kTexts{"Quantize", "High Precision",
                                                               "modify_tensor()"};
  if (plan.empty()) return;
  std::uint32_t pair = 0;
  for (const Gemm gemm : kAllGemms) {
    for (const TensorName tensor : kAllTensors) {
      if (!is_gemm_input(tensor) || !belongs_to(tensor, gemm)) continue;
      const bool high = !under_recipe || plan.runs_in_high_precision(gemm);
      const Kind kind = plan.modifies(gemm, tensor) ? modify : high ? high_precision : quantize;
      if (!routing.claim_messages(1U << (pair++ * kKinds + kind))) continue;
      messages_.write(fmt::format("Tensor: {}, gemm {} - {}", telens::name_of(tensor),
                                  telens::name_of(gemm), kTexts[kind]),
                      routing.layer_name(), LogLevel::info);
    }
  }
}

Operand Session::modify_tensor(LayerHooks&, const RoutingPlan& plan, const ModifyTensorCall& call) {
  const PlanAnswers& answers = PlanAnswers::of(plan);
  const std::uint32_t bit = RoutingPlan::bit_of(call.gemm, call.tensor_name);
  const auto part =
      std::ranges::find_if(answers.parts, [&](const auto& each) { return each.modify & bit; });
  if (part == answers.parts.end()) {
    raise<UsageError>(
        "layer '{}': modify_tensor was called for the {} of {}, which the plan does "
        "not modify",
        answers.layer_name, telens::name_of(call.tensor_name), telens::name_of(call.gemm));
  }
  try {
    return part->feature->feature->modify_tensor({answers.layer_name, plan.iteration}, call);
  } catch (...) {
    rethrow_with_context(context_of(*part->feature, answers.layer_name, "modify_tensor"));
  }
}

template <typename Call>
void Session::observe(FeatureInstance& feature, std::string_view layer_name,
                      std::string_view call_name, Call&& call) {
  if (!feature.observes.load(std::memory_order_relaxed)) return;
  const at::NoGradGuard no_grad;
  try {
    call();
  } catch (...) {
    switch_off(feature, layer_name, call_name);
  }
}

void Session::switch_off(FeatureInstance& feature, std::string_view layer_name,
                         std::string_view call_name) {
  if (!feature.observes.exchange(false)) return;
  const std::string text =
      fmt::format("{}: {}; it is switched off for the rest of the session, training goes on",
                  context_of(feature, layer_name, call_name), message_of_current_exception());
  messages_.write(text, {}, LogLevel::warning);
  run_file_->event(iteration(), "feature_off", text, layer_name);
}

void Session::inspect_tensor(LayerHooks&, const RoutingPlan& plan, const InspectTensorCall& call) {
  constexpr std::string_view kCall = "inspect_tensor";
  const PlanAnswers& answers = PlanAnswers::of(plan);
  const std::uint8_t bit = RoutingPlan::bit_of(call.tensor_name);
  const auto reading = statistics_->begin(answers.layer_name, plan.iteration, call);
  std::vector<FeatureInstance*> readers;
  for (const PlanAnswers::Part& part : answers.parts) {
    if (!(part.inspect & bit)) continue;
    const FeatureCall at{answers.layer_name, plan.iteration, &part.kept};
    const CostTimer cost(part.feature->section->budget());
    reading->keep_in(part.feature->section->ring());
    NotedReading noted(*reading);
    observe(*part.feature, answers.layer_name, kCall,
            [&] { part.feature->feature->inspect_tensor(at, call, noted); });
    if (noted.wanted()) readers.push_back(part.feature);
  }
  // What goes wrong in the common read is the failure of all who asked for it.
  const at::NoGradGuard no_grad;
  SharedCost cost(sections_->measures());
  for (const FeatureInstance* reader : readers) cost.add(reader->section->budget());
  cost.count_reads();
  if (!readers.empty()) sections_->count_read();
  try {
    reading->read();
  } catch (...) {
    for (FeatureInstance* reader : readers) switch_off(*reader, answers.layer_name, kCall);
  }
}

void Session::inspect_tensor_postquantize(LayerHooks&, const RoutingPlan& plan,
                                          const InspectPostquantizeCall& call) {
  const PlanAnswers& answers = PlanAnswers::of(plan);
  const std::uint32_t bit = RoutingPlan::bit_of(call.gemm, call.tensor_name);
  for (const PlanAnswers::Part& part : answers.parts) {
    if (!(part.postquantize & bit)) continue;
    const CostTimer cost(part.feature->section->budget());
    const FeatureCall at{answers.layer_name, plan.iteration, &part.kept};
    observe(*part.feature, answers.layer_name, "inspect_tensor_postquantize",
            [&] { part.feature->feature->inspect_tensor_postquantize(at, call); });
  }
}

void Session::inspect_gemm(LayerHooks&, const RoutingPlan& plan, const InspectGemmCall& call) {
  const PlanAnswers& answers = PlanAnswers::of(plan);
  for (const PlanAnswers::Part& part : answers.parts) {
    if (!(part.gemms & RoutingPlan::bit_of(call.gemm))) continue;
    const CostTimer cost(part.feature->section->budget());
    const FeatureCall at{answers.layer_name, plan.iteration, &part.kept};
    observe(*part.feature, answers.layer_name, "inspect_gemm",
            [&] { part.feature->feature->inspect_gemm(at, call, answers.alterations); });
  }
}

// ---- what features call

void Session::record(const Row& row) {
  const std::lock_guard lock(pending_mutex_);
  pending_.rows.push_back(row);
}

void Session::record(LedgerEntry entry) {
  const std::lock_guard lock(pending_mutex_);
  pending_.ledger.push_back(std::move(entry));
}

void Session::record_histogram(HistogramRow histogram) {
  const std::lock_guard lock(pending_mutex_);
  pending_.histograms.push_back(std::move(histogram));
}

void Session::record_block(const BlockValue& block) {
  const std::lock_guard lock(pending_mutex_);
  pending_.blocks.push_back(block);
}

void Session::announce(std::string_view kind, const std::string& text,
                       std::string_view layer_name) {
  messages_.write(text, {}, LogLevel::warning, fmt::format("{} {}", kind, iteration()));
  run_file_->event(iteration(), kind, text, layer_name);
}

void Session::announce_budget(const std::string& text) {
  messages_.write(text, {}, LogLevel::info, fmt::format("budget {}", iteration()));
  if (++budget_changes_ <= kMostWarnings) run_file_->event(iteration(), "budget", text, {});
}

void Session::stop_run(std::string text) {
  const std::lock_guard lock(pending_mutex_);
  stop_texts_.push_back(std::move(text));
}

void Session::log_message(std::string_view message, std::string_view layer_name, LogLevel level) {
  log_message(message, layer_name, level, {});
}

// ---- what the training program calls

bool Session::log_message(std::string_view message, std::string_view layer_name, LogLevel level,
                          std::string_view once_per) {
  const bool written = messages_.write(message, layer_name, level, once_per);
  if (written && level >= LogLevel::warning) record_warning(message, layer_name);
  return written;
}

// The run file keeps every text that it was given in memory and on disk, so it is given a number of
// them that a person might still read.
void Session::record_warning(std::string_view message, std::string_view layer_name) {
  const int recorded = warnings_.fetch_add(1, std::memory_order_relaxed);
  if (recorded < kMostWarnings) {
    run_file_->event(iteration(), "warning", message, layer_name);
  } else if (recorded == kMostWarnings) {
    run_file_->event(iteration(), "warning", "further warnings are in the text log only", {});
  }
}

void Session::record_scalar(std::string_view name, double value) {
  run_file_->scalar(iteration(), name, value);
  note_number(name, value);
}

void Session::log_scalar(std::string_view name, double value, std::int64_t iteration) {
  const std::optional<SeriesTable::Names> names = names_in(name);
  const std::lock_guard lock(pending_mutex_);
  if (names) {
    pending_.rows.push_back({iteration, &series_.find_or_add(*names), value});
  } else {
    pending_.scalars.push_back({std::string(name), value, iteration});
  }
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
  std::vector<NamedValue> values;
  for (FeatureInstance* instance : features_of(layer_name)) {
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
  deliver(logged);
  return values;
}

void Session::set_iteration(std::int64_t iteration) {
  check_iteration("initialize_training_step", iteration);
  iteration_.store(iteration, std::memory_order_relaxed);
  install();
  jump_number_ = number_;
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

// What every rank answers alike, from the configuration alone: ranks whose layers did not run have
// to come to the collective too.
Reductions Session::reductions_in(std::int64_t iteration) const {
  const auto read = [&](bool weights) {
    return std::ranges::any_of(features_, [&](const auto& each) {
      return each->section->runs() && each->entry->due(iteration) &&
             std::ranges::any_of(kAllTensors, [&](TensorName tensor) {
               return (tensor == TensorName::weight) == weights &&
                      each->feature->reads_statistics(tensor, iteration);
             });
    });
  };
  return Reductions{.world = options_.world,
                    .tensors = reduction_group(),
                    .tensors_of_layers = layer_groups_,
                    .weights = reduce_weights_,
                    .tensors_are_due = read(/*weights=*/false),
                    .weights_are_due = read(/*weights=*/true),
                    .decisions = decisions_.words(),
                    .decisions_are_due = decisions_.waiting()};
}

Session::Logged Session::collect(const Reductions& reductions) {
  Collected collected = statistics_->collect(reductions);
  sections_->keep(iteration(), collected.rows);
  const std::lock_guard lock(pending_mutex_);
  Logged logged = std::exchange(pending_, {});
  logged.rows.insert(logged.rows.begin(), collected.rows.begin(), collected.rows.end());
  logged.decisions = std::move(collected.decisions);
  logged.exchange_seconds = collected.exchange_seconds;
  return logged;
}

// A number of the running iteration, for those who decide.
void Session::note_number(std::string_view name, double value) {
  if (!decisions_.any()) return;
  const std::lock_guard lock(pending_mutex_);
  numbers_.push_back({std::string(name), value});
}

// The end of an iteration, for those who decide about what follows.
void Session::decide(const Logged& logged) {
  if (!decisions_.any()) return;
  std::vector<NamedNumber> numbers = [this] {
    const std::lock_guard lock(pending_mutex_);
    return std::exchange(numbers_, {});
  }();
  for (const NamedScalar& each : logged.scalars) numbers.push_back({each.name, each.value});
  if (!logged.decisions.empty()) decisions_.follow(iteration(), logged.decisions);
  decisions_.decide({iteration(), logged.rows, numbers});
  if (!has_several_ranks(options_.world)) decisions_.follow_own(iteration());
  run_file_->rows(sections_->take_written());
}

void Session::deliver(const Logged& logged) {
  run_file_->rows(logged.rows);
  run_file_->ledger(logged.ledger);
  run_file_->histograms(logged.histograms);
  run_file_->blocks(logged.blocks);
  for (const NamedScalar& each : logged.scalars) {
    run_file_->scalar(each.iteration, each.name, each.value);
  }
  for (const std::shared_ptr<ScalarLogger>& logger : loggers_) {
    for (const Row& row : logged.rows) {
      if (!row.asked) continue;
      logger->log_scalar(row.series->logged_as, row.value, row.iteration);
    }
    for (const NamedScalar& each : logged.scalars) {
      logger->log_scalar(each.name, each.value, each.iteration);
    }
    logger->flush();
  }
}

// The iteration ends before a logger is called: one that throws leaves the session in order.
void Session::step(std::optional<double> loss) {
  const std::int64_t ending = iteration();
  for (const auto& each : features_) {
    const CostTimer cost(each->section->budget());
    observe(*each, {}, "step", [&] { each->feature->step(ending); });
  }
  const double begin = sections_->measures() ? seconds_now() : 0;
  if (loss) run_file_->scalar(ending, "loss", *loss);
  if (loss) note_number("loss", *loss);
  const Logged logged = collect(reductions_in(ending));
  decide(logged);
  iteration_.store(ending + 1, std::memory_order_relaxed);
  hook_points::set_iteration(ending + 1);
  if (sections_->end_iteration()) wake();
  steps_.fetch_add(1, std::memory_order_relaxed);
  deliver(logged);
  if (sections_->measures()) {
    sections_->end_step(seconds_now() - begin - logged.exchange_seconds);
  }
  stop_if_asked();
}

void Session::stop_if_asked() {
  const std::vector<std::string> texts = [this] {
    const std::lock_guard lock(pending_mutex_);
    return std::exchange(stop_texts_, {});
  }();
  if (texts.empty()) return;
  std::string message;
  for (const std::string& text : texts) message += (message.empty() ? "" : "\n") + text;
  messages_.write(message, {}, LogLevel::error);
  run_file_->event(iteration() - 1, "stopped", message, {});
  run_file_->flush();
  messages_.flush();
  throw RunStopped(message);
}

void Session::end() {
  hook_points::install(nullptr, 0);
  for (const auto& each : features_) {
    observe(*each, {}, "end", [&] { each->feature->end(); });
  }
  // The other ranks may be gone: what was not stepped stays this rank's.
  deliver(collect({}));
  for (const std::string& text : stop_texts_) log_message(text, {}, LogLevel::error);
  run_file_->flush();
  messages_.flush();
}

}  // namespace telens::debug
