// fp32 GEMM on packed panels against fp64 sums; also compiled for narrower instruction sets.
#include "ops/cpu/gemm_fp32.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "ops/cpu/gemm.h"

namespace hero::test {
namespace gemm_fp32_test {

constexpr float kUntouched = 0.5f;

struct Operands {
  int64_t m, n, k, lda, ldb, ldc;
  bool transposed;  // b is stored as [n, k]
  std::vector<float> a, b;

  template <class Random>
  Operands(int64_t rows, int64_t columns, int64_t inner, bool is_transposed, Random& random)
      : m(rows),
        n(columns),
        k(inner),
        lda(k + 3),
        ldb((is_transposed ? k : n) + 7),
        ldc(n + 5),
        transposed(is_transposed),
        a(m * lda),
        b((is_transposed ? n : k) * ldb) {
    std::normal_distribution<float> normal;
    for (auto& value : a) value = normal(random);
    for (auto& value : b) value = normal(random);
  }

  double factor(int64_t i, int64_t j) const { return transposed ? b[j * ldb + i] : b[i * ldb + j]; }
  std::vector<float> product() const {
    std::vector<float> packed(k * n), c(m * ldc, kUntouched);
    cpu::pack(b.data(), k, n, ldb, transposed, packed.data());
    cpu::gemm(m, n, k, a.data(), lda, packed.data(), c.data(), ldc);
    return c;
  }
};

// Without FMA, each product and each sum is rounded: an error of at most 2k u / (1 - 2k u) times the sum of
// absolute values, u = 2^-24.
void expect_rounded_sums(const Operands& in) {
  const auto c = in.product();
  const double roundings = 2 * static_cast<double>(in.k) * 0x1p-24, most = roundings / (1 - roundings);
  for (int64_t r = 0; r < in.m; ++r) {
    for (int64_t j = 0; j < in.ldc; ++j) {
      if (j >= in.n) {
        ASSERT_EQ(c[r * in.ldc + j], kUntouched) << "written past row " << r;
        continue;
      }
      double sum = 0, size = 0;
      for (int64_t i = 0; i < in.k; ++i) {
        const double product = in.a[r * in.lda + i] * in.factor(i, j);
        sum += product;
        size += std::abs(product);
      }
      ASSERT_NEAR(c[r * in.ldc + j], sum, most * size)
          << in.m << " x " << in.n << " x " << in.k << (in.transposed ? " transposed" : "") << " at " << r
          << ", " << j;
    }
  }
}

TEST(GemmFp32, MatchesFp64Sums) {
  std::mt19937 random(1);
  for (const bool transposed : {true, false}) {
    // Every number of rows of a strip and every width of a panel, then random sizes.
    for (int64_t m = 1; m <= 14; ++m) {
      for (int64_t n = 16; n <= 144; n += 16)
        expect_rounded_sums({m, n, 1 + static_cast<int64_t>(random() % 40), transposed, random});
    }
    for (int i = 0; i < 20; ++i) {
      expect_rounded_sums({1 + static_cast<int64_t>(random() % 140),
                           16 * (1 + static_cast<int64_t>(random() % 20)),
                           1 + static_cast<int64_t>(random() % 600), transposed, random});
    }
  }
}

// As attention uses panels: a part of their columns and rows.
TEST(GemmFp32, PartsOfPanels) {
  std::mt19937 random(2);
  const Operands in(9, 64, 40, /*is_transposed=*/false, random);
  std::vector<float> packed(in.k * in.n), whole = in.product(), part(in.m * 48);
  cpu::pack_panel(in.b.data(), in.k, in.n, in.ldb, false, 0, packed.data());
  cpu::gemm_panel(in.m, 48, in.k, in.a.data(), in.lda, packed.data(), in.n, part.data(), 48);
  for (int64_t r = 0; r < in.m; ++r) {
    for (int64_t j = 0; j < 48; ++j) ASSERT_EQ(part[r * 48 + j], whole[r * in.ldc + j]);
  }
}

// So that a row's results do not depend on the other rows of a batch.
TEST(GemmFp32, ResultsDoNotDependOnTheNumberOfRows) {
  std::mt19937 random(3);
  Operands in(23, 96, 130, /*is_transposed=*/true, random);
  const auto together = in.product();
  for (in.m = 1; in.m < 23; ++in.m) {
    const auto fewer = in.product();
    for (size_t i = 0; i < fewer.size(); ++i) ASSERT_EQ(fewer[i], together[i]);
  }
}

TEST(GemmFp32, NanPropagatesOnlyToItsRow) {
  std::mt19937 random(4);
  Operands in(13, 80, 33, /*is_transposed=*/true, random);
  in.a[5 * in.lda + 7] = std::numeric_limits<float>::quiet_NaN();
  const auto c = in.product();
  for (int64_t r = 0; r < in.m; ++r) {
    for (int64_t j = 0; j < in.n; ++j) ASSERT_EQ(std::isnan(c[r * in.ldc + j]), r == 5) << r << ", " << j;
  }
}

}  // namespace gemm_fp32_test
}  // namespace hero::test
