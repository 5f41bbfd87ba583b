// Grouped expert MLP on CUDA. Row offsets exist only on the device; nothing here synchronizes with the host.
//
// Forward and input-gradient GEMMs use PyTorch's _grouped_mm on Hopper and Blackwell; on other devices it
// copies the offsets to the host. It returns only bf16 for bf16 operands, so our own kernels compute the fp32
// weight gradients, and everything on other devices. Groups may start at any row: our kernels zero-fill
// behind a group's last row when they reduce over rows, and _grouped_mm also accepts any offsets.
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/cuda/experts_sm90.h"
#include "ops/cuda/kernels/grouped_mma.cuh"
#include "ops/cuda/kernels/grouped_simt.cuh"
#include "ops/cuda/kernels/swiglu.cuh"
#include "ops/cuda/launch.h"
#include "ops/reference.h"

namespace hero::ops {
namespace {

using namespace cuda;

constexpr int64_t kMaxLibraryGroups = 1023;  // of _grouped_mm
// Mean rows of an expert from which on its weight gradient takes wgmma. With fewer, reading and writing the
// gradient takes longer than multiplying with mma.sync.
constexpr int64_t kWgmmaMeanRows = 512;

bool fused(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down) {
  return is_supported(x.scalar_type()) && gate_up.scalar_type() == x.scalar_type() &&
         down.scalar_type() == x.scalar_type();
}

/// Row groups, on the device.
struct Groups {
  at::Tensor offsets;  // [E+1]
  at::Tensor ends;     // [E] int32, end of each expert's rows for _grouped_mm; undefined: do not use it

