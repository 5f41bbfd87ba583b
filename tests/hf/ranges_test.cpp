#include "hf/ranges.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "hf/load.h"
#include "hf/temporary_folder.h"
#include "io/error.h"

namespace hero {
namespace ranges_test {

using test::error_of;
using test::TemporaryFolder;

// A tensor [2, 5] with the values 0, 1, 2, ..., stored in full or as slices.
class Ranges : public testing::Test {
 protected:
  void write(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
    std::vector<TensorView> views;
    for (const auto& [name, tensor] : tensors) views.push_back(tensor_view(name, tensor));
    write_sharded(folder_.path(), "optimizer", views, 16);
  }
  static at::Tensor values(int64_t begin, int64_t end) { return at::arange(begin, end, at::kFloat); }
  static std::pair<std::string, at::Tensor> slice(int64_t begin, int64_t end) {
    return {slice_name("w", {begin, end}), values(begin, end)};
  }
  at::Tensor read(int64_t begin, int64_t end) const {
    const auto target = at::full({end - begin}, -1.0, at::kDouble);
    RangeReader(folder_.path(), "optimizer").read("w", {2, 5}, begin, target);
    return target;
  }
  std::string error_message(int64_t begin, int64_t end) const {
    return error_of<UserError>([&] { read(begin, end); });
  }
  void expect_every_range() const {
    for (int64_t begin = 0; begin < 10; ++begin) {
      for (int64_t end = begin + 1; end <= 10; ++end)
        EXPECT_TRUE(at::equal(read(begin, end), values(begin, end).to(at::kDouble))) << begin << " " << end;
    }
  }

  TemporaryFolder folder_;
};

TEST_F(Ranges, FullTensor) {
  write({{"w", values(0, 10).view({2, 5})}});
  expect_every_range();
}

TEST_F(Ranges, Slices) {
  write({slice(7, 10), slice(0, 3), slice(3, 4), slice(4, 7)});
  expect_every_range();
}

TEST_F(Ranges, NamesThatResembleSlices) {
  write({{"w", values(0, 10).view({2, 5})},
         {"w[0]", values(0, 3)},
         {"w[0,3]", values(5, 8)},
         {"w[00,3)", values(5, 8)},
         {"[", values(0, 1)}});
  expect_every_range();
}

TEST_F(Ranges, MissingElements) {
  write({slice(0, 3), slice(5, 7), slice(7, 9)});
  EXPECT_TRUE(at::equal(read(5, 9), values(5, 9).to(at::kDouble)));
  const std::string where =
      folder_.path().string() + ": tensor w: found the elements [0, 3) [5, 9), expected ";
  EXPECT_EQ(error_message(2, 6), where + "[2, 6) among slices of [0, 10) that do not overlap");
  EXPECT_EQ(error_message(8, 10), where + "[8, 10) among slices of [0, 10) that do not overlap");
  write({{"v", values(0, 10)}});
  EXPECT_EQ(
      error_message(2, 3),
      folder_.path().string() + ": no tensor w, expected one of shape [2, 5]: the weights of another model");
}

TEST_F(Ranges, DuplicateElements) {
  const auto found = [&] {
    const std::string message = error_message(0, 2);
    const size_t begin = message.find("elements ") + 9;
    return message.substr(begin, message.find(", expected [0, 2)") - begin);
  };
  write({slice(0, 6), slice(5, 10)});
  EXPECT_EQ(found(), "[0, 6) [5, 10)");
  write({slice(0, 10), slice(3, 4)});
  EXPECT_EQ(found(), "[0, 10) [3, 4)");
  write({{"w", values(0, 10).view({2, 5})}, slice(0, 10)});
  EXPECT_EQ(found(), "[0, 10) [0, 10)");
}

TEST_F(Ranges, MismatchedSlices) {
  write({slice(0, 8), {"w[8,12)", values(8, 12)}});
  EXPECT_NE(error_message(0, 2).find("found the elements [0, 12), expected [0, 2) among slices of [0, 10)"),
            std::string::npos);
  write({slice(0, 8), {"w[8,10)", values(0, 1)}});
  EXPECT_NE(error_message(7, 9).find("tensor w[8,10) has the shape [1], expected [2]"), std::string::npos);
  write({slice(0, 8), {"w[8,10)", at::zeros({2}, at::kLong)}});
  EXPECT_NE(error_message(7, 9).find("tensor w[8,10) is I64, expected F32"), std::string::npos);
  write({{"w", values(0, 10).view({5, 2})}});
  EXPECT_NE(error_message(0, 2).find("tensor w has the shape [5, 2], expected [2, 5]"), std::string::npos);
}

TEST(WriteSlice, SlicesInAnyOrderMatchFullFile) {
  const TemporaryFolder folder;
  const auto values = at::arange(0, 15, at::kFloat).view({3, 5});
  const TensorView whole = tensor_view("model.w", values);
  const std::vector<TensorView> all{whole};
  write_shard(folder.path(), {"whole", all});
  for (const auto& cuts : std::vector<std::vector<int64_t>>{{0, 15}, {7, 15, 0, 7}, {14, 15, 0, 1, 1, 14}}) {
    std::filesystem::remove(folder / "slices");
    for (size_t i = 0; i < cuts.size(); i += 2) {
      TensorSlice slice{whole, cuts[i], cuts[i + 1]};
      slice.whole.data = values.const_data_ptr<float>() + slice.begin;
      write_slice(folder / "slices", slice);
    }
    EXPECT_EQ(test::read_bytes(folder / "slices"), test::read_bytes(folder / "whole"));
  }
}

}  // namespace ranges_test
}  // namespace hero
