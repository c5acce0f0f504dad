#include "features/engine/rank_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/fnv1a.h"

namespace telens::features {
namespace {

using Words = std::vector<std::int64_t>;

// Sums that have a size of their own, in place of features/statistics/accumulator.h.
void append_words(Words& words, const DefinedSums& sums) { sums.append_words(words); }

template <typename Sums>
void clear(Sums& sums) {
  sums = Sums{};
}
void clear(DefinedSums& sums) { sums.clear(); }

template <typename Sums>
void merge_words(Sums& sums, std::span<const std::int64_t> words) {
  merge(sums, from_words<Sums>(words));
}
void merge_words(DefinedSums& sums, std::span<const std::int64_t> words) {
  sums.merge_words(words);
}

// What a rank sends, in words: a text of as many lines as it has sums, then the sums.
struct Message {
  std::string text;  // lines "<words> <name>"
  Words words;

  std::size_t text_words() const { return (text.size() + 7) / 8; }
};

Message message_of(std::span<const SharedSums> own) {
  Message message;
  for (const SharedSums& each : own) {
    const std::size_t before = message.words.size();
    std::visit([&](const auto& sums) { append_words(message.words, sums); }, *each.sums);
    message.text += fmt::format("{} {}\n", message.words.size() - before, each.name);
  }
  return message;
}

// A message's sums by name.
using SumsByName = std::unordered_map<std::string_view, std::span<const std::int64_t>>;

SumsByName unpack(std::string_view text, std::span<const std::int64_t> words) {
  SumsByName sums;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    const std::size_t space = line.find(' ');
    const std::size_t count = std::stoul(std::string(line.substr(0, space)));
    sums.emplace(line.substr(space + 1), words.first(count));
    words = words.subspan(count);
    text.remove_prefix(line.size() + 1);
  }
  return sums;
}

// Every rank's words, in the order of ranks; all ranks send equally many.
std::vector<Words> all_gather(const Words& words, c10d::ProcessGroup& group) {
  // A group of NCCL alone takes no CPU tensors.
  const std::vector<c10::Device> devices = group.getDeviceTypes();
  const bool takes_cpu = devices.empty() || std::ranges::any_of(devices, [](c10::Device device) {
                           return device.type() == c10::DeviceType::CPU;
                         });
  const c10::Device device = takes_cpu ? c10::Device(c10::kCPU) : devices.front();
  const auto size = static_cast<std::int64_t>(words.size());
  at::Tensor packed = at::empty({size}, at::kLong);
  std::ranges::copy(words, packed.mutable_data_ptr<std::int64_t>());

  std::vector<at::Tensor> inputs{packed.to(device)};
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int rank = 0; rank < group.getSize(); ++rank) {
    outputs[0].push_back(at::zeros({size}, inputs[0].options()));
  }
  group.allgather(outputs, inputs)->wait();
  std::vector<Words> result;
  for (const at::Tensor& each : outputs[0]) {
    const at::Tensor host = each.cpu();
    const auto* data = host.const_data_ptr<std::int64_t>();
    result.emplace_back(data, data + size);
  }
  return result;
}

struct Header {
  std::int64_t hash;
  std::int64_t words;
  std::int64_t text_bytes;
  Notes notes;
};

std::vector<Header> gather_headers(const Message& message, const Notes& notes,
                                   c10d::ProcessGroup& group) {
  Words own{hash_of(message.text), static_cast<std::int64_t>(message.words.size()),
            static_cast<std::int64_t>(message.text.size())};
  const auto fixed = static_cast<std::ptrdiff_t>(own.size());
  own.insert(own.end(), notes.begin(), notes.end());
  std::vector<Header> headers;
  for (const Words& each : all_gather(own, group)) {
    headers.push_back({each[0], each[1], each[2], Notes(each.begin() + fixed, each.end())});
  }
  return headers;
}

// What a rank with names sends when they differ: text, then sums, padded to the longest message.
Words with_names(const Message& message, std::size_t size) {
  Words packed(size);
  std::memcpy(packed.data(), message.text.data(), message.text.size());
  std::ranges::copy(message.words,
                    packed.begin() + static_cast<std::ptrdiff_t>(message.text_words()));
  return packed;
}

std::size_t text_words(const Header& header) {
  return static_cast<std::size_t>(header.text_bytes + 7) / 8;
}

}  // namespace

std::int64_t hash_of(std::string_view text) { return static_cast<std::int64_t>(fnv1a(text)); }

std::vector<std::int64_t> gather_notes(std::int64_t note, c10d::ProcessGroup& group) {
  std::vector<std::int64_t> notes;
  for (const Words& each : all_gather({note}, group)) notes.push_back(each.front());
  return notes;
}

std::vector<std::string> gather_texts(std::string_view text, c10d::ProcessGroup& group) {
  const std::vector<std::int64_t> sizes =
      gather_notes(static_cast<std::int64_t>(text.size()), group);
  std::vector<std::string> texts(sizes.size());
  const auto longest = static_cast<std::size_t>(std::ranges::max(sizes));
  if (longest == 0) return texts;
  Words packed((longest + 7) / 8);
  std::ranges::copy(text, reinterpret_cast<char*>(packed.data()));
  const std::vector<Words> gathered = all_gather(packed, group);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    texts[rank].assign(reinterpret_cast<const char*>(gathered[rank].data()),
                       static_cast<std::size_t>(sizes[rank]));
  }
  return texts;
}

std::vector<Notes> merge_over_ranks(std::span<const SharedSums> own, c10d::ProcessGroup& group,
                                    const Notes& note) {
  const Message message = message_of(own);
  const std::vector<Header> headers = gather_headers(message, note, group);
  std::vector<Notes> notes;
  for (const Header& each : headers) notes.push_back(each.notes);
  const bool same_names = std::ranges::all_of(
      headers, [&](const Header& each) { return each.hash == headers.front().hash; });
  std::size_t longest = 0;
  for (const Header& each : headers) {
    const std::size_t text = same_names ? 0 : text_words(each);
    longest = std::max(longest, text + static_cast<std::size_t>(each.words));
  }
  if (longest == 0) return notes;

  const std::vector<Words> gathered =
      all_gather(same_names ? message.words : with_names(message, longest), group);
  std::vector<SumsByName> ranks;
  for (std::size_t rank = 0; rank < gathered.size(); ++rank) {
    const Words& packed = gathered[rank];
    if (same_names) {
      ranks.push_back(unpack(message.text, packed));
    } else {
      const Header& header = headers[rank];
      const std::string_view text(reinterpret_cast<const char*>(packed.data()),
                                  static_cast<std::size_t>(header.text_bytes));
      ranks.push_back(unpack(text, std::span(packed).subspan(text_words(header))));
    }
  }
  for (const SharedSums& each : own) {
    std::visit(
        [&](auto& sums) {
          clear(sums);
          for (const SumsByName& rank : ranks) {
            const auto found = rank.find(each.name);
            if (found != rank.end()) merge_words(sums, found->second);
          }
        },
        *each.sums);
  }
  return notes;
}

}  // namespace telens::features
