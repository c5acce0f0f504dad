#include "hooks/config/section_keys.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "hooks/config/config.h"
#include "hooks/config/suggestions.h"

namespace telens::config {
namespace {

// A key that names another section, and the parameter that it requires of that section's feature.
struct LinkKey {
  std::string_view key;
  std::optional<SectionLink> SectionKeys::*link;
  std::string_view measure;
};
constexpr std::array kLinkKeys{LinkKey{kStartedBy, &SectionKeys::started_by, kStart},
                               LinkKey{kKeptBy, &SectionKeys::kept_by, kWriteLast}};

// "3%" as 0.03.
std::optional<double> parse_share(const Value& value, std::string_view key, ErrorList& errors) {
  const std::string text = value.is_string() ? value.as_string() : "";
  double percent = 0;
  const char* end = text.data() + text.size();
  const auto [number_end, error] = std::from_chars(text.data(), end, percent);
  const bool is_percentage = error == std::errc() && std::string_view(number_end, end) == "%";
  if (is_percentage && percent > 0 && percent < 100) return percent / 100;
  errors.add(value.location(),
             "'{}' must be a part of the step time such as 3%, above 0% and below 100%, not {}",
             key, describe(value));
  return std::nullopt;
}

std::optional<Budget> parse_budget(const Value& value, ErrorList& errors) {
  Budget budget;
  if (!value.is_map()) {
    const std::optional<double> share = parse_share(value, kBudget, errors);
    if (!share) return std::nullopt;
    budget.share = *share;
    return budget;
  }
  const std::vector<std::string> keys{std::string(kShare), std::string(kFullSteps),
                                      std::string(kFullSeconds)};
  bool has_share = false;
  for (const MapEntry& entry : value.as_map()) {
    if (entry.key == kShare) {
      has_share = true;
      budget.share = parse_share(entry.value, kShare, errors).value_or(0);
    } else if (entry.key == kFullSteps) {
      if (entry.value.is_integer() && entry.value.as_integer() >= 0) {
        budget.full_steps = entry.value.as_integer();
      } else {
        errors.add(entry.value.location(), "'{}' must be a number of steps, 0 or more, not {}",
                   kFullSteps, describe(entry.value));
      }
    } else if (entry.key == kFullSeconds) {
      if (entry.value.is_number() && entry.value.as_number() > 0) {
        budget.full_seconds = entry.value.as_number();
      } else {
        errors.add(entry.value.location(), "'{}' must be a number of seconds above 0, not {}",
                   kFullSeconds, describe(entry.value));
      }
    } else {
      errors.add(entry.key_location, "unknown key '{}' of '{}'{}; expected one of {}", entry.key,
                 kBudget, suggestion(entry.key, keys), quoted_list(keys));
    }
  }
  if (!has_share) {
    errors.add(value.location(), "'{}' has no '{}'; add for example '{}: 3%'", kBudget, kShare,
               kShare);
  }
  return budget;
}

constexpr std::array kModes{Mode::train, Mode::eval, Mode::both};

Mode parse_mode(const Value& value, ErrorList& errors) {
  std::vector<std::string> names;
  for (const Mode mode : kModes) {
    if (value.is_string() && value.as_string() == get_name(mode)) return mode;
    names.emplace_back(get_name(mode));
  }
  errors.add(value.location(), "'{}' must be one of {}, not {}{}", kMode, quoted_list(names),
             describe(value), value.is_string() ? suggestion(value.as_string(), names) : "");
  return Mode::train;
}

const FeatureEntry* firing_feature(const Section& section) {
  const auto found = std::ranges::find_if(
      section.features, [](const FeatureEntry& entry) { return entry.description->fires; });
  return found == section.features.end() ? nullptr : &*found;
}

class LinkCheck {
 public:
  LinkCheck(const std::vector<Section>& sections, const Value& root,
            const Descriptions& descriptions, ErrorList& errors)
      : sections_(sections), descriptions_(descriptions), errors_(errors) {
    for (const Section& section : sections) by_name_.emplace(section.name, &section);
    for (const MapEntry& entry : root.as_map()) {
      names_.push_back(entry.key);
      written_.insert(entry.key);
      for (const LinkKey& key : kLinkKeys) {
        const Value* link = entry.value.find(key.key);
        if (link != nullptr && link->is_string()) linked_[key.key].insert(link->as_string());
      }
    }
  }

  void run() {
    find_circles();
    for (const Section& section : sections_) {
      const ErrorList::Context context(errors_, fmt::format("section '{}'", section.name));
      for (const LinkKey& key : kLinkKeys) {
        const std::optional<SectionLink>& link = (*section.keys).*key.link;
        if (link) check_target(*link, key);
      }
      if (section.keys->kept_by) check_kept(section);
      if (section.keys->mode != Mode::train) check_mode(section);
      check_both(*section.keys);
      check_measures(section);
      check_circle(section);
    }
  }

 private:
  const Section* find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }

  // A disabled section or feature may be named: this section then never starts.
  void check_target(const SectionLink& link, const LinkKey& key) {
    const Section* target = find(link.section);
    const FeatureEntry* feature = target == nullptr ? nullptr : firing_feature(*target);
    if (!written_.contains(link.section)) {
      const std::size_t listed = std::min(names_.size(), ErrorList::kListed);
      errors_.add(
          link.location, "'{}': unknown section '{}'{}; the sections are {}{}", key.key,
          link.section, errors_.has_room() ? suggestion(link.section, names_) : "",
          quoted_list(std::span(names_).first(listed)),
          listed < names_.size() ? fmt::format(" and {} more", names_.size() - listed) : "");
    } else if (target != nullptr && !target->fires) {
      errors_.add(link.location,
                  "'{}': the section '{}' does not have a feature that fires; add a "
                  "telens.Trigger to it",
                  key.key, link.section);
    } else if (feature != nullptr && feature->config.find(key.measure) == nullptr) {
      errors_.add(link.location, "'{}': {} of the section '{}' ({}) has no '{}: <iterations>'",
                  key.key, feature->written_name, link.section, to_string(feature->location),
                  key.measure);
    }
  }

