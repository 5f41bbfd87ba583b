// bf16 GEMM kernels of every instruction set that this CPU supports, against fp64 sums; the AVX512-BF16 and
// AMX kernels also with portable instructions.
#include "ops/cpu/gemm_kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "hf/temporary_folder.h"
#include "io/error.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/portable_dot.h"
#include "ops/cpu/portable_tiles.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/skinny_dot.h"

namespace hero::test {
namespace gemm_kernels_test {

using cpu::bf16;

constexpr float kInitial = 0.5f;  // initial value of c

std::vector<cpu::NamedGemmKernel> all_kernels() {
  auto all = cpu::gemm_kernels();
  all.push_back({"portable_dot", cpu::dot_gemm<PortableDot>, cpu::dot_gemm_panels<PortableDot>,
                 cpu::dot_gemm_rounded<PortableDot>, cpu::kDotDepth});
  all.push_back({"portable_tiles", cpu::tile_gemm<PortableTiles>});
  return all;
}

// Operands of one GEMM; rows of a and c are padded.
struct Operands {
  int64_t m, width, k, lda, ldc;
  std::vector<bf16> a, b, panel;

  template <class Sample>
  Operands(int64_t rows, int64_t columns, int64_t inner, const Sample& sample)
      : m(rows),
        width(columns),
        k(inner),
        lda(k + 3),
        ldc(width + 5),
        a(m * lda),
        b(k * width),
        panel(k * width) {
    for (auto& value : a) value = sample();
    for (auto& value : b) value = sample();
    cpu::pack_panel(b.data(), k, k, width, width, /*transposed=*/false, 0, panel.data());
  }

  std::vector<float> product(cpu::GemmKernel multiply, bool accumulate) const {
    std::vector<float> c(m * ldc, kInitial);
    multiply(m, width, k, a.data(), lda, panel.data(), c.data(), ldc, accumulate);
    return c;
  }
  // With the rows of a as columns of a panel.
  std::vector<float> product(cpu::PanelGemmKernel multiply, bool accumulate) const {
    std::vector<bf16> columns(k * m), left(k * m);
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t i = 0; i < k; ++i) columns[i * m + r] = a[r * lda + i];
    }
    cpu::pack_panel(columns.data(), k, k, m, m, /*transposed=*/false, 0, left.data());
    std::vector<float> c(m * ldc, kInitial);
    multiply(m, width, k, left.data(), panel.data(), c.data(), ldc, accumulate);
    return c;
  }
};

// Each result takes at most n additions of exact products, each rounded with relative error u = 2^-24, so its
// error is at most n u / (1 - n u) times the sum of absolute values, in any order. Tiles add two sums per 32
// products.
void expect_rounded_sums(const Operands& in, cpu::GemmKernel multiply, bool accumulate) {
  const auto c = in.product(multiply, accumulate);
  const int64_t additions = in.k + 2 * ((in.k + 31) / 32);
  const double roundings = additions * 0x1p-24, most = roundings / (1 - roundings);
  for (int64_t r = 0; r < in.m; ++r) {
    for (int64_t j = 0; j < in.ldc; ++j) {
      if (j >= in.width) {
        ASSERT_EQ(c[r * in.ldc + j], kInitial) << "written past row " << r;
        continue;
      }
      double sum = accumulate ? kInitial : 0, size = sum;
      for (int64_t i = 0; i < in.k; ++i) {
        const double product =
            static_cast<double>(in.a[r * in.lda + i]) * static_cast<double>(in.b[i * in.width + j]);
        sum += product;
        size += std::abs(product);
      }
      ASSERT_NEAR(c[r * in.ldc + j], sum, most * size)
          << in.m << " x " << in.width << " x " << in.k << " at " << r << ", " << j;
    }
  }
}

class GemmKernel : public testing::TestWithParam<cpu::NamedGemmKernel> {};

TEST_P(GemmKernel, MatchesFp64Sums) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto sample = [&] { return bf16(normal(random)); };
  const auto check = [&](int64_t m, int64_t width, int64_t k) {
    const Operands in(m, width, k, sample);
    for (const bool accumulate : {true, false}) expect_rounded_sums(in, GetParam().multiply, accumulate);
  };
  // Every number of rows and width, then long sums: blocks of k end at 256, 512 and 1024.
  for (int64_t m = 1; m <= 34; ++m) {
    for (const int64_t width : {16, 32, 48, 64}) check(m, width, 2 * (1 + random() % 40));
  }
  for (const int64_t k : {510, 512, 514, 1022, 1024, 1026, 2050}) check(7, 48, k);
  for (int i = 0; i < 20; ++i) check(1 + random() % 64, 16 * (1 + random() % 4), 2 * (1 + random() % 300));
}

