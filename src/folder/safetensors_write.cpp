#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "config/error.h"
#include "folder/durable_file.h"
#include "folder/safetensors.h"

namespace hero {
namespace {

constexpr std::array<SafetensorsDtype, 15> kDtypes = {{{"BOOL", 1},
                                                       {"U8", 1},
                                                       {"I8", 1},
                                                       {"F8_E5M2", 1},
                                                       {"F8_E4M3", 1},
                                                       {"I16", 2},
                                                       {"U16", 2},
                                                       {"F16", 2},
                                                       {"BF16", 2},
                                                       {"I32", 4},
                                                       {"U32", 4},
                                                       {"F32", 4},
                                                       {"F64", 8},
                                                       {"I64", 8},
                                                       {"U64", 8}}};

size_t dtype_rank(const TensorView& tensor) {
  const auto found = std::ranges::find(kDtypes, std::string_view(tensor.dtype), &SafetensorsDtype::name);
  if (found == kDtypes.end())
    throw RunError("tensor " + tensor.name + ": no dtype " + tensor.dtype + " in safetensors");
  return static_cast<size_t>(found - kDtypes.begin());
}

std::string shard_name(const std::string& name, size_t number, size_t count) {
  char text[64];
  std::snprintf(text, sizeof text, "-%05zu-of-%05zu.safetensors", number, count);
  return name + text;
}

// Ranges [begin, end) of tensors, one a shard.
std::vector<std::pair<size_t, size_t>> shard_ranges(std::span<const TensorView> tensors,
                                                    size_t max_shard_bytes) {
  std::vector<std::pair<size_t, size_t>> ranges;
  size_t begin = 0, filled = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t bytes = tensors[i].bytes();
    if (i > begin && filled + bytes > max_shard_bytes) {
      ranges.emplace_back(begin, i);
      begin = i;
      filled = 0;
    }
    filled += bytes;
  }
  ranges.emplace_back(begin, tensors.size());
  return ranges;
}

}  // namespace

std::span<const SafetensorsDtype> safetensors_dtypes() { return kDtypes; }

size_t TensorView::bytes() const {
  return std::accumulate(shape.begin(), shape.end(), kDtypes[dtype_rank(*this)].size,
                         [](size_t product, int64_t size) { return product * static_cast<size_t>(size); });
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<const TensorView*> order;
  for (const TensorView& tensor : tensors) order.push_back(&tensor);
  std::ranges::sort(order, [](const TensorView* a, const TensorView* b) {
    const size_t rank_a = dtype_rank(*a), rank_b = dtype_rank(*b);
    return rank_a != rank_b ? rank_a > rank_b : a->name < b->name;
  });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::set<std::string_view> names{"__metadata__"};
  size_t offset = 0;
  for (const TensorView* tensor : order) {
    if (!names.insert(tensor->name).second)
      throw RunError(path.string() + ": tensor name given twice: " + tensor->name);
    const size_t end = offset + tensor->bytes();
    // Pushed as a pair: looking a key up in an ordered object is a linear search.
    nlohmann::ordered_json entry;
    entry["dtype"] = tensor->dtype;
    entry["shape"] = tensor->shape;
    entry["data_offsets"] = {offset, end};
    header.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(tensor->name, std::move(entry));
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t size = text.size();
  unsigned char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(size >> (8 * i));

  DurableFile file(path);
  file.write(length, sizeof length);
  file.write(text.data(), text.size());
  for (const TensorView* tensor : order) file.write(tensor->data, tensor->bytes());
  file.commit();
}

std::vector<std::string> write_sharded(const std::filesystem::path& folder, const std::string& name,
                                       std::span<const TensorView> tensors, size_t max_shard_bytes) {
  const auto ranges = shard_ranges(tensors, max_shard_bytes);
  const std::map<std::string, std::string> metadata{{"format", "pt"}};
  const std::string single = name + ".safetensors", index = single + ".index.json";
  if (ranges.size() == 1) {
    write_safetensors(folder / single, tensors, metadata);
    std::filesystem::remove(folder / index);
    return {single};
  }

  std::vector<std::string> written;
  nlohmann::json weight_map = nlohmann::json::object();
  size_t total = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto shard = tensors.subspan(ranges[i].first, ranges[i].second - ranges[i].first);
    written.push_back(shard_name(name, i + 1, ranges.size()));
    write_safetensors(folder / written.back(), shard, metadata);
    for (const TensorView& tensor : shard) {
      if (weight_map.contains(tensor.name))
        throw RunError(folder.string() + ": tensor name given twice: " + tensor.name);
      weight_map[tensor.name] = written.back();
      total += tensor.bytes();
    }
  }
  written.push_back(index);
  write_durable(
      folder / index,
      nlohmann::json{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}}.dump(2) + "\n");
  std::filesystem::remove(folder / single);
  return written;
}

}  // namespace hero
