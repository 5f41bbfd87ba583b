// Optimizer operators on CUDA: launches over tables of tensors, without synchronizing with the host.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/cuda/kernels/adamw.cuh"
#include "ops/cuda/kernels/sum_of_squares.cuh"
#include "ops/cuda/launch.h"
#include "ops/reference.h"

namespace hero::ops {
namespace {

using namespace cuda;

bool flat_fp32(at::TensorList tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const auto& t) { return t.scalar_type() == at::kFloat && t.is_contiguous(); });
}

// Type of the leaves that are not their values: bf16 or fp16, bf16 if there are none. Empty if these leaves
// are of other or different types, or not contiguous.
std::optional<at::ScalarType> type_of_leaves(at::TensorList leaves, at::TensorList values) {
  std::optional<at::ScalarType> type;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (leaves[i].is_same(values[i])) continue;
    const auto own = leaves[i].scalar_type();
    if ((own != at::kBFloat16 && own != at::kHalf) || own != type.value_or(own) || !leaves[i].is_contiguous())
      return std::nullopt;
    type = own;
  }
  return type.value_or(at::kBFloat16);
}

struct AdamWTensors {
  at::TensorList values, gradients, exp_avg, exp_avg_sq, leaves;
};

template <typename T>
void launch_adamw(const AdamWTensors& all, const AdamWParams& params) {
  const auto stream = at::cuda::getCurrentCUDAStream();
  for_each_table<AdamWTable<T>>(
      all.values.size(),
      [&](AdamWTable<T>& table, size_t i) {
        const bool separate = !all.leaves[i].is_same(all.values[i]);
        table.add({.value = all.values[i].data_ptr<float>(),
                   .gradient = all.gradients[i].const_data_ptr<float>(),
                   .first = all.exp_avg[i].data_ptr<float>(),
                   .second = all.exp_avg_sq[i].data_ptr<float>(),
                   .leaf = separate ? all.leaves[i].data_ptr<T>() : nullptr},
                  all.values[i].numel());
      },
      [&](const AdamWTable<T>& table) {
        adamw<<<table.blocks, kAdamWThreads, 0, stream>>>(table, params);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
      });
}

void cuda_adamw_step(at::TensorList values, at::TensorList gradients, at::TensorList exp_avg,
                     at::TensorList exp_avg_sq, at::TensorList leaves, const at::Tensor& step, double lr,
                     double beta1, double beta2, double weight_decay, double eps,
                     const std::optional<at::Tensor>& scale, const std::optional<at::Tensor>& skip) {
  const auto type = type_of_leaves(leaves, values);
  if (!type || !flat_fp32(values) || !flat_fp32(gradients) || !flat_fp32(exp_avg) || !flat_fp32(exp_avg_sq)) {
    return adamw_step_reference(values, gradients, exp_avg, exp_avg_sq, leaves, step, lr, beta1, beta2,
                                weight_decay, eps, scale, skip);
  }
  const c10::cuda::CUDAGuard guard(values[0].device());
  const AdamWTensors tensors{values, gradients, exp_avg, exp_avg_sq, leaves};
  const AdamWParams params{.lr = lr,
                           .beta1 = beta1,
                           .beta2 = beta2,
                           .weight_decay = weight_decay,
                           .eps = eps,
                           .step = step.const_data_ptr<float>(),
                           .scale = scale ? scale->const_data_ptr<double>() : nullptr,
                           .skip = skip ? skip->const_data_ptr<float>() : nullptr};
  if (*type == at::kHalf) {
    launch_adamw<c10::Half>(tensors, params);
  } else {
    launch_adamw<c10::BFloat16>(tensors, params);
  }
}

at::Tensor cuda_sum_of_squares(at::TensorList tensors) {
  if (!flat_fp32(tensors)) return sum_of_squares_reference(tensors);
  const c10::cuda::CUDAGuard guard(tensors[0].device());
  const auto stream = at::cuda::getCurrentCUDAStream();
  const auto options = tensors[0].options().dtype(at::kDouble);
  int64_t chunks = 0;
  for (const auto& x : tensors) chunks += (x.numel() + kSquaresChunk - 1) / kSquaresChunk;
  auto partial = at::empty({chunks}, options), total = at::empty({}, options);
  auto* next = partial.data_ptr<double>();
  for_each_table<SquaresTable>(
      tensors.size(),
      [&](SquaresTable& table, size_t i) {
        table.add(tensors[i].const_data_ptr<float>(), tensors[i].numel());
      },
      [&](const SquaresTable& table) {
        squares_of_chunks<<<table.blocks, kSquaresThreads, 0, stream>>>(table, next);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
        next += table.blocks;
      });
  add_chunks<<<1, kTotalThreads, 0, stream>>>(chunks, partial.const_data_ptr<double>(),
                                              total.data_ptr<double>());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return total;
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CUDA, m) {
  m.impl("sum_of_squares", cuda_sum_of_squares);
  m.impl("adamw_step", cuda_adamw_step);
}

}  // namespace hero::ops
