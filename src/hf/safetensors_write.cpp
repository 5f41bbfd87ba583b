#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "hf/safetensors.h"
#include "io/durable_file.h"
#include "io/error.h"

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
    throw RunError("tensor " + tensor.name + ": dtype " + tensor.dtype + " not supported by safetensors");
  return static_cast<size_t>(found - kDtypes.begin());
}

std::string shard_name(const std::string& name, size_t number, size_t count) {
  char text[64];
  std::snprintf(text, sizeof text, "-%05zu-of-%05zu.safetensors", number, count);
  return name + text;
}

// The range [begin, end) of tensors of every shard.
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

size_t TensorSlice::bytes() const {
  return static_cast<size_t>(end - begin) * kDtypes[dtype_rank(whole)].size;
}

namespace {

using Metadata = std::map<std::string, std::string>;
Metadata pt_format() { return {{"format", "pt"}}; }

// The tensors in the order of their data in the file.
std::vector<const TensorView*> in_file_order(std::span<const TensorView> tensors) {
  std::vector<const TensorView*> order;
  for (const TensorView& tensor : tensors) order.push_back(&tensor);
  std::ranges::sort(order, [](const TensorView* a, const TensorView* b) {
    const size_t rank_a = dtype_rank(*a), rank_b = dtype_rank(*b);
    return rank_a != rank_b ? rank_a > rank_b : a->name < b->name;
  });
  return order;
}

// Header length and header. `file`: for error messages.
std::string file_header(const std::string& file, const std::vector<const TensorView*>& order,
                        const Metadata& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::set<std::string_view> names{"__metadata__"};
  size_t offset = 0;
  for (const TensorView* tensor : order) {
    if (!names.insert(tensor->name).second) throw RunError(file + ": duplicate tensor name: " + tensor->name);
    const size_t end = offset + tensor->bytes();
    // emplace_back instead of operator[]: key lookup in an ordered_json object is a linear search.
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
  std::string length;
  for (int i = 0; i < 8; ++i) length += static_cast<char>(size >> (8 * i));
  return length + text;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const Metadata& metadata, const ByteObserver& observer) {
  const auto order = in_file_order(tensors);
  const std::string header = file_header(path.string(), order, metadata);
  DurableFile file(path);
  const auto put = [&](const void* data, size_t size) {
    file.write(data, size);
    if (observer) observer(data, size);
  };
  put(header.data(), header.size());
  for (const TensorView* tensor : order) put(tensor->data, tensor->bytes());
  file.commit();
}

void write_slice(const std::filesystem::path& path, const TensorSlice& slice) {
  const std::string header = file_header(path.string(), {&slice.whole}, pt_format());
  const size_t element = slice.bytes() / static_cast<size_t>(slice.end - slice.begin);
  DurableFile file(path, slice.begin == 0 ? 0 : header.size() + static_cast<size_t>(slice.begin) * element);
  if (slice.begin == 0) file.write(header.data(), header.size());
  file.write(slice.whole.data, slice.bytes());
  file.commit();
}

std::vector<Shard> plan_shards(const std::string& name, std::span<const TensorView> tensors,
                               size_t max_shard_bytes) {
  std::vector<Shard> shards;
  const auto ranges = shard_ranges(tensors, max_shard_bytes);
  for (const auto& [begin, end] : ranges) {
    shards.push_back(
        {ranges.size() == 1 ? name + ".safetensors" : shard_name(name, shards.size() + 1, ranges.size()),
         tensors.subspan(begin, end - begin)});
  }
  return shards;
}

void write_shard(const std::filesystem::path& folder, const Shard& shard, const ByteObserver& observer) {
  write_safetensors(folder / shard.file, shard.tensors, pt_format(), observer);
}

void ShardIndex::add(const std::string& tensor, const std::string& file) {
  if (!weight_map.emplace(tensor, file).second) throw RunError("duplicate tensor name: " + tensor);
}

std::string ShardIndex::text() const {
  return nlohmann::json{{"metadata", {{"total_size", total_size}}}, {"weight_map", weight_map}}.dump(2) +
         "\n";
}

std::vector<std::string> write_sharded(const std::filesystem::path& folder, const std::string& name,
                                       std::span<const TensorView> tensors, size_t max_shard_bytes) {
  const auto shards = plan_shards(name, tensors, max_shard_bytes);
  const std::string single = name + ".safetensors", index_name = single + ".index.json";
  std::vector<std::string> written;
  ShardIndex index;
  for (const Shard& shard : shards) {
    write_shard(folder, shard);
    written.push_back(shard.file);
    for (const TensorView& tensor : shard.tensors) {
      index.add(tensor.name, shard.file);
      index.total_size += tensor.bytes();
    }
  }
  if (shards.size() == 1) {
    std::filesystem::remove(folder / index_name);
  } else {
    write_durable(folder / index_name, index.text());
    written.push_back(index_name);
    std::filesystem::remove(folder / single);
  }
  return written;
}

}  // namespace hero
