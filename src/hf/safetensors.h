// safetensors files (huggingface/safetensors, tensor.rs): u64 little-endian header length N, N bytes of JSON
// padded with spaces to a multiple of 8, then the tensors' bytes without holes. Larger sets are sharded as
// Hugging Face does. Nothing is copied: writing reads the caller's memory, reading maps the file.
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

/// A named tensor in somebody else's memory: contiguous, row-major, little-endian.
struct TensorView {
  std::string name;
  std::string dtype;  // "F64", "F32", "BF16", "F16", "I64", "I32", "U8", "BOOL", ...: the format's own names
  std::vector<int64_t> shape;
  const void* data = nullptr;
  std::shared_ptr<const void> owner = nullptr;  // of data that belongs to this view alone

  /// Product of the shape times the element size. RunError for an unknown dtype.
  size_t bytes() const;
};

/// The data types that the format and this program know, ascending in the order of the reference
/// implementation (which puts tensors of later types first in a file). Sizes in bytes.
struct SafetensorsDtype {
  std::string_view name;
  size_t size;
};
std::span<const SafetensorsDtype> safetensors_dtypes();

/// Sees the bytes of a file as they are written, in order.
using ByteObserver = std::function<void(const void* data, size_t size)>;

/// Writes one file, byte for byte what the reference implementation writes (metadata in the order of its
/// keys), and syncs it. RunError with the system's reason (full disk, no permission...); a file cut short is
/// removed.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const std::map<std::string, std::string>& metadata = {},
                       const ByteObserver& seen = {});

/// Elements [begin, end) of a tensor whose other elements lie with other processes.
struct TensorSlice {
  TensorView whole;  ///< `data`: of element `begin`
  int64_t begin, end;

  size_t bytes() const;
};

/// Writes and syncs a slice's part of a file that holds the whole tensor and nothing else (metadata
/// `format: pt`). Who has element 0 writes the header; the file is complete when every element was written.
/// RunError as write_safetensors.
void write_slice(const std::filesystem::path& path, const TensorSlice& slice);

/// What a file holds; the views point into its bytes.
struct SafetensorsContents {
  std::vector<TensorView> tensors;  ///< in the order of the file
  std::map<std::string, std::string> metadata;
};

/// The tensors in a file's bytes. The header is checked in full before anything is believed: every view lies
/// within `bytes`. `file` names it in messages. UserError, one line: the file, the byte or entry, what was
/// found, what was expected.
SafetensorsContents parse_safetensors(std::string_view bytes, const std::string& file);

/// The weight_map of NAME.safetensors.index.json: the file of every tensor, a plain name beside the index.
/// UserError as parse_safetensors.
std::map<std::string, std::string> parse_index(std::string_view text, const std::string& file);

/// One file, memory-mapped; the views are valid as long as this object lives. UserError as
/// parse_safetensors. Files of other writers may place tensors at odd addresses: copy bytes, do not
/// dereference.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  /// In the order of the file.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  /// Null if there is none of that name.
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

/// A file of a larger set, named within its folder.
struct Shard {
  std::string file;
  std::span<const TensorView> tensors;
};

/// NAME.safetensors, or, when there are more than `max_shard_bytes`, NAME-00001-of-000NN.safetensors: tensors
/// filled into shards in the given order (one larger than a shard gets its own).
std::vector<Shard> plan_shards(const std::string& name, std::span<const TensorView> tensors,
                               size_t max_shard_bytes);

/// Writes one of them, with metadata `format: pt`, which transformers asks for. Errors as write_safetensors.
void write_shard(const std::filesystem::path& folder, const Shard& shard, const ByteObserver& seen = {});

/// What NAME.safetensors.index.json says.
struct ShardIndex {
  std::map<std::string, std::string> weight_map;  ///< tensor -> file
  uint64_t total_size = 0;                        ///< bytes of all tensors

  /// RunError for a tensor that is there already.
  void add(const std::string& tensor, const std::string& file);
  std::string text() const;
};

/// Writes the shards of a set and, if there is more than one, their index. Returns the names of the files
/// written. Errors as write_safetensors.
std::vector<std::string> write_sharded(const std::filesystem::path& folder, const std::string& name,
                                       std::span<const TensorView> tensors, size_t max_shard_bytes);

/// Reads what write_sharded or Hugging Face wrote: one file, or the shards of an index. UserError as
/// SafetensorsFile, and for an index that is malformed or names files or tensors that are not there.
class ShardedReader {
 public:
  ShardedReader(const std::filesystem::path& folder, const std::string& name);

  /// Sorted.
  std::vector<std::string> names() const;
  /// Null if there is none of that name.
  const TensorView* find(const std::string& name) const;

 private:
  void read_index(const std::filesystem::path& folder, const std::filesystem::path& index);

  std::vector<SafetensorsFile> files_;
  std::map<std::string, const TensorView*> tensors_;
};

}  // namespace hero
