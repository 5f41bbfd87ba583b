#include "checkpoint/shards.h"

#include <ATen/ATen.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "checkpoint/manifest.h"
#include "hf/load.h"
#include "hf/safetensors.h"
#include "io/durable_file.h"
#include "io/error.h"
#include "io/sha256.h"

namespace fs = std::filesystem;

namespace hero {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FileDigest, bytes, sha256)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Range, begin, end)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SlicedTensor, file, elements, written)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WrittenFiles, files, sliced)

namespace {

std::string file_prefix(const std::string& kind, int64_t rank, int64_t size) {
  char text[64];
  std::snprintf(text, sizeof text, "-%05ld-of-%05ld", rank + 1, size);
  return size == 1 ? kind : kind + text;
}

// A checkpoint with such values could only resume to a loss that is not finite.
void check_finite(const std::string& name, const at::Tensor& values) {
  if (values.numel() == 0 || !at::isFloatingType(values.scalar_type())) return;
  const auto [least, greatest] = values.aminmax();  // propagate NaN
  if (!std::isfinite(least.item<double>()) || !std::isfinite(greatest.item<double>()))
    throw RunError("tensor " + name + " has values that are not finite");
}

void write_shards(const fs::path& folder, const std::string& name,
                  const std::vector<std::pair<std::string, at::Tensor>>& tensors, size_t max_shard_bytes,
                  WrittenFiles& written) {
  std::vector<TensorView> views;
  for (const auto& [tensor, values] : tensors) {
    check_finite(tensor, values);
    views.push_back(tensor_view(tensor, values));
  }
  for (const Shard& shard : plan_shards(name, views, max_shard_bytes)) {
    RunningHash hash;
    write_shard(folder, shard, [&](const void* data, size_t size) { hash.add(data, size); });
    written.add_file(shard.file, hash.record());
  }
}

void write_slices(const fs::path& folder, const CheckpointContents& contents, WrittenFiles& written) {
  for (const ModelSlice& part : contents.model_slices) {
    check_finite(part.name, part.values);
    TensorView whole = tensor_view(part.name, part.values);
    whole.shape = part.shape;
    const TensorSlice slice{whole, part.begin, part.begin + part.values.numel()};
    SlicedTensor& sliced = written.sliced[part.name];
    sliced.file = "model-" + part.name + ".safetensors";
    sliced.elements = std::accumulate(part.shape.begin(), part.shape.end(), int64_t{1}, std::multiplies<>());
    sliced.written.push_back({slice.begin, slice.end});
    write_slice(folder / sliced.file, slice);
  }
}

FileDigest copy_into(const fs::path& source, const fs::path& target) {
  std::ifstream stream(source, std::ios::binary);
  if (!stream) throw RunError("cannot read " + source.string() + ": " + std::strerror(errno));
  DurableFile file(target);
  RunningHash hash;
  std::vector<char> block(1 << 20);
  do {
    stream.read(block.data(), static_cast<std::streamsize>(block.size()));
    file.write(block.data(), static_cast<size_t>(stream.gcount()));
    hash.add(block.data(), static_cast<size_t>(stream.gcount()));
  } while (stream);
  if (stream.bad()) throw RunError("cannot read " + source.string() + ": " + std::strerror(errno));
  file.commit();
  return hash.record();
}

// The index of all files KIND-*.safetensors, built from their headers.
ShardIndex make_index(const fs::path& folder, const std::string& kind, const WrittenFiles& written) {
  ShardIndex index;
  for (const auto& [name, record] : written.files) {
    if (!name.starts_with(kind + "-")) continue;
    const SafetensorsFile file(folder / name);
    for (const TensorView& tensor : file.tensors()) {
      index.add(tensor.name, name);
      index.total_size += tensor.bytes();
    }
  }
  return index;
}

}  // namespace

void WrittenFiles::add_file(const std::string& name, const FileDigest& record) {
  if (name == kManifestName || !files.emplace(name, record).second) throw RunError("two files named " + name);
}

void WrittenFiles::add(const WrittenFiles& others) {
  for (const auto& [name, record] : others.files) add_file(name, record);
  for (const auto& [name, tensor] : others.sliced) {
    SlicedTensor& all = sliced[name];
    all.file = tensor.file;
    all.elements = tensor.elements;
    all.written.insert(all.written.end(), tensor.written.begin(), tensor.written.end());
  }
}

std::string WrittenFiles::text() const { return nlohmann::json(*this).dump(); }

WrittenFiles WrittenFiles::parse(const std::string& text) { return nlohmann::json::parse(text); }

WrittenFiles write_tensors(const fs::path& folder, const CheckpointContents& contents, int64_t rank,
                           int64_t size, size_t max_shard_bytes) {
  TORCH_INTERNAL_ASSERT(size > 1 || contents.model_slices.empty());
  WrittenFiles written;
  // A single rank writes a file even without tensors.
  if (size == 1 || !contents.model.empty())
    write_shards(folder, file_prefix("model", rank, size), contents.model, max_shard_bytes, written);
  if (size == 1 || !contents.optimizer.empty())
    write_shards(folder, file_prefix("optimizer", rank, size), contents.optimizer, max_shard_bytes, written);
  write_slices(folder, contents, written);
  return written;
}

void write_common_files(const fs::path& folder, const CheckpointContents& contents, WrittenFiles written) {
  for (const auto& [name, tensor] : written.sliced) {
    const auto ranges = merge_ranges(tensor.written);
    if (ranges != std::vector<Range>{{0, tensor.elements}}) {
      throw RunError("tensor " + name + ": found the elements " + format_ranges(ranges) + ", expected [0, " +
                     std::to_string(tensor.elements) + ") in slices that do not overlap");
    }
    written.add_file(tensor.file, hash_file(folder / tensor.file));
  }
  const auto write_text = [&](const std::string& name, const std::string& text) {
    written.add_file(name, {text.size(), sha256(text)});
    write_durable(folder / name, text);
  };
  for (const std::string kind : {"model", "optimizer"}) {
    const std::string single = kind + ".safetensors";
    if (!written.files.contains(single))
      write_text(single + ".index.json", make_index(folder, kind, written).text());
  }
  for (const auto& [name, text] : contents.texts) write_text(name, text);
  for (const fs::path& source : contents.copies) {
    const std::string name = source.filename().string();
    written.add_file(name, copy_into(source, folder / name));
  }
  write_durable(folder / kManifestName, make_manifest(written.files));
  sync_folder(folder);
}

}  // namespace hero