TEST_P(GemmKernel, NanPropagatesOnlyToItsRow) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  Operands in(9, 64, 34, [&] { return bf16(normal(random)); });
  in.a[4 * in.lda + 33] = std::numeric_limits<float>::quiet_NaN();
  const auto c = in.product(GetParam().multiply, false);
  for (int64_t r = 0; r < in.m; ++r) {
    for (int64_t j = 0; j < in.width; ++j) ASSERT_EQ(std::isnan(c[r * in.ldc + j]), r == 4) << r << ", " << j;
  }
}

// Bitwise: the order of additions is that of the sums over rows.
TEST_P(GemmKernel, PanelsEqualRows) {
  const auto& kernel = GetParam();
  if (!kernel.multiply_panels) GTEST_SKIP() << "this kernel reads rows";
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const auto sample = [&] { return bf16(normal(random)); };
  const auto check = [&](int64_t m, int64_t width, int64_t k) {
    const Operands in(m, width, k, sample);
    for (const bool accumulate : {true, false})
      ASSERT_EQ(in.product(kernel.multiply_panels, accumulate), in.product(kernel.multiply, accumulate))
          << in.m << " x " << in.width << " x " << in.k;
  };
  for (const int64_t k : {2, 1022, 1024, 1026, 2050}) check(13, 64, k);
  for (int i = 0; i < 40; ++i) check(1 + random() % 64, 16 * (1 + random() % 4), 2 * (1 + random() % 300));
}

