// Every group operation between real processes, compared with the result computed in one process.
#include "distributed/group.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "distributed/processes.h"
#include "distributed/world.h"

namespace hero {
namespace group_test {

const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kDouble, at::kBFloat16, at::kLong, at::kBool};

// Input of rank r; every rank can compute it.
at::Tensor rank_input(int64_t rank, at::IntArrayRef sizes, at::ScalarType type) {
  const int64_t n = c10::multiply_integers(sizes);
  return at::arange(n, at::kLong).mul(37).add(11 * rank + 5).remainder(101).sub(50).to(type).view(sizes);
}

void expect_equal(const at::Tensor& found, const at::Tensor& expected, const char* what) {
  EXPECT_TRUE(at::equal(found, expected)) << what << " of " << expected.scalar_type() << ": found\n"
                                          << found << "\nexpected\n"
                                          << expected;
}

void in_world(int size, const std::function<void(const Group&)>& test) {
  run_processes(size, [&] {
    Config config;
    config.train.global_batch = 48;
    config.parallel.timeout = 60;
    const World world(read_launch(), config, at::kCPU);
    ASSERT_EQ(world.all().size(), size);
    test(world.all());
  });
}

class GroupOf : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(, GroupOf, testing::Values(2, 3, 4));

TEST_P(GroupOf, all_reduce) {
  in_world(GetParam(), [](const Group& group) {
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong}) {
      at::Tensor t = rank_input(group.rank(), {5, 3}, type), sum = at::zeros({5, 3}, type);
      for (int64_t r = 0; r < group.size(); ++r) sum += rank_input(r, {5, 3}, type);
      group.all_reduce(t).wait();
      expect_equal(t, sum, "all_reduce");
    }
  });
}

TEST_P(GroupOf, reduce_scatter) {
  in_world(GetParam(), [](const Group& group) {
    const int64_t n = group.size();
    for (const auto type : {at::kFloat, at::kDouble}) {
      at::Tensor sum = at::zeros({2 * n, 3}, type), part = at::empty({2, 3}, type);
      for (int64_t r = 0; r < n; ++r) sum += rank_input(r, {2 * n, 3}, type);
      const at::Tensor whole = rank_input(group.rank(), {2 * n, 3}, type);
      group.reduce_scatter(part, whole).wait();
      expect_equal(part, sum.narrow(0, 2 * group.rank(), 2), "reduce_scatter");
      expect_equal(whole, rank_input(group.rank(), {2 * n, 3}, type), "input of reduce_scatter");
    }
  });
}

// Floating-point sums depend on their order, which must be the same in every repetition and on every rank.
TEST_P(GroupOf, reductions_are_deterministic) {
  in_world(GetParam(), [](const Group& group) {
    const int64_t n = group.size();
    const at::Tensor mine = (rank_input(group.rank(), {n * 1000}, at::kFloat) + 0.3).pow(5).sin();
    at::Tensor first, first_part;
    for (int repetition = 0; repetition < 5; ++repetition) {
      at::Tensor t = mine.clone(), part = at::empty({1000}, at::kFloat), parts = at::empty_like(mine);
      AsyncWork sum = group.all_reduce(t);
      group.reduce_scatter(part, mine).wait();
      sum.wait();
      if (repetition == 0) first = t, first_part = part;
      expect_equal(t, first, "repeated all_reduce");
      expect_equal(part, first_part, "repeated reduce_scatter");
      at::Tensor all = at::empty({n, n * 1000}, at::kFloat);
      group.all_gather(all, t).wait();
      for (int64_t r = 0; r < n; ++r) expect_equal(all[r], t, "all_reduce on another rank");
    }
  });
}

TEST_P(GroupOf, all_gather) {
  in_world(GetParam(), [](const Group& group) {
    for (const auto type : kDtypes) {
      at::Tensor out = at::empty({group.size(), 4, 3}, type);
      group.all_gather(out, rank_input(group.rank(), {4, 3}, type)).wait();
      for (int64_t r = 0; r < group.size(); ++r)
        expect_equal(out[r], rank_input(r, {4, 3}, type), "all_gather");
    }
  });
}

