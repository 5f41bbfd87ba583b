#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "config/error.h"
#include "folder/safetensors.h"

namespace hero {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;

// Parses JSON in which no object names a key twice. `offset` is the text's place in its file.
nlohmann::ordered_json parse_strict(std::string_view text, const std::string& file, size_t offset) {
  std::vector<std::set<std::string>> keys;
  const auto see = [&](int depth, nlohmann::ordered_json::parse_event_t event,
                       nlohmann::ordered_json& parsed) {
    const auto level = static_cast<size_t>(depth);
    using Event = nlohmann::ordered_json::parse_event_t;
    if (event == Event::object_start) {
      keys.resize(std::max(keys.size(), level + 2));
      keys[level + 1].clear();
    } else if (event == Event::key && !keys[level].insert(parsed.get<std::string>()).second) {
      throw UserError(file + ": entry " + parsed.dump() + " is there twice, expected once");
    }
    return true;
  };
  try {
    return nlohmann::ordered_json::parse(text.begin(), text.end(), see);
  } catch (const nlohmann::json::parse_error& error) {
    throw UserError(file + ": byte " + std::to_string(offset + (error.byte > 0 ? error.byte - 1 : 0)) +
                    ": found no valid JSON, expected a JSON object");
  }
}

struct Entry {
  TensorView view;
  uint64_t begin, end;
};

class HeaderReader {
 public:
  HeaderReader(std::string file, uint64_t buffer_size) : file_(std::move(file)), buffer_size_(buffer_size) {}

  Entry entry(const std::string& name, const nlohmann::ordered_json& value) const {
    const std::string where = file_ + ": entry \"" + name + "\": ";
    for (const char* key : {"dtype", "shape", "data_offsets"}) {
      if (!value.is_object() || !value.contains(key)) {
        throw UserError(where + "found " + abridged(value) + ", expected an object with " + key);
      }
    }
    const auto& dtype = value["dtype"];
    const auto known = safetensors_dtypes();
    const auto type = std::ranges::find_if(known, [&](const SafetensorsDtype& candidate) {
      return dtype.is_string() && dtype == candidate.name;
    });
    if (type == known.end())
      throw UserError(where + "found dtype " + abridged(dtype) + ", expected one like \"F32\"");

    Entry entry{{name, dtype.get<std::string>(), {}, nullptr}, 0, 0};
    uint64_t bytes = type->size;
    const auto& shape = value["shape"];
    if (!shape.is_array())
      throw UserError(where + "found shape " + abridged(shape) + ", expected a list of sizes");
    for (const auto& size : shape) {
      const auto number = unsigned_number(size);
      if (!number || *number > std::numeric_limits<int64_t>::max() ||
          __builtin_mul_overflow(bytes, *number, &bytes)) {
        throw UserError(where + "found shape " + abridged(shape) +
                        ", expected sizes whose product fits in 64 bits");
      }
      entry.view.shape.push_back(static_cast<int64_t>(*number));
    }

    const auto& offsets = value["data_offsets"];
    const auto begin = offsets.is_array() && offsets.size() == 2 ? unsigned_number(offsets[0]) : std::nullopt;
    const auto end = begin ? unsigned_number(offsets[1]) : std::nullopt;
    if (!end || *begin > *end || *end > buffer_size_) {
      throw UserError(where + "found data_offsets " + abridged(offsets) +
                      ", expected [begin, end] within the " + std::to_string(buffer_size_) +
                      " bytes after the header");
    }
    if (*end - *begin != bytes) {
      throw UserError(where + "found " + std::to_string(*end - *begin) + " bytes, expected " +
                      std::to_string(bytes) + " for " + entry.view.dtype + " " + abridged(shape));
    }
    entry.begin = *begin;
    entry.end = *end;
    return entry;
  }

  // Sorts by place and refuses holes, overlaps and bytes left over.
  void check_tiling(std::vector<Entry>& entries) const {
    std::ranges::sort(entries, {}, [](const Entry& entry) { return std::pair(entry.begin, entry.end); });
    uint64_t expected = 0;
    for (const Entry& entry : entries) {
      if (entry.begin != expected) {
        throw UserError(file_ + ": entry \"" + entry.view.name + "\": found data at offset " +
                        std::to_string(entry.begin) + ", expected " + std::to_string(expected) +
                        " (no holes, no overlaps)");
      }
      expected = entry.end;
    }
    if (expected != buffer_size_) {
      throw UserError(file_ + ": found " + std::to_string(buffer_size_) +
                      " bytes after the header, expected " + std::to_string(expected));
    }
  }

