#pragma once
// The weights of a model. Each has fp32 values that the optimizer owns (fp64 in fp64 runs) and a leaf in the
// run's type that the operators read and whose gradient is fp32; in fp32 and fp64 runs the two are one
// tensor. What lies together in memory (all experts of a layer; q, k and v) lies apart on disk, under Hugging
// Face's names: a parameter's parts.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace hero {

/// Writes initial values into a part, from (seed, the part's name) alone.
using Init = std::function<void(const at::Tensor& values, uint64_t seed, const std::string& name)>;

Init normal_init(double std);
Init constant_init(double value);

/// A contiguous piece of a parameter with its name on disk.
struct ParameterPart {
  std::string name;
  std::vector<int64_t> shape;
  Init init;
  int64_t offset = 0;  ///< elements; set by Parameters::add

  /// The part's view of a tensor shaped like its parameter (values, gradient or moments).
  at::Tensor of(const at::Tensor& whole) const;
};

struct Parameter {
  std::string name;  ///< of its module, e.g. model.layers.0.mlp.experts.gate_up_proj
  at::Tensor
      values;       ///< fp32 or fp64, no gradient; undefined where only an optimizer's pieces are left of it
  at::Tensor leaf;  ///< what operators read; requires a gradient unless frozen
  bool decay = false;   ///< takes weight decay: matrices do, norm weights do not
  bool expert = false;  ///< belongs to experts: other ranks that split them hold others
  std::vector<ParameterPart> parts;
};

class Parameters {
 public:
  /// `dtype`: the leaves' type. Initial values are drawn on the CPU and moved to `device`.
  Parameters(at::ScalarType dtype, uint64_t seed, at::Device device = at::kCPU);

  /// Adds a parameter of this shape, made of parts that follow each other in memory, and returns its leaf.
  /// `dtype` overrides the leaves' type.
  at::Tensor add(const std::string& name, const std::vector<int64_t>& shape, std::vector<ParameterPart> parts,
                 bool decay, std::optional<at::ScalarType> dtype = {});
  /// A parameter that is one part of its own name.
  at::Tensor add(const std::string& name, const std::vector<int64_t>& shape, const Init& init, bool decay,
                 std::optional<at::ScalarType> dtype = {});
  /// The parameter added last belongs to experts.
  void mark_expert() { all_.back().expert = true; }
  /// A tensor that is saved with the weights and has no gradient (balance biases). fp32.
  at::Tensor add_buffer(const std::string& name, const std::vector<int64_t>& shape);

  std::vector<Parameter>& all() { return all_; }
  const std::vector<Parameter>& all() const { return all_; }
  const std::map<std::string, at::Tensor>& buffers() const { return buffers_; }

  /// Every part's name on disk with its view of the values, and the buffers.
  std::vector<std::pair<std::string, at::Tensor>> disk_tensors() const;

  /// Parameters whose names do not satisfy `learns` take no gradient from now on.
  void freeze_unless(const std::function<bool(const std::string& name)>& learns);

  /// Copies the values into leaves of another type; call after the values changed.
  void publish();

  int64_t count() const;
  at::Device device() const { return device_; }

 private:
  at::ScalarType dtype_;
  uint64_t seed_;
  at::Device device_;
  std::vector<Parameter> all_;
  std::map<std::string, at::Tensor> buffers_;
};

}  // namespace hero
