// Scratch memory: random sequences of taken and returned blocks.
#include "ops/cpu/scratch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

namespace hero::test {
namespace scratch_test {

struct Block {
  cpu::Scratch<unsigned char> memory;
  int64_t size;
  unsigned char value;

  bool intact() const {
    for (int64_t i = 0; i < size; ++i) {
      if (memory[i] != value) return false;
    }
    return true;
  }
};

// Takes and returns blocks in random order, each filled with its own value.
void take_and_return(unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Block> blocks;
  for (int step = 0; step < 2000; ++step) {
    if (blocks.size() < 24 && random() % 2 == 0) {
      // Around the limits of the cache: powers of two, and one more or less.
      const int64_t size = (int64_t{1} << random() % 20) + static_cast<int64_t>(random() % 3) - 1;
      Block block{.memory = cpu::scratch<unsigned char>(size),
                  .size = size,
                  .value = static_cast<unsigned char>(random())};
      ASSERT_EQ(reinterpret_cast<uintptr_t>(block.memory.get()) % 64, 0)
          << "seed " << seed << ", " << size << " bytes";
      std::fill_n(block.memory.get(), size, block.value);
      blocks.push_back(std::move(block));
    } else if (!blocks.empty()) {
      const size_t i = random() % blocks.size();
      ASSERT_TRUE(blocks[i].intact()) << "seed " << seed << ", step " << step;
      std::swap(blocks[i], blocks.back());
      blocks.pop_back();
    }
  }
}

TEST(Scratch, BlocksDoNotOverlap) {
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) threads.emplace_back(take_and_return, seed);
  for (auto& thread : threads) thread.join();
}

TEST(Scratch, ReusesAReturnedBlock) {
  void* first = cpu::take_block(12000);
  cpu::return_block(first, 12000);
  void* second = cpu::take_block(16000);  // of the same power of two
  EXPECT_EQ(second, first);
  cpu::return_block(second, 16000);
}

TEST(Scratch, BlocksMayBeReturnedByAnotherThread) {
  for (int i = 0; i < 100; ++i) {
    auto block = cpu::scratch<int>(1000);
    block[999] = i;
    std::thread([taken = std::move(block), i] { EXPECT_EQ(taken[999], i); }).join();
  }
}

TEST(Scratch, NothingNeedsNoMemory) { EXPECT_EQ(cpu::scratch<float>(0).get(), nullptr); }

}  // namespace scratch_test
}  // namespace hero::test
