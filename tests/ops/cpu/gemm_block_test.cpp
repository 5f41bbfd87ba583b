// Blocks of bf16 products on every instruction set that this processor has, against sums in fp64.
#include "ops/cpu/gemm_block.h"

#include <gtest/gtest.h>

#include <random>

#include "ops/cpu/gemm.h"

namespace hero::test {
namespace {

using cpu::bf16;

class BlockGemm : public testing::TestWithParam<cpu::NamedBlockGemm> {};

std::vector<bf16> numbers(int64_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<bf16> values(count);
  for (auto& value : values) value = normal(random);
  return values;
}

TEST_P(BlockGemm, AgreesWithSumsInDoublePrecision) {
  std::mt19937 random(1);
  for (const int64_t m : {1, 2, 3, 5, 6, 7, 13, 64}) {
    for (const int64_t width : {16, 32, 48, 64}) {
      for (const int64_t k : {2, 16, 96, 510, 512, 514, 1568}) {
        const int64_t lda = k + 3, ldc = width + 5;
        const auto a = numbers(m * lda, random), b = numbers(k * width, random);
        std::vector<bf16> panel(k * width);
        cpu::pack_panel(b.data(), k, k, width, width, /*transposed=*/false, 0, panel.data());
        std::vector<float> c(m * ldc, 0.5f);
        for (const bool accumulate : {true, false}) {
          GetParam().multiply(m, width, k, a.data(), lda, panel.data(), c.data(), ldc, accumulate);
          for (int64_t r = 0; r < m; ++r) {
            for (int64_t j = 0; j < ldc; ++j) {
              double sum = accumulate || j >= width ? 0.5 : 0.0, size = 1;
              for (int64_t i = 0; i < k && j < width; ++i) {
                const double product =
                    static_cast<double>(a[r * lda + i]) * static_cast<double>(b[i * width + j]);
                sum += product;
                size += std::abs(product);
              }
              // k roundings of fp32 sums, most of which cancel.
              ASSERT_NEAR(c[r * ldc + j], sum, j < width ? 6e-7 * size : 0)
                  << m << " x " << width << " x " << k << " at " << r << ", " << j;
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, BlockGemm, testing::ValuesIn(cpu::block_gemms()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(BlockGemms, TheWidestComesFirst) {
  EXPECT_STREQ(cpu::block_gemms().back().name, "sse2");
  const std::string used = cpu::block_gemm_name();
  EXPECT_TRUE(used == "brgemm" || used == cpu::block_gemms().front().name || std::getenv("HERO_GEMM"))
      << used;
}

}  // namespace
}  // namespace hero::test
