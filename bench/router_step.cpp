// bench_router_step [--rounds N] [--calls N] [--layers N] [--tokens N] [--experts N] [--device cpu|cuda]:
// forward and backward pass of all routers of the paper's model (30 layers of 128 experts in two stages,
// hidden size 1024) for one micro-batch of 4,096 tokens in bf16: without history, with history by
// hero::route, with history concatenated by PyTorch operators, as the paper's equations state, and RMoE.
// Prints one line of JSON.
#include <ATen/ATen.h>

#include <CLI/CLI.hpp>

#include "model/history.h"
#include "model/router.h"
#include "ops/autograd.h"
#include "ops/ops.h"
#include "paired.h"
#include "train/process.h"

namespace hero::bench {
namespace {

constexpr int64_t kWidth = 1024, kStateSize = 256;
constexpr double kEps = 1e-6;

RouterConfig router_config(const std::string& kind) {
  RouterConfig config;
  config.kind = kind;
  config.stages = 2;
  return config;
}

// Inputs of all routers for a micro-batch, and the gradients of their probabilities.
struct Batch {
  int64_t experts;
  std::vector<at::Tensor> x, dprobs;

  Batch(int64_t layers, int64_t tokens, int64_t num_experts, at::Device device) : experts(num_experts) {
    const at::TensorOptions there(device);
    for (int64_t l = 0; l < layers; ++l) {
      x.push_back(at::randn({tokens, kWidth}, there).to(at::kBFloat16));
      dprobs.push_back(at::randn({tokens, experts}, there));
    }
  }
};

void clear_gradients(const std::vector<at::Tensor>& leaves) {
  for (const auto& leaf : leaves) leaf.mutable_grad() = at::Tensor();
}

class Routers {
 public:
  Routers(const std::string& kind, const Batch& batch, at::ScalarType dtype, bool wide_gradients)
      : batch_(&batch),
        config_(router_config(kind)),
        layout_(static_cast<int64_t>(batch.x.size()), batch.experts, config_),
        dtype_(dtype) {
    for (int64_t l = 1; l <= layout_.layers(); ++l) {
      const auto columns = kWidth + static_cast<int64_t>(layout_.visible(l).size()) * batch.experts;
      auto w = (at::randn({batch.experts, columns}, batch.x[0].options().dtype(at::kFloat)) * 0.02)
                   .to(dtype)
                   .set_requires_grad(true);
      if (wide_gradients) w.set_grad_dtype(at::kFloat);
      weights_.push_back(w);
      inputs_.push_back(batch.x[l - 1].to(dtype).detach().set_requires_grad(true));
    }
  }

  /// Our fused operator, with or without history.
  void fused() const {
    const RoutingHistory history(layout_, inputs_[0].size(0), dtype_, /*differentiable=*/false,
                                 inputs_[0].device());
    std::vector<at::Tensor> probs;
    for (int64_t l = 1; l <= layout_.layers(); ++l)
      probs.push_back(
          ops::route(inputs_[l - 1], weights_[l - 1], history.visible(l, config_), history.slot(l)).probs);
    finish(probs);
  }

  /// u = [x | rho * H], Z = u W^T, Q = softmax(Z); concatenates H for every layer.
  void concatenating() const {
    std::vector<at::Tensor> probs, detached;
    for (int64_t l = 1; l <= layout_.layers(); ++l) {
      const auto& x = inputs_[l - 1];
      std::vector<at::Tensor> seen;
      for (const int64_t j : layout_.visible(l)) seen.push_back(detached[j - 1]);
      auto u = x;
      if (!seen.empty()) {
        const auto h = at::cat(seen, 1);
        const auto rms = [](const at::Tensor& t) {
          return t.detach().to(at::kFloat).pow(2).mean(1, true).sqrt();
        };
        const auto rho = rms(x) / (rms(h) + kEps) * layout_.depth_factor(l);
        u = at::cat({x, (rho * h).to(dtype_)}, 1);
      }
      probs.push_back(at::linear(u, weights_[l - 1]).to(at::kFloat).softmax(1));
      detached.push_back(probs.back().detach().to(dtype_));
    }
    finish(probs);
  }