// Bitwise, also for infinities; which NaN the sums have is not defined.
TEST_P(GemmKernel, RoundsLikeStore) {
  const auto& kernel = GetParam();
  if (!kernel.multiply_rounded) GTEST_SKIP() << "results are rounded afterward";
  std::mt19937 random(6);
  for (int i = 0; i < 60; ++i) {
    const auto sample = [&] {
      bf16 value;
      value.x = static_cast<uint16_t>(random());
      return value;
    };
    const int64_t most = std::min<int64_t>(kernel.rounded_depth, 1100);
    const int64_t k = i == 0 ? most : 2 * (1 + random() % (i % 2 ? 80 : most / 2));
    const Operands in(1 + random() % 64, 16 * (1 + random() % 4), k, sample);
    std::vector<bf16> rounded(in.m * in.ldc, bf16(kInitial)), expected = rounded;
    kernel.multiply_rounded(in.m, in.width, k, in.a.data(), in.lda, in.panel.data(), rounded.data(), in.ldc);
    const auto sums = in.product(kernel.multiply, false);
    for (int64_t r = 0; r < in.m; ++r) {
      for (int64_t j = 0; j < in.width; ++j) cpu::store(expected[r * in.ldc + j], sums[r * in.ldc + j]);
    }
    for (size_t j = 0; j < rounded.size(); ++j) {
      if (std::isnan(static_cast<float>(expected[j]))) {
        ASSERT_TRUE(std::isnan(static_cast<float>(rounded[j]))) << in.m << " x " << in.width << " x " << k;
      } else {
        ASSERT_EQ(rounded[j].x, expected[j].x) << in.m << " x " << in.width << " x " << k;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, GemmKernel, testing::ValuesIn(all_kernels()),
                         [](const auto& info) { return std::string(info.param.name); });

// Operands of y = x w^T; rows of all three are padded.
struct SkinnyOperands {
  int64_t m, n, k, ldx, ldw, ldy;
  std::vector<bf16> x, w;

  template <class Sample>
  SkinnyOperands(int64_t rows, int64_t columns, int64_t inner, const Sample& sample)
      : m(rows), n(columns), k(inner), ldx(k + 3), ldw(k + 5), ldy(n + 7), x(m * ldx), w(n * ldw) {
    for (auto& value : x) value = sample();
    for (auto& value : w) value = sample();
  }

  std::vector<float> product(cpu::SkinnyGemmKernel multiply) const {
    std::vector<float> y(m * ldy, kInitial);
    multiply(m, n, k, x.data(), ldx, w.data(), ldw, y.data(), ldy);
    return y;
  }
};

// With the error bound of expect_rounded_sums, and four more additions for the sum of the lanes; the rounded
// kernel gives the same, rounded, and a row does not depend on the other rows.
TEST(SkinnyDot, MatchesFp64Sums) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 120; ++i) {
    const SkinnyOperands in(1 + random() % 20, 16 * (1 + random() % 9), 16 * (1 + random() % 20),
                            [&] { return bf16(normal(random)); });
    SCOPED_TRACE(testing::Message() << in.m << " x " << in.n << " x " << in.k);
    const auto y = in.product(cpu::skinny_dot<PortableDot, float>);
    std::vector<bf16> rounded(in.m * in.ldy, bf16(kInitial));
    cpu::skinny_dot<PortableDot, bf16>(in.m, in.n, in.k, in.x.data(), in.ldx, in.w.data(), in.ldw,
                                       rounded.data(), in.ldy);
    std::vector<float> last(in.n);
    cpu::skinny_dot<PortableDot, float>(1, in.n, in.k, in.x.data() + (in.m - 1) * in.ldx, in.ldx, in.w.data(),
                                        in.ldw, last.data(), in.n);
    const double roundings = (in.k + 4) * 0x1p-24, most = roundings / (1 - roundings);
    for (int64_t r = 0; r < in.m; ++r) {
      for (int64_t c = 0; c < in.ldy; ++c) {
        if (c >= in.n) {
          ASSERT_EQ(y[r * in.ldy + c], kInitial) << "written past row " << r;
          continue;
        }
        double sum = 0, size = 0;
        for (int64_t j = 0; j < in.k; ++j) {
          const double product =
              static_cast<double>(in.x[r * in.ldx + j]) * static_cast<double>(in.w[c * in.ldw + j]);
          sum += product;
          size += std::abs(product);
        }
        ASSERT_NEAR(y[r * in.ldy + c], sum, most * size) << r << ", " << c;
        bf16 expected;
        cpu::store(expected, y[r * in.ldy + c]);
        ASSERT_EQ(rounded[r * in.ldy + c].x, expected.x) << r << ", " << c;
        if (r == in.m - 1) {
          ASSERT_EQ(last[c], y[r * in.ldy + c]) << c;
        }
      }
    }
  }
}

// Bitwise.
TEST(SkinnyDot, InstructionMatchesPortableVersion) {
  const auto kernel = cpu::avx512_bf16_gemm_kernel();
  if (!kernel) GTEST_SKIP() << "not supported by this CPU";
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 60; ++i) {
    const SkinnyOperands in(1 + random() % 20, 16 * (1 + random() % 9), 16 * (1 + random() % 20),
                            [&] { return bf16(normal(random)); });
    ASSERT_EQ(in.product(kernel->multiply_skinny), in.product(cpu::skinny_dot<PortableDot, float>))
        << in.m << " x " << in.n << " x " << in.k;
  }
}

struct Instruction {
  const char* name;
  cpu::GemmKernel native, portable;
};

class InstructionTest : public testing::TestWithParam<Instruction> {};

