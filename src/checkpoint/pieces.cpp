#include "checkpoint/pieces.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "hf/ranges.h"

namespace hero {
namespace {

// What a piece holds of one part of its parameter.
struct Share {
  const Piece& piece;
  const ParameterPart& part;
  Range range;  // of the part's elements
  bool whole;

  // Of values or moments of the piece, the share: shaped like the part if it is all of it.
  at::Tensor of(const at::Tensor& flat) const {
    const int64_t first = part.offset - piece.begin;
    const auto elements = flat.slice(0, first + range.begin, first + range.end);
    return whole ? elements.view(part.shape) : elements;
  }
};

template <typename Visit>
void for_each_share(const Parameters& parameters, const std::vector<Piece>& pieces, Visit&& visit) {
  for (const Piece& piece : pieces) {
    for (const ParameterPart& part : parameters.all()[piece.parameter].parts) {
      const int64_t size =
          std::accumulate(part.shape.begin(), part.shape.end(), int64_t{1}, std::multiplies<>());
      const Range range{std::max<int64_t>(piece.begin - part.offset, 0),
                        std::min(piece.end - part.offset, size)};
      if (range.begin < range.end) visit(Share{piece, part, range, range == Range{0, size}});
    }
  }
}

}  // namespace

void add_pieces(const Parameters& parameters, const std::vector<Piece>& pieces,
                CheckpointContents& contents) {
  for_each_share(parameters, pieces, [&](const Share& share) {
    const auto& [piece, part, range, whole] = share;
    if (whole) {
      contents.model.emplace_back(part.name, share.of(piece.values));
    } else {
      contents.model_slices.push_back({part.name, part.shape, range.begin, share.of(piece.values)});
    }
    if (!piece.exp_avg.defined()) return;
    const std::string name = whole ? part.name : slice_name(part.name, range);
    contents.optimizer.emplace_back("exp_avg." + name, share.of(piece.exp_avg));
    contents.optimizer.emplace_back("exp_avg_sq." + name, share.of(piece.exp_avg_sq));
  });
}

void read_pieces(const std::filesystem::path& checkpoint, const Parameters& parameters,
                 const std::vector<Piece>& pieces) {
  const RangeReader model(checkpoint, "model"), optimizer(checkpoint, "optimizer");
  for_each_share(parameters, pieces, [&](const Share& share) {
    const auto& [piece, part, range, whole] = share;
    const auto& own = parameters.all()[piece.parameter].values;
    if (!own.defined() || !piece.values.is_alias_of(own))
      model.read(part.name, part.shape, range.begin, share.of(piece.values));
    if (!piece.exp_avg.defined()) return;
    optimizer.read("exp_avg." + part.name, part.shape, range.begin, share.of(piece.exp_avg));
    optimizer.read("exp_avg_sq." + part.name, part.shape, range.begin, share.of(piece.exp_avg_sq));
  });
}

}  // namespace hero
