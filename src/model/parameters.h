#pragma once
// The weights of a model. Each has fp32 master values that the optimizer owns (fp64 in fp64 runs) and a leaf
// of the training dtype that operators read and whose gradient is fp32; in fp32 and fp64 runs both are the
// same tensor. Fused parameters (all experts of a layer; q, k and v) are saved as separate tensors under
// Hugging Face's names: the parameter's parts.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "model/component.h"

namespace hero {

/// Initializes a part; the values depend only on the seed and the part's name.
using Init = std::function<void(const at::Tensor& values, uint64_t seed, const std::string& name)>;

Init normal_init(double std);
Init constant_init(double value);

/// kUnset: the values are uninitialized memory until they are loaded, because sampling them takes longer than
/// reading them from a file.
enum class InitialValues { kSampled, kUnset };

/// A contiguous slice of a parameter and its name in checkpoints.
struct ParameterPart {
  std::string name;
  std::vector<int64_t> shape;
  Init init;
  int64_t offset = 0;  ///< elements; set by Parameters::add

  /// View of this part of a tensor shaped like the parameter (values, gradient or moments).
  at::Tensor view_of(const at::Tensor& whole) const;
};

struct Parameter {
  std::string name;     ///< of its module, e.g. model.layers.0.mlp.experts.gate_up_proj
  at::Tensor values;    ///< fp32 or fp64, no gradient; undefined if only the optimizer's shards hold them
  at::Tensor leaf;      ///< read by operators; requires a gradient unless frozen
  bool decay = false;   ///< weight decay applies: to matrices, not to norm weights
  int64_t uses = 1;     ///< layers that read the leaf
  bool expert = false;  ///< weights of routed experts, which expert parallelism shards
  Component component = Component::kEmbedding;  ///< kRouter also for a router with history columns
  int64_t history_columns = 0;                  ///< trailing columns of a router's weight: W_R
  std::vector<ParameterPart> parts;
};

class Parameters {
 public:
  /// `dtype`: the leaves' type. Sampled values are computed on the CPU and moved to `device`.
  Parameters(at::ScalarType dtype, uint64_t seed, at::Device device = at::kCPU,
             InitialValues initial = InitialValues::kSampled);

  /// Adds a parameter of this shape whose parts are consecutive in memory, and returns its leaf. `dtype`
  /// overrides the leaves' type.
  at::Tensor add(const std::string& name, const std::vector<int64_t>& shape, std::vector<ParameterPart> parts,
                 bool decay, std::optional<at::ScalarType> dtype = {});
  /// Adds a parameter with a single part of the same name.
  at::Tensor add(const std::string& name, const std::vector<int64_t>& shape, const Init& init, bool decay,
                 std::optional<at::ScalarType> dtype = {});
  /// Marks the last parameter as weights of routed experts.
  void mark_expert() { all_.back().expert = true; }
  /// Marks the last `columns` columns of the last parameter as a router's history weights.
  void mark_history_columns(int64_t columns) { all_.back().history_columns = columns; }
  /// The leaf of the last parameter whose name ends with `suffix`, for one more layer that reads it.
  at::Tensor share(const std::string& suffix);
  /// Adds an fp32 tensor that is saved with the weights and has no gradient (expert biases).
  at::Tensor add_buffer(const std::string& name, const std::vector<int64_t>& shape);

  std::vector<Parameter>& all() { return all_; }
  const std::vector<Parameter>& all() const { return all_; }
  const std::map<std::string, at::Tensor>& buffers() const { return buffers_; }

  /// Names in checkpoints with views of all parts' values, and the buffers.
  std::vector<std::pair<std::string, at::Tensor>> state_dict() const;

  /// Sets requires_grad of every parameter to `trainable(name)`.
  void freeze_unless(const std::function<bool(const std::string& name)>& trainable);

  /// Copies the values into leaves of a different dtype; call after changing the values.
  void update_leaves();

  at::Device device() const { return device_; }

 private:
  at::ScalarType dtype_;
  uint64_t seed_;
  at::Device device_;
  InitialValues initial_;
  std::vector<Parameter> all_;
  std::map<std::string, at::Tensor> buffers_;
};

}  // namespace hero
