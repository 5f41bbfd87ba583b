// Grouped expert MLPs on packed GEMMs, forward pass. A task packs the weights of an expert and iterates over
// blocks of rows; an expert with few rows reads its weights unpacked. Each tile is computed by one task in a
// fixed order, so results do not depend on the number of threads.
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "ops/cpu/empty.h"
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
  auto y = empty(x.sizes(), x.scalar_type()), h = empty({x.size(0), 2 * f}, x.scalar_type());
  const ExpertWeights<T> up(tasks, gate_up, d, 2 * f, true), out(tasks, down, f, d, true);
  const auto *from = x.const_data_ptr<T>(), *up_rows = gate_up.const_data_ptr<T>(),
             *down_rows = down.const_data_ptr<T>();
  auto *to = y.data_ptr<T>(), *both = h.data_ptr<T>();
  tasks.run([&](const ExpertTask& task) {
    if (task.rows == 0) return;
    const int64_t e = task.expert;
    const auto act = scratch<T>(block_rows(task) * f);
    if (tasks.rows(e) <= kUnpackedRows<T>) {
      skinny_gemm(task.rows, 2 * f, d, from + task.first * d, d, up_rows + e * 2 * f * d, d,
                  both + task.first * 2 * f, 2 * f);
      swiglu_rows(both + task.first * 2 * f, task.rows, f, act.get(), f);
      skinny_gemm(task.rows, d, f, act.get(), f, down_rows + e * d * f, f, to + task.first * d, d);
      return;
    }
    const auto up_e = up.of(task), out_e = out.of(task);
    for_blocks(task, [&](int64_t r, int64_t rows) {
      prefetch_rows(from, r, rows, d);
      up_e.multiply(rows, from + r * d, d, both + r * 2 * f, 2 * f);
      swiglu_rows(both + r * 2 * f, rows, f, act.get(), f);
      out_e.multiply(rows, act.get(), f, to + r * d, d);
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
