#pragma once
// Process groups: collectives and point-to-point messages through PyTorch's backends. A group of one process
// needs no backend: its operations are copies.
#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace hero {

/// Handle of an in-flight operation. Keeps its tensors alive until wait() or destruction.
class AsyncWork {
 public:
  AsyncWork();
  AsyncWork(c10::intrusive_ptr<c10d::Work> work, std::string what, std::vector<at::Tensor> tensors);
  ~AsyncWork();
  AsyncWork(AsyncWork&&) noexcept;
  AsyncWork& operator=(AsyncWork&&) noexcept;

  /// Blocks until the operation completes; on a GPU, orders it before later work on the current stream.
  /// RunError naming the operation, the step and, if known, the missing ranks.
  void wait();

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::string what_;
  std::vector<at::Tensor> tensors_;
};

/// Tensors must be contiguous. Operations that only move data accept any dtype; sums support the backend's
/// (Gloo and NCCL: fp64, fp32, bf16, fp16 and integers) and are deterministic. Every operation may throw what
/// AsyncWork::wait throws.
class Group {
 public:
  /// A group of this process only. `rank`: world rank. `name`: for error messages ("data ranks").
  Group(std::string name, int64_t rank);
  /// `ranks`: world ranks, ascending, two or more; `rank`: this process's rank within the group.
  Group(std::string name, std::vector<int64_t> ranks, int64_t rank,
        c10::intrusive_ptr<c10d::Backend> backend);
  ~Group();
  Group(const Group&) = delete;

  int64_t rank() const { return rank_; }  ///< within the group
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  const std::vector<int64_t>& ranks() const { return ranks_; }

  /// Sum over the ranks, in place.
  AsyncWork all_reduce(const at::Tensor& t) const;
  /// out [n / size] = this rank's shard of the sum of in [n].
  AsyncWork reduce_scatter(const at::Tensor& out, const at::Tensor& in) const;
  /// out [n * size] = in [n] of all ranks, in rank order.
  AsyncWork all_gather(const at::Tensor& out, const at::Tensor& in) const;
  /// Sends in_counts[r] rows of `in` to rank r and receives out_counts[r] rows of `out` from it, in rank
  /// order. Counts may be 0.
  AsyncWork all_to_all(const at::Tensor& out, const at::Tensor& in, std::vector<int64_t> out_counts,
                       std::vector<int64_t> in_counts) const;
  /// `to`, `from`: another rank of the group. Messages between two ranks with the same tag arrive in order.
  AsyncWork send(const at::Tensor& t, int64_t to, int tag) const;
  AsyncWork receive(const at::Tensor& t, int64_t from, int tag) const;

 private:
  std::string describe_collective(const char* operation) const;
  std::string describe_point_to_point(const char* operation, int64_t peer, int tag) const;

  std::string name_;
  std::vector<int64_t> ranks_;
  int64_t rank_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  mutable std::atomic<int64_t> operations_ = 0;  ///< collectives started
};

}  // namespace hero
