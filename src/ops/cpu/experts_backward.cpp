// Backward pass of the grouped bf16 expert MLPs. The task of an expert computes its weight gradients from
// operands that the blocks of rows packed (rows zero-padded to a multiple of 32), all while they are in
// cache. The gradient tiles of an expert with many rows are separate tasks. Each tile is computed by one task
// in a fixed order, so results do not depend on the number of threads.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "ops/cpu/empty.h"
#include "ops/cpu/expert_tasks.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/swiglu.h"
#include "ops/reference.h"

namespace hero::cpu {
namespace {

// Computes input gradients by blocks of rows.
class InputGradients {
 public:
  InputGradients(const ExpertTasks& tasks, const at::Tensor& dy, const at::Tensor& h,
                 const at::Tensor& gate_up, const at::Tensor& down, const at::Tensor& dx)
      : d_(down.size(1)),
        f_(down.size(2)),
        dy_(dy.const_data_ptr<bf16>()),
        h_(h.const_data_ptr<bf16>()),
        down_(tasks, down, d_, f_, false),
        up_(tasks, gate_up, 2 * f_, d_, false),
        dx_(dx.data_ptr<bf16>()) {}

  // Writes dx of the task's rows and, per block, the operands of the weight gradients, dh [rows, 2F] and act
  // [rows, F], to the pair of pointers that place(first) returns; then calls done(first, rows, dh, act).
  template <class Place, class Done>
  void run(const ExpertTask& task, const Place& place, const Done& done) const {
    if (task.rows == 0) return;
    const auto down = down_.of(task), up = up_.of(task);
    const auto dact = scratch<float>(block_rows(task) * f_);
    for_blocks(task, [&](int64_t r, int64_t rows) {
      const auto [dh, act] = place(r);
      prefetch_rows(h_, r, rows, 2 * f_);
      prefetch_rows(dy_, r, rows, d_);
      down.multiply(rows, dy_ + r * d_, d_, dact.get(), f_);
      swiglu_backward_rows(dact.get(), h_ + r * 2 * f_, rows, f_, dh, act);
      up.multiply(rows, dh, 2 * f_, dx_ + r * d_, d_);
      done(r, rows, dh, act);
    });
  }

 private:
  int64_t d_, f_;
  const bf16 *dy_, *h_;
  ExpertWeights<bf16> down_, up_;
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
  Scratch<bf16> a_, b_;
};

// Gradients of one weight for all split experts.
class SplitExpertGradients {
 public:
  SplitExpertGradients(const ExpertTasks& tasks, int64_t m, int64_t n)
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

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> experts_backward_input(const at::Tensor& dy,
                                                                      const at::Tensor& h,
                                                                      const at::Tensor& gate_up,
                                                                      const at::Tensor& down,
                                                                      const at::Tensor& offsets) {
  if (!fused_experts(dy, gate_up, down))
    return ops::experts_backward_input_reference(dy, h, gate_up, down, offsets);
  const int64_t f = down.size(2);
  auto dx = at::empty_like(dy), dh = at::empty_like(h), act = empty({h.size(0), f}, h.scalar_type());
  const ExpertTasks tasks(offsets);
  const InputGradients input(tasks, dy, h, gate_up, down, dx);
  tasks.run([&](const ExpertTask& task) {
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
  auto dw = empty({experts, m, n}, at::kFloat);
  auto* to = dw.data_ptr<float>();
  const auto *a = dy.const_data_ptr<bf16>(), *b = x.const_data_ptr<bf16>();
  const ExpertTasks tasks(offsets);
  const SplitExpertGradients split_gradients(tasks, m, n);
  tasks.run([&](const ExpertTask& task) {
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
  if (!fused_experts(x, gate_up, down)) {
    const auto [dx, dh, act] = experts_backward_input(dy, h, gate_up, down, offsets);
    return {dx, experts_backward_weight(dh, x, offsets), experts_backward_weight(dy, act, offsets)};
  }
  const int64_t d = x.size(1), f = down.size(2);
  auto dx = at::empty_like(x);
  auto dgate_up = empty(gate_up.sizes(), at::kFloat);
  auto ddown = empty(down.sizes(), at::kFloat);
  auto *to_gate_up = dgate_up.data_ptr<float>(), *to_down = ddown.data_ptr<float>();
  const auto *dy_rows = dy.const_data_ptr<bf16>(), *x_rows = x.const_data_ptr<bf16>();
  const ExpertTasks tasks(offsets);
  const SplitExpertGradients split_gate_up(tasks, 2 * f, d), split_down(tasks, d, f);
  const InputGradients input(tasks, dy, h, gate_up, down, dx);
  tasks.run([&](const ExpertTask& task) {
    const int64_t e = task.expert, most = block_rows(task);
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
