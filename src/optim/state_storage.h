#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>

namespace hero {

/// Where the optimizer's state is: in memory, or in memory-mapped files on disk (optim.offload_folder), whose
/// pages the kernel reads and writes as the optimizer passes over them.
class StateStorage {
 public:
  /// `folder`: of the files; empty: in memory. UserError if it cannot be written or the weights are not on
  /// the CPU.
  StateStorage(std::filesystem::path folder, at::Device device);

  bool in_files() const { return !folder_.empty(); }

  /// Contiguous tensors of the shape and type of `values`. RunError if the disk is full.
  at::Tensor zeros_like(const at::Tensor& values) const;
  at::Tensor copy_of(const at::Tensor& values) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace hero
