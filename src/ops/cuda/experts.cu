// The experts on CUDA. Where rows begin is known to the device alone; nothing here waits for it.
//
// Products of rows go through the library's grouped product on Hopper and Blackwell, where it needs no word
// from the device (elsewhere it copies the offsets to the host). It gives bf16 for bf16 only, and weight
// gradients leave in fp32: these are made by our own kernel, as is everything on other devices. Where a
// group's rows are summed over, our kernel reads both operands rows first and puts zeros behind the group's
// last row, so groups may begin anywhere; for products of rows any beginning suits the library, too.
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/cuda/kernels/grouped_mma.cuh"
#include "ops/cuda/kernels/grouped_plain.cuh"
#include "ops/cuda/kernels/swiglu.cuh"
#include "ops/cuda/launch.h"
#include "ops/plain.h"

namespace hero::ops {
namespace {

using namespace cuda;

constexpr int64_t kLibraryGroups = 1023;  // at most

bool fused(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down) {
  return suits(x.scalar_type()) && gate_up.scalar_type() == x.scalar_type() &&
         down.scalar_type() == x.scalar_type();
}

/// Groups of rows, as the device knows them.
struct Groups {
  at::Tensor offsets;  // [E+1]
  at::Tensor ends;  // [E] int32, the end of each expert's rows, for the library; undefined: not to be asked

