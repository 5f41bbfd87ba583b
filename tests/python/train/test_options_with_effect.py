"""Random configurations with one option changed: the program rejects the value, warns that the option has no effect, or
computes something else. The opposite direction of test_options_without_effect.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from hf_compare import random_logits
from layout_strategies import STEPS, trained_models
from program import checkpoint, configuration_keys, deterministic_metrics, hero, tensor_bytes
from random_cases import Case, expect_success, property_tests, reproduce
from random_data import train_words
from strategies import DrawFn, Options, option

ALWAYS = {"checkpoint.every": 0, "train.routing_every": 1}

# Rotary embeddings whose frequencies depend on every option, and YaRN that changes all of them.
ROTARY = {"model.head_dim": 8, "model.qk_rope_head_dim": 6}
YARN = ROTARY | {
    "model.rope_scaling.type": "yarn",
    "model.rope_scaling.attention_factor": 0.0,
    "model.rope_scaling.factor": 2.0,
}

# Options with two values or more that give different results, and other options without which they may not.
CHANGES: dict[str, tuple[list[Any], Options]] = {
    "model.decoder_sparse_step": ([1, 2], {}),
    "model.first_k_dense_replace": ([0, 1], {}),
    "model.head_dim": ([4, 6], {}),
    "model.initializer_range": ([0.05, 0.2], {}),
    "model.kv_lora_rank": ([6, 7], {}),
    "model.mlp_only_layers": ([[], [0]], {}),
    "model.moe_intermediate_size": ([7, 9], {}),
    "model.n_group": ([1, 2], {}),
    "model.n_shared_experts": ([1, 2], {}),
    "model.norm_topk_eps": ([0.1, 0.5], {}),
    "model.norm_topk_prob": ([True, False], {}),
    "model.num_experts": ([4, 6], {}),
    "model.num_experts_per_tok": ([1, 2], {}),
    "model.num_key_value_heads": ([1, 2], {}),
    "model.num_nextn_predict_layers": ([0, 1], {}),
    "model.q_lora_rank": ([0, 6], {}),
    "model.qk_nope_head_dim": ([5, 6], {}),
    "model.qk_rope_head_dim": ([2, 4], {}),
    "model.rms_norm_eps": ([0.05, 0.2], {}),
    "model.rope_interleave": ([True, False], ROTARY),
    "model.rope_scaling.attention_factor": ([0.0, 1.3], YARN),
    "model.rope_scaling.factor": ([2.0, 3.0], YARN),
    "model.rope_scaling.mscale": ([0.5, 1.5], YARN),
    "model.rope_scaling.mscale_all_dim": ([0.5, 1.5], YARN),
    "model.rope_scaling.type": (["default", "yarn"], YARN),
    "model.rope_theta": ([50.0, 3e4], ROTARY),
    "model.routed_scaling_factor": ([0.7, 1.5], {}),
    "model.scoring_func": (["softmax", "sigmoid"], {}),
    "model.tie_word_embeddings": ([True, False], {}),
    "model.topk_group": ([1, 2], {}),
    "model.v_head_dim": ([5, 6], {}),
    "router.balance": (["none", "pooled"], {}),
    "router.balance_loss": ([0.05, 0.5], {}),
    "router.bias_update_rate": ([0.01, 0.1], {}),
    "router.capacity_factor": ([0.0, 0.3], {}),
    "router.coupling_loss": ([0.05, 0.5], {}),
    "router.detach": ([True, False], {"router.init": "uniform"}),
    "router.drop_policy": (["probs", "position"], {"router.capacity_factor": 0.3}),
    "router.dtype": (["train", "fp32"], {"train.dtype": "bf16"}),
    "router.eps": ([0.1, 0.5], {"router.init": "uniform"}),
    "router.eval_capacity_factor": ([0.0, 0.3], {}),
    "router.force_balance": ([True, False], {}),
    "router.history": (["stage", "global"], {"router.init": "uniform"}),
    "router.init": (["uniform", "zero"], {}),
    "router.jitter": ([0.05, 0.2], {}),
    "router.kind": (["baseline", "hero", "rmoe"], {"router.init": "uniform"}),
    "router.scale": ([True, False], {"router.init": "uniform"}),
    "router.stages": ([1, 2], {"router.init": "uniform"}),
    "router.state_size": ([3, 5], {}),
    "router.window": ([0, 1], {"router.init": "uniform"}),
    "router.z_loss": ([0.01, 0.1], {}),
    "train.document_mask": ([True, False], {}),
    "train.document_positions": ([True, False], {}),
    "train.dtype": (["fp64", "fp32", "bf16"], {}),
    "train.loss_mask": ([True, False], {}),
    "train.mtp_loss": ([0.5, 1.0], {}),
    "train.norms_every": ([0, 1], {}),
    "train.pack": (["concat", "best_fit"], {}),
    "train.seed": ([5, 6], {}),
    "train.sequence": ([5, 6], {}),
    "train.trainable": (["all", "routers"], {}),
    "optim.beta1": ([0.5, 0.8], {}),
    "optim.beta2": ([0.9, 0.99], {}),
    "optim.clip_norm": ([1e-3, 1e-2], {}),
    "optim.decay_steps": ([1, 2], {}),
    "optim.eps": ([1e-5, 1e-4], {}),
    "optim.history_lr": ([0.5, 1.5], {}),
    "optim.history_weight_decay": ([0.2, 0.8], {}),
    "optim.kind": (["adamw", "muon"], {}),
    "optim.lr": ([3e-3, 5e-3], {"optim.min_lr": 0.0}),
    "optim.min_lr": ([0.0, 1e-5], {}),
    "optim.muon_momentum": ([0.3, 0.8], {}),
    "optim.muon_router": ([True, False], {}),
    "optim.router_lr": ([0.5, 1.5], {}),
    "optim.warmup_steps": ([0, 2], {}),
    "optim.weight_decay": ([0.2, 0.6], {}),
    "eval.batches": ([0, 1], {}),
    "eval.data": ([[], ["second-valid"]], {}),
    "eval.every": ([0, 1], {}),
}


@st.composite
def cases(draw: DrawFn) -> Case:
    options = draw(trained_models()) | {"train.dtype": "fp64"}
    key = draw(st.sampled_from(sorted(CHANGES)))
    values, needed = CHANGES[key]
    options |= {name: value for name, value in needed.items() if name != key}
    before, after = draw(st.lists(option(*values), unique_by=repr, min_size=2, max_size=2))
    return {"options": options | {key: before}, "change": {key: after}}


def outcome(run: Path, options: Options) -> tuple[list[Any], str]:
    """Everything that `hero train` and `hero logits` compute, and the warnings."""
    run.parent.mkdir()
    done = hero(*train_words(run, options | ALWAYS), cwd=run.parent)
    expect_success(done.returncode, done.stderr, options)
    length = min(5, options["train.sequence"])
    tensors = random_logits(checkpoint(run, STEPS), options["model.vocab_size"], length, 0, run.parent)
    logits = {name: tensor.tolist() for name, tensor in tensors.items()}
    results = [
        tensor_bytes(run, STEPS),
        deterministic_metrics(run),
        (run / "routing.jsonl").read_bytes(),
        logits,
    ]
    return results, done.stderr


def warned(key: str, stderr: str) -> bool:
    """Whether a warning says that the option has no effect, or that no weight changes."""
    same = "no layer reads an earlier one" if key == "router.kind" else f"warning: {key} = "
    return any(
        same in line or "the learning rate is 0 from step 1 on" in line for line in stderr.splitlines()
    )


def check(case: Case, folder: Path) -> None:
    options, change = case["options"], case["change"]
    (key,) = change
    before, stderr_before = outcome(folder / "before" / "run", options)
    after, stderr_after = outcome(folder / "after" / "run", options | change)
    assert before != after or warned(key, stderr_before) or warned(key, stderr_after), f"{key} has no effect"


def test_every_option() -> None:
    """Options that are not changed here do not change results, or have tests of their own."""
    others = {
        "model.hidden_size", "model.intermediate_size", "model.max_position_embeddings", "model.model_type",
        "model.num_attention_heads", "model.num_hidden_layers", "model.vocab_size",
        "model.rope_scaling.beta_fast", "model.rope_scaling.beta_slow", "model.rope_scaling.truncate",
        "model.rope_scaling.original_max_position_embeddings", "router.stage_sizes", "train.cuda_graph",
        "train.device", "train.global_batch", "train.log_every", "train.micro_batch", "train.recompute",
        "train.routing_every", "train.skip_nonfinite", "train.spike_skip", "train.steps", "train.threads",
        "data.phase", "optim.decay_shape", "optim.offload_folder", "optim.schedule",
    }  # fmt: skip
    groups = ("model", "router", "train", "data", "optim", "eval")
    assert set(CHANGES) | others == {key for key in configuration_keys() if key.split(".")[0] in groups}


test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    reproduce(check)