  int64_t experts() const { return offsets.size(0) - 1; }
  const int64_t* used() const { return offsets.const_data_ptr<int64_t>() + experts(); }
};

Groups groups_of(const at::Tensor& offsets, const at::Tensor& x) {
  Groups groups{offsets.contiguous(), {}};
  const int major = at::cuda::getCurrentDeviceProperties()->major;
  if ((major == 9 || major == 10) && x.scalar_type() == at::kBFloat16 &&
      groups.experts() <= kMaxLibraryGroups)
    groups.ends = groups.offsets.slice(0, 1).to(at::kInt);
  return groups;
}

bool uses_wgmma(const GroupedGemmParams<c10::BFloat16, float>& params) {
  const auto* device = at::cuda::getCurrentDeviceProperties();
  return device->major == 9 && device->minor == 0 && params.rows >= params.experts * kWgmmaMeanRows;
}

template <GroupedLayout layout, typename Out, typename T>
void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, const Groups& groups,
              GroupedGemmParams<T, Out> params, bool tensor_cores) {
  params.a = a.const_data_ptr<T>();
  params.b = b.const_data_ptr<T>();
  params.c = c.data_ptr<Out>();
  params.offsets = groups.offsets.const_data_ptr<int64_t>();
  params.rows = a.size(0);
  params.experts = groups.experts();
  const auto stream = at::cuda::getCurrentCUDAStream();
  const int tile = tensor_cores ? kMmaTile : kSimtTile;
  const dim3 grid = layout == GroupedLayout::kTN
                        ? dim3(tile_count(params.m, tile), tile_count(params.n, tile),
                               static_cast<unsigned>(params.experts))
                        : dim3(static_cast<unsigned>(row_tiles(params.rows, params.experts, tile)),
                               tile_count(params.n, tile));
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    if constexpr (layout == GroupedLayout::kTN) {
      if (tensor_cores && uses_wgmma(params)) return launch_grouped_wgmma(params, stream);
    }
    if (tensor_cores) grouped_mma<layout><<<grid, kMmaThreads, 0, stream>>>(params);
  }
  if (!tensor_cores) grouped_simt<layout><<<grid, dim3(kSimtSide, kSimtSide), 0, stream>>>(params);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

bool can_use_tensor_cores(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == at::kBFloat16 && can_vectorize(a, a.size(-1), {b}) &&
         can_vectorize(b, b.size(-1));
}

void zero_padding(const at::Tensor& x, const Groups& groups) {
  const bool vectors = can_vectorize(x, x.size(1));
  const int64_t unit = vectors ? 16 : static_cast<int64_t>(x.element_size());
  const int64_t units = static_cast<int64_t>(x.nbytes()) / unit, per_row = units / x.size(0);
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>((units + 255) / 256, 1024)));
  const auto stream = at::cuda::getCurrentCUDAStream();
  if (vectors) {
    zero_padding_rows<<<grid, 256, 0, stream>>>(units, per_row, groups.used(),
                                                static_cast<uint4*>(x.data_ptr()));
  } else if (unit == 2) {
    zero_padding_rows<<<grid, 256, 0, stream>>>(units, per_row, groups.used(),
                                                static_cast<uint16_t*>(x.data_ptr()));
  } else {
    zero_padding_rows<<<grid, 256, 0, stream>>>(units, per_row, groups.used(),
                                                static_cast<uint32_t*>(x.data_ptr()));
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

// Each row of x [N, k] times its expert's w: [E, n, k] if `inner_last`, else [E, k, n]. If `clear`, padding
// rows of the result are zero, else undefined.
at::Tensor gemm_rows(const at::Tensor& x, const at::Tensor& w, const Groups& groups, bool inner_last,
                     bool clear) {
  const int64_t n = w.size(inner_last ? 1 : 2), k = x.size(1);
  const bool tensor_cores = can_use_tensor_cores(x, w) && n % kChunkElements == 0;
  if (tensor_cores && groups.ends.defined()) {
    auto y = at::_grouped_mm(x, inner_last ? w.transpose(1, 2) : w, groups.ends);
    if (clear) zero_padding(y, groups);
    return y;
  }
  auto y = at::empty({x.size(0), n}, x.options());
  dispatch_type(x.scalar_type(), false, [&]<typename T, int>() {
    const GroupedGemmParams<T, T> params{.n = n, .k = k};
    if (inner_last) {
      multiply<GroupedLayout::kNT>(x, w, y, groups, params, tensor_cores);
    } else {
      multiply<GroupedLayout::kNN>(x, w, y, groups, params, tensor_cores);
    }
  });
  return y;
}

// dw [E, m, n] in fp32 = a^T b over the rows of every expert, or dw += a^T b.
void gemm_weights(const at::Tensor& dw, const at::Tensor& a, const at::Tensor& b, const at::Tensor& offsets,
                  bool add) {
  const Groups groups{offsets.contiguous(), {}};
  dispatch_type(a.scalar_type(), false, [&]<typename T, int>() {
    multiply<GroupedLayout::kTN>(a, b, dw, groups,
                                 GroupedGemmParams<T, float>{.m = a.size(1), .n = b.size(1), .add = add},
                                 can_use_tensor_cores(a, b));
  });
}

std::tuple<at::Tensor, at::Tensor> cuda_experts_forward(const at::Tensor& x, const at::Tensor& gate_up,
                                                        const at::Tensor& down, const at::Tensor& offsets) {
  if (!fused(x, gate_up, down)) return experts_forward_reference(x, gate_up, down, offsets);
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t rows = x.size(0), f = down.size(2);
  if (rows == 0) return {at::empty({0, x.size(1)}, x.options()), at::empty({0, 2 * f}, x.options())};
  const auto groups = groups_of(offsets, x);
  const auto h = gemm_rows(x.contiguous(), gate_up.contiguous(), groups, true, /*clear=*/false);
  const auto act = at::empty({rows, f}, x.options());
  dispatch_type(x.scalar_type(), can_vectorize(h, f), [&]<typename T, int n>() {
    swiglu_forward<n>
        <<<blocks(rows * f / n, kSwigluThreads), kSwigluThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
            SwigluParams<T>{.rows = rows,
                            .f = f,
                            .gate_up = h.const_data_ptr<T>(),
                            .used = groups.used(),
                            .y = act.data_ptr<T>()});
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {gemm_rows(act, down.contiguous(), groups, true, /*clear=*/true), h};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cuda_experts_backward_input(const at::Tensor& dy,
                                                                           const at::Tensor& h,
                                                                           const at::Tensor& gate_up,
                                                                           const at::Tensor& down,
                                                                           const at::Tensor& offsets) {
  if (!fused(dy, gate_up, down)) return experts_backward_input_reference(dy, h, gate_up, down, offsets);
  const c10::cuda::CUDAGuard guard(dy.device());
  const int64_t rows = dy.size(0), f = down.size(2);
  const auto dh = at::empty({rows, 2 * f}, dy.options()), act = at::empty({rows, f}, dy.options());
  if (rows == 0) return {at::empty_like(dy), dh, act};
  const auto groups = groups_of(offsets, dy);
  const auto both = h.contiguous();
  const auto dact = gemm_rows(dy.contiguous(), down.contiguous(), groups, false, /*clear=*/false);
  dispatch_type(dy.scalar_type(), can_vectorize(both, f, {dact}), [&]<typename T, int n>() {
    swiglu_backward<n>
        <<<blocks(rows * f / n, kSwigluThreads), kSwigluThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
            SwigluParams<T>{.rows = rows,
                            .f = f,
                            .gate_up = both.const_data_ptr<T>(),
                            .used = groups.used(),
                            .dy = dact.const_data_ptr<T>(),
                            .y = act.data_ptr<T>(),
                            .dgate_up = dh.data_ptr<T>()});
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {gemm_rows(dh, gate_up.contiguous(), groups, false, /*clear=*/true), dh, act};
}

at::Tensor cuda_experts_backward_weight(const at::Tensor& dy, const at::Tensor& x,
                                        const at::Tensor& offsets) {
  if (!is_supported(x.scalar_type())) return experts_backward_weight_reference(dy, x, offsets);
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t experts = offsets.size(0) - 1;
  if (x.size(0) == 0) {
    return at::zeros({experts, dy.size(1), x.size(1)}, x.options().dtype(at::kFloat));
  }
  auto dw = at::empty({experts, dy.size(1), x.size(1)}, x.options().dtype(at::kFloat));
  gemm_weights(dw, dy.contiguous(), x.contiguous(), offsets, /*add=*/false);
  return dw;
}

void cuda_experts_add_backward_weight(const at::Tensor& grad, const at::Tensor& dy, const at::Tensor& x,
                                      const at::Tensor& offsets) {
  if (!is_supported(x.scalar_type()) || grad.scalar_type() != at::kFloat || !grad.is_contiguous())
    return experts_add_backward_weight_reference(grad, dy, x, offsets);
  const c10::cuda::CUDAGuard guard(x.device());
  if (x.size(0) > 0) gemm_weights(grad, dy.contiguous(), x.contiguous(), offsets, /*add=*/true);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cuda_experts_backward(const at::Tensor& dy,
                                                                     const at::Tensor& x, const at::Tensor& h,
                                                                     const at::Tensor& gate_up,
                                                                     const at::Tensor& down,
                                                                     const at::Tensor& offsets) {
  const auto [dx, dh, act] = cuda_experts_backward_input(dy, h, gate_up, down, offsets);
  return {dx, cuda_experts_backward_weight(dh, x, offsets), cuda_experts_backward_weight(dy, act, offsets)};
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CUDA, m) {
  m.impl("experts_forward", cuda_experts_forward);
  m.impl("experts_backward", cuda_experts_backward);
  m.impl("experts_backward_input", cuda_experts_backward_input);
  m.impl("experts_backward_weight", cuda_experts_backward_weight);
  m.impl("experts_add_backward_weight", cuda_experts_add_backward_weight);
}

}  // namespace hero::ops
