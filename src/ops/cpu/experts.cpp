// Grouped bf16 expert layers on brgemm blocks. Work is cut into blocks of at most 64 rows of one expert, so a
// popular expert is shared by all threads; an expert of few rows reads its weights unpacked. The backward
// pass goes over the row blocks once, leaving what the weights' gradients need transposed or packed in place
// (each expert's rows padded to a multiple of 32 with zeros), then over tiles of the weights' gradients;
// every tile is one task's, so no result depends on scheduling.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cstring>
#include <memory>
#include <vector>

#include "ops/cpu/few_rows.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/swiglu.h"
#include "ops/plain.h"

namespace hero::ops {
namespace {

using cpu::bf16;
using cpu::kPanel;
using cpu::kRows;

struct Block {
  int64_t expert, first, rows;
};

std::vector<Block> row_blocks(const int64_t* offsets, int64_t experts) {
  std::vector<Block> blocks;
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t r = offsets[e]; r < offsets[e + 1]; r += kRows)
      blocks.push_back({e, r, std::min(kRows, offsets[e + 1] - r)});
  }
  return blocks;
}

// Packs, for every expert with more than `few` rows, b [E, ...] with k inner and n outer elements per expert;
// null where there is none.
std::unique_ptr<bf16[]> pack_all(const at::Tensor& b, const int64_t* offsets, int64_t few, int64_t k,
                                 int64_t n, int64_t ld, bool transposed) {
  const int64_t experts = b.size(0), panels = cpu::panels(n);
  bool any = false;
  for (int64_t e = 0; e < experts; ++e) any |= offsets[e + 1] - offsets[e] > few;
  if (!any) return nullptr;
  std::unique_ptr<bf16[]> packed(new bf16[experts * k * n]);
  const auto* from = b.const_data_ptr<bf16>();
  cpu::parallel_tasks(experts, [&](int64_t e) {
    if (offsets[e + 1] - offsets[e] <= few) return;
    for (int64_t p = 0; p < panels; ++p) {
      cpu::pack_panel(from + e * k * n, k, k, n, ld, transposed, p, packed.get() + e * k * n);
    }
  });
  return packed;
}

bool fused(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down) {
  return x.scalar_type() == at::kBFloat16 && x.is_contiguous() && gate_up.is_contiguous() &&
         down.is_contiguous() && cpu::suits_gemm(x.size(1), down.size(2));
}

std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& gate_up,
                                           const at::Tensor& down, const at::Tensor& offsets) {
  if (!fused(x, gate_up, down)) return experts_forward_plain(x, gate_up, down, offsets);
  const int64_t d = x.size(1), f = down.size(2);
  const auto* o = offsets.const_data_ptr<int64_t>();
  auto y = at::empty_like(x), h = at::empty({x.size(0), 2 * f}, x.options());
  const auto up = pack_all(gate_up, o, cpu::kFewRows, d, 2 * f, d, true),
             out = pack_all(down, o, cpu::kFewRows, f, d, f, true);
  const auto blocks = row_blocks(o, down.size(0));
  cpu::parallel_tasks(static_cast<int64_t>(blocks.size()), [&](int64_t i) {
    const auto [e, r, rows] = blocks[i];
    alignas(64) bf16 middle[kRows * 1024];
    std::vector<bf16> large(f > 1024 ? rows * f : 0);
    bf16* act = f > 1024 ? large.data() : middle;
    bf16* both = h.data_ptr<bf16>() + r * 2 * f;
    if (o[e + 1] - o[e] <= cpu::kFewRows) {
      cpu::few_rows(rows, 2 * f, d, x.const_data_ptr<bf16>() + r * d, d,
                    gate_up.const_data_ptr<bf16>() + e * 2 * f * d, d, both, 2 * f);
      cpu::swiglu_rows(both, rows, f, act, f);
      cpu::few_rows(rows, d, f, act, f, down.const_data_ptr<bf16>() + e * d * f, f,
                    y.data_ptr<bf16>() + r * d, d);
      return;
    }
    cpu::gemm_bf16(rows, 2 * f, d, x.const_data_ptr<bf16>() + r * d, d, up.get() + e * d * 2 * f, both,
                   2 * f);
    cpu::swiglu_rows(both, rows, f, act, f);
    cpu::gemm_bf16(rows, d, f, act, f, out.get() + e * f * d, y.data_ptr<bf16>() + r * d, d);
  });
  return {y, h};
}