 private:
  void finish(const std::vector<at::Tensor>& probs) const {
    ops::backward(probs, batch_->dprobs);
    clear_gradients(weights_);
    clear_gradients(inputs_);
  }

  const Batch* batch_;
  RouterConfig config_;
  HistoryLayout layout_;
  at::ScalarType dtype_;
  std::vector<at::Tensor> weights_, inputs_;
};

// The recurrent router (router.kind=rmoe), as the model calls it.
class RecurrentRouters {
 public:
  explicit RecurrentRouters(const Batch& batch)
      : batch_(&batch),
        config_(rmoe_config(batch.experts)),
        layout_(static_cast<int64_t>(batch.x.size()), batch.experts, config_.router),
        parameters_(train_dtype(config_), /*seed=*/1, batch.x[0].device()) {
    for (int64_t l = 1; l <= layout_.layers(); ++l) {
      routers_.emplace_back(parameters_, "model.layers." + std::to_string(l - 1) + ".mlp", l, config_,
                            layout_);
      inputs_.push_back(batch.x[l - 1].detach().set_requires_grad(true));
    }
  }
  RecurrentRouters(const RecurrentRouters&) = delete;

  void operator()() const {
    RoutingHistory history(layout_, inputs_[0].size(0), router_dtype(config_), /*differentiable=*/false,
                           inputs_[0].device());
    std::vector<at::Tensor> probs;
    for (size_t i = 0; i < routers_.size(); ++i) probs.push_back(routers_[i](inputs_[i], history).probs);
    ops::backward(probs, batch_->dprobs);
    for (const auto& router : routers_) clear_gradients(router.weights());
    clear_gradients(inputs_);
  }

 private:
  static Config rmoe_config(int64_t experts) {
    Config config;
    config.model.hidden_size = kWidth;
    config.model.num_experts = experts;
    config.router = router_config("rmoe");
    config.router.state_size = kStateSize;
    config.train.dtype = Dtype::kBf16;
    return config;
  }

  const Batch* batch_;
  Config config_;
  HistoryLayout layout_;
  Parameters parameters_;
  std::vector<Router> routers_;
  std::vector<at::Tensor> inputs_;
};

}  // namespace
}  // namespace hero::bench

int main(int argc, char** argv) try {
  using namespace hero::bench;
  CLI::App app("All routers of the paper's model, forward and backward");
  int64_t rounds = 5, calls = 3, layers = 30, tokens = 4096, experts = 128;
  app.add_option("--rounds", rounds, "interleaved measurements of all variants")->check(CLI::Range(1, 1000));
  app.add_option("--calls", calls, "steps per measurement")->check(CLI::Range(1, 1000));
  app.add_option("--layers", layers, "MoE layers, in two stages")->check(CLI::Range(2, 1000));
  app.add_option("--tokens", tokens, "tokens per micro-batch")->check(CLI::Range(1, 1 << 20));
  app.add_option("--experts", experts, "experts per layer")->check(CLI::Range(2, 4096));
  std::string wanted = "cpu";
  app.add_option("--device", wanted, "cpu or cuda");
  CLI11_PARSE(app, argc, argv);
  const auto device =
      hero::choose_device(hero::parse_choice<hero::DeviceChoice>("--device", wanted), "--device");
  hero::prepare_process(hero::Config());
  at::manual_seed(1);
  const Batch batch(layers, tokens, experts, device);
  const Routers baseline("baseline", batch, at::kBFloat16, true), hero("hero", batch, at::kBFloat16, true),
      joined("hero", batch, at::kBFloat16, false), joined_wide("hero", batch, at::kFloat, false);
  const RecurrentRouters rmoe(batch);
  std::vector<Variant> all = {{"baseline", [&] { baseline.fused(); }},
                              {"hero", [&] { hero.fused(); }},
                              {"concatenating_bf16", [&] { joined.concatenating(); }},
                              {"concatenating_fp32", [&] { joined_wide.concatenating(); }},
                              {"rmoe", [&] { rmoe(); }}};
  run_rounds(all, rounds, calls, device);
  nlohmann::ordered_json line = {{"layers", layers}, {"tokens", tokens}, {"experts", experts}};
  for (const auto& variant : all) line["seconds"][variant.name] = variant.seconds;
  print_line(line);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
