#pragma once
// Expert assignments of test cases.
#include "ops/cases.h"
#include "ops/compare.h"

namespace hero::test {

/// ids [T, K] of a case, -1 for dropped assignments.
inline at::Tensor ids_of(const ExpertsCase& c) {
  auto ids = integers(0, c.experts, {c.tokens, c.k}, 77);
  if (c.load == Load::kOne) ids.fill_(c.experts - 1);
  if (c.load == Load::kSparse) ids = ids.div(2, "floor") * 2;
  if (c.load == Load::kNone) ids.fill_(-1);
  if (c.load == Load::kDropped) {
    auto flat = ids.view({-1});
    flat.slice(0, 1, flat.size(0), 3).fill_(-1);
  }
  return ids;
}

inline std::string name(const ExpertsCase& c) {
  return "T " + std::to_string(c.tokens) + " K " + std::to_string(c.k) + " E " + std::to_string(c.experts) +
         " D " + std::to_string(c.width) + " F " + std::to_string(c.inner) + " load " +
         std::to_string(static_cast<int>(c.load));
}

}  // namespace hero::test