  std::map<std::string, std::string> metadata(const nlohmann::ordered_json& value) const {
    std::map<std::string, std::string> texts;
    if (!value.is_object())
      throw UserError(file_ + ": entry \"__metadata__\": expected an object of strings");
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) {
        throw UserError(file_ + ": entry \"__metadata__\": found " + abridged(text) + " at " + key +
                        ", expected a string");
      }
      texts[key] = text.get<std::string>();
    }
    return texts;
  }

 private:
  static std::string abridged(const nlohmann::ordered_json& value) {
    const std::string text = value.dump(-1, ' ', true);
    return text.size() <= 80 ? text : text.substr(0, 77) + "...";
  }

  static std::optional<uint64_t> unsigned_number(const nlohmann::ordered_json& value) {
    return value.is_number_unsigned() ? std::optional(value.get<uint64_t>()) : std::nullopt;
  }

  std::string file_;
  uint64_t buffer_size_;
};

const char* map_file(const std::filesystem::path& path, size_t& size) {
  const std::string file = path.string();
  const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw UserError(file + ": cannot be read: " + std::strerror(errno));
  struct stat status{};
  const bool regular = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  size = regular ? static_cast<size_t>(status.st_size) : 0;
  void* address = size < 8 ? MAP_FAILED : mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  const int reason = errno;
  close(descriptor);
  if (!regular) throw UserError(file + ": found no regular file, expected a safetensors file");
  if (size < 8)
    throw UserError(file + ": found " + std::to_string(size) + " bytes, expected a header length of 8");
  if (address == MAP_FAILED) throw RunError(file + ": cannot be mapped: " + std::strerror(reason));
  return static_cast<const char*>(address);
}

}  // namespace

void SafetensorsFile::Unmap::operator()(const char* address) const {
  munmap(const_cast<char*>(address), size);
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : mapping_(nullptr, Unmap{0}) {
  const std::string file = path.string();
  size_t size = 0;
  const char* bytes = map_file(path, size);
  mapping_ = {bytes, Unmap{size}};

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

  const std::string_view text(bytes + 8, length);
  const auto header = parse_strict(text, file, 8);
  const uint64_t buffer_size = size - 8 - length;
  const HeaderReader reader(file, buffer_size);
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      metadata_ = reader.metadata(value);
    } else {
      entries.push_back(reader.entry(name, value));
    }
  }
  reader.check_tiling(entries);
  for (Entry& entry : entries) {
    entry.view.data = bytes + 8 + length + entry.begin;
    index_[entry.view.name] = tensors_.size();
    tensors_.push_back(std::move(entry.view));
  }
}

const TensorView* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

ShardedReader::ShardedReader(const std::filesystem::path& folder, const std::string& name) {
  const std::filesystem::path single = folder / (name + ".safetensors"),
                              index = single.string() + ".index.json";
  if (!std::filesystem::exists(single) && std::filesystem::exists(index)) {
    read_index(folder, index);
    return;
  }
  if (!std::filesystem::exists(single)) {
    throw UserError(folder.string() + ": found neither " + single.filename().string() + " nor " +
                    index.filename().string() + ", expected one of them");
  }
  files_.emplace_back(single);
  for (const TensorView& tensor : files_[0].tensors()) tensors_[tensor.name] = &tensor;
}

void ShardedReader::read_index(const std::filesystem::path& folder, const std::filesystem::path& index) {
  const std::string file = index.string();
  std::ostringstream text;
  if (!(text << std::ifstream(index, std::ios::binary).rdbuf()))
    throw UserError(file + ": cannot be read or is empty");
  const auto json = parse_strict(text.str(), file, 0);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    throw UserError(file + ": found no object weight_map, expected the file of every tensor");
  }

  const auto& weight_map = json["weight_map"];
  std::map<std::string, size_t> shards;
  for (const auto& [tensor, shard] : weight_map.items()) {
    const std::string name = shard.is_string() ? shard.get<std::string>() : "";
    if (name.empty() || std::filesystem::path(name).filename() != name) {
      throw UserError(file + ": weight_map \"" + tensor + "\": found " + shard.dump(-1, ' ', true) +
                      ", expected the name of a file beside the index");
    }
    if (shards.emplace(name, files_.size()).second) files_.emplace_back(folder / name);
  }
  for (const auto& [tensor, shard] : weight_map.items()) {
    const std::string name = shard.get<std::string>();
    tensors_[tensor] = files_[shards[name]].find(tensor);
    if (!tensors_[tensor]) {
      throw UserError((folder / name).string() + ": entry \"" + tensor + "\" is missing, expected by " +
                      index.filename().string());
    }
  }
}

std::vector<std::string> ShardedReader::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

const TensorView* ShardedReader::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

}  // namespace hero