// The pass over the row blocks: what each block of rows gives back to its inputs.
struct InputGradients {
  InputGradients(const at::Tensor& dy, const at::Tensor& h, const at::Tensor& gate_up, const at::Tensor& down,
                 const int64_t* offsets, const at::Tensor& dx)
      : d(down.size(1)),
        f(down.size(2)),
        dy(dy.const_data_ptr<bf16>()),
        h(h.const_data_ptr<bf16>()),
        down_packed(pack_all(down, offsets, 0, d, f, f, false)),
        up_packed(pack_all(gate_up, offsets, 0, 2 * f, d, d, false)),
        dx(dx.data_ptr<bf16>()) {}

  // Writes the block's dx, and what the weights' gradients need: dh [rows, 2F] and act [rows, F].
  void rows(const Block& block, bf16* dh, bf16* act) const {
    const auto [e, r, rows] = block;
    std::vector<float> dact(rows * f);
    cpu::gemm(rows, f, d, dy + r * d, d, down_packed.get() + e * d * f, dact.data(), f);
    cpu::swiglu_backward_rows(dact.data(), h + r * 2 * f, rows, f, dh, act);
    cpu::gemm_bf16(rows, d, 2 * f, dh, 2 * f, up_packed.get() + e * d * 2 * f, dx + r * d, d);
  }

  int64_t d, f;
  const bf16 *dy, *h;
  std::unique_ptr<bf16[]> down_packed, up_packed;
  bf16* dx;
};

// Every expert's a^T b over its rows of a [N, m] and b [N, n]: blocks of rows are taken in first, a
// transposed and b in panels; then tiles of the result are made.
class WeightGradient {
 public:
  WeightGradient(const int64_t* offsets, int64_t experts, int64_t m, int64_t n)
      : offsets_(offsets), m_(m), n_(n), start_(experts + 1, 0) {
    for (int64_t e = 0; e < experts; ++e)
      start_[e + 1] = start_[e] + cpu::round_up(offsets[e + 1] - offsets[e], 32);
    a_.reset(new bf16[start_[experts] * m]);
    b_.reset(new bf16[start_[experts] * n]);
  }

  // `a` and `b` are the block's own rows.
  void take(const Block& block, const bf16* a, const bf16* b) {
    const auto [e, r, rows] = block;
    const int64_t inner = start_[e + 1] - start_[e], first = r - offsets_[e],
                  filled = cpu::round_up(rows, 32);
    cpu::transpose(a, rows, m_, m_, filled, a_.get() + start_[e] * m_ + first, inner);
    for (int64_t p = 0; p < cpu::panels(n_); ++p) {
      const int64_t width = cpu::panel_width(n_, p);
      cpu::pack_panel(b + p * kPanel, filled, rows, width, n_, false, 0,
                      b_.get() + start_[e] * n_ + p * kPanel * inner + first * width);
    }
  }

  int64_t tiles() const { return (static_cast<int64_t>(start_.size()) - 1) * strips(); }

  // Tile i of out [E, m, n].
  void make(int64_t i, float* out) const {
    const int64_t e = i / strips(), r = i % strips() * kRows, inner = start_[e + 1] - start_[e],
                  rows = std::min(kRows, m_ - r);
    out += (e * m_ + r) * n_;
    if (inner == 0) {
      std::memset(out, 0, rows * n_ * sizeof(float));
      return;
    }
    cpu::gemm(rows, n_, inner, a_.get() + start_[e] * m_ + r * inner, inner, b_.get() + start_[e] * n_, out,
              n_);
  }

