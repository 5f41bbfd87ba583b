#pragma once
// Tensors that a folder holds whole, as NAME, or in slices, 1-D tensors NAME[begin,end) of the elements
// [begin, end) of the flattened tensor; read in ranges of any other cut.
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

/// Sorted, and joined where one ends as the next begins. Ranges that overlap stay apart.
std::vector<Range> joined(std::vector<Range> ranges);

/// "[0, 5) [7, 9)", cut short where there are many; "none".
std::string range_text(const std::vector<Range>& ranges);

/// NAME[begin,end)
std::string slice_name(const std::string& name, Range range);

/// Reads ranges of tensors out of files that stay mapped as long as it lives.
class RangeReader {
 public:
  /// The files FOLDER/KIND*.safetensors, as ShardedReader. UserError as there.
  RangeReader(const std::filesystem::path& folder, const std::string& kind);

  /// Fills `target` (contiguous, any shape and device) with the elements of the tensor `name` from `begin`
  /// on, converted to its type; reads no others. `shape`: of the whole tensor. UserError naming tensor, range
  /// found and range expected where the folder lacks elements or has some twice; as read_into for another
  /// shape or type.
  void read(const std::string& name, const std::vector<int64_t>& shape, int64_t begin,
            const at::Tensor& target) const;

 private:
  struct Slice {
    Range range;
    const TensorView* values;
  };

  std::string where_;
  ShardedReader reader_;
  std::map<std::string, std::vector<Slice>> slices_;  ///< of every tensor, by begin
};

}  // namespace hero
