#pragma once
// Collectives over some of the processes, through PyTorch's own backends. A group of one process needs no
// backend: its operations are copies.
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

/// An operation under way. Its tensors stay alive until it is waited for or destroyed.
class Pending {
 public:
  Pending();
  Pending(c10::intrusive_ptr<c10d::Work> work, std::string what, std::vector<at::Tensor> tensors);
  ~Pending();
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;

  /// Until it is done; on a GPU, until what is launched next comes after it. RunError naming the operation,
  /// the step and, where they can be told, the ranks that are missing.
  void wait();

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::string what_;
  std::vector<at::Tensor> tensors_;
};

/// Tensors are contiguous, of any type where they only travel; sums are the backend's (Gloo and NCCL: fp64,
/// fp32, bf16, fp16 and integers), the same from run to run. Every operation may throw what Pending::wait
/// throws.
class Group {
 public:
  /// This process alone, whose rank in the world is `rank`. `name`: for messages ("data ranks").
  Group(std::string name, int64_t rank);
  /// `ranks`: of the world, ascending, two or more; `rank`: this one's place among them.
  Group(std::string name, std::vector<int64_t> ranks, int64_t rank,
        c10::intrusive_ptr<c10d::Backend> backend);
  ~Group();
  Group(const Group&) = delete;

  int64_t rank() const { return rank_; }  ///< within the group
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  const std::vector<int64_t>& ranks() const { return ranks_; }

  /// Sum over the ranks, in place.
  Pending all_reduce(const at::Tensor& t) const;
  /// out [n / size] = this rank's part of the sum of in [n].
  Pending reduce_scatter(const at::Tensor& out, const at::Tensor& in) const;
  /// out [n * size] = every rank's in [n], in the ranks' order.
  Pending all_gather(const at::Tensor& out, const at::Tensor& in) const;
  /// Rows: in_counts[r] of `in` go to rank r, out_counts[r] of `out` come from it, in the ranks' order. Any
  /// count may be 0.
  Pending all_to_all(const at::Tensor& out, const at::Tensor& in, std::vector<int64_t> out_counts,
                     std::vector<int64_t> in_counts) const;
  /// `to`, `from`: within the group, another rank. Messages between two ranks with one tag arrive in their
  /// order.
  Pending send(const at::Tensor& t, int64_t to, int tag) const;
  Pending receive(const at::Tensor& t, int64_t from, int tag) const;

 private:
  std::string collective(const char* operation) const;
  std::string message(const char* operation, int64_t other, int tag) const;

  std::string name_;
  std::vector<int64_t> ranks_;
  int64_t rank_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  mutable std::atomic<int64_t> operations_ = 0;  ///< collectives begun so far
};

}  // namespace hero
