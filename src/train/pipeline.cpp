#include "train/pipeline.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>

#include "model/history_message.h"

namespace hero {
namespace {

// Actions ahead whose inputs are asked for.
constexpr size_t kAhead = 2;

// Adds the time that it lives.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

bool forward_pass(const Action& action) { return action.pass == Pass::forward; }
bool takes_gradient(const Action& action) {
  return action.pass == Pass::backward || action.pass == Pass::input_gradient;
}

}  // namespace

Pipeline::Pipeline(const Transformer& model, const World& world) : model_(model), world_(world) {}

const Group& Pipeline::lane(int64_t from_chunk, int64_t to_chunk) const {
  const bool gradients = to_chunk < from_chunk;
  const int64_t lower = std::min(from_chunk, to_chunk);
  const bool wraps = rank_of(lower + 1) < rank_of(lower);
  return world_.lane(gradients, wraps);
}

bool Pipeline::couples(int64_t first_behind) const {
  return model_.config().router.coupling_loss > 0 && first_behind > 1 &&
         first_behind <= model_.layout().layers();
}

void Pipeline::send(const at::Tensor& t, int64_t from_chunk, int64_t to_chunk) {
  sent_.push_back(lane(from_chunk, to_chunk).send(t, rank_of(to_chunk), 0));
}

void Pipeline::run(const std::vector<Action>& actions, const Read& read, const Loss& loss,
                   const Deferral& deferral) {
  traffic_ = {};
  apart_ = std::ranges::any_of(actions, [](const Action& a) { return a.pass == Pass::weight_gradient; });
  size_t asked = 0;
  for (size_t i = 0; i < actions.size(); ++i) {
    for (; asked < std::min(i + 1 + kAhead, actions.size()); ++asked)
      ask(actions[asked], read(actions[asked].micro_batch));
    const auto& action = actions[i];
    if (forward_pass(action)) forward(action, read(action.micro_batch), loss, deferral);
    if (takes_gradient(action)) backward(action);
    if (action.pass == Pass::weight_gradient)
      put_off_.extract({action.chunk, action.micro_batch}).mapped()->run(deferral.added);
  }
  for (auto& pending : sent_) pending.wait();
  sent_.clear();
}

void Pipeline::ask(const Action& action, const MicroBatch& batch) {
  const Chunk& chunk = model_.part().chunks[held(action.chunk)];
  const Key key{action.chunk, action.micro_batch};
  const auto& config = model_.config();
  const int64_t b = batch.samples.size(0), s = batch.samples.size(1) - 1;
  const auto options = at::TensorOptions(model_.device());
  const auto receive = [&](Coming& coming, int64_t from, bool mass) {
    const Group& messages = lane(from, action.chunk);
    coming.x = at::empty({b, s, config.model.hidden_size}, options.dtype(train_dtype(config)));
    coming.x_pending = messages.receive(coming.x, rank_of(from), 0);
    if (!mass) return;
    coming.mass_T = at::empty({b * s}, options.dtype(at::promoteTypes(train_dtype(config), at::kFloat)));
    coming.mass_pending = messages.receive(coming.mass_T, rank_of(from), 0);
  };
  if (forward_pass(action) && !chunk.begins) {
    auto& coming = activations_[key];
    const int64_t width =
        history_message_width(model_.layout().experts(), config.parallel.history_top, router_dtype(config));
    for (const int64_t l : model_.layout().needed_from(chunk.first_moe)) {
      coming.history.emplace_back(l, at::empty({b * s, width}, options.dtype(at::kByte)));
      coming.history_pending.push_back(
          lane(action.chunk - 1, action.chunk)
              .receive(coming.history.back().second, rank_of(action.chunk - 1), 0));
    }
    receive(coming, action.chunk - 1, couples(chunk.first_moe));
  }
  if (takes_gradient(action) && !chunk.ends)
    receive(gradients_[key], action.chunk + 1, couples(chunk.last_moe));
}

void Pipeline::forward(const Action& action, const MicroBatch& batch, const Loss& loss,
                       const Deferral& deferral) {
  const Chunk& chunk = model_.part().chunks[held(action.chunk)];
  const Key key{action.chunk, action.micro_batch};
  const auto& config = model_.config();
  const int64_t length = batch.samples.size(1) - 1, tokens = batch.samples.size(0) * length;
  const int64_t top = config.parallel.history_top;
  const auto history = model_.new_history(chunk, tokens);
  const auto needed = [&behind = model_.layout().needed_from(chunk.last_moe)](int64_t l) {
    return std::ranges::binary_search(behind, l);
  };
  const auto pass_on = [&](const at::Tensor& message) {
    send(message, chunk.number, chunk.number + 1);
    traffic_.history += static_cast<int64_t>(message.nbytes());
  };
  Flight flight;
  if (chunk.begins) {
    flight.input = batch.samples.slice(1, 0, length).contiguous();
  } else {
    auto coming = std::move(activations_.extract(key).mapped());
    for (size_t i = 0; i < coming.history.size(); ++i) {
      const auto& [l, message] = coming.history[i];
      coming.history_pending[i].wait();
      const Stopwatch watch(traffic_.history_seconds);
      if (needed(l)) pass_on(message);
      history->store(l, unpack_history(message, model_.layout().experts(), top, router_dtype(config)));
    }
    coming.x_pending.wait();
    flight.input = coming.x.set_requires_grad(true);
    if (coming.mass_T.defined()) {
      coming.mass_pending.wait();
      flight.mass_in = coming.mass_T.set_requires_grad(true);
    }
  }
  if (apart_) flight.put_off = std::make_unique<ops::WeightGradients>(deferral.deferred);
  const ops::DeferWeightGradients guard(flight.put_off.get());
  const auto output = model_.run_chunk(held(action.chunk), flight.input, history, batch.position,
                                       config.train.recompute, [&](int64_t l) {
                                         if (!needed(l)) return;
                                         const Stopwatch watch(traffic_.history_seconds);
                                         pass_on(pack_history(history->slot(l).probs, top));
                                       });
  const auto losses = loss(chunk, output, batch, flight.mass_in);
  flight.loss = losses.total;
  if (!chunk.ends) {
    flight.output = output.hidden_TD;
    send(flight.output.detach(), chunk.number, chunk.number + 1);
    traffic_.activations += static_cast<int64_t>(flight.output.nbytes());
    if (couples(chunk.last_moe)) {
      flight.mass_out = losses.mass_T;
      send(flight.mass_out.detach(), chunk.number, chunk.number + 1);
      traffic_.activations += static_cast<int64_t>(flight.mass_out.nbytes());
    }
  }
  flights_.emplace(key, std::move(flight));
}

void Pipeline::backward(const Action& action) {
  const Chunk& chunk = model_.part().chunks[held(action.chunk)];
  const Key key{action.chunk, action.micro_batch};
  auto flight = std::move(flights_.extract(key).mapped());
  std::vector<at::Tensor> roots, gradients;
  // A first chunk without trainable weights has no graph.
  const auto add = [&](const at::Tensor& root, const at::Tensor& gradient) {
    if (!root.requires_grad()) return;
    roots.push_back(root);
    gradients.push_back(gradient);
  };
  if (flight.loss.defined()) add(flight.loss, {});
  if (!chunk.ends) {
    auto coming = std::move(gradients_.extract(key).mapped());
    coming.x_pending.wait();
    add(flight.output, coming.x);
    if (flight.mass_out.defined()) {
      coming.mass_pending.wait();
      add(flight.mass_out, coming.mass_T);
    }
  }
  if (!roots.empty()) torch::autograd::backward(roots, gradients);
  if (apart_) put_off_.emplace(key, std::move(flight.put_off));
  if (chunk.begins) return;
  send(flight.input.grad(), chunk.number, chunk.number - 1);
  traffic_.activations += static_cast<int64_t>(flight.input.nbytes());
  if (!flight.mass_in.defined()) return;
  send(flight.mass_in.grad(), chunk.number, chunk.number - 1);
  traffic_.activations += static_cast<int64_t>(flight.mass_in.nbytes());
}

}  // namespace hero