// Bitwise, for operands of any exponent that cannot overflow, and for small ones with denormal products and
// sums.
TEST_P(InstructionTest, MatchesPortableVersion) {
  const auto [name, native, portable] = GetParam();
  if (!native) GTEST_SKIP() << "not supported by this CPU";
  std::mt19937 random(3);
  for (const float limit : {0x1p60f, 0x1p-60f}) {
    const auto sample = [&] {
      bf16 value;
      do value.x = static_cast<uint16_t>(random());
      while (!(std::abs(static_cast<float>(value)) < limit));
      return value;
    };
    for (int i = 0; i < 100; ++i) {
      const Operands in(1 + random() % 40, 16 * (1 + random() % 4), 2 * (1 + random() % 80), sample);
      const auto c = in.product(native, i % 2), expected = in.product(portable, i % 2);
      ASSERT_EQ(std::memcmp(c.data(), expected.data(), c.size() * sizeof(float)), 0)
          << in.m << " x " << in.width << " x " << in.k;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sets, InstructionTest,
    testing::Values(Instruction{"avx512_bf16",
                                cpu::avx512_bf16_gemm_kernel() ? cpu::avx512_bf16_gemm_kernel()->multiply
                                                               : nullptr,
                                cpu::dot_gemm<PortableDot>},
                    Instruction{"amx_bf16", cpu::amx_gemm_kernel(), cpu::tile_gemm<PortableTiles>}),
    [](const auto& info) { return std::string(info.param.name); });

// Several shapes in nested scopes, with PyTorch GEMMs, which configure tiles themselves, between scopes.
TEST(TileConfigScope, NestsAndReleasesTiles) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  const auto sample = [&] { return bf16(normal(random)); };
  for (const auto& kernel : cpu::gemm_kernels()) {
    for (int round = 0; round < 10; ++round) {
      {
        const cpu::TileConfigScope outer;
        for (int i = 0; i < 3; ++i) {
          expect_rounded_sums(Operands(1 + random() % 40, 64, 48, sample), kernel.multiply, false);
          const cpu::TileConfigScope inner;
          expect_rounded_sums(Operands(1 + random() % 40, 32, 64, sample), kernel.multiply, true);
        }
      }
      expect_rounded_sums(Operands(1 + random() % 40, 48, 32, sample), kernel.multiply, false);
      const auto ones = at::ones({64, 64}, at::kBFloat16);
      ASSERT_TRUE(at::equal(at::mm(ones, ones), at::full({64, 64}, 64, at::kBFloat16)));
    }
  }
}

// Which of avx512_bf16 and avx512 is first depends on the processor; all others have a fixed order.
TEST(GemmKernels, FastestFirst) {
  std::vector<std::string> names, expected;
  for (const auto& kernel : cpu::gemm_kernels()) names.emplace_back(kernel.name);
  if (cpu::amx_gemm_kernel()) expected.emplace_back("amx_bf16");
  if (cpu::avx512_bf16_gemm_kernel()) expected.emplace_back("avx512_bf16");
  for (const char* name : {"avx512", "avx2", "sse2"}) {
    if (std::ranges::find(names, name) != names.end()) expected.emplace_back(name);
  }
  const auto first = std::ranges::find(names, "avx512"), second = std::ranges::find(names, "avx512_bf16");
  if (first < second && second != names.end()) std::iter_swap(first, second);
  EXPECT_EQ(names, expected);
  EXPECT_EQ(names.back(), "sse2");
}

// AMX multiplies few rows with the instruction of AVX512-BF16 only where that is faster than AVX-512.
TEST(GemmKernels, SkinnyProductsUseTheFasterInstruction) {
  const auto& all = cpu::gemm_kernels();
  const auto index = [&](const std::string& name) {
    return std::ranges::find(all, name, &cpu::NamedGemmKernel::name) - all.begin();
  };
  const auto dot = cpu::avx512_bf16_gemm_kernel();
  const bool dot_is_faster = index("avx512_bf16") < index("avx512");
  for (const auto& kernel : all) {
    const bool expected = kernel.name == std::string("avx512_bf16") ||
                          (kernel.name == std::string("amx_bf16") && dot && dot_is_faster);
    EXPECT_EQ(kernel.multiply_skinny != nullptr, expected) << kernel.name;
    EXPECT_EQ(kernel.multiply_skinny_rounded != nullptr, expected) << kernel.name;
  }
}

TEST(GemmKernels, AreFoundByName) {
  EXPECT_EQ(cpu::find_gemm_kernel(nullptr).multiply, cpu::gemm_kernels().front().multiply);
  EXPECT_EQ(cpu::find_gemm_kernel("").multiply, cpu::gemm_kernels().front().multiply);
  std::string names;
  for (const auto& kernel : cpu::gemm_kernels()) {
    EXPECT_EQ(cpu::find_gemm_kernel(kernel.name).multiply, kernel.multiply) << kernel.name;
    names += std::string(names.empty() ? "" : ", ") + kernel.name;
  }
  for (const std::string unknown : {"avx1024", "sse", "sse22"}) {
    EXPECT_EQ(error_of<UserError>([&] { cpu::find_gemm_kernel(unknown.c_str()); }),
              "HERO_GEMM: found " + unknown + ", expected one of " + names);
  }
}

}  // namespace gemm_kernels_test
}  // namespace hero::test
