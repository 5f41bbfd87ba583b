#include "ops/bench_ops.h"
#include "ops/cases.h"
#include "ops/reference.h"

namespace hero::bench {
namespace {

const std::optional<at::Tensor> kNone;

std::string sizes(std::initializer_list<std::pair<char, int64_t>> named) {
  std::string text;
  for (const auto& [letter, size] : named)
    text += (text.empty() ? "" : "_") + (letter + std::to_string(size));
  return text;
}

void add_linear(const test::LinearCase& c) {
  const auto x = random({c.tokens, c.in}), w = random({c.out, c.in}), dy = random({c.tokens, c.out});
  add("linear/" + sizes({{'T', c.tokens}, {'I', c.in}, {'O', c.out}}), [=](bool reference) {
    call(reference, "hero::linear_forward", ops::linear_forward_reference, x, w);
    call(reference, "hero::linear_backward_input", ops::linear_backward_input_reference, dy, w);
    call(reference, "hero::linear_backward_weight", ops::linear_backward_weight_reference, dy, x);
  });
}

void add_attention(const test::AttentionCase& c) {
  const auto q = random({c.batch, c.queries, c.heads, c.qk_width}).transpose(1, 2),
             k = random({c.batch, c.keys, c.kv_heads, c.qk_width}).transpose(1, 2),
             v = random({c.batch, c.keys, c.kv_heads, c.v_width}).transpose(1, 2),
             dout = random({c.batch, c.queries, c.heads, c.v_width});
  add("attention/" + sizes({{'B', c.batch}, {'H', c.heads}, {'S', c.keys}, {'P', c.qk_width}}),
      [=](bool reference) {
        const auto [out, lse] =
            call(reference, "hero::attention_forward", ops::attention_forward_reference, q, k, v, 0.2, kNone);
        call(reference, "hero::attention_backward", ops::attention_backward_reference, dout, q, k, v, out,
             lse, 0.2, kNone);
      });
}

void add_document_attention(const test::DocumentAttentionCase& c) {
  const auto q = random({c.batch, c.length, c.heads, c.qk_width}).transpose(1, 2),
             k = random({c.batch, c.length, c.kv_heads, c.qk_width}).transpose(1, 2),
             v = random({c.batch, c.length, c.kv_heads, c.v_width}).transpose(1, 2),
             dout = random({c.batch, c.length, c.heads, c.v_width});
  const std::optional starts = at::tensor(test::document_starts(c.batch, c.length, c.documents), at::kLong)
                                   .view({c.batch, c.length})
                                   .to(device());
  add("attention/" + sizes({{'B', c.batch}, {'H', c.heads}, {'S', c.length}, {'P', c.qk_width}}) +
          "_documents" + std::to_string(c.documents.front()),
      [=](bool reference) {
        const auto [out, lse] = call(reference, "hero::attention_forward", ops::attention_forward_reference,
                                     q, k, v, 0.2, starts);
        call(reference, "hero::attention_backward", ops::attention_backward_reference, dout, q, k, v, out,
             lse, 0.2, starts);
      });
}

void add_rms_norm(const test::RowsCase& c) {
  const auto x = random({c.tokens, c.width}), w = random({c.width}), dy = random({c.tokens, c.width});
  add("rms_norm/" + sizes({{'T', c.tokens}, {'D', c.width}}), [=](bool reference) {
    const auto [y, rstd] =
        call(reference, "hero::rms_norm_forward", ops::rms_norm_forward_reference, x, w, 1e-5);
    call(reference, "hero::rms_norm_backward", ops::rms_norm_backward_reference, dy, x, w, rstd,
         std::nullopt);
  });
  const auto update = random({c.tokens, c.width}), dsum = random({c.tokens, c.width});
  add("add_rms_norm/" + sizes({{'T', c.tokens}, {'D', c.width}}), [=](bool reference) {
    const auto [sum, y, rstd] = call(reference, "hero::add_rms_norm_forward",
                                     ops::add_rms_norm_forward_reference, x, update, w, 1e-5);
    call(reference, "hero::rms_norm_backward", ops::rms_norm_backward_reference, dy, sum, w, rstd,
         std::optional(dsum));
  });
}

void add_swiglu(const test::RowsCase& c) {
  const auto x = random({c.tokens, c.width}), dy = random({c.tokens, c.width / 2});
  add("swiglu/" + sizes({{'T', c.tokens}, {'F', c.width / 2}}), [=](bool reference) {
    call(reference, "hero::swiglu_forward", ops::swiglu_forward_reference, x);
    call(reference, "hero::swiglu_backward", ops::swiglu_backward_reference, dy, x);
  });
}

void add_rope(const test::RopeCase& c) {
  const auto x = random({c.batch, c.positions, c.heads, c.width});
  const auto angle = uniform({c.positions, c.width / 2}) * 6.28, cos = angle.cos(), sin = angle.sin();
  for (const bool interleave : {false, true}) {
    add("rope/" + sizes({{'B', c.batch}, {'S', c.positions}, {'H', c.heads}, {'R', c.width}}) +
            (interleave ? "_interleaved" : ""),
        [=](bool reference) {
          const auto y =
              call(reference, "hero::rope_turn", ops::rope_reference, x, cos, sin, interleave, false);
          call(reference, "hero::rope_turn", ops::rope_reference, y, cos, sin, interleave, true);
        });
  }
}

void add_norm_rope(const test::RopeCase& c) {
  const auto x = random({c.batch, c.positions, 2 * c.heads, c.width}).slice(2, 0, c.heads),
             w = random({c.width}), dy = random({c.batch, c.positions, c.heads, c.width});
  const auto angle = uniform({c.positions, c.width / 2}) * 6.28, cos = angle.cos(), sin = angle.sin();
  add("norm_rope/" + sizes({{'B', c.batch}, {'S', c.positions}, {'H', c.heads}, {'R', c.width}}),
      [=](bool reference) {
        const auto [y, rstd] = call(reference, "hero::norm_rope_forward", ops::norm_rope_forward_reference, x,
                                    w, 1e-5, cos, sin);
        call(reference, "hero::norm_rope_backward", ops::norm_rope_backward_reference, dy, x, w, rstd, cos,
             sin);
      });
}

void add_latent_heads(const test::LatentHeadsCase& c) {
  const int64_t width = c.nope + c.rope;
  const auto rows = [&](int64_t columns) { return random({c.batch, c.positions, c.heads, columns}); };
  const auto queries = rows(width), kv = rows(c.nope + c.v_width), dq = rows(width), dk = rows(width),
             dv = rows(c.v_width), key = random({c.batch, c.positions, c.rope});
  const auto angle = uniform({c.positions, c.rope / 2}) * 6.28, cos = angle.cos(), sin = angle.sin();
  for (const bool interleave : {false, true}) {
    add("latent_heads/" +
            sizes({{'B', c.batch}, {'S', c.positions}, {'H', c.heads}, {'N', c.nope}, {'R', c.rope}}) +
            (interleave ? "_interleaved" : ""),
        [=](bool reference) {
          call(reference, "hero::latent_heads_forward", ops::latent_heads_forward_reference, queries, kv, key,
               cos, sin, interleave);
          call(reference, "hero::latent_heads_backward", ops::latent_heads_backward_reference, dq, dk, dv,
               cos, sin, interleave);
        });
  }
}

void add_cached_attention(const test::CachedAttentionCase& c) {
  std::vector<at::Tensor> keys, values;
  std::vector<int64_t> lengths, counts;
  int64_t rows = 0;
  for (const auto& [held, count] : c.sequences) {
    keys.push_back(random({held, c.kv_heads, c.qk_width}));
    values.push_back(random({held, c.kv_heads, c.v_width}));
    lengths.push_back(held);
    counts.push_back(count);
    rows += count;
  }
  const auto q = random({rows, c.heads, c.qk_width});
  add("cached_attention/" + sizes({{'T', rows}, {'H', c.heads}, {'S', lengths[0]}, {'P', c.v_width}}),
      [=, width = c.v_width](bool reference) {
        call(reference, "hero::cached_attention", ops::cached_attention_reference, q, keys, values, lengths,
             counts, width, 0.2);
      });
}

void add_heads_linear(const test::HeadsLinearCase& c) {
  const auto x = random({c.tokens, c.heads, c.in}), w = random({c.heads, c.out, c.in}),
             w_transposed = random({c.heads, c.in, c.out});
  add("heads_linear/" + sizes({{'T', c.tokens}, {'H', c.heads}, {'I', c.in}, {'O', c.out}}),
      [=](bool reference) {
        call(reference, "hero::heads_linear", ops::heads_linear_reference, x, w, false);
        call(reference, "hero::heads_linear", ops::heads_linear_reference, x, w_transposed, true);
      });
}

void add_linear_cross_entropy(const test::CrossEntropyCase& c) {
  const auto x = random({c.tokens, c.width}), w = random({c.vocabulary, c.width}, 0.1);
  const auto targets = at::randint(c.vocabulary, {c.tokens}, at::TensorOptions(device()).dtype(at::kLong));
  add("linear_cross_entropy/" + sizes({{'T', c.tokens}, {'D', c.width}, {'V', c.vocabulary}}),
      [=](bool reference) {
        call(reference, "hero::linear_cross_entropy_forward", ops::linear_cross_entropy_reference, x, w,
             targets, true, true);
      });
}

void add_adamw(const test::AdamWCase& c) {
  std::vector<at::Tensor> values, gradients, first, second, leaves;
  int64_t all = 0;
  for (const int64_t n : c.sizes) {
    values.push_back(wide({n}));
    gradients.push_back(wide({n}));
    first.push_back(at::zeros({n}, at::TensorOptions(device())));
    second.push_back(at::ones({n}, at::TensorOptions(device())));
    leaves.push_back(random({n}));
    all += n;
  }
  const auto step = at::ones({}, at::TensorOptions(device()));
  add("adamw/" + sizes({{'N', all}}), [=](bool reference) {
    const std::optional<at::Tensor> none;
    call(reference, "hero::sum_of_squares", ops::sum_of_squares_reference, gradients);
    call(reference, "hero::adamw_step", ops::adamw_step_reference, values, gradients, first, second, leaves,
         step, 1e-4, 0.9, 0.95, 0.1, 1e-8, none, none);
  });
}

}  // namespace

void add_dense() {
  for (const auto& c : test::kLinearCases)
    if (c.timed) add_linear(c);
  for (const auto& c : test::kAttentionCases)
    if (c.timed) add_attention(c);
  for (const auto& c : test::document_attention_cases())
    if (c.timed) add_document_attention(c);
  for (const auto& c : test::kRmsNormCases)
    if (c.timed) add_rms_norm(c);
  for (const auto& c : test::kSwigluCases)
    if (c.timed) add_swiglu(c);
  for (const auto& c : test::kRopeCases)
    if (c.timed) {
      add_rope(c);
      add_norm_rope(c);
    }
  for (const auto& c : test::kLatentHeadsCases)
    if (c.timed) add_latent_heads(c);
  for (const auto& c : test::cached_attention_cases())
    if (c.timed) add_cached_attention(c);
  for (const auto& c : test::kHeadsLinearCases)
    if (c.timed) add_heads_linear(c);
  for (const auto& c : test::kCrossEntropyCases)
    if (c.timed) add_linear_cross_entropy(c);
  for (const auto& c : test::adamw_cases())
    if (c.timed) add_adamw(c);
}

}  // namespace hero::bench
