// Grouped GEMM in its three layouts, with emulated tensor cores and without.
#include "cuda/emulate_wgmma.h"
#include "cuda/run.h"
#include "ops/assignments.h"
#include "ops/cuda/kernels/grouped_mma.cuh"
#include "ops/cuda/kernels/grouped_simt.cuh"
#include "ops/cuda/kernels/grouped_wgmma.cuh"
#include "ops/random_cases.h"
#include "ops/reference.h"

namespace hero::test {
namespace experts_kernels_test {

using namespace ops::cuda;

enum class Kernel { kSimt, kMma, kWgmma };

struct Operands {
  at::Tensor a, b, c, want;  // c: output, initially NaN, or the addend
};

// Padding rows are NaN in a and, for kTN, in b, and zero in `want`.
Operands operands_of(GroupedLayout layout, const at::Tensor& offsets, int64_t rows, int64_t m, int64_t n,
                     int64_t k, at::ScalarType type, bool add) {
  const int64_t experts = offsets.size(0) - 1;
  const auto* o = offsets.const_data_ptr<int64_t>();
  const bool weights = layout == GroupedLayout::kTN;
  Operands it;
  it.a = normal({rows, weights ? m : k}, 1).to(type);
  it.b = (weights                        ? normal({rows, n}, 2)
          : layout == GroupedLayout::kNN ? normal({experts, k, n}, 2)
                                         : normal({experts, n, k}, 2))
             .to(type);
  it.want = weights ? at::zeros({experts, m, n}, at::kDouble) : at::zeros({rows, n}, at::kDouble);
  for (int64_t e = 0; e < experts; ++e) {
    const auto a = it.a.slice(0, o[e], o[e + 1]).to(at::kDouble);
    if (weights) {
      it.want[e] = at::mm(a.t(), it.b.slice(0, o[e], o[e + 1]).to(at::kDouble));
    } else {
      const auto b = it.b[e].to(at::kDouble);
      it.want.slice(0, o[e], o[e + 1]).copy_(at::mm(a, layout == GroupedLayout::kNN ? b : b.t()));
    }
  }
  it.a.slice(0, o[experts]).fill_(NAN);
  if (weights) it.b.slice(0, o[experts]).fill_(NAN);
  it.c = at::full(it.want.sizes(), NAN, at::TensorOptions(weights ? at::kFloat : type));
  if (add) {
    it.c = normal(it.want.sizes(), 3).to(at::kFloat);
    it.want += it.c;
  }
  return it;
}

template <GroupedLayout layout, typename T, typename Out, Kernel kernel>
void check(const at::Tensor& offsets, int64_t rows, int64_t m, int64_t n, int64_t k, at::ScalarType type,
           bool add = false) {
  const auto it = operands_of(layout, offsets, rows, m, n, k, type, add);
  const int64_t experts = offsets.size(0) - 1;
  const GroupedGemmParams<T, Out> params{.a = it.a.const_data_ptr<T>(),
                                         .b = it.b.const_data_ptr<T>(),
                                         .c = it.c.data_ptr<Out>(),
                                         .offsets = offsets.const_data_ptr<int64_t>(),
                                         .rows = rows,
                                         .experts = experts,
                                         .m = m,
                                         .n = n,
                                         .k = k,
                                         .add = add};
  const int height = kernel == Kernel::kSimt  ? kSimtTile
                     : kernel == Kernel::kMma ? kMmaTile
                                              : kWgmmaRows,
            width = kernel == Kernel::kWgmma ? kWgmmaColumns : height;
  const dim3 grid = layout == GroupedLayout::kTN
                        ? dim3{tile_count(m, height), tile_count(n, width), static_cast<unsigned>(experts)}
                        : dim3{static_cast<unsigned>(row_tiles(rows, experts, height)), tile_count(n, width)};
  if constexpr (kernel == Kernel::kWgmma) {
    launch({it.c}, grouped_wgmma<T>, grid, {kWgmmaThreads}, params);
  } else if constexpr (kernel == Kernel::kMma) {
    launch({it.c}, grouped_mma<layout, T, Out>, grid, {kMmaThreads}, params);
  } else {
    launch({it.c}, grouped_simt<layout, T, Out>, grid, {kSimtSide, kSimtSide}, params);
  }
  EXPECT_TRUE(close(it.c, it.want, it.c.scalar_type() == at::kFloat ? kFp32 : kRoundedOnce))
      << "layout " << static_cast<int>(layout) << ", " << type << ", kernel " << static_cast<int>(kernel);
}

template <typename T, Kernel kernel>
void check_layouts(const ExpertsCase& c, at::ScalarType type) {
  const auto [counts, offsets, token, row] = ops::plan_reference(ids_of(c), c.experts);
  const int64_t rows = c.tokens * c.k, d = c.width, f = c.inner;
  check<GroupedLayout::kNT, T, T, kernel>(offsets, rows, 0, 2 * f, d, type);
  check<GroupedLayout::kNN, T, T, kernel>(offsets, rows, 0, f, d, type);
  for (const bool add : {false, true})
    check<GroupedLayout::kTN, T, float, kernel>(offsets, rows, d, f, 0, type, add);
}

TEST(CudaExperts, GroupedGemmOnTensorCores) {
  for (const auto& c : all_cases(kExpertsCases)) {
    if (c.timed || c.width % 8 != 0 || c.inner % 8 != 0) continue;
    SCOPED_TRACE(name(c));
    check_layouts<c10::BFloat16, Kernel::kMma>(c, at::kBFloat16);
  }
  // Several tiles in both dimensions, long sums, unaligned group offsets.
  check_layouts<c10::BFloat16, Kernel::kMma>({301, 1, 2, 264, 136, Load::kEven}, at::kBFloat16);
  check_layouts<c10::BFloat16, Kernel::kMma>({70, 1, 40, 8, 8, Load::kSparse}, at::kBFloat16);
}

// Both tile widths, partial tiles in both dimensions, experts of no rows, of fewer than a step and of more
// steps than stages.
TEST(CudaExperts, WeightGradientsOfWarpgroups) {
  const auto offsets = at::tensor({0, 0, 3, 131, 131, 468}, at::kLong);
  for (const bool add : {false, true}) {
    for (const auto& [m, n] : {std::pair(8, 8), {128, 256}, {136, 384}, {72, 392}, {256, 136}}) {
      SCOPED_TRACE(testing::Message() << m << " x " << n << (add ? ", added" : ""));
      check<GroupedLayout::kTN, c10::BFloat16, float, Kernel::kWgmma>(offsets, 470, m, n, 0, at::kBFloat16,
                                                                      add);
    }
  }
}

// PTX manual, "Matrix Descriptor Format": address in bits 0 to 13, leading dimension 16 to 29, stride 32 to
// 45, each without its lowest four bits; swizzling of 128 bytes is 1 in bits 62 and 63.
TEST(CudaExperts, MatrixDescriptor) {
  EXPECT_EQ(matrix_descriptor(0x2c400, 0x2000), 0x4000'0040'0200'2c40u);
  EXPECT_EQ(matrix_descriptor(0x41000, 0x2000) & 0x3fff, 0x100u);  // addresses of clusters have higher bits
}

TEST(CudaExperts, GroupedGemmWithoutTensorCores) {
  for (const auto& c : all_cases(kExpertsCases)) {
    if (c.timed) continue;
    SCOPED_TRACE(name(c));
    check_layouts<float, Kernel::kSimt>(c, at::kFloat);
  }
  const ExpertsCase odd{70, 2, 5, 37, 19, Load::kDropped};
  check_layouts<c10::BFloat16, Kernel::kSimt>(odd, at::kBFloat16);
  check_layouts<c10::Half, Kernel::kSimt>(odd, at::kHalf);
  check_layouts<float, Kernel::kSimt>(odd, at::kFloat);
}

TEST(CudaExperts, PaddingRowsAreZeroed) {
  for (const int64_t used : {0, 3, 7}) {
    auto x = normal({7, 5}, 1).to(at::kFloat);
    const auto want = x.clone();
    want.slice(0, used).zero_();
    x.slice(0, used).fill_(NAN);
    const auto count = at::full({1}, used, at::kLong);
    launch({}, zero_padding_rows<float>, {2}, {8}, x.numel(), 5, count.const_data_ptr<int64_t>(),
           x.data_ptr<float>());
    EXPECT_TRUE(same(x, want));
  }
}

}  // namespace experts_kernels_test
}  // namespace hero::test
