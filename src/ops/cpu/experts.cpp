// Grouped bf16 expert layers on blocks of products. A task has all rows of an expert: it packs the expert's
// weights, goes over the rows in blocks of at most 64, and in the backward pass makes the weights' gradients
// of what the blocks left transposed or packed in place (rows padded to a multiple of 32 with zeros), all
// while it is in cache. A popular expert is shared by all threads: its weights are packed beforehand, its
// blocks and the tiles of its gradients are tasks of their own. An expert of few rows reads its weights
// unpacked. Every tile is computed whole by one task and in one way, so no result depends on the number of
// threads.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "ops/cpu/few_rows.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/swiglu.h"
#include "ops/plain.h"

namespace hero::ops {
namespace {

using cpu::bf16;
using cpu::kPanel;
using cpu::kRows;

using Memory = cpu::Scratch<bf16>;

// Rows of one expert: a block of a shared expert, all of another.
struct Task {
  int64_t expert, first, rows;
};

// The rows of every expert as tasks, the largest first; experts without rows too.
class Split {
 public:
  explicit Split(const at::Tensor& offsets)
      : offsets_(offsets.const_data_ptr<int64_t>()), experts_(offsets.size(0) - 1) {
    // A thread gets several tasks, so that none waits long for the last one.
    most_ = std::max(kRows, offsets_[experts_] / (8 * at::get_num_threads()));
    for (int64_t e = 0; e < experts_; ++e) {
      if (shared(e)) {
        for (int64_t r = 0; r < rows(e); r += kRows)
          tasks_.push_back({e, offsets_[e] + r, std::min(kRows, rows(e) - r)});
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
  bool shared(int64_t e) const { return rows(e) > most_; }

  template <class Function>
  void run(const Function& function) const {
    cpu::parallel_tasks(std::ssize(tasks_), [&](int64_t i) { function(tasks_[i]); });
  }

 private:
  const int64_t* offsets_;
  int64_t experts_, most_;
  std::vector<Task> tasks_;
};

// block(first, rows) for every block of a task's rows.
template <class Function>
void for_blocks(const Task& task, const Function& block) {
  for (int64_t r = 0; r < task.rows; r += kRows) block(task.first + r, std::min(kRows, task.rows - r));
}

// The experts' weights b [E, ...] as right-hand sides, k inner and n outer elements each.
class Packed {
 public:
  Packed(const Split& split, const at::Tensor& b, int64_t k, int64_t n, int64_t ld, bool transposed)
      : b_(b.const_data_ptr<bf16>()),
        k_(k),
        n_(n),
        ld_(ld),
        transposed_(transposed),
        shared_(split.experts()) {
    std::vector<int64_t> experts;
    for (int64_t e = 0; e < split.experts(); ++e) {
      if (!split.shared(e)) continue;
      experts.push_back(e);
      shared_[e] = cpu::scratch<bf16>(k * n);
    }
    const int64_t panels = cpu::panels(n);
    cpu::parallel_tasks(std::ssize(experts) * panels, [&](int64_t i) {
      const int64_t e = experts[i / panels];
      cpu::pack_panel(b_ + e * k_ * n_, k_, k_, n_, ld_, transposed_, i % panels, shared_[e].get());
    });
  }

  // An expert's; `own` keeps it where it is not shared.
  const bf16* of(int64_t e, Memory& own) const {
    if (shared_[e]) return shared_[e].get();
    own = cpu::scratch<bf16>(k_ * n_);
    for (int64_t p = 0; p < cpu::panels(n_); ++p)
      cpu::pack_panel(b_ + e * k_ * n_, k_, k_, n_, ld_, transposed_, p, own.get());
    return own.get();
  }

 private:
  const bf16* b_;
  int64_t k_, n_, ld_;
  bool transposed_;
  std::vector<Memory> shared_;
};

bool fused(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down) {
  return x.scalar_type() == at::kBFloat16 && x.is_contiguous() && gate_up.is_contiguous() &&
         down.is_contiguous() && cpu::suits_gemm(x.size(1), down.size(2));
}

std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& gate_up,
                                           const at::Tensor& down, const at::Tensor& offsets) {
  if (!fused(x, gate_up, down)) return experts_forward_plain(x, gate_up, down, offsets);
  const int64_t d = x.size(1), f = down.size(2);
  auto y = at::empty_like(x), h = at::empty({x.size(0), 2 * f}, x.options());
  const Split split(offsets);
  const Packed up(split, gate_up, d, 2 * f, d, true), out(split, down, f, d, f, true);
  const auto *from = x.const_data_ptr<bf16>(), *up_rows = gate_up.const_data_ptr<bf16>(),
             *down_rows = down.const_data_ptr<bf16>();
  auto *to = y.data_ptr<bf16>(), *both = h.data_ptr<bf16>();
  split.run([&](const Task& task) {
    if (task.rows == 0) return;
    const int64_t e = task.expert;
    const bool few = split.rows(e) <= cpu::kFewRows;
    Memory own_up, own_out;
    const bf16 *up_e = few ? nullptr : up.of(e, own_up), *out_e = few ? nullptr : out.of(e, own_out);
    const auto act = cpu::scratch<bf16>(std::min(kRows, task.rows) * f);
    for_blocks(task, [&](int64_t r, int64_t rows) {
      if (few) {
        cpu::few_rows(rows, 2 * f, d, from + r * d, d, up_rows + e * 2 * f * d, d, both + r * 2 * f, 2 * f);
      } else {
        cpu::gemm_bf16(rows, 2 * f, d, from + r * d, d, up_e, both + r * 2 * f, 2 * f);
      }
      cpu::swiglu_rows(both + r * 2 * f, rows, f, act.get(), f);
      if (few) {
        cpu::few_rows(rows, d, f, act.get(), f, down_rows + e * d * f, f, to + r * d, d);
      } else {
        cpu::gemm_bf16(rows, d, f, act.get(), f, out_e, to + r * d, d);
      }
    });
  });
  return {y, h};
}

// What blocks of rows give back to their inputs.
class InputGradients {
 public:
  InputGradients(const Split& split, const at::Tensor& dy, const at::Tensor& h, const at::Tensor& gate_up,
                 const at::Tensor& down, const at::Tensor& dx)
      : d_(down.size(1)),
        f_(down.size(2)),
        dy_(dy.const_data_ptr<bf16>()),
        h_(h.const_data_ptr<bf16>()),
        down_(split, down, d_, f_, f_, false),
        up_(split, gate_up, 2 * f_, d_, d_, false),
        dx_(dx.data_ptr<bf16>()) {}

  // Writes dx of the task's rows, and per block what the weights' gradients need, dh [rows, 2F] and act
  // [rows, F], to the pair of places that place(first) names; then calls done(first, rows, dh, act).
  template <class Place, class Done>
  void run(const Task& task, const Place& place, const Done& done) const {
    if (task.rows == 0) return;
    Memory own_down, own_up;
    const bf16 *down = down_.of(task.expert, own_down), *up = up_.of(task.expert, own_up);
    const auto dact = cpu::scratch<float>(std::min(kRows, task.rows) * f_);
    for_blocks(task, [&](int64_t r, int64_t rows) {
      const auto [dh, act] = place(r);
      cpu::gemm(rows, f_, d_, dy_ + r * d_, d_, down, dact.get(), f_);
      cpu::swiglu_backward_rows(dact.get(), h_ + r * 2 * f_, rows, f_, dh, act);
      cpu::gemm_bf16(rows, d_, 2 * f_, dh, 2 * f_, up, dx_ + r * d_, d_);
      done(r, rows, dh, act);
    });
  }

 private:
  int64_t d_, f_;
  const bf16 *dy_, *h_;
  Packed down_, up_;
  bf16* dx_;
};

// One expert's a^T b over its rows of a [rows, m] and b [rows, n]: blocks of rows are taken in first, a
// transposed and b in panels; then tiles of the result are made.
class WeightGradient {
 public:
  WeightGradient(int64_t rows, int64_t m, int64_t n)
      : inner_(cpu::round_up(rows, 32)),
        m_(m),
        n_(n),
        a_(cpu::scratch<bf16>(inner_ * m)),
        b_(cpu::scratch<bf16>(inner_ * n)) {}

  // The block of the expert's rows from `first` on.
  void take(int64_t first, int64_t rows, const bf16* a, const bf16* b) const {
    const int64_t filled = cpu::round_up(rows, 32);
    cpu::transpose(a, rows, m_, m_, filled, a_.get() + first, inner_);
    for (int64_t p = 0; p < cpu::panels(n_); ++p) {
      const int64_t width = cpu::panel_width(n_, p);
      cpu::pack_panel(b + p * kPanel, filled, rows, width, n_, false, 0,
                      b_.get() + p * kPanel * inner_ + first * width);
    }
  }

  static int64_t tiles(int64_t m) { return (m + kRows - 1) / kRows; }

  // Tile i of out [m, n].
  void make(int64_t i, float* out) const {
    const int64_t r = i * kRows, rows = std::min(kRows, m_ - r);
    if (inner_ == 0) {
      std::memset(out + r * n_, 0, rows * n_ * sizeof(float));
    } else {
      cpu::gemm(rows, n_, inner_, a_.get() + r * inner_, inner_, b_.get(), out + r * n_, n_);
    }
  }
  void make_all(float* out) const {
    for (int64_t i = 0; i < tiles(m_); ++i) make(i, out);
  }

 private:
  int64_t inner_, m_, n_;
  Memory a_, b_;
};

// The gradients of one weight of shared experts.
class SharedGradients {
 public:
  SharedGradients(const Split& split, int64_t m, int64_t n) : m_(m), n_(n), of_(split.experts()) {
    for (int64_t e = 0; e < split.experts(); ++e) {
      if (!split.shared(e)) continue;
      of_[e] = std::make_unique<WeightGradient>(split.rows(e), m, n);
      for (int64_t i = 0; i < WeightGradient::tiles(m); ++i) tiles_.emplace_back(e, i);
    }
  }

  const WeightGradient& operator[](int64_t e) const { return *of_[e]; }
  int64_t tiles() const { return std::ssize(tiles_); }
  // Tile i of all, in out [E, m, n].
  void make(int64_t i, float* out) const {
    const auto [e, tile] = tiles_[i];
    of_[e]->make(tile, out + e * m_ * n_);
  }

 private:
  int64_t m_, n_;
  std::vector<std::unique_ptr<WeightGradient>> of_;
  std::vector<std::pair<int64_t, int64_t>> tiles_;
};

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward_input(const at::Tensor& dy, const at::Tensor& h,
                                                              const at::Tensor& gate_up,
                                                              const at::Tensor& down,
                                                              const at::Tensor& offsets) {
  if (!fused(dy, gate_up, down)) return experts_backward_input_plain(dy, h, gate_up, down, offsets);
  const int64_t f = down.size(2);
  auto dx = at::empty_like(dy), dh = at::empty_like(h), act = at::empty({h.size(0), f}, h.options());
  const Split split(offsets);
  const InputGradients input(split, dy, h, gate_up, down, dx);
  split.run([&](const Task& task) {
    input.run(
        task,
        [&](int64_t r) { return std::pair(dh.data_ptr<bf16>() + r * 2 * f, act.data_ptr<bf16>() + r * f); },
        [](auto...) {});
  });
  return {dx, dh, act};
}

at::Tensor backward_weight(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& offsets) {
  const int64_t experts = offsets.size(0) - 1, m = dy.size(1), n = x.size(1);
  if (x.scalar_type() != at::kBFloat16 || !x.is_contiguous() || !cpu::suits_gemm(m, n))
    return experts_backward_weight_plain(dy, x, offsets);
  auto dw = at::empty({experts, m, n}, x.options().dtype(at::kFloat));
  auto* to = dw.data_ptr<float>();
  const auto *a = dy.const_data_ptr<bf16>(), *b = x.const_data_ptr<bf16>();
  const Split split(offsets);
  const SharedGradients shared(split, m, n);
  split.run([&](const Task& task) {
    const int64_t e = task.expert;
    const auto take = [&](const WeightGradient& weight) {
      for_blocks(task, [&](int64_t r, int64_t rows) {
        weight.take(r - split.first(e), rows, a + r * m, b + r * n);
      });
    };
    if (split.shared(e)) return take(shared[e]);
    const WeightGradient weight(task.rows, m, n);
    take(weight);
    weight.make_all(to + e * m * n);
  });
  cpu::parallel_tasks(shared.tiles(), [&](int64_t i) { shared.make(i, to); });
  return dw;
}

// Both at once: dh and act are packed while they are in cache, and never stored.
std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& dy, const at::Tensor& x,
                                                        const at::Tensor& h, const at::Tensor& gate_up,
                                                        const at::Tensor& down, const at::Tensor& offsets) {
  if (!fused(x, gate_up, down)) {
    const auto [dx, dh, act] = backward_input(dy, h, gate_up, down, offsets);
    return {dx, backward_weight(dh, x, offsets), backward_weight(dy, act, offsets)};
  }
  const int64_t d = x.size(1), f = down.size(2);
  auto dx = at::empty_like(x);
  auto dgate_up = at::empty(gate_up.sizes(), gate_up.options().dtype(at::kFloat));
  auto ddown = at::empty(down.sizes(), down.options().dtype(at::kFloat));
  auto *to_gate_up = dgate_up.data_ptr<float>(), *to_down = ddown.data_ptr<float>();
  const auto *dy_rows = dy.const_data_ptr<bf16>(), *x_rows = x.const_data_ptr<bf16>();
  const Split split(offsets);
  const SharedGradients shared_gate_up(split, 2 * f, d), shared_down(split, d, f);
  const InputGradients input(split, dy, h, gate_up, down, dx);
  split.run([&](const Task& task) {
    const int64_t e = task.expert, most = std::min(kRows, task.rows);
    const auto dh = cpu::scratch<bf16>(most * 2 * f), act = cpu::scratch<bf16>(most * f);
    const auto run = [&](const WeightGradient& of_gate_up, const WeightGradient& of_down) {
      input.run(
          task, [&](int64_t) { return std::pair(dh.get(), act.get()); },
          [&](int64_t r, int64_t rows, const bf16* dh_rows, const bf16* act_rows) {
            const int64_t first = r - split.first(e);
            of_down.take(first, rows, dy_rows + r * d, act_rows);
            of_gate_up.take(first, rows, dh_rows, x_rows + r * d);
          });
    };
    if (split.shared(e)) return run(shared_gate_up[e], shared_down[e]);
    const WeightGradient of_gate_up(task.rows, 2 * f, d), of_down(task.rows, d, f);
    run(of_gate_up, of_down);
    of_down.make_all(to_down + e * d * f);
    of_gate_up.make_all(to_gate_up + e * 2 * f * d);
  });
  const int64_t down_tiles = shared_down.tiles();
  cpu::parallel_tasks(down_tiles + shared_gate_up.tiles(), [&](int64_t i) {
    if (i < down_tiles) return shared_down.make(i, to_down);
    shared_gate_up.make(i - down_tiles, to_gate_up);
  });
  return {dx, dgate_up, ddown};
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CPU, m) {
  m.impl("experts_forward", forward);
  m.impl("experts_backward", backward);
  m.impl("experts_backward_input", backward_input);
  m.impl("experts_backward_weight", backward_weight);
}

}  // namespace hero::ops