  void check_kept(const Section& section) {
    for (const FeatureEntry& entry : section.features) {
      if (entry.description->can_be_kept) continue;
      errors_.add(entry.location,
                  "{} cannot be in a section that is '{}' another: only statistics are kept in "
                  "memory, namely of {}",
                  entry.written_name, kKeptBy, quoted_list(features_that_can_be_kept()));
    }
  }

  std::vector<std::string> features_that_can_be_kept() const {
    return features_with(&FeatureDescription::can_be_kept);
  }

  std::vector<std::string> features_with(bool FeatureDescription::*property) const {
    std::vector<std::string> names;
    for (const FeatureDescriptionPtr& each : descriptions_.all()) {
      if ((*each).*property) names.push_back(each->name);
    }
    return names;
  }

  void check_mode(const Section& section) {
    for (const FeatureEntry& entry : section.features) {
      if (entry.description->names_evaluation || entry.description->opaque) continue;
      errors_.add(section.keys->mode_location,
                  "'{}: {}' is not supported for {} ({}): evaluations are recorded under separate "
                  "names, only by {}; move it to a section without '{}'",
                  kMode, get_name(section.keys->mode), entry.written_name,
                  to_string(entry.location),
                  quoted_list(features_with(&FeatureDescription::names_evaluation)), kMode);
    }
  }

  // The firing that starts the section would also end it, and write rows that it has not recorded.
  void check_both(const SectionKeys& keys) {
    if (!keys.started_by || !keys.kept_by || keys.started_by->section != keys.kept_by->section) {
      return;
    }
    errors_.add(keys.kept_by->location,
                "'{}' and '{}' both name '{}', which would write the kept records at the moment "
                "when it starts the section; split it into two sections, one with each key",
                kStartedBy, kKeptBy, keys.kept_by->section);
  }

  void check_measures(const Section& section) {
    const FeatureEntry* feature = firing_feature(section);
    if (feature == nullptr) return;
    for (const LinkKey& key : kLinkKeys) {
      const Value* measure = feature->config.find(key.measure);
      if (measure == nullptr) continue;
      const bool named = linked_[key.key].contains(section.name);
      const bool of_operands =
          key.measure == kWriteLast && feature->config.find(kOperands) != nullptr;
      if (named || of_operands) continue;
      errors_.add(measure->location(), "'{}' has no effect: no section has '{}: {}'", key.measure,
                  key.key, section.name);
    }
  }

  // Collects the sections that wait, through others, for themselves. A section waits for at most
  // one other, so following the links from each section, until an already visited one, visits every
  // section once.
  void find_circles() {
    std::unordered_map<const Section*, const Section*> walk_of;  // section -> start of its walk
    for (const Section& first : sections_) {
      const Section* at = &first;
      while (at != nullptr && walk_of.try_emplace(at, &first).second) at = next(*at);
      if (at == nullptr || walk_of[at] != &first) continue;
      for (const Section* each = at; circular_.insert(each).second;) each = next(*each);
    }
  }

  const Section* next(const Section& section) const {
    const std::optional<SectionLink>& link = section.keys->started_by;
    return link ? find(link->section) : nullptr;
  }

  void check_circle(const Section& section) {
    if (!circular_.contains(&section)) return;
    errors_.add(section.keys->started_by->location, "'{}': the section depends on itself",
                kStartedBy);
  }

  const std::vector<Section>& sections_;
  std::unordered_map<std::string_view, const Section*> by_name_;  // the first with each name
  std::vector<std::string> names_;                                // including disabled sections
  std::unordered_set<std::string_view> written_;                  // as `names_`
  std::map<std::string_view, std::unordered_set<std::string_view>> linked_;  // names, by LinkKey
  std::unordered_set<const Section*> circular_;
  const Descriptions& descriptions_;
  ErrorList& errors_;
};

}  // namespace

std::string_view get_name(Mode mode) {
  switch (mode) {
    case Mode::train:
      return "train";
    case Mode::eval:
      return "eval";
    case Mode::both:
      break;
  }
  return "both";
}

bool is_section_key(std::string_view key) {
  return key == kBudget || key == kMode ||
         std::ranges::find(kLinkKeys, key, &LinkKey::key) != kLinkKeys.end();
}

SectionKeys parse_section_keys(const Value& section, ErrorList& errors) {
  SectionKeys keys;
  for (const LinkKey& key : kLinkKeys) {
    const Value* value = section.find(key.key);
    if (value == nullptr) continue;
    if (value->is_string()) {
      keys.*key.link = SectionLink{value->as_string(), value->location()};
    } else {
      errors.add(value->location(), "'{}' must be the name of a section, not {}", key.key,
                 describe(*value));
    }
  }
  if (const Value* budget = section.find(kBudget)) {
    keys.budget = parse_budget(*budget, errors);
  }
  if (const Value* mode = section.find(kMode)) {
    keys.mode = parse_mode(*mode, errors);
    keys.mode_location = mode->location();
  }
  return keys;
}

void check_links(const std::vector<Section>& sections, const Value& root,
                 const Descriptions& descriptions, ErrorList& errors) {
  LinkCheck(sections, root, descriptions, errors).run();
}

}  // namespace telens::config
