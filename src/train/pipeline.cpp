#include "train/pipeline.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>

#include "config/router_kinds.h"
#include "model/history_message.h"
#include "ops/autograd.h"

namespace hero {
namespace {

// Number of later actions whose receives are posted in advance.
constexpr size_t kPrefetchedActions = 2;

// Adds the time of its scope.
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

bool is_forward(const Action& action) { return action.pass == Pass::forward; }
bool needs_output_gradient(const Action& action) {
  return action.pass == Pass::backward || action.pass == Pass::input_gradient;
}

}  // namespace

Pipeline::Pipeline(const Transformer& model, const World& world) : model_(model), world_(world) {}

const Group& Pipeline::channel(int64_t from_chunk, int64_t to_chunk) const {
  const bool gradients = to_chunk < from_chunk;
  const int64_t lower = std::min(from_chunk, to_chunk);
  const bool wraps = rank_of(lower + 1) < rank_of(lower);
  return world_.channel(gradients ? (wraps ? Channel::kWrappedGradients : Channel::kGradients)
                                  : (wraps ? Channel::kWrappedActivations : Channel::kActivations));
}

bool Pipeline::has_coupling_across(int64_t first_layer_after) const {
  return !evaluating_ && model_.config().router.coupling_loss > 0 && first_layer_after > 1 &&
         first_layer_after <= model_.layout().layers();
}

int64_t Pipeline::message_top() const { return evaluating_ ? 0 : history_top(model_.config()); }

void Pipeline::send(const at::Tensor& t, int64_t from_chunk, int64_t to_chunk) {
  sent_.emplace_back(action_, channel(from_chunk, to_chunk).send(t, rank_of(to_chunk), 0));
}

void Pipeline::send_embedded(const at::Tensor& t, Channel channel, int64_t to_rank) {
  sent_.emplace_back(action_, world_.channel(channel).send(t, to_rank, 0));
  traffic_.activations += static_cast<int64_t>(t.nbytes());
}

void Pipeline::run(const std::vector<Action>& actions, const Read& read, const Loss& loss,
                   const DeferralHooks& hooks) {
  traffic_ = {};
  splits_backward_ =
      std::ranges::any_of(actions, [](const Action& a) { return a.pass == Pass::weight_gradient; });
  const size_t window = send_window(world_.mesh().pipeline * std::ssize(model_.shard().chunks));
  size_t posted = 0;
  for (size_t i = 0; i < actions.size(); ++i) {
    action_ = i;
    finish_sends(window);
    for (; posted < std::min(i + 1 + kPrefetchedActions, actions.size()); ++posted)
      post_receives(actions[posted], read(actions[posted].micro_batch));
    const auto& action = actions[i];
    if (is_forward(action)) forward(action, read(action.micro_batch), loss, hooks);
    if (needs_output_gradient(action)) backward(action);
    if (action.pass == Pass::weight_gradient)
      deferred_.extract({action.chunk, action.micro_batch}).mapped()->run(hooks.on_added);
  }
  action_ = actions.size();
  finish_sends(0);
}

void Pipeline::finish_sends(size_t window) {
  for (; !sent_.empty() && sent_.front().first + window <= action_; sent_.pop_front())
    sent_.front().second.wait();
}

void Pipeline::evaluate(const std::vector<Action>& actions, const Read& read, const Output& on_output) {
  const at::NoGradGuard no_grad;
  evaluating_ = true;
  const Loss loss = [&](const ModelChunk& chunk, const Transformer::Output& output, const MicroBatch& batch,
                        const at::Tensor&) {
    if (chunk.is_last) on_output(output, batch);
    return ChunkLoss();
  };
  run(actions, read, loss, {});
  evaluating_ = false;
}

void Pipeline::post_receives(const Action& action, const MicroBatch& batch) {
  const ModelChunk& chunk = model_.shard().chunks[local_index(action.chunk)];
  const Key key{action.chunk, action.micro_batch};
  const auto& config = model_.config();
  const int64_t b = batch.samples.size(0), s = batch.samples.size(1) - 1;
  const auto options = at::TensorOptions(model_.device());
  const auto new_rows = [&] {
    return at::empty({b, s, config.model.hidden_size}, options.dtype(train_dtype(config)));
  };
  const auto receive = [&](PendingReceive& incoming, int64_t from, bool mass) {
    const Group& group = channel(from, action.chunk);
    incoming.x = new_rows();
    incoming.x_work = group.receive(incoming.x, rank_of(from), 0);
    if (!mass) return;
    incoming.mass_T = at::empty({b * s}, options.dtype(at::promoteTypes(train_dtype(config), at::kFloat)));
    incoming.mass_work = group.receive(incoming.mass_T, rank_of(from), 0);
  };
  const auto receive_embedded = [&](PendingReceive& incoming, Channel channel, int64_t from_rank) {
    if (!model_.runs_modules(batch.position)) return;
    incoming.embedded = new_rows();
    incoming.embedded_work = world_.channel(channel).receive(incoming.embedded, from_rank, 0);
  };
  if (is_forward(action) && !chunk.is_first) {
    auto& incoming = activations_[key];
    const int64_t width = history_message_width(model_.layout().width(), message_top(), router_dtype(config));
    for (const int64_t l : model_.layout().needed_from(chunk.first_moe)) {
      incoming.history.emplace_back(l, at::empty({b * s, width}, options.dtype(at::kByte)));
      incoming.history_work.push_back(
          channel(action.chunk - 1, action.chunk)
              .receive(incoming.history.back().second, rank_of(action.chunk - 1), 0));
    }
    receive(incoming, action.chunk - 1, has_coupling_across(chunk.first_moe));
    if (chunk.is_last) receive_embedded(incoming, Channel::kEmbeddings, 0);
  }
  if (needs_output_gradient(action) && !chunk.is_last) {
    auto& incoming = gradients_[key];
    receive(incoming, action.chunk + 1, has_coupling_across(chunk.last_moe));
    if (chunk.is_first) receive_embedded(incoming, Channel::kEmbeddingGradients, last_rank());
  }
}

void Pipeline::forward(const Action& action, const MicroBatch& batch, const Loss& loss,
                       const DeferralHooks& hooks) {
  const ModelChunk& chunk = model_.shard().chunks[local_index(action.chunk)];
  const Key key{action.chunk, action.micro_batch};
  const auto& config = model_.config();
  const int64_t length = batch.samples.size(1) - 1, tokens = batch.samples.size(0) * length;
  const int64_t top = message_top();
  const auto history = model_.new_history(chunk, tokens);
  const auto needed = [&layers = model_.layout().needed_from(chunk.last_moe)](int64_t l) {
    return std::ranges::binary_search(layers, l);
  };
  const auto forward_history = [&](const at::Tensor& message) {
    send(message, chunk.index, chunk.index + 1);
    traffic_.history += static_cast<int64_t>(message.nbytes());
  };
  InFlightOperation operation;
  if (chunk.is_first) {
    operation.input = batch.samples.slice(1, 0, length).contiguous();
  } else {
    auto incoming = std::move(activations_.extract(key).mapped());
    for (size_t i = 0; i < incoming.history.size(); ++i) {
      const auto& [l, message] = incoming.history[i];
      incoming.history_work[i].wait();
      const Stopwatch watch(traffic_.history_seconds);
      if (needed(l)) forward_history(message);
      history->store(l, unpack_history(message, model_.layout().width(), top, router_dtype(config)));
    }
    incoming.x_work.wait();
    operation.input = incoming.x.set_requires_grad(!evaluating_);
    if (incoming.mass_T.defined()) {
      incoming.mass_work.wait();
      operation.mass_in = incoming.mass_T.set_requires_grad(true);
    }
    if (incoming.embedded.defined()) {
      incoming.embedded_work.wait();
      operation.embedded = incoming.embedded.set_requires_grad(true);
    }
  }
  if (splits_backward_) operation.deferred = std::make_unique<ops::WeightGradientQueue>(hooks.on_deferred);
  const ops::DeferWeightGradients guard(operation.deferred.get());
  const auto output =
      model_.run_chunk(local_index(action.chunk), {operation.input, operation.embedded}, history,
                       batch.position, config.train.recompute && !evaluating_, [&](int64_t l) {
                         if (!needed(l)) return;
                         const Stopwatch watch(traffic_.history_seconds);
                         forward_history(pack_history(history->slot(l).probs, top));
                       });
  const auto losses = loss(chunk, output, batch, operation.mass_in);
  operation.loss = losses.total;
  if (!chunk.is_last) {
    operation.output = output.hidden_TD;
    send(operation.output.detach(), chunk.index, chunk.index + 1);
    traffic_.activations += static_cast<int64_t>(operation.output.nbytes());
    if (has_coupling_across(chunk.last_moe)) {
      operation.mass_out = losses.mass_T;
      send(operation.mass_out.detach(), chunk.index, chunk.index + 1);
      traffic_.activations += static_cast<int64_t>(operation.mass_out.nbytes());
    }
  }
  if (output.embedded.defined()) {
    operation.embedded = output.embedded;
    send_embedded(operation.embedded.detach(), Channel::kEmbeddings, last_rank());
  }
  if (!evaluating_) in_flight_.emplace(key, std::move(operation));
}

void Pipeline::backward(const Action& action) {
  const ModelChunk& chunk = model_.shard().chunks[local_index(action.chunk)];
  const Key key{action.chunk, action.micro_batch};
  auto operation = std::move(in_flight_.extract(key).mapped());
  std::vector<at::Tensor> roots, gradients;
  // A first chunk without trainable weights has no graph.
  const auto add = [&](const at::Tensor& root, const at::Tensor& gradient) {
    if (!root.requires_grad()) return;
    roots.push_back(root);
    gradients.push_back(gradient);
  };
  if (operation.loss.defined()) add(operation.loss, {});
  if (!chunk.is_last) {
    auto incoming = std::move(gradients_.extract(key).mapped());
    incoming.x_work.wait();
    add(operation.output, incoming.x);
    if (operation.mass_out.defined()) {
      incoming.mass_work.wait();
      add(operation.mass_out, incoming.mass_T);
    }
    if (incoming.embedded.defined()) {
      incoming.embedded_work.wait();
      add(operation.embedded, incoming.embedded);
    }
  }
  if (!roots.empty()) ops::backward(roots, gradients);
  if (splits_backward_) deferred_.emplace(key, std::move(operation.deferred));
  if (chunk.is_first) return;
  if (operation.embedded.defined())
    send_embedded(operation.embedded.grad(), Channel::kEmbeddingGradients, /*to_rank=*/0);
  send(operation.input.grad(), chunk.index, chunk.index - 1);
  traffic_.activations += static_cast<int64_t>(operation.input.nbytes());
  if (!operation.mass_in.defined()) return;
  send(operation.mass_in.grad(), chunk.index, chunk.index - 1);
  traffic_.activations += static_cast<int64_t>(operation.mass_in.nbytes());
}

}  // namespace hero
