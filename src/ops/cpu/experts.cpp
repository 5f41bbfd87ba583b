// Grouped bf16 expert MLPs on packed GEMMs. A task processes all rows of an expert: it packs the weights,
// iterates over blocks of at most 64 rows, and in the backward pass computes the weight gradients from
// operands that the blocks packed (rows zero-padded to a multiple of 32), all while they are in cache. An
// expert with many rows is split over all threads: its weights are packed first, and its row blocks and
// gradient tiles become separate tasks. An expert with few rows reads its weights unpacked. Each tile is
// computed by one task in a fixed order, so results do not depend on the number of threads. Of fp32, only the
// forward pass is here.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/skinny_gemm.h"
#include "ops/cpu/swiglu.h"
#include "ops/reference.h"

namespace hero::cpu {
namespace {

using Buffer = Scratch<bf16>;

// Rows of one expert: one block if the expert is split, else all rows.
struct Task {
  int64_t expert, first, rows;
};

// The rows of all experts as tasks, largest first; includes experts without rows.
class TaskList {
 public:
  explicit TaskList(const at::Tensor& offsets)
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
    std::ranges::sort(tasks_, [](const Task& a, const Task& b) {
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
  std::vector<Task> tasks_;
};

// Calls block(first, rows) for every block of a task's rows.
template <class Function>
void for_blocks(const Task& task, const Function& block) {
  for (int64_t r = 0; r < task.rows; r += kBlockRows)
    block(task.first + r, std::min(kBlockRows, task.rows - r));
}

// The experts' weights b [E, ...] as right-hand sides [k, n] of GEMMs, packed in advance for split experts.
class PackedWeights {
 public:
  PackedWeights(const TaskList& tasks, const at::Tensor& b, int64_t k, int64_t n, int64_t ld, bool transposed)
      : b_(b.const_data_ptr<bf16>()),
        k_(k),
        n_(n),
        ld_(ld),
        transposed_(transposed),
        packed_(tasks.experts()) {
    std::vector<int64_t> experts;
    for (int64_t e = 0; e < tasks.experts(); ++e) {
      if (!tasks.is_split(e)) continue;
      experts.push_back(e);
      packed_[e] = scratch<bf16>(k * n);
    }
    const int64_t count = panels(n);
    parallel_tasks(std::ssize(experts) * count, [&](int64_t i) {
      const int64_t e = experts[i / count];
      pack_panel(b_ + e * k_ * n_, k_, k_, n_, ld_, transposed_, i % count, packed_[e].get());
    });
  }

  // Packed weight of expert e; `buffer` holds it if the expert is not split.
  const bf16* of(int64_t e, Buffer& buffer) const {
    if (packed_[e]) return packed_[e].get();
    buffer = scratch<bf16>(k_ * n_);
    for (int64_t p = 0; p < panels(n_); ++p)
      pack_panel(b_ + e * k_ * n_, k_, k_, n_, ld_, transposed_, p, buffer.get());
    return buffer.get();
  }

 private:
  const bf16* b_;
  int64_t k_, n_, ld_;
  bool transposed_;
  std::vector<Buffer> packed_;
};

bool supported(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down, at::ScalarType type) {
  return x.scalar_type() == type && x.is_contiguous() && gate_up.is_contiguous() && down.is_contiguous() &&
         supports_gemm(x.size(1), down.size(2));
}

bool fused(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down) {
  return supported(x, gate_up, down, at::kBFloat16);
}

// Computes input gradients by blocks of rows.
class InputGradients {
 public:
  InputGradients(const TaskList& tasks, const at::Tensor& dy, const at::Tensor& h, const at::Tensor& gate_up,
                 const at::Tensor& down, const at::Tensor& dx)
      : d_(down.size(1)),
        f_(down.size(2)),
        dy_(dy.const_data_ptr<bf16>()),
        h_(h.const_data_ptr<bf16>()),
        down_(tasks, down, d_, f_, f_, false),
        up_(tasks, gate_up, 2 * f_, d_, d_, false),
        dx_(dx.data_ptr<bf16>()) {}

  // Writes dx of the task's rows and, per block, the operands of the weight gradients, dh [rows, 2F] and act
  // [rows, F], to the pair of pointers that place(first) returns; then calls done(first, rows, dh, act).
  template <class Place, class Done>
  void run(const Task& task, const Place& place, const Done& done) const {
    if (task.rows == 0) return;
    Buffer own_down, own_up;
    const bf16 *down = down_.of(task.expert, own_down), *up = up_.of(task.expert, own_up);
    const auto dact = scratch<float>(std::min(kBlockRows, task.rows) * f_);
    for_blocks(task, [&](int64_t r, int64_t rows) {
      const auto [dh, act] = place(r);
      gemm(rows, f_, d_, dy_ + r * d_, d_, down, dact.get(), f_);
      swiglu_backward_rows(dact.get(), h_ + r * 2 * f_, rows, f_, dh, act);
      gemm_bf16(rows, d_, 2 * f_, dh, 2 * f_, up, dx_ + r * d_, d_);
      done(r, rows, dh, act);
    });
  }

 private:
  int64_t d_, f_;
  const bf16 *dy_, *h_;
  PackedWeights down_, up_;
  bf16* dx_;
};

// Weight gradient of one expert, a^T b for its rows of a [rows, m] and b [rows, n]: first pack() all blocks
// of rows, then compute the tiles of the result.
class WeightGradient {
 public:
  WeightGradient(int64_t rows, int64_t m, int64_t n)
      : inner_(round_up(rows, 32)),
        m_(m),
        n_(n),
        a_(scratch<bf16>(inner_ * m)),
        b_(scratch<bf16>(inner_ * n)) {}

  // Packs the block of the expert's rows from `first` on.
  void pack(int64_t first, int64_t rows, const bf16* a, const bf16* b) const {
    const int64_t filled = round_up(rows, 32);
    pack_left(a, rows, filled, m_, m_, first, inner_, a_.get());
    for (int64_t p = 0; p < panels(n_); ++p) {
      const int64_t width = panel_width(n_, p);
      pack_panel(b + p * kPanelWidth, filled, rows, width, n_, false, 0,
                 b_.get() + p * kPanelWidth * inner_ + first * width);
    }
  }

  static int64_t tiles(int64_t m) { return (m + kBlockRows - 1) / kBlockRows; }

  // Computes tile i of out [m, n].
  void compute_tile(int64_t i, float* out) const {
    const int64_t r = i * kBlockRows, rows = std::min(kBlockRows, m_ - r);
    if (inner_ == 0) {
      std::memset(out + r * n_, 0, rows * n_ * sizeof(float));
    } else {
      gemm_left(rows, n_, inner_, a_.get() + r * inner_, b_.get(), out + r * n_, n_);
    }
  }
  void compute(float* out) const {
    for (int64_t i = 0; i < tiles(m_); ++i) compute_tile(i, out);
  }

 private:
  int64_t inner_, m_, n_;
  Buffer a_, b_;
};

// Gradients of one weight for all split experts.
class SplitExpertGradients {
 public:
  SplitExpertGradients(const TaskList& tasks, int64_t m, int64_t n)
      : m_(m), n_(n), gradients_(tasks.experts()) {
    for (int64_t e = 0; e < tasks.experts(); ++e) {
      if (!tasks.is_split(e)) continue;
      gradients_[e] = std::make_unique<WeightGradient>(tasks.rows(e), m, n);
      for (int64_t i = 0; i < WeightGradient::tiles(m); ++i) tiles_.emplace_back(e, i);
    }
  }

  const WeightGradient& operator[](int64_t e) const { return *gradients_[e]; }
  int64_t tiles() const { return std::ssize(tiles_); }
  // Computes tile i, of all experts, of out [E, m, n].
  void compute_tile(int64_t i, float* out) const {
    const auto [e, tile] = tiles_[i];
    gradients_[e]->compute_tile(tile, out + e * m_ * n_);
  }

 private:
  int64_t m_, n_;
  std::vector<std::unique_ptr<WeightGradient>> gradients_;
  std::vector<std::pair<int64_t, int64_t>> tiles_;
};

bool is_skinny_fp32(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down,
                    const TaskList& tasks) {
  if (!supported(x, gate_up, down, at::kFloat)) return false;
  for (int64_t e = 0; e < tasks.experts(); ++e) {
    if (tasks.rows(e) > max_skinny_rows_fp32()) return false;
  }
  return true;
}

std::tuple<at::Tensor, at::Tensor> skinny_forward(const at::Tensor& x, const at::Tensor& gate_up,
                                                  const at::Tensor& down, const TaskList& tasks) {
  const int64_t d = x.size(1), f = down.size(2);
  auto y = at::empty_like(x), h = at::empty({x.size(0), 2 * f}, x.options());
  const auto *from = x.const_data_ptr<float>(), *up_rows = gate_up.const_data_ptr<float>(),
             *down_rows = down.const_data_ptr<float>();
  auto *to = y.data_ptr<float>(), *both = h.data_ptr<float>();
  tasks.run([&](const Task& task) {
    const int64_t e = task.expert;
    const auto act = scratch<float>(std::min(kBlockRows, task.rows) * f);
    for_blocks(task, [&](int64_t r, int64_t rows) {
      skinny_gemm(rows, 2 * f, d, from + r * d, d, up_rows + e * 2 * f * d, d, both + r * 2 * f, 2 * f);
      swiglu_rows(both + r * 2 * f, rows, f, act.get(), f);
      skinny_gemm(rows, d, f, act.get(), f, down_rows + e * d * f, f, to + r * d, d);
    });
  });
  return {y, h};
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> experts_forward(const at::Tensor& x, const at::Tensor& gate_up,
                                                   const at::Tensor& down, const at::Tensor& offsets) {
  const TaskList tasks(offsets);
  if (is_skinny_fp32(x, gate_up, down, tasks)) return skinny_forward(x, gate_up, down, tasks);
  if (!fused(x, gate_up, down)) return ops::experts_forward_reference(x, gate_up, down, offsets);
  const int64_t d = x.size(1), f = down.size(2);
  auto y = at::empty_like(x), h = at::empty({x.size(0), 2 * f}, x.options());
  const PackedWeights up(tasks, gate_up, d, 2 * f, d, true), out(tasks, down, f, d, f, true);
  const auto *from = x.const_data_ptr<bf16>(), *up_rows = gate_up.const_data_ptr<bf16>(),
             *down_rows = down.const_data_ptr<bf16>();
  auto *to = y.data_ptr<bf16>(), *both = h.data_ptr<bf16>();
  tasks.run([&](const Task& task) {
    if (task.rows == 0) return;
    const int64_t e = task.expert;
    const bool skinny = tasks.rows(e) <= kSkinnyRows;
    Buffer own_up, own_out;
    const bf16 *up_e = skinny ? nullptr : up.of(e, own_up), *out_e = skinny ? nullptr : out.of(e, own_out);
    const auto act = scratch<bf16>(std::min(kBlockRows, task.rows) * f);
    for_blocks(task, [&](int64_t r, int64_t rows) {
      if (skinny) {
        skinny_gemm(rows, 2 * f, d, from + r * d, d, up_rows + e * 2 * f * d, d, both + r * 2 * f, 2 * f);
      } else {
        gemm_bf16(rows, 2 * f, d, from + r * d, d, up_e, both + r * 2 * f, 2 * f);
      }
      swiglu_rows(both + r * 2 * f, rows, f, act.get(), f);
      if (skinny) {
        skinny_gemm(rows, d, f, act.get(), f, down_rows + e * d * f, f, to + r * d, d);
      } else {
        gemm_bf16(rows, d, f, act.get(), f, out_e, to + r * d, d);
      }
    });
  });
  return {y, h};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> experts_backward_input(const at::Tensor& dy,
                                                                      const at::Tensor& h,
                                                                      const at::Tensor& gate_up,
                                                                      const at::Tensor& down,
                                                                      const at::Tensor& offsets) {
  if (!fused(dy, gate_up, down)) return ops::experts_backward_input_reference(dy, h, gate_up, down, offsets);
  const int64_t f = down.size(2);
  auto dx = at::empty_like(dy), dh = at::empty_like(h), act = at::empty({h.size(0), f}, h.options());
  const TaskList tasks(offsets);
  const InputGradients input(tasks, dy, h, gate_up, down, dx);
  tasks.run([&](const Task& task) {
    input.run(
        task,
        [&](int64_t r) { return std::pair(dh.data_ptr<bf16>() + r * 2 * f, act.data_ptr<bf16>() + r * f); },
        [](auto...) {});
  });
  return {dx, dh, act};
}

at::Tensor experts_backward_weight(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& offsets) {
  const int64_t experts = offsets.size(0) - 1, m = dy.size(1), n = x.size(1);
  if (x.scalar_type() != at::kBFloat16 || !x.is_contiguous() || !supports_gemm(m, n))
    return ops::experts_backward_weight_reference(dy, x, offsets);
  auto dw = at::empty({experts, m, n}, x.options().dtype(at::kFloat));
  auto* to = dw.data_ptr<float>();
  const auto *a = dy.const_data_ptr<bf16>(), *b = x.const_data_ptr<bf16>();
  const TaskList tasks(offsets);
  const SplitExpertGradients split_gradients(tasks, m, n);
  tasks.run([&](const Task& task) {
    const int64_t e = task.expert;
    const auto pack = [&](const WeightGradient& weight) {
      for_blocks(task, [&](int64_t r, int64_t rows) {
        weight.pack(r - tasks.first(e), rows, a + r * m, b + r * n);
      });
    };
    if (tasks.is_split(e)) return pack(split_gradients[e]);
    const WeightGradient weight(task.rows, m, n);
    pack(weight);
    weight.compute(to + e * m * n);
  });
  parallel_tasks(split_gradients.tiles(), [&](int64_t i) { split_gradients.compute_tile(i, to); });
  return dw;
}

// Fused: dh and act are packed while in cache and never stored to memory.
std::tuple<at::Tensor, at::Tensor, at::Tensor> experts_backward(const at::Tensor& dy, const at::Tensor& x,
                                                                const at::Tensor& h,
                                                                const at::Tensor& gate_up,
                                                                const at::Tensor& down,
                                                                const at::Tensor& offsets) {
  if (!fused(x, gate_up, down)) {
    const auto [dx, dh, act] = experts_backward_input(dy, h, gate_up, down, offsets);
    return {dx, experts_backward_weight(dh, x, offsets), experts_backward_weight(dy, act, offsets)};
  }
  const int64_t d = x.size(1), f = down.size(2);
  auto dx = at::empty_like(x);
  auto dgate_up = at::empty(gate_up.sizes(), gate_up.options().dtype(at::kFloat));
  auto ddown = at::empty(down.sizes(), down.options().dtype(at::kFloat));
  auto *to_gate_up = dgate_up.data_ptr<float>(), *to_down = ddown.data_ptr<float>();
  const auto *dy_rows = dy.const_data_ptr<bf16>(), *x_rows = x.const_data_ptr<bf16>();
  const TaskList tasks(offsets);
  const SplitExpertGradients split_gate_up(tasks, 2 * f, d), split_down(tasks, d, f);
  const InputGradients input(tasks, dy, h, gate_up, down, dx);
  tasks.run([&](const Task& task) {
    const int64_t e = task.expert, most = std::min(kBlockRows, task.rows);
    const auto dh = scratch<bf16>(most * 2 * f), act = scratch<bf16>(most * f);
    const auto run = [&](const WeightGradient& of_gate_up, const WeightGradient& of_down) {
      input.run(
          task, [&](int64_t) { return std::pair(dh.get(), act.get()); },
          [&](int64_t r, int64_t rows, const bf16* dh_rows, const bf16* act_rows) {
            const int64_t first = r - tasks.first(e);
            of_down.pack(first, rows, dy_rows + r * d, act_rows);
            of_gate_up.pack(first, rows, dh_rows, x_rows + r * d);
          });
    };
    if (tasks.is_split(e)) return run(split_gate_up[e], split_down[e]);
    const WeightGradient of_gate_up(task.rows, 2 * f, d), of_down(task.rows, d, f);
    run(of_gate_up, of_down);
    of_down.compute(to_down + e * d * f);
    of_gate_up.compute(to_gate_up + e * 2 * f * d);
  });
  const int64_t down_tiles = split_down.tiles();
  parallel_tasks(down_tiles + split_gate_up.tiles(), [&](int64_t i) {
    if (i < down_tiles) return split_down.compute_tile(i, to_down);
    split_gate_up.compute_tile(i - down_tiles, to_gate_up);
  });
  return {dx, dgate_up, ddown};
}

}  // namespace hero::cpu