  int64_t experts() const { return offsets.size(0) - 1; }
  const int64_t* used() const { return offsets.const_data_ptr<int64_t>() + experts(); }
};

Groups groups_of(const at::Tensor& offsets, const at::Tensor& x) {
  Groups groups{offsets.contiguous(), {}};
  const int major = at::cuda::getCurrentDeviceProperties()->major;
  if ((major == 9 || major == 10) && x.scalar_type() == at::kBFloat16 && groups.experts() <= kLibraryGroups)
    groups.ends = groups.offsets.slice(0, 1).to(at::kInt);
  return groups;
}

template <Grouped form, typename Out, typename T>
void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, const Groups& groups,
              GroupedWork<T, Out> work, bool tensor_cores) {
  work.a = a.const_data_ptr<T>();
  work.b = b.const_data_ptr<T>();
  work.c = c.data_ptr<Out>();
  work.offsets = groups.offsets.const_data_ptr<int64_t>();
  work.rows = a.size(0);
  work.experts = groups.experts();
  const auto stream = at::cuda::getCurrentCUDAStream();
  const int tile = tensor_cores ? kMmaTile : kPlainTile;
  const auto tiles = [&](int64_t n) { return static_cast<unsigned>((n + tile - 1) / tile); };
  const dim3 grid =
      form == Grouped::kOfWeights
          ? dim3(tiles(work.m), tiles(work.n), static_cast<unsigned>(work.experts))
          : dim3(static_cast<unsigned>(row_tiles(work.rows, work.experts, tile)), tiles(work.n));
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    if (tensor_cores) grouped_mma<form><<<grid, kMmaThreads, 0, stream>>>(work);
  }
  if (!tensor_cores) grouped_plain<form><<<grid, dim3(kPlainSide, kPlainSide), 0, stream>>>(work);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

bool suits_tensor_cores(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == at::kBFloat16 && suits_vectors(a, a.size(-1), {b}) &&
         suits_vectors(b, b.size(-1));
}

void clear_unused(const at::Tensor& x, const Groups& groups) {
  const bool vectors = suits_vectors(x, x.size(1));
  const int64_t unit = vectors ? 16 : static_cast<int64_t>(x.element_size());
  const int64_t units = static_cast<int64_t>(x.nbytes()) / unit, per_row = units / x.size(0);
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>((units + 255) / 256, 1024)));
  const auto stream = at::cuda::getCurrentCUDAStream();
  if (vectors) {
    clear_unused_rows<<<grid, 256, 0, stream>>>(units, per_row, groups.used(),
                                                static_cast<uint4*>(x.data_ptr()));
  } else if (unit == 2) {
    clear_unused_rows<<<grid, 256, 0, stream>>>(units, per_row, groups.used(),
                                                static_cast<uint16_t*>(x.data_ptr()));
  } else {
    clear_unused_rows<<<grid, 256, 0, stream>>>(units, per_row, groups.used(),
                                                static_cast<uint32_t*>(x.data_ptr()));
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

// x [N, inner] times every expert's w [E, n, inner], or [E, inner, n] unless `inner_last`. Unused rows of the
// result are zeros if `clear`, else anything.
at::Tensor of_rows(const at::Tensor& x, const at::Tensor& w, const Groups& groups, bool inner_last,
                   bool clear) {
  const int64_t n = w.size(inner_last ? 1 : 2), k = x.size(1);
  const bool tensor_cores = suits_tensor_cores(x, w) && n % kChunkValues == 0;
  if (tensor_cores && groups.ends.defined()) {
    auto y = at::_grouped_mm(x, inner_last ? w.transpose(1, 2) : w, groups.ends);
    if (clear) clear_unused(y, groups);
    return y;
  }
  auto y = at::empty({x.size(0), n}, x.options());
  for_type(x.scalar_type(), false, [&]<typename T, int>() {
    const GroupedWork<T, T> work{.n = n, .k = k};
    if (inner_last) {
      multiply<Grouped::kOfRowsInnerLast>(x, w, y, groups, work, tensor_cores);
    } else {
      multiply<Grouped::kOfRows>(x, w, y, groups, work, tensor_cores);
    }
  });
  return y;
}

// For every expert a^T b over its rows, [E, m, n] in fp32.
at::Tensor of_weights(const at::Tensor& a, const at::Tensor& b, const Groups& groups) {
  const int64_t m = a.size(1), n = b.size(1);
  auto dw = at::empty({groups.experts(), m, n}, a.options().dtype(at::kFloat));
  for_type(a.scalar_type(), false, [&]<typename T, int>() {
    multiply<Grouped::kOfWeights>(a, b, dw, groups, GroupedWork<T, float>{.m = m, .n = n},
                                  suits_tensor_cores(a, b));
  });
  return dw;
}

std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& gate_up,
                                           const at::Tensor& down, const at::Tensor& offsets) {
  if (!fused(x, gate_up, down)) return experts_forward_plain(x, gate_up, down, offsets);
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t rows = x.size(0), f = down.size(2);
  if (rows == 0) return {at::empty({0, x.size(1)}, x.options()), at::empty({0, 2 * f}, x.options())};
  const auto groups = groups_of(offsets, x);
  const auto h = of_rows(x.contiguous(), gate_up.contiguous(), groups, true, /*clear=*/false);
  const auto act = at::empty({rows, f}, x.options());
  for_type(x.scalar_type(), suits_vectors(h, f), [&]<typename T, int n>() {
    swiglu_forward<n>
        <<<blocks(rows * f / n, kSwigluThreads), kSwigluThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
            SwigluWork<T>{.rows = rows,
                          .f = f,
                          .gate_up = h.const_data_ptr<T>(),
                          .used = groups.used(),
                          .y = act.data_ptr<T>()});
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {of_rows(act, down.contiguous(), groups, true, /*clear=*/true), h};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward_input(const at::Tensor& dy, const at::Tensor& h,
                                                              const at::Tensor& gate_up,
                                                              const at::Tensor& down,
                                                              const at::Tensor& offsets) {
  if (!fused(dy, gate_up, down)) return experts_backward_input_plain(dy, h, gate_up, down, offsets);
  const c10::cuda::CUDAGuard guard(dy.device());
  const int64_t rows = dy.size(0), f = down.size(2);
  const auto dh = at::empty({rows, 2 * f}, dy.options()), act = at::empty({rows, f}, dy.options());
  if (rows == 0) return {at::empty_like(dy), dh, act};
  const auto groups = groups_of(offsets, dy);
  const auto both = h.contiguous();
  const auto dact = of_rows(dy.contiguous(), down.contiguous(), groups, false, /*clear=*/false);
  for_type(dy.scalar_type(), suits_vectors(both, f, {dact}), [&]<typename T, int n>() {
    swiglu_backward<n>
        <<<blocks(rows * f / n, kSwigluThreads), kSwigluThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
            SwigluWork<T>{.rows = rows,
                          .f = f,
                          .gate_up = both.const_data_ptr<T>(),
                          .used = groups.used(),
                          .dy = dact.const_data_ptr<T>(),
                          .y = act.data_ptr<T>(),
                          .dgate_up = dh.data_ptr<T>()});
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {of_rows(dh, gate_up.contiguous(), groups, false, /*clear=*/true), dh, act};
}

at::Tensor backward_weight(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& offsets) {
  if (!suits(x.scalar_type())) return experts_backward_weight_plain(dy, x, offsets);
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t experts = offsets.size(0) - 1;
  if (x.size(0) == 0) {
    return at::zeros({experts, dy.size(1), x.size(1)}, x.options().dtype(at::kFloat));
  }
  return of_weights(dy.contiguous(), x.contiguous(), {offsets.contiguous(), {}});
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& dy, const at::Tensor& x,
                                                        const at::Tensor& h, const at::Tensor& gate_up,
                                                        const at::Tensor& down, const at::Tensor& offsets) {
  const auto [dx, dh, act] = backward_input(dy, h, gate_up, down, offsets);
  return {dx, backward_weight(dh, x, offsets), backward_weight(dy, act, offsets)};
}

}  // namespace

TORCH_LIBRARY_IMPL(hero, CUDA, m) {
  m.impl("experts_forward", forward);
  m.impl("experts_backward", backward);
  m.impl("experts_backward_input", backward_input);
  m.impl("experts_backward_weight", backward_weight);
}

}  // namespace hero::ops
