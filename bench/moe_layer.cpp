// bench_moe_layer [--rounds N] [--calls N] [--quick] [--device cpu|cuda]: a single bf16 MoE layer, router to
// combine, forward and backward, with balanced load and with one expert that receives half of the tokens.
// Prints a line of JSON per shape: throughput in FLOP/s, and its share of the GEMM throughput measured in the
// same run.
#include <ATen/ATen.h>

#include <CLI/CLI.hpp>

#include "ops/gemm_throughput.h"
#include "ops/ops.h"
#include "paired.h"
#include "train/process.h"

namespace hero::bench {
namespace {

struct Shape {
  int64_t tokens, width, inner, experts;
  int64_t k = 4;
};

// Weight gradients are fp32, as in training.
at::Tensor leaf(at::IntArrayRef shape, double scale, at::Device device) {
  auto w = (at::randn(shape, at::TensorOptions(device)) * scale).to(at::kBFloat16).set_requires_grad(true);
  w.set_grad_dtype(at::kFloat);
  return w;
}

// Round-robin assignments; skewed: the first choice of every other token is expert 0, which no other
// assignment uses.
at::Tensor assignments(const Shape& s, bool skewed) {
  const int64_t others = skewed ? s.experts - 1 : s.experts;
  auto ids =
      (at::arange(s.tokens * s.k, at::kLong).remainder(others) + (skewed ? 1 : 0)).view({s.tokens, s.k});
  if (skewed) ids.slice(0, 0, s.tokens, 2).select(1, 0).fill_(0);
  return ids;
}

class Layer {
 public:
  Layer(const Shape& s, at::Device device)
      : shape_(s),
        x_(leaf({s.tokens, s.width}, 1.0, device)),
        router_(leaf({s.experts, s.width}, 0.02, device)),
        gate_up_(leaf({s.experts, 2 * s.inner, s.width}, 0.02, device)),
        down_(leaf({s.experts, s.width, s.inner}, 0.02, device)),
        dy_(at::randn({s.tokens, s.width}, x_.options().dtype(at::kFloat)).to(at::kBFloat16)) {}

  void step(const at::Tensor& ids) const {
    const auto routed = ops::route(x_, router_, std::nullopt, {});
    const auto chosen = routed.probs.gather(1, ids);
    const auto plan = ops::plan(ids, shape_.experts);
    const auto rows = ops::permute(x_, plan);
    const auto y =
        ops::combine(ops::experts(rows, gate_up_, down_, plan), chosen / chosen.sum(1, true), plan);
    y.backward(dy_);
    for (const at::Tensor& t : {x_, router_, gate_up_, down_}) t.mutable_grad() = at::Tensor();
  }

  /// FLOPs of the forward and backward pass.
  double flops() const {
    const auto rows = static_cast<double>(shape_.tokens * shape_.k);
    const auto number = [](int64_t n) { return static_cast<double>(n); };
    return 6 * (rows * 3 * number(shape_.width * shape_.inner) +
                number(shape_.tokens) * number(shape_.width * shape_.experts));
  }

 private:
  Shape shape_;
  at::Tensor x_, router_, gate_up_, down_, dy_;
};

void measure(const Shape& s, at::Device device, int64_t rounds, int64_t calls) {
  const Layer layer(s, device);
  const auto even = assignments(s, false).to(device), skewed = assignments(s, true).to(device);
  std::vector<double> gemm;
  std::vector<Variant> both = {{"balanced", [&] { layer.step(even); }},
                               {"one expert takes half", [&] { layer.step(skewed); }}};
  for (int64_t round = 0; round < rounds; ++round) {
    gemm.push_back(gemm_flops_per_second(at::kBFloat16, device));
    run_rounds(both, 1, calls, device);
  }
  std::vector<double> throughputs[2], shares[2], ratios;
  for (size_t i = 0; i < gemm.size(); ++i) {
    for (int side = 0; side < 2; ++side) {
      throughputs[side].push_back(layer.flops() / both[side].seconds[i]);
      shares[side].push_back(throughputs[side].back() / gemm[i]);
    }
    ratios.push_back(throughputs[1].back() / throughputs[0].back());
  }
  print_line({{"tokens", s.tokens},
              {"hidden_size", s.width},
              {"moe_intermediate_size", s.inner},
              {"experts", s.experts},
              {"k", s.k},
              {"gemm_rate", gemm},
              {"balanced", {{"rate", throughputs[0]}, {"share", shares[0]}}},
              {"skewed", {{"rate", throughputs[1]}, {"share", shares[1]}}},
              {"skewed_over_balanced", ratios}});
}

}  // namespace
}  // namespace hero::bench

int main(int argc, char** argv) try {
  CLI::App app("A single MoE layer: balanced load, and one expert with half of the tokens");
  int64_t rounds = 5, calls = 5;
  bool quick = false;
  app.add_option("--rounds", rounds, "interleaved measurements of both variants")->check(CLI::Range(1, 1000));
  app.add_option("--calls", calls, "forward and backward passes per measurement")->check(CLI::Range(1, 1000));
  app.add_flag("--quick", quick, "one small shape");
  std::string wanted = "cpu";
  app.add_option("--device", wanted, "cpu or cuda");
  CLI11_PARSE(app, argc, argv);
  const auto device =
      hero::choose_device(hero::parse_choice<hero::DeviceChoice>("--device", wanted), "--device");
  hero::prepare_process(hero::Config());  // all cores
  at::manual_seed(1);
  for (const int64_t tokens : {2048, 4096}) {
    for (const auto& [width, inner] : {std::pair<int64_t, int64_t>{256, 160}, {1024, 640}}) {
      for (const int64_t experts : {32, 64, 128}) {
        hero::bench::measure({tokens, width, inner, experts}, device, rounds, calls);
        if (quick) return 0;
      }
    }
  }
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
