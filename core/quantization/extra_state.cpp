#include "core/quantization/extra_state.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>

#include "core/base/fnv1a.h"
#include "core/distributed/warn_once.h"
#include "core/formats/formats.h"

namespace telens {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::uint64_t kMagic = 0x3154534E454C4554;  // "TELENST1" in memory: name and version
constexpr std::size_t kChecksumAt = sizeof(kMagic) + sizeof(std::uint32_t);
constexpr std::int64_t kLowHalf = 0xFFFFFFFF;
constexpr std::int64_t kMostParts = 1 << 20;  // a larger number is not a number of parts

// Advice at the end of an error message.
constexpr std::string_view kRemedy =
    "load the checkpoint with strict=False and without the _extra_state keys to begin with fresh "
    "scales";

// Returns the checksum of a state's bytes; never 0, which marks a state without a checksum.
std::uint32_t checksum_of(std::string bytes) {
  std::memset(bytes.data() + kChecksumAt, 0, sizeof(std::uint32_t));
  const std::uint64_t hash = fnv1a(bytes);
  return std::max(static_cast<std::uint32_t>(hash ^ (hash >> 32)), 1U);
}

class ByteWriter {
 public:
  void put(const void* data, std::size_t size) {
    const auto* begin = static_cast<const std::uint8_t*>(data);
    bytes_.insert(bytes_.end(), begin, begin + size);
  }
  void put_number(std::int64_t number) { put(&number, sizeof(number)); }
  // Two unsigned 32-bit numbers; a larger one is stored as the largest.
  void put_halves(std::int64_t low, std::int64_t high) {
    for (const std::int64_t number : {low, high}) {
      const auto half = static_cast<std::uint32_t>(std::min(number, kLowHalf));
      put(&half, sizeof(half));
    }
  }
  void put_floats(const at::Tensor& tensor) {
    const at::Tensor host = tensor.to(at::kCPU).contiguous();
    put(host.const_data_ptr<float>(), static_cast<std::size_t>(host.numel()) * sizeof(float));
  }
  // Fills in the checksum of a state.
  void put_checksum() {
    const std::uint32_t checksum = checksum_of({bytes_.begin(), bytes_.end()});
    std::memcpy(bytes_.data() + kChecksumAt, &checksum, sizeof(checksum));
  }
  at::Tensor finish() const {
    at::Tensor tensor = at::empty({static_cast<std::int64_t>(bytes_.size())}, at::kByte);
    if (!bytes_.empty()) {
      std::memcpy(tensor.mutable_data_ptr<std::uint8_t>(), bytes_.data(), bytes_.size());
    }
    return tensor;
  }

 private:
  std::vector<std::uint8_t> bytes_;
};

class ByteReader {
 public:
  ByteReader(const at::Tensor& bytes, const std::string& source) : source_(source) {
    if (bytes.scalar_type() != at::kByte || bytes.dim() != 1) {
      raise<UsageError>("{} has dtype {} and {} dimensions; expected uint8 with 1", source_,
                        c10::toString(bytes.scalar_type()), bytes.dim());
    }
    host_ = bytes.to(at::kCPU).contiguous();
  }

