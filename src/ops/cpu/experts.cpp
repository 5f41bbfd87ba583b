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

// Packs, for every expert with more than `few` rows, b [E, ...] with k inner and n outer elements per expert.
std::unique_ptr<bf16[]> pack_all(const at::Tensor& b, const int64_t* offsets, int64_t few, int64_t k,
                                 int64_t n, int64_t ld, bool transposed) {
  const int64_t experts = b.size(0), panels = cpu::panels(n);
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

// Packs rows first..first+rows of x [.., n] into panels of an expert's region whose inner dimension is
// `padded`.
void pack_rows(const bf16* x, int64_t first, int64_t rows, int64_t filled, int64_t n, int64_t padded,
               bf16* region) {
  for (int64_t p = 0; p < cpu::panels(n); ++p) {
    const int64_t width = cpu::panel_width(n, p);
    bf16* panel = region + p * kPanel * padded + first * width;
    cpu::pack_panel(x + p * kPanel, filled, rows, width, n, false, 0, panel);
  }
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& dy, const at::Tensor& x,
                                                        const at::Tensor& h, const at::Tensor& gate_up,
                                                        const at::Tensor& down, const at::Tensor& offsets) {
  if (!fused(x, gate_up, down)) return experts_backward_plain(dy, x, h, gate_up, down, offsets);
  const int64_t experts = down.size(0), d = x.size(1), f = down.size(2);
  const auto* o = offsets.const_data_ptr<int64_t>();
  auto dx = at::empty_like(x);
  auto dgate_up = at::empty(gate_up.sizes(), gate_up.options().dtype(at::kFloat));
  auto ddown = at::empty(down.sizes(), down.options().dtype(at::kFloat));
  std::vector<int64_t> start(experts + 1, 0);  // first row of each expert's padded region
  for (int64_t e = 0; e < experts; ++e) start[e + 1] = start[e] + cpu::round_up(o[e + 1] - o[e], 32);
  const int64_t padded = start[experts];
  std::unique_ptr<bf16[]> dy_t(new bf16[padded * d]), dh_t(new bf16[padded * 2 * f]),
      x_packed(new bf16[padded * d]), act_packed(new bf16[padded * f]);
  const auto down_packed = pack_all(down, o, 0, d, f, f, false),
             up_packed = pack_all(gate_up, o, 0, 2 * f, d, d, false);
  const auto blocks = row_blocks(o, experts);
  cpu::parallel_tasks(static_cast<int64_t>(blocks.size()), [&](int64_t i) {
    const auto [e, r, rows] = blocks[i];
    const int64_t inner = start[e + 1] - start[e], first = r - o[e], filled = cpu::round_up(rows, 32);
    std::vector<float> dact(rows * f);
    std::vector<bf16> dh(rows * 2 * f), act(rows * f);
    const auto* g = dy.const_data_ptr<bf16>() + r * d;
    const auto* in = x.const_data_ptr<bf16>() + r * d;
    cpu::gemm(rows, f, d, g, d, down_packed.get() + e * d * f, dact.data(), f);
    cpu::swiglu_backward_rows(dact.data(), h.const_data_ptr<bf16>() + r * 2 * f, rows, f, dh.data(),
                              act.data());
    cpu::gemm_bf16(rows, d, 2 * f, dh.data(), 2 * f, up_packed.get() + e * d * 2 * f,
                   dx.data_ptr<bf16>() + r * d, d);
    cpu::transpose(g, rows, d, d, filled, dy_t.get() + start[e] * d + first, inner);
    cpu::transpose(dh.data(), rows, 2 * f, 2 * f, filled, dh_t.get() + start[e] * 2 * f + first, inner);
    pack_rows(in, first, rows, filled, d, inner, x_packed.get() + start[e] * d);
    pack_rows(act.data(), first, rows, filled, f, inner, act_packed.get() + start[e] * f);
  });
  const int64_t down_strips = (d + kRows - 1) / kRows, up_strips = (2 * f + kRows - 1) / kRows;
  cpu::parallel_tasks(experts * (down_strips + up_strips), [&](int64_t i) {
    const int64_t e = i / (down_strips + up_strips), strip = i % (down_strips + up_strips);
    const int64_t inner = start[e + 1] - start[e];
    const bool is_down = strip < down_strips;
    const int64_t r = (is_down ? strip : strip - down_strips) * kRows, outer = is_down ? d : 2 * f,
                  n = is_down ? f : d;
    float* out = is_down ? ddown.data_ptr<float>() + (e * d + r) * f
                         : dgate_up.data_ptr<float>() + (e * 2 * f + r) * d;
    const int64_t rows = std::min(kRows, outer - r);
    if (inner == 0) {
      std::memset(out, 0, rows * n * sizeof(float));
      return;
    }
    const bf16* a = (is_down ? dy_t.get() + start[e] * d : dh_t.get() + start[e] * 2 * f) + r * inner;
    cpu::gemm(rows, n, inner, a, inner,
              is_down ? act_packed.get() + start[e] * f : x_packed.get() + start[e] * d, out, n);
  });
  return {dx, dgate_up, ddown};
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CPU, m) {
  m.impl("experts_forward", forward);
  m.impl("experts_backward", backward);
}

}  // namespace hero::ops
