// Parses headers and indexes from memory. The input is untrusted: everything is validated before use.
#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "hf/safetensors.h"
#include "io/error.h"
#include "io/json.h"

namespace hero {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;

struct Entry {
  TensorView view;
  uint64_t begin, end;
};

class HeaderReader {
 public:
  HeaderReader(std::string file, uint64_t buffer_size) : file_(std::move(file)), buffer_size_(buffer_size) {}

  Entry entry(const std::string& name, const nlohmann::json& value) const {
    const std::string where = file_ + ": entry " + format_value(name) + ": ";
    for (const char* key : {"dtype", "shape", "data_offsets"}) {
      if (!value.is_object() || !value.contains(key)) {
        throw UserError(where + "found " + format_value(value) + ", expected an object with " + key);
      }
    }
    const auto& dtype = value["dtype"];
    const auto known = safetensors_dtypes();
    const auto type = std::ranges::find_if(known, [&](const SafetensorsDtype& candidate) {
      return dtype.is_string() && dtype == candidate.name;
    });
    if (type == known.end())
      throw UserError(where + "found dtype " + format_value(dtype) + ", expected a dtype such as \"F32\"");

    Entry entry{{name, dtype.get<std::string>(), {}, nullptr}, 0, 0};
    uint64_t bytes = type->size;
    const auto& shape = value["shape"];
    if (!shape.is_array())
      throw UserError(where + "found shape " + format_value(shape) + ", expected a list of dimensions");
    for (const auto& size : shape) {
      const auto number = unsigned_number(size);
      if (!number || *number > std::numeric_limits<int64_t>::max() ||
          __builtin_mul_overflow(bytes, *number, &bytes)) {
        throw UserError(where + "found shape " + format_value(shape) +
                        ", expected dimensions whose product fits in 64 bits");
      }
      entry.view.shape.push_back(static_cast<int64_t>(*number));
    }

    const auto& offsets = value["data_offsets"];
    const auto begin = offsets.is_array() && offsets.size() == 2 ? unsigned_number(offsets[0]) : std::nullopt;
    const auto end = begin ? unsigned_number(offsets[1]) : std::nullopt;
    if (!end || *begin > *end) {
      throw UserError(where + "found data_offsets " + format_value(offsets) +
                      ", expected [begin, end] with begin <= end");
    }
    if (*end - *begin != bytes) {
      throw UserError(where + "found " + std::to_string(*end - *begin) + " bytes, expected " +
                      std::to_string(bytes) + " for " + entry.view.dtype + " " + format_value(shape));
    }
    entry.begin = *begin;
    entry.end = *end;
    return entry;
  }

  // Sorts by offset; rejects gaps, overlaps, missing and trailing bytes.
  void check_layout(std::vector<Entry>& entries) const {
    std::ranges::sort(entries, {}, [](const Entry& entry) { return std::pair(entry.begin, entry.end); });
    uint64_t expected = 0;
    for (const Entry& entry : entries) {
      if (entry.begin != expected) {
        throw UserError(file_ + ": entry " + format_value(entry.view.name) + ": found data at offset " +
                        std::to_string(entry.begin) + ", expected " + std::to_string(expected) +
                        " (no gaps, no overlaps)");
      }
      expected = entry.end;
    }
    if (expected != buffer_size_) {
      throw UserError(file_ + (buffer_size_ < expected ? ": truncated: found " : ": found ") +
                      std::to_string(buffer_size_) + " bytes after the header, expected " +
                      std::to_string(expected));
    }
  }

  std::map<std::string, std::string> metadata(const nlohmann::json& value) const {
    std::map<std::string, std::string> values;
    if (!value.is_object())
      throw UserError(file_ + ": entry \"__metadata__\": expected an object of strings");
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) {
        throw UserError(file_ + ": entry \"__metadata__\": found " + format_value(text) + " at " +
                        format_value(key) + ", expected a string");
      }
      values[key] = text.get<std::string>();
    }
    return values;
  }

 private:
  static std::optional<uint64_t> unsigned_number(const nlohmann::json& value) {
    return value.is_number_unsigned() ? std::optional(value.get<uint64_t>()) : std::nullopt;
  }

  std::string file_;
  uint64_t buffer_size_;
};

// A file name without folder components (path traversal) and control characters.
bool is_plain_file_name(const std::string& name) {
  return std::filesystem::path(name).filename() == name && name != "." && name != ".." &&
         std::ranges::none_of(name, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

}  // namespace

SafetensorsContents parse_safetensors(std::string_view bytes, const std::string& file) {
  const size_t size = bytes.size();
  if (size < 8)
    throw UserError(file + ": found " + std::to_string(size) + " bytes, expected a header length of 8");
  uint64_t length = 0;
  for (int i = 0; i < 8; ++i)
    length |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  const uint64_t limit = std::min<uint64_t>(kMaxHeader, size - 8);
  if (length > limit) {
    throw UserError(file + ": byte 0: found header length " + std::to_string(length) + ", expected at most " +
                    std::to_string(limit) + (limit < kMaxHeader ? " in a file of this size" : ""));
  }
  if (length == 0 || bytes[8] != '{')
    throw UserError(file + ": byte 8: found no '{', expected the header's JSON object");

  const auto header = parse_json(bytes.substr(8, length), {file, 0, 8});
  const uint64_t buffer_size = size - 8 - length;
  const HeaderReader reader(file, buffer_size);
  SafetensorsContents contents;
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      contents.metadata = reader.metadata(value);
    } else {
      entries.push_back(reader.entry(name, value));
    }
  }
  reader.check_layout(entries);
  for (Entry& entry : entries) {
    entry.view.data = bytes.data() + 8 + length + entry.begin;
    contents.tensors.push_back(std::move(entry.view));
  }
  return contents;
}

std::map<std::string, std::string> parse_index(std::string_view text, const std::string& file) {
  const auto json = parse_json(text, {file});
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    throw UserError(file + ": found no weight_map object, expected a map from tensors to files");
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, shard] : json["weight_map"].items()) {
    const std::string name = shard.is_string() ? shard.get<std::string>() : "";
    if (name.empty() || !is_plain_file_name(name)) {
      throw UserError(file + ": weight_map " + format_value(tensor) + ": found " + format_value(shard) +
                      ", expected the name of a file in the folder of the index");
    }
    files[tensor] = name;
  }
  return files;
}

}  // namespace hero
