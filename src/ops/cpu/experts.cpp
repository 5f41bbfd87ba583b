// Grouped expert MLPs on packed GEMMs, forward pass. A task packs the weights of an expert and iterates over
// blocks of at most 64 rows; an expert with few rows reads its weights unpacked. Each tile is computed by one
// task in a fixed order, so results do not depend on the number of threads.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "ops/cpu/expert_tasks.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/swiglu.h"
#include "ops/cpu/typed_gemm.h"
#include "ops/reference.h"

namespace hero::cpu {
namespace {

template <class T>
std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& gate_up,
                                           const at::Tensor& down, const ExpertTasks& tasks) {
  const int64_t d = x.size(1), f = down.size(2);
  auto y = at::empty_like(x), h = at::empty({x.size(0), 2 * f}, x.options());
  const PackedExperts<T> up(tasks, gate_up, d, 2 * f, d, true), out(tasks, down, f, d, f, true);
  const auto *from = x.const_data_ptr<T>(), *up_rows = gate_up.const_data_ptr<T>(),
             *down_rows = down.const_data_ptr<T>();
  auto *to = y.data_ptr<T>(), *both = h.data_ptr<T>();
  tasks.run([&](const ExpertTask& task) {
    if (task.rows == 0) return;
    const int64_t e = task.expert;
    const bool skinny = tasks.rows(e) <= kUnpackedRows<T>;
    Scratch<T> own_up, own_out;
    const T *up_e = skinny ? nullptr : up.of(e, own_up), *out_e = skinny ? nullptr : out.of(e, own_out);
    const auto act = scratch<T>(std::min(kBlockRows, task.rows) * f);
    for_blocks(task, [&](int64_t r, int64_t rows) {
      if (skinny) {
        skinny_gemm(rows, 2 * f, d, from + r * d, d, up_rows + e * 2 * f * d, d, both + r * 2 * f, 2 * f);
      } else {
        multiply_packed(rows, 2 * f, d, from + r * d, d, up_e, both + r * 2 * f, 2 * f);
      }
      swiglu_rows(both + r * 2 * f, rows, f, act.get(), f);
      if (skinny) {
        skinny_gemm(rows, d, f, act.get(), f, down_rows + e * d * f, f, to + r * d, d);
      } else {
        multiply_packed(rows, d, f, act.get(), f, out_e, to + r * d, d);
      }
    });
  });
  return {y, h};
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> experts_forward(const at::Tensor& x, const at::Tensor& gate_up,
                                                   const at::Tensor& down, const at::Tensor& offsets) {
  const ExpertTasks tasks(offsets);
  if (supports_experts(x, gate_up, down, at::kFloat)) return forward<float>(x, gate_up, down, tasks);
  if (fused_experts(x, gate_up, down)) return forward<bf16>(x, gate_up, down, tasks);
  return ops::experts_forward_reference(x, gate_up, down, offsets);
}

}  // namespace hero::cpu
