#include "train/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "io/durable_file.h"
#include "io/error.h"

namespace hero {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr uint64_t kMaxRecord = uint64_t{1} << 30;

// Field keys of the messages: number * 8 + wire type.
constexpr char kEventWallTime = 1 << 3 | 1, kEventStep = 2 << 3 | 0, kEventFileVersion = 3 << 3 | 2,
               kEventSummary = 5 << 3 | 2, kSummaryValue = 1 << 3 | 2, kValueTag = 1 << 3 | 2,
               kValueSimple = 2 << 3 | 5;

uint32_t masked_crc32c(std::string_view bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> entries{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0x82F63B78u : 0);
      entries[i] = value;
    }
    return entries;
  }();
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = table[(crc ^ static_cast<unsigned char>(byte)) & 255] ^ crc >> 8;
  return std::rotr(~crc, 15) + 0xA282EAD8u;
}

template <typename T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string varint(uint64_t value) {
  std::string text;
  for (; value > 127; value >>= 7) text += static_cast<char>(value | 128);
  return text + static_cast<char>(value);
}

std::string field(char key, std::string_view bytes) {
  return key + varint(bytes.size()) + std::string(bytes);
}

std::string record(std::string_view data) {
  const std::string length = raw<uint64_t>(data.size());
  return length + raw(masked_crc32c(length)) + std::string(data) + raw(masked_crc32c(data));
}

std::string event(double wall_time, int64_t step, std::string_view payload) {
  const std::string step_field = step == 0 ? "" : kEventStep + varint(static_cast<uint64_t>(step));
  return record(kEventWallTime + raw(wall_time) + step_field + std::string(payload));
}

// The next record with its framing, or nullopt at the end and at an incomplete or damaged record.
std::optional<std::string> read_record(std::istream& stream) {
  std::string bytes(12, '\0');
  if (!stream.read(bytes.data(), 12)) return std::nullopt;
  uint64_t length = 0;
  uint32_t crc = 0;
  std::memcpy(&length, bytes.data(), 8);
  std::memcpy(&crc, bytes.data() + 8, 4);
  if (crc != masked_crc32c(std::string_view(bytes).substr(0, 8)) || length > kMaxRecord) return std::nullopt;
  bytes.resize(12 + length + 4);
  if (!stream.read(bytes.data() + 12, static_cast<std::streamsize>(length + 4))) return std::nullopt;
  std::memcpy(&crc, bytes.data() + 12 + length, 4);
  return crc == masked_crc32c(std::string_view(bytes).substr(12, length)) ? std::optional(bytes)
                                                                          : std::nullopt;
}

// An Event's step: 0 if it has none.
int64_t step_of(std::string_view event) {
  uint64_t step = 0;
  size_t at = 0;
  const auto read_varint = [&] {
    uint64_t value = 0;
    for (int shift = 0; at < event.size() && shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(event[at++]);
      value |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) break;
    }
    return value;
  };
  while (at < event.size()) {
    const uint64_t key = read_varint();
    const uint64_t wire = key & 7;
    if (wire == 0) {
      const uint64_t value = read_varint();
      if (key == kEventStep) step = value;
    } else {
      const uint64_t skipped = wire == 1 ? 8 : wire == 5 ? 4 : read_varint();
      at += std::min<uint64_t>(skipped, event.size() - at);
    }
  }
  return static_cast<int64_t>(step);
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The folder's newest event file, or the name of a new one.
std::filesystem::path event_file(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw RunError("cannot write " + folder.string() + ": " + error.message());
  std::filesystem::path newest;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix)) newest = std::max(newest, entry.path());
  }
  if (!newest.empty()) return newest;
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return folder / (std::string(kPrefix) + std::to_string(static_cast<int64_t>(now())) + "." + host.data());
}

}  // namespace

TensorBoardLog::TensorBoardLog(const std::filesystem::path& folder)
    : file_(std::make_unique<AppendFile>(event_file(folder))) {
  std::ifstream stream(path(), std::ios::binary);
  uint64_t complete = 0;
  while (const auto bytes = read_record(stream)) complete += bytes->size();
  if (complete < file_->size()) file_->truncate(complete);
  if (complete == 0) file_->append(event(now(), 0, field(kEventFileVersion, "brain.Event:2")));
}

void TensorBoardLog::scalar(std::string_view tag, double value, int64_t step, double wall_time) {
  const std::string content =
      field(kValueTag, tag) + std::string(1, kValueSimple) + raw(static_cast<float>(value));
  file_->append(event(wall_time, step, field(kEventSummary, field(kSummaryValue, content))));
}

void TensorBoardLog::truncate_after(int64_t step) {
  std::ifstream stream(path(), std::ios::binary);
  // Not named "tfevents": TensorBoard would read a leftover file.
  const std::filesystem::path kept = path().parent_path() / "cut.tmp";
  DurableFile target(kept);
  for (bool first = true; const auto bytes = read_record(stream); first = false) {
    const bool keep = first || step_of(std::string_view(*bytes).substr(12, bytes->size() - 16)) <= step;
    if (keep) target.write(bytes->data(), bytes->size());
  }
  target.commit();
  file_->replace_with(kept);
}

}  // namespace hero