  std::int64_t number() {
    std::int64_t value = 0;
    take(&value, sizeof(value));
    return value;
  }
  at::Tensor floats(at::IntArrayRef sizes) {
    for (const std::int64_t size : sizes) {
      if (size < 0 || size > host_.numel()) {
        fail();
      }
    }
    at::Tensor tensor = at::empty(sizes, at::kFloat);
    take(tensor.mutable_data_ptr<float>(),
         static_cast<std::size_t>(tensor.numel()) * sizeof(float));
    return tensor;
  }
  at::Tensor raw(std::int64_t size) {
    if (size < 0 || size > host_.numel() - position_) {
      fail();
    }
    position_ += size;
    return host_.narrow(0, position_ - size, size).clone();
  }
  [[noreturn]] void fail() const {
    raise<UsageError>("{} of {} bytes is not one that this library wrote; {}", source_,
                      host_.numel(), kRemedy);
  }
  bool at_end() const { return position_ == host_.numel(); }
  void expect_end() const {
    if (!at_end()) {
      fail();
    }
  }
  // Throws if the bytes have a checksum and it is wrong.
  void expect_checksum() const {
    const std::string bytes(reinterpret_cast<const char*>(host_.const_data_ptr<std::uint8_t>()),
                            static_cast<std::size_t>(host_.numel()));
    std::uint32_t expected = 0;
    if (bytes.size() < kChecksumAt + sizeof(expected)) fail();
    std::memcpy(&expected, bytes.data() + kChecksumAt, sizeof(expected));
    if (expected == 0 || expected == checksum_of(bytes)) return;
    raise<UsageError>(
        "{} of {} bytes is damaged: it does not match its checksum; copy the checkpoint again, or "
        "{}",
        source_, host_.numel(), kRemedy);
  }

 private:
  void take(void* to, std::size_t size) {
    if (static_cast<std::int64_t>(size) > host_.numel() - position_) {
      fail();
    }
    if (size != 0) {
      std::memcpy(to, host_.const_data_ptr<std::uint8_t>() + position_, size);
    }
    position_ += static_cast<std::int64_t>(size);
  }

  const std::string& source_;
  at::Tensor host_;
  std::int64_t position_ = 0;
};

// A factor by which no tensor changes during a training: it separates a bad scale from a spike.
constexpr double kUnlikely = 1 << 16;

// Returns true if 1 / scale loses bits or is infinite.
bool has_subnormal_inverse(float scale) { return !std::isnormal(1 / scale); }

// Returns true if the scaled amax is far above the largest finite value of every FP8 format.
bool overflows(float scale, float amax) {
  return double{scale} * amax > double{E5M2::kMax} * kUnlikely;
}

// Returns true if the scaled amax is far below the smallest value of every FP8 format.
bool underflows(float scale, float amax) {
  return double{scale} * amax < double{E5M2::kSmallestSubnormal} / kUnlikely;
}

// Throws or warns if the scale does not fit the amaxes. `tensor`: "<source>: the scale of <role>".
void check_scale(float scale, const at::Tensor& amaxes, const std::string& tensor) {
  const at::Tensor known = amaxes.masked_select(amaxes.isfinite() & amaxes.gt(0));
  const bool has_amax = known.numel() != 0;
  const float smallest = has_amax ? known.min().item<float>() : 0;
  const float largest = has_amax ? known.max().item<float>() : 0;
  const bool clips_all = has_amax && overflows(scale, smallest);
  // Delayed scaling limits the scale of a tiny amax to FLT_MAX, whose inverse is subnormal: such
  // a scale is valid unless the amaxes contradict it.
  const bool is_valid =
      std::isnormal(scale) && scale > 0 && !(has_subnormal_inverse(scale) && clips_all);
  if (!is_valid) {
    raise<UsageError>(
        "{} is {}; expected a positive normal FP32 number that fits the amax history; {}", tensor,
        scale, kRemedy);
  }
  if (clips_all) {
    warn_once(fmt::format(
        "{} is {}, but the smallest amax in its history is {}: FP8 casts will clip all values; {}",
        tensor, scale, smallest, kRemedy));
  } else if (scale != 1 && has_amax && underflows(scale, largest)) {
    warn_once(fmt::format(
        "{} is {}, but the largest amax in its history is {}: FP8 casts will return 0; {}", tensor,
        scale, largest, kRemedy));
  }
}

// Throws or warns, naming the tensor, if no training can have produced these values.
void check_values(const AmaxWindow& window, bool backward, const std::string& source) {
  for (std::int64_t slot = 0; slot < window.scale.size(0); ++slot) {
    const auto role = static_cast<TensorRole>(slot + (backward ? kForwardRoles : 0));
    const at::Tensor amaxes = window.amax_history.select(1, slot);
    if (amaxes.lt(0).any().item<bool>()) {
      raise<UsageError>("{}: the amax history of {} has a negative amax; {}", source,
                        get_name(role), kRemedy);
    }
    check_scale(window.scale[slot].item<float>(), amaxes,
                fmt::format("{}: the scale of {}", source, get_name(role)));
    if (amaxes.isnan().any().item<bool>()) {
      warn_once(
          fmt::format("{}: the amax history of {} contains NaN; the scale is not updated until the "
                      "NaN has left the history",
                      source, get_name(role)));
    }
  }
}

}  // namespace

