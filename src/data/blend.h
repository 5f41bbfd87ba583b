#pragma once
// Data sources with weights, and the order in which a blend reads them.
#include <cstdint>
#include <string>
#include <vector>

namespace hero {

struct DataSource {
  std::string prefix;
  double weight = 1;
};

/// Parses arguments `PREFIX` or `WEIGHT:PREFIX`. UserError, which begins with `option`, for weights <= 0, if
/// only some have a weight, and for an infinite sum.
std::vector<DataSource> parse_sources(const std::vector<std::string>& arguments,
                                      const std::string& option = "--data");

/// The weights' shares as BlendedSampler uses them, in units of about 2^-32.
std::vector<int64_t> blend_units(const std::vector<double>& weights);

/// Maps a position to a source and the sample index within it. At every position, the count of each source is
/// within 1 of its share (the quota method: M. Balinski, H. Young, 1975). Weights have a resolution of 2^-32.
class BlendedSampler {
 public:
  struct Choice {
    int64_t source, index;
  };

  /// Weights above 0, in any unit.
  explicit BlendedSampler(const std::vector<double>& weights);

  /// Moving forward costs a few integer operations per position; moving back restarts at 0. Reads no data.
  Choice at(int64_t position);

  /// The number of samples of each source before a position, at the same cost.
  const std::vector<int64_t>& counts(int64_t position);

 private:
  void seek(int64_t position);
  Choice next();
  std::vector<int64_t> units_, counts_;
  int64_t total_ = 0, position_ = 0;
};

}  // namespace hero
