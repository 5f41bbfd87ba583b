// safetensors files (huggingface/safetensors, tensor.rs): u64 little-endian header length N, N bytes of JSON
// padded with spaces to a multiple of 8, then the tensor data without gaps. Large sets are sharded like in
// Hugging Face. Zero-copy: writing reads the caller's memory, reading memory-maps the file.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace hero {

/// A non-owning view of a named tensor: contiguous, row-major, little-endian.
struct TensorView {
  std::string name;
  std::string dtype;  // "F64", "F32", "BF16", "F16", "I64", "I32", "U8", "BOOL", ...: as in the format
  std::vector<int64_t> shape;
  const void* data = nullptr;
  std::shared_ptr<const void> owner = nullptr;  // set if the view owns its data

  /// Number of elements times the element size. RunError for an unknown dtype.
  size_t bytes() const;
};

/// The supported data types, in the order of the reference implementation, which stores tensors of later
/// types first. Sizes in bytes.
struct SafetensorsDtype {
  std::string_view name;
  size_t size;
};
std::span<const SafetensorsDtype> safetensors_dtypes();

/// Called with the bytes of a file as they are written, in order.
using ByteObserver = std::function<void(const void* data, size_t size)>;

/// Writes and syncs one file, byte-identical to the reference implementation (metadata sorted by key).
/// RunError with the system error (disk full, permission denied, ...); removes a partial file.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const std::map<std::string, std::string>& metadata = {},
                       const ByteObserver& observer = {});

/// Elements [begin, end) of a tensor whose other elements are on other processes.
struct TensorSlice {
  TensorView whole;  ///< the full tensor, but `data` points to element `begin`
  int64_t begin, end;

  size_t bytes() const;
};

/// Writes and syncs one slice of a file that holds only this tensor (metadata `format: pt`). The slice with
/// element 0 also writes the header; the file is complete once all slices are written. RunError as
/// write_safetensors.
void write_slice(const std::filesystem::path& path, const TensorSlice& slice);

/// The contents of a file; the views point into its bytes.
struct SafetensorsContents {
  std::vector<TensorView> tensors;  ///< in the order of the file
  std::map<std::string, std::string> metadata;
};

/// Parses a file in memory. Validates the whole header first: every view lies within `bytes`. `file`: name
/// for error messages. UserError, one line: file, byte or entry, found and expected value.
SafetensorsContents parse_safetensors(std::string_view bytes, const std::string& file);

/// The weight_map of NAME.safetensors.index.json: tensor -> file name in the same folder. UserError as
/// parse_safetensors.
std::map<std::string, std::string> parse_index(std::string_view text, const std::string& file);

/// A memory-mapped file; the views are valid for the lifetime of the object. UserError as parse_safetensors.
/// Tensor data may be unaligned in files from other writers: use memcpy, do not dereference.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  /// In file order.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  /// Null if there is no such tensor.
  const TensorView* find(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  struct Unmap {
    size_t size;
    void operator()(const char* address) const;
  };

  std::unique_ptr<const char, Unmap> mapping_;
  std::vector<TensorView> tensors_;
  std::unordered_map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
};

/// One file of a sharded set; `file` is relative to its folder.
struct Shard {
  std::string file;
  std::span<const TensorView> tensors;
};

/// NAME.safetensors or, above `max_shard_bytes`, NAME-00001-of-000NN.safetensors. Shards are filled in the
/// given order; a tensor larger than `max_shard_bytes` gets its own shard.
std::vector<Shard> plan_shards(const std::string& name, std::span<const TensorView> tensors,
                               size_t max_shard_bytes);

/// Writes one shard with metadata `format: pt`, which transformers requires. Errors as write_safetensors.
void write_shard(const std::filesystem::path& folder, const Shard& shard, const ByteObserver& observer = {});

/// The contents of NAME.safetensors.index.json.
struct ShardIndex {
  std::map<std::string, std::string> weight_map;  ///< tensor -> file
  uint64_t total_size = 0;                        ///< bytes of all tensors

  /// RunError for a duplicate tensor name.
  void add(const std::string& tensor, const std::string& file);
  std::string text() const;
};

/// Writes the shards and, if there is more than one, their index. Returns the names of the written files.
/// Errors as write_safetensors.
std::vector<std::string> write_sharded(const std::filesystem::path& folder, const std::string& name,
                                       std::span<const TensorView> tensors, size_t max_shard_bytes);

/// Reads a single file or the shards of an index, as written by write_sharded or Hugging Face. UserError as
/// SafetensorsFile, and for an index that is malformed or refers to missing files or tensors.
class ShardedReader {
 public:
  ShardedReader(const std::filesystem::path& folder, const std::string& name);

  /// Sorted.
  std::vector<std::string> names() const;
  /// Null if there is no such tensor.
  const TensorView* find(const std::string& name) const;

 private:
  void read_index(const std::filesystem::path& folder, const std::filesystem::path& index);

  std::vector<SafetensorsFile> files_;
  std::map<std::string, const TensorView*> tensors_;
};

}  // namespace hero