at::Tensor get_bytes(const DelayedScalingState& state) {
  ByteWriter writer;
  if (!state.window(false).defined()) {
    return writer.finish();
  }
  writer.put(&kMagic, sizeof(kMagic));
  for (const bool backward : {false, true}) {
    const AmaxWindow& window = state.window(backward);
    writer.put_number(window.amax_history.size(0));
    writer.put_halves(window.amax_history.size(1), window.rows_since_update);
    writer.put_floats(window.amax_history);
    writer.put_floats(window.scale);
  }
  writer.put_checksum();
  return writer.finish();
}

DelayedScalingState state_from_bytes(const at::Tensor& bytes, const std::string& source) {
  ByteReader reader(bytes, source);
  DelayedScalingState state;
  if (bytes.numel() == 0) {
    return state;
  }
  const std::int64_t first = reader.number();
  if (first > 0 && first <= kMostParts) {
    raise<UsageError>(
        "{} holds the states of {} layers; expected the state of one: the entry belongs to a "
        "different module",
        source, first);
  }
  if (static_cast<std::uint64_t>(first) != kMagic) {
    raise<UsageError>(
        "{} does not begin like a state of this library; the pickle of a Transformer Engine "
        "checkpoint is not read here; {}",
        source, kRemedy);
  }
  reader.expect_checksum();
  for (const bool backward : {false, true}) {
    // The upper half of the forward's length is the checksum.
    const std::int64_t length = backward ? reader.number() : reader.number() & kLowHalf;
    const std::int64_t slots_and_pending = reader.number();
    const std::int64_t slots = slots_and_pending & kLowHalf;
    if (length < 1 || slots != (backward ? kBackwardRoles : kForwardRoles)) {
      reader.fail();
    }
    AmaxWindow& window = state.window(backward);
    window = {reader.floats({length, slots}), reader.floats({slots})};
    window.rows_since_update = (slots_and_pending >> 32) & kLowHalf;
    check_values(window, backward, source);
    // Restored scales came from a history: the next iteration is not a warm-up.
    if (!window.scale.eq(1).all().item<bool>()) window.updates->store(1);
  }
  if (!reader.at_end()) {  // an earlier version's counters
    for (const bool backward : {false, true}) {
      const std::int64_t rows = reader.number();
      if (rows < 0) reader.fail();
      state.window(backward).rows_since_update = rows;
    }
  }
  reader.expect_end();
  return state;
}

at::Tensor join_bytes(const std::vector<at::Tensor>& parts) {
  ByteWriter writer;
  writer.put_number(static_cast<std::int64_t>(parts.size()));
  bool any = false;
  for (const at::Tensor& part : parts) {
    any = any || part.numel() != 0;
    writer.put_number(part.numel());
    if (part.numel() != 0) {
      writer.put(part.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(part.numel()));
    }
  }
  return any ? writer.finish() : ByteWriter().finish();
}

std::vector<at::Tensor> split_bytes(const at::Tensor& joined, const std::string& source) {
  ByteReader reader(joined, source);
  std::vector<at::Tensor> parts;
  if (joined.numel() == 0) {
    return parts;
  }
  const std::int64_t count = reader.number();
  if (static_cast<std::uint64_t>(count) == kMagic) return {joined};
  for (std::int64_t i = 0; i < count; ++i) {
    parts.push_back(reader.raw(reader.number()));
  }
  reader.expect_end();
  return parts;
}

}  // namespace telens
