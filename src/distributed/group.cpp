#include "distributed/group.h"

#include <ATen/ATen.h>

#include <functional>
#include <numeric>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "distributed/activity.h"
#include "io/error.h"

namespace hero {
namespace {

[[noreturn]] void fail(const std::string& what, const std::exception& e) {
  const std::string step = std::to_string(current_activity().step);
  throw RunError(diagnosis("step " + step + ": " + what + ", failed: " + one_line(e)));
}

// A flat view as bytes: data movement needs no dtype, and Gloo does not support all of them.
at::Tensor as_bytes(const at::Tensor& t) { return t.detach().view({t.numel()}).view(at::kByte); }

int64_t row_bytes(const at::Tensor& t) {
  const auto sizes = t.sizes().slice(1);
  return std::accumulate(sizes.begin(), sizes.end(), t.element_size(), std::multiplies<>());
}

void check_contiguous(const char* operation, const at::Tensor& t) {
  TORCH_CHECK(t.is_contiguous(), operation, ": expected a contiguous tensor, got sizes ", t.sizes(),
              " and strides ", t.strides());
}

void check_shards(const char* operation, const at::Tensor& whole, const at::Tensor& part, int64_t parts) {
  check_contiguous(operation, whole);
  check_contiguous(operation, part);
  TORCH_CHECK(whole.scalar_type() == part.scalar_type() && whole.numel() == part.numel() * parts, operation,
              ": expected ", parts, " times ", part.numel(), " elements of ", part.scalar_type(), ", got ",
              whole.numel(), " of ", whole.scalar_type());
}

void check_rows(const at::Tensor& t, const std::vector<int64_t>& counts, int64_t ranks) {
  check_contiguous("all_to_all", t);
  TORCH_CHECK(t.dim() > 0 && static_cast<int64_t>(counts.size()) == ranks &&
                  std::accumulate(counts.begin(), counts.end(), int64_t{0}) == t.size(0),
              "all_to_all: expected ", ranks, " counts that add up to the rows of ", t.sizes(), ", got ",
              counts);
}

AsyncWork start(const std::string& what, std::vector<at::Tensor> tensors,
                const std::function<c10::intrusive_ptr<c10d::Work>()>& begin) {
  try {
    return {begin(), what, std::move(tensors)};
  } catch (const std::exception& e) {
    fail(what, e);
  }
}

}  // namespace

AsyncWork::AsyncWork() = default;
AsyncWork::AsyncWork(c10::intrusive_ptr<c10d::Work> work, std::string what, std::vector<at::Tensor> tensors)
    : work_(std::move(work)), what_(std::move(what)), tensors_(std::move(tensors)) {}
AsyncWork::~AsyncWork() = default;
AsyncWork::AsyncWork(AsyncWork&&) noexcept = default;
AsyncWork& AsyncWork::operator=(AsyncWork&&) noexcept = default;

void AsyncWork::wait() {
  if (!work_) return;
  const ScopedWait waiting(what_);
  try {
    work_->wait();
  } catch (const std::exception& e) {
    fail(what_, e);
  }
  work_.reset();
  tensors_.clear();
}

Group::Group(std::string name, int64_t rank) : name_(std::move(name)), ranks_({rank}), rank_(0) {}
Group::Group(std::string name, std::vector<int64_t> ranks, int64_t rank,
             c10::intrusive_ptr<c10d::Backend> backend)
    : name_(std::move(name)), ranks_(std::move(ranks)), rank_(rank), backend_(std::move(backend)) {}
Group::~Group() = default;

std::string Group::describe_collective(const char* operation) const {
  return std::string(operation) + " over " + name_ + ", operation " + std::to_string(++operations_);
}

std::string Group::describe_point_to_point(const char* operation, int64_t peer, int tag) const {
  return std::string(operation) + " rank " + std::to_string(ranks_[peer]) + " over " + name_ + ", tag " +
         std::to_string(tag);
}

AsyncWork Group::all_reduce(const at::Tensor& t) const {
  check_contiguous("all_reduce", t);
  if (!backend_ || t.numel() == 0) return {};
  std::vector<at::Tensor> tensors = {t.detach()};
  return start(describe_collective("all_reduce"), tensors, [&] { return backend_->allreduce(tensors); });
}

AsyncWork Group::reduce_scatter(const at::Tensor& out, const at::Tensor& in) const {
  check_shards("reduce_scatter", in, out, size());
  if (!backend_ || in.numel() == 0) {
    out.detach().copy_(in.detach().view(out.sizes()));
    return {};
  }
  at::Tensor part = out.detach().view({out.numel()}), whole = in.detach().view({in.numel()});
  return start(describe_collective("reduce_scatter"), {part, whole},
               [&] { return backend_->_reduce_scatter_base(part, whole); });
}

AsyncWork Group::all_gather(const at::Tensor& out, const at::Tensor& in) const {
  check_shards("all_gather", out, in, size());
  if (!backend_ || in.numel() == 0) {
    out.detach().copy_(in.detach().view(out.sizes()));
    return {};
  }
  at::Tensor whole = as_bytes(out), part = as_bytes(in);
  return start(describe_collective("all_gather"), {whole, part},
               [&] { return backend_->_allgather_base(whole, part); });
}

AsyncWork Group::all_to_all(const at::Tensor& out, const at::Tensor& in, std::vector<int64_t> out_counts,
                            std::vector<int64_t> in_counts) const {
  check_rows(out, out_counts, size());
  check_rows(in, in_counts, size());
  const int64_t row = row_bytes(in);
  TORCH_CHECK(row_bytes(out) == row && out.scalar_type() == in.scalar_type(),
              "all_to_all: expected rows of the same size and dtype, got ", out.sizes(), " of ",
              out.scalar_type(), " and ", in.sizes(), " of ", in.scalar_type());
  if (!backend_) {
    out.detach().copy_(in.detach().view(out.sizes()));
    return {};
  }
  for (int64_t& count : out_counts) count *= row;
  for (int64_t& count : in_counts) count *= row;
  at::Tensor to = as_bytes(out), from = as_bytes(in);
  return start(describe_collective("all_to_all"), {to, from},
               [&] { return backend_->alltoall_base(to, from, out_counts, in_counts); });
}

AsyncWork Group::send(const at::Tensor& t, int64_t to, int tag) const {
  check_contiguous("send", t);
  TORCH_CHECK(to >= 0 && to < size() && to != rank_, "send: expected another of ", size(), " ranks, got ",
              to);
  if (t.numel() == 0) return {};
  std::vector<at::Tensor> tensors = {as_bytes(t)};
  return start(describe_point_to_point("send to", to, tag), tensors,
               [&] { return backend_->send(tensors, static_cast<int>(to), tag); });
}

AsyncWork Group::receive(const at::Tensor& t, int64_t from, int tag) const {
  check_contiguous("receive", t);
  TORCH_CHECK(from >= 0 && from < size() && from != rank_, "receive: expected another of ", size(),
              " ranks, got ", from);
  if (t.numel() == 0) return {};
  std::vector<at::Tensor> tensors = {as_bytes(t)};
  return start(describe_point_to_point("receive from", from, tag), tensors,
               [&] { return backend_->recv(tensors, static_cast<int>(from), tag); });
}

}  // namespace hero
