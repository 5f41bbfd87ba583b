#pragma once
// Reads arbitrary element ranges of tensors that a folder stores in full, as NAME, or as slices: 1-D tensors
// NAME[begin,end) with the elements [begin, end) of the flattened tensor.
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "hf/safetensors.h"

namespace at {
class Tensor;
}

namespace hero {

/// Elements [begin, end) of a flattened tensor.
struct Range {
  int64_t begin, end;
  auto operator<=>(const Range&) const = default;
};

/// Sorts the ranges and merges adjacent ones. Overlapping ranges stay separate.
std::vector<Range> merge_ranges(std::vector<Range> ranges);

/// "[0, 5) [7, 9)", truncated if long; "none" for an empty list.
std::string format_ranges(const std::vector<Range>& ranges);

/// NAME[begin,end)
std::string slice_name(const std::string& name, Range range);

/// Reads ranges of tensors from files that stay memory-mapped for the lifetime of the object.
class RangeReader {
 public:
  /// Opens FOLDER/KIND*.safetensors. UserError as ShardedReader.
  RangeReader(const std::filesystem::path& folder, const std::string& kind);

  /// Fills `target` (contiguous, any shape and device) with the elements of the tensor `name` starting at
  /// `begin`, converted to its dtype; reads only these. `shape`: of the full tensor. UserError naming the
  /// tensor and the found and expected ranges if elements are missing or duplicated; as read_into for another
  /// shape or dtype.
  void read(const std::string& name, const std::vector<int64_t>& shape, int64_t begin,
            const at::Tensor& target) const;

 private:
  struct Slice {
    Range range;
    const TensorView* values;
  };

  std::string where_;
  ShardedReader reader_;
  std::map<std::string, std::vector<Slice>> slices_;  ///< of every tensor, sorted by begin
};

}  // namespace hero