// Rank r sends rows[r][s] rows to rank s.
void expect_all_to_all(const Group& group, const std::vector<std::vector<int64_t>>& rows,
                       at::ScalarType type) {
  const int64_t n = group.size(), me = group.rank();
  const auto sum = [](const std::vector<int64_t>& v) {
    return std::accumulate(v.begin(), v.end(), int64_t{0});
  };
  std::vector<int64_t> out_counts;
  std::vector<at::Tensor> expected;
  for (int64_t r = 0; r < n; ++r) {
    out_counts.push_back(rows[r][me]);
    const at::Tensor in = rank_input(r, {sum(rows[r]), 3}, type);
    expected.push_back(in.split_with_sizes(rows[r])[me]);
  }
  at::Tensor out = at::empty({sum(out_counts), 3}, type);
  group.all_to_all(out, rank_input(me, {sum(rows[me]), 3}, type), out_counts, rows[me]).wait();
  expect_equal(out, at::cat(expected), "all_to_all");
}

TEST_P(GroupOf, all_to_all) {
  in_world(GetParam(), [](const Group& group) {
    const int64_t n = group.size();
    using Rows = std::vector<std::vector<int64_t>>;
    const auto rows = [&](const std::function<int64_t(int64_t, int64_t)>& count) {
      Rows result(n, std::vector<int64_t>(n));
      for (int64_t r = 0; r < n; ++r)
        for (int64_t s = 0; s < n; ++s) result[r][s] = count(r, s);
      return result;
    };
    for (const auto type : kDtypes) {
      expect_all_to_all(group, rows([](int64_t r, int64_t s) { return 1 + (3 * r + s) % 4; }), type);
      expect_all_to_all(group, rows([](int64_t r, int64_t s) { return (r + s) % 2; }), type);
      expect_all_to_all(group, rows([](int64_t, int64_t s) { return s == 0 ? 5 : 0; }), type);  // all to one
      expect_all_to_all(group, rows([](int64_t r, int64_t) { return r == 1 ? 2 : 0; }), type);  // one to all
      expect_all_to_all(group, rows([](int64_t r, int64_t s) { return r == s ? 3 : 0; }), type);
      expect_all_to_all(group, rows([](int64_t, int64_t) { return 0; }), type);
    }
  });
}

TEST_P(GroupOf, send_and_receive_keep_order) {
  in_world(GetParam(), [](const Group& group) {
    const int64_t n = group.size(), next = (group.rank() + 1) % n, last = (group.rank() + n - 1) % n;
    for (const auto type : kDtypes) {
      std::vector<AsyncWork> works;
      std::vector<at::Tensor> received;
      for (int64_t i = 0; i < 3; ++i) {
        works.push_back(group.send(rank_input(group.rank() + 10 * i, {i, 4}, type), next, 7));
        received.push_back(at::empty({i, 4}, type));
        works.push_back(group.receive(received.back(), last, 7));
      }
      for (AsyncWork& work : works) work.wait();
      for (int64_t i = 0; i < 3; ++i)
        expect_equal(received[i], rank_input(last + 10 * i, {i, 4}, type), "message");
    }
  });
}

TEST(Group, single_process_group_copies) {
  run_processes(1, [] {
    const Group group("data ranks", 0);
    const at::Tensor in = rank_input(0, {4, 3}, at::kFloat);
    at::Tensor out = at::empty_like(in);
    group.all_gather(out, in).wait();
    expect_equal(out, in, "all_gather");
    out.zero_();
    group.reduce_scatter(out, in).wait();
    expect_equal(out, in, "reduce_scatter");
    out.zero_();
    group.all_to_all(out, in, {4}, {4}).wait();
    expect_equal(out, in, "all_to_all");
    group.all_reduce(out).wait();
    expect_equal(out, in, "all_reduce");
    EXPECT_THROW(group.send(in, 0, 0), c10::Error);
    EXPECT_THROW(group.all_reduce(in.t()), c10::Error);
    EXPECT_THROW(group.all_to_all(out, in, {4}, {3}), c10::Error);
    EXPECT_THROW(group.all_gather(out, in.to(at::kDouble)), c10::Error);
  });
}

}  // namespace group_test
}  // namespace hero
