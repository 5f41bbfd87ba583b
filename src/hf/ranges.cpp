#include "hf/ranges.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>

#include "hf/load.h"
#include "io/error.h"
#include "io/one_line.h"

namespace hero {
namespace {

struct NamedRange {
  std::string name;
  Range range;
};

// The inverse of slice_name.
std::optional<NamedRange> parse_slice_name(const std::string& text) {
  const size_t open = text.rfind('[');
  if (open == std::string::npos) return std::nullopt;
  NamedRange found{text.substr(0, open), {0, 0}};
  const char* last = text.data() + text.size();
  const auto comma = std::from_chars(text.data() + open + 1, last, found.range.begin).ptr;
  if (comma != last) std::from_chars(comma + 1, last, found.range.end);
  return slice_name(found.name, found.range) == text ? std::optional(found) : std::nullopt;
}

}  // namespace

std::vector<Range> merge_ranges(std::vector<Range> ranges) {
  std::ranges::sort(ranges);
  std::vector<Range> result;
  for (const Range& range : ranges) {
    if (!result.empty() && result.back().end == range.begin) {
      result.back().end = range.end;
    } else {
      result.push_back(range);
    }
  }
  return result;
}

std::string format_ranges(const std::vector<Range>& ranges) {
  std::string text;
  for (const auto& [begin, end] : ranges) {
    text += (text.empty() ? "[" : " [") + std::to_string(begin) + ", " + std::to_string(end) + ")";
  }
  return text.empty() ? "none" : one_line(text, 200);
}

std::string slice_name(const std::string& name, Range range) {
  return name + "[" + std::to_string(range.begin) + "," + std::to_string(range.end) + ")";
}

RangeReader::RangeReader(const std::filesystem::path& folder, const std::string& kind)
    : where_(folder.string()), reader_(folder, kind) {
  for (const auto& name : reader_.names()) {
    if (const auto slice = parse_slice_name(name))
      slices_[slice->name].push_back({slice->range, reader_.find(name)});
  }
  for (auto& [name, slices] : slices_) std::ranges::sort(slices, {}, &Slice::range);
}

void RangeReader::read(const std::string& name, const std::vector<int64_t>& shape, int64_t begin,
                       const at::Tensor& target) const {
  TORCH_INTERNAL_ASSERT(target.is_contiguous());
  const Range requested{begin, begin + target.numel()};
  const auto found = slices_.find(name);
  const int64_t size = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  std::vector<Range> ranges;
  if (found == slices_.end()) {
    read_elements(find_tensor(reader_, where_, name, shape), requested, target);
    return;
  }
  if (reader_.find(name)) ranges.push_back({0, size});
  for (const auto& slice : found->second) ranges.push_back(slice.range);
  const auto present = merge_ranges(ranges);
  bool covered = false, overlap = false;
  int64_t last = 0;
  for (const Range& range : present) {
    overlap |= range.begin < last || range.end > size;
    covered |= range.begin <= requested.begin && range.end >= requested.end;
    last = range.end;
  }
  if (!covered || overlap) {
    throw UserError(where_ + ": tensor " + name + ": found the elements " + format_ranges(present) +
                    ", expected " + format_ranges({requested}) + " among slices of [0, " +
                    std::to_string(size) + ") that do not overlap");
  }
  const auto flat = target.view({-1});
  for (const auto& [range, values] : found->second) {
    const Range common{std::max(range.begin, requested.begin), std::min(range.end, requested.end)};
    if (common.begin >= common.end) continue;
    const auto& slice = find_tensor(reader_, where_, values->name, {range.end - range.begin});
    read_elements(slice, {common.begin - range.begin, common.end - range.begin},
                  flat.slice(0, common.begin - begin, common.end - begin));
  }
}

}  // namespace hero