 private:
  int64_t strips() const { return (m_ + kRows - 1) / kRows; }

  const int64_t* offsets_;
  int64_t m_, n_;
  std::vector<int64_t> start_;  // first row of each expert's padded region
  std::unique_ptr<bf16[]> a_, b_;
};

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward_input(const at::Tensor& dy, const at::Tensor& h,
                                                              const at::Tensor& gate_up,
                                                              const at::Tensor& down,
                                                              const at::Tensor& offsets) {
  if (!fused(dy, gate_up, down)) return experts_backward_input_plain(dy, h, gate_up, down, offsets);
  const int64_t f = down.size(2);
  const auto* o = offsets.const_data_ptr<int64_t>();
  auto dx = at::empty_like(dy), dh = at::empty_like(h), act = at::empty({h.size(0), f}, h.options());
  const InputGradients input(dy, h, gate_up, down, o, dx);
  const auto blocks = row_blocks(o, down.size(0));
  cpu::parallel_tasks(static_cast<int64_t>(blocks.size()), [&](int64_t i) {
    const int64_t r = blocks[i].first;
    input.rows(blocks[i], dh.data_ptr<bf16>() + r * 2 * f, act.data_ptr<bf16>() + r * f);
  });
  return {dx, dh, act};
}

at::Tensor backward_weight(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& offsets) {
  const int64_t experts = offsets.size(0) - 1, m = dy.size(1), n = x.size(1);
  if (x.scalar_type() != at::kBFloat16 || !x.is_contiguous() || !cpu::suits_gemm(m, n))
    return experts_backward_weight_plain(dy, x, offsets);
  const auto* o = offsets.const_data_ptr<int64_t>();
  auto dw = at::empty({experts, m, n}, x.options().dtype(at::kFloat));
  WeightGradient weight(o, experts, m, n);
  const auto blocks = row_blocks(o, experts);
  cpu::parallel_tasks(static_cast<int64_t>(blocks.size()), [&](int64_t i) {
    const int64_t r = blocks[i].first;
    weight.take(blocks[i], dy.const_data_ptr<bf16>() + r * m, x.const_data_ptr<bf16>() + r * n);
  });
  cpu::parallel_tasks(weight.tiles(), [&](int64_t i) { weight.make(i, dw.data_ptr<float>()); });
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
  const int64_t experts = down.size(0), d = x.size(1), f = down.size(2);
  const auto* o = offsets.const_data_ptr<int64_t>();
  auto dx = at::empty_like(x);
  auto dgate_up = at::empty(gate_up.sizes(), gate_up.options().dtype(at::kFloat));
  auto ddown = at::empty(down.sizes(), down.options().dtype(at::kFloat));
  WeightGradient of_gate_up(o, experts, 2 * f, d), of_down(o, experts, d, f);
  const InputGradients input(dy, h, gate_up, down, o, dx);
  const auto blocks = row_blocks(o, experts);
  cpu::parallel_tasks(static_cast<int64_t>(blocks.size()), [&](int64_t i) {
    const int64_t r = blocks[i].first, rows = blocks[i].rows;
    std::vector<bf16> dh(rows * 2 * f), act(rows * f);
    input.rows(blocks[i], dh.data(), act.data());
    of_down.take(blocks[i], dy.const_data_ptr<bf16>() + r * d, act.data());
    of_gate_up.take(blocks[i], dh.data(), x.const_data_ptr<bf16>() + r * d);
  });
  const int64_t down_tiles = of_down.tiles();
  cpu::parallel_tasks(down_tiles + of_gate_up.tiles(), [&](int64_t i) {
    if (i < down_tiles) return of_down.make(i, ddown.data_ptr<float>());
    of_gate_up.make(i - down_tiles, dgate_up.data_ptr<float>());
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
