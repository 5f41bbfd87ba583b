#pragma once
// Tasks and weights of the grouped expert MLPs. A task processes all rows of an expert; an expert with many
// rows is split over all threads: its weights are packed first, and its row blocks become separate tasks.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <vector>

#include "ops/cpu/gemm.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/typed_gemm.h"

namespace hero::cpu {

/// Rows of one expert: one block if the expert is split, else all rows.
struct ExpertTask {
  int64_t expert, first, rows;
};

/// The rows of all experts as tasks, largest first; includes experts without rows.
class ExpertTasks {
 public:
  explicit ExpertTasks(const at::Tensor& offsets)
      : offsets_(offsets.const_data_ptr<int64_t>()), experts_(offsets.size(0) - 1) {
    // Several tasks per thread, for load balance.
    max_rows_ = std::max(kBlockRows, offsets_[experts_] / (8 * at::get_num_threads()));
    for (int64_t e = 0; e < experts_; ++e) {
      if (is_split(e)) {
        for (int64_t r = 0; r < rows(e); r += kBlockRows)
          tasks_.push_back({e, offsets_[e] + r, std::min(kBlockRows, rows(e) - r)});
      } else {
        tasks_.push_back({e, offsets_[e], rows(e)});
      }
    }
    std::ranges::sort(tasks_, [](const ExpertTask& a, const ExpertTask& b) {
      return a.rows != b.rows ? a.rows > b.rows : a.expert < b.expert;
    });
  }

  int64_t experts() const { return experts_; }
  int64_t rows(int64_t e) const { return offsets_[e + 1] - offsets_[e]; }
  int64_t first(int64_t e) const { return offsets_[e]; }
  bool is_split(int64_t e) const { return rows(e) > max_rows_; }

  template <class Function>
  void run(const Function& function) const {
    parallel_tasks(std::ssize(tasks_), [&](int64_t i) { function(tasks_[i]); });
  }

 private:
  const int64_t* offsets_;
  int64_t experts_, max_rows_;
  std::vector<ExpertTask> tasks_;
};

/// Rows of the blocks in which a task is processed. Up to two blocks of a GEMM are one: then each panel of a
/// weight is used once, while it is in cache.
inline int64_t block_rows(const ExpertTask& task) {
  return task.rows <= 2 * kBlockRows ? task.rows : kBlockRows;
}

/// Calls block(first, rows) for every block of a task's rows.
template <class Function>
void for_blocks(const ExpertTask& task, const Function& block) {
  const int64_t most = block_rows(task);
  for (int64_t r = 0; r < task.rows; r += most) block(task.first + r, std::min(most, task.rows - r));
}

/// Brings rows [first, first + rows) of a contiguous matrix with `width` columns into the cache: a GEMM reads
/// few rows at a time, too short for the processor to prefetch them. Prefetch instructions would be dropped
/// when many are outstanding, so this reads one byte of each cache line.
template <class T>
void prefetch_rows(const T* matrix, int64_t first, int64_t rows, int64_t width) {
  constexpr int64_t kCacheLine = 64;
  const auto* bytes = reinterpret_cast<const volatile char*>(matrix + first * width);
  const int64_t size = rows * width * int64_t{sizeof(T)};
  for (int64_t i = 0; i < size; i += kCacheLine) static_cast<void>(bytes[i]);
}

/// A weight [k, n] with row stride ld; `transposed`: stored as [n, k].
template <class T>
struct StoredWeight {
  const T* data;
  int64_t k, n, ld;
  bool transposed;

  void pack_panel(int64_t p, T* packed) const { pack_weight_panel(data, k, n, ld, transposed, p, packed); }
  /// The columns of panel p.
  StoredWeight panel(int64_t p) const {
    const int64_t first = p * kPanelWidth;
    return {data + first * (transposed ? ld : 1), k, panel_width(n, p), ld, transposed};
  }
};

/// The weight of a task's expert, packed as a whole or panel by panel when it is used.
template <class T>
class TaskWeight {
 public:
  /// `packed` is the packed weight, or null.
  TaskWeight(StoredWeight<T> weight, const T* packed) : weight_(weight), packed_(packed) {}

  bool is_packed() const { return packed_ != nullptr; }
  void pack() {
    own_ = scratch<T>(weight_.k * weight_.n);
    for (int64_t p = 0; p < panels(weight_.n); ++p) weight_.pack_panel(p, own_.get());
    packed_ = own_.get();
  }

  /// c [m, n] = a [m, k] * the weight; C is T, or float.
  template <class C>
  void multiply(int64_t m, const T* a, int64_t lda, C* c, int64_t ldc) const {
    if (packed_) return multiply_packed(m, weight_.n, weight_.k, a, lda, packed_, c, ldc);
    const auto packed = scratch<T>(weight_.k * kPanelWidth);
    for (int64_t p = 0; p < panels(weight_.n); ++p) {
      const auto panel = weight_.panel(p);
      panel.pack_panel(0, packed.get());
      multiply_packed(m, panel.n, panel.k, a, lda, packed.get(), c + p * kPanelWidth, ldc);
    }
  }

 private:
  StoredWeight<T> weight_;
  const T* packed_;
  Scratch<T> own_;
};

/// The experts' weights b [E, k, n], or [E, n, k] if `transposed`; those of split experts are packed in
/// advance.
template <class T>
class ExpertWeights {
 public:
  ExpertWeights(const ExpertTasks& tasks, const at::Tensor& b, int64_t k, int64_t n, bool transposed)
      : first_{b.const_data_ptr<T>(), k, n, transposed ? k : n, transposed}, packed_(tasks.experts()) {
    std::vector<int64_t> experts;
    for (int64_t e = 0; e < tasks.experts(); ++e) {
      if (!tasks.is_split(e)) continue;
      experts.push_back(e);
      packed_[e] = scratch<T>(k * n);
    }
    const int64_t count = panels(n);
    parallel_tasks(std::ssize(experts) * count, [&](int64_t i) {
      const int64_t e = experts[i / count];
      of_expert(e).pack_panel(i % count, packed_[e].get());
    });
  }

  TaskWeight<T> of(const ExpertTask& task) const {
    TaskWeight<T> weight(of_expert(task.expert), packed_[task.expert].get());
    constexpr int64_t kPrefetchedBytes = 1 << 18;  // a fraction of the L2 cache
    if (!weight.is_packed() && first_.k * first_.n * int64_t{sizeof(T)} <= kPrefetchedBytes)
      prefetch_rows(of_expert(task.expert).data, 0, first_.k, first_.n);
    if (!weight.is_packed() && task.rows > block_rows(task)) weight.pack();
    return weight;
  }

 private:
  StoredWeight<T> of_expert(int64_t e) const {
    auto weight = first_;
    weight.data += e * weight.k * weight.n;
    return weight;
  }

  StoredWeight<T> first_;
  std::vector<Scratch<T>> packed_;
};

/// Whether the kernels take experts of this type and shape.
inline bool supports_experts(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down,
                             at::ScalarType type) {
  return x.scalar_type() == type && x.is_contiguous() && gate_up.is_contiguous() && down.is_contiguous() &&
         supports_gemm(x.size(1), down.size(2));
}

inline bool fused_experts(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down) {
  return supports_experts(x, gate_up, down, at::kBFloat16);
}

}  // namespace hero::cpu
