#pragma once
#include <ATen/Context.h>

namespace hero::ops {

/// While one lives, LibTorch may scatter and add in any order: for integers, and for at most one term in each
/// place, where every order gives the same bits. Its ordered forms on CUDA sort, and wait for the device.
class AnyOrder {
 public:
  AnyOrder() { at::globalContext().setDeterministicAlgorithms(false, false); }
  ~AnyOrder() { at::globalContext().setDeterministicAlgorithms(was_strict_, was_lenient_); }
  AnyOrder(const AnyOrder&) = delete;
  AnyOrder& operator=(const AnyOrder&) = delete;

 private:
  bool was_strict_ = at::globalContext().deterministicAlgorithms();
  bool was_lenient_ = at::globalContext().deterministicAlgorithmsWarnOnly();
};

}  // namespace hero::ops
