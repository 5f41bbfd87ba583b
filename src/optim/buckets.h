#pragma once
// Gradients and weights that several ranks share (ZeRO-1, arXiv 1910.02054): flat runs of parameters, each
// cut into equal parts of which every rank owns one. As soon as a bucket's gradients are complete its sum
// over the ranks begins, while the backward pass goes on; each rank receives its part, updates it, and the
// ranks gather the new weights.
#include <memory>
#include <unordered_map>
#include <vector>

#include "distributed/group.h"
#include "model/parameters.h"
#include "optim/piece.h"

namespace hero {

class Buckets {
 public:
  /// Moves the leaves of parameters that `data` (or for experts' `replica`) ranks share into flat memory.
  /// Where leaves are of a narrower type, Parameter::values of these is given up: the pieces hold what this
  /// rank needs of it. Groups of one share nothing. Both outlive it.
  Buckets(Parameters& parameters, const Group& data, const Group& replica);
  ~Buckets();
  Buckets(const Buckets&) = delete;

  bool holds(size_t parameter) const { return bucket_of_[parameter] >= 0; }
  /// Whether this is the first of the ranks that have the parameter.
  bool first_of(size_t parameter) const { return group_of(parameter).rank() == 0; }
  /// Their values, without moments.
  std::vector<Piece> pieces() const;

  /// Before a step's backward passes, of which every parameter takes part in `passes`. A parameter owes one
  /// contribution for each, which is in when the autograd engine has visited the leaf.
  void expect(int64_t passes);
  /// A backward pass defers a contribution to this leaf: it owes one more. The engine visits the leaf all the
  /// same, with or without a gradient.
  void expect_deferred(const at::Tensor& leaf);
  /// A deferred contribution has been added to this leaf's gradient.
  void add_deferred(const at::Tensor& leaf);
  /// After the last backward pass: waits until all sums are there.
  void finish();
  /// The summed gradient of a piece, after finish().
  at::Tensor gradient(const Piece& piece) const;

  /// Sends the pieces' new values to all ranks' leaves.
  void spread();

 private:
  struct Bucket;
  const Group& group_of(size_t parameter) const {
    return parameters_.all()[parameter].expert ? replica_ : data_;
  }
  void contributed(size_t parameter);
  void launch(Bucket& bucket);

  Parameters& parameters_;
  const Group &data_, &replica_;
  std::vector<int64_t> bucket_of_;                        // per parameter; -1: not shared
  std::unordered_map<const void*, size_t> parameter_of_;  // leaves in buckets
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::vector<int64_t> owed_;  // per parameter: contributions still to come
  size_t next_ = 0;            // the first bucket whose sum has not begun
};

}  // namespace hero
