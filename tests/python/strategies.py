"""Random configurations: `models()`, `routers(model)` and `training(model, router)` draw dotted options with
values, such as {"model.hidden_size": 24}. Sizes are tiny: a training step takes milliseconds. Invalid
combinations are rare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Options = dict[str, Any]
DrawFn = st.DrawFn
Family = Callable[[int], st.SearchStrategy[Options]]  # of a number of decoder layers


def option(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


def number(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def moe_layers(model: Options) -> list[int]:
    """Decoder layers, from 0, with experts."""
    layers = range(model["model.num_hidden_layers"])
    step, dense = model.get("model.decoder_sparse_step", 1), model.get("model.mlp_only_layers", [])
    first = model.get("model.first_k_dense_replace", 0)
    return [i for i in layers if i >= first and (i + 1) % step == 0 and i not in dense]


@st.composite
def models(draw: DrawFn, *families: Family) -> Options:
    """Models of these families, by default of all."""
    model = draw(
        st.fixed_dictionaries(
            {
                "model.vocab_size": number(17, 40),
                "model.hidden_size": number(16, 32),
                "model.num_hidden_layers": number(2, 6),
                "model.rope_theta": option(100.0, 10000.0, 1e6),
                "model.rms_norm_eps": option(1e-6, 1e-5, 1e-2),
                "model.tie_word_embeddings": st.booleans(),
                "model.max_position_embeddings": option(12, 16, 64),
                "model.intermediate_size": number(8, 24),
                "model.moe_intermediate_size": number(6, 16),
                "model.norm_topk_prob": st.booleans(),
                "model.norm_topk_eps": option(0.0, 1e-20, 1e-2, 0.3),
                "model.initializer_range": option(0.02, 0.1, 0.3),
            }
        )
    )
    family = draw(st.sampled_from(families or (qwen3_moe, deepseek_v3, olmoe, mixtral)))
    model |= draw(family(model["model.num_hidden_layers"]))
    if draw(option(False, False, True)):
        model |= draw(yarn())
    return model


@st.composite
def qwen3_moe(draw: DrawFn, layers: int) -> Options:
    step = min(layers, draw(option(1, 1, 1, 2, 3)))
    sparse = [i for i in range(layers) if (i + 1) % step == 0]
    dense = st.lists(st.sampled_from(range(layers)), unique=True, max_size=layers // 3).filter(
        lambda numbers: not set(sparse) <= set(numbers)
    )
    return draw(grouped_query("qwen3_moe")) | {
        "model.decoder_sparse_step": step,
        "model.mlp_only_layers": draw(dense),
    }


@st.composite
def grouped_query(draw: DrawFn, model_type: str) -> Options:
    experts = draw(option(4, 5, 6, 8))
    key_heads = draw(option(1, 2))
    return {
        "model.model_type": model_type,
        "model.num_attention_heads": key_heads * draw(option(1, 2, 3)),
        "model.num_key_value_heads": key_heads,
        "model.head_dim": draw(option(4, 6, 8)),
        "model.num_experts": experts,
        "model.num_experts_per_tok": draw(number(1, min(experts, 4))),
    }


@st.composite
def olmoe(draw: DrawFn, layers: int) -> Options:
    model = draw(grouped_query("olmoe"))
    width = model["model.num_attention_heads"] * model["model.head_dim"]
    return model | {"model.hidden_size": width}


@st.composite
def mixtral(draw: DrawFn, layers: int) -> Options:
    return draw(grouped_query("mixtral")) | {"model.norm_topk_prob": True}


@st.composite
def deepseek_v3(draw: DrawFn, layers: int) -> Options:
    experts = draw(option(4, 5, 6, 8))
    groups = draw(st.sampled_from([g for g in divisors(experts) if experts // g >= 2]))
    kept = draw(number(1, groups))
    return {
        "model.model_type": "deepseek_v3",
        "model.num_attention_heads": draw(number(1, 4)),
        "model.q_lora_rank": draw(option(0, 5, 8)),
        "model.kv_lora_rank": draw(number(5, 9)),
        "model.qk_nope_head_dim": draw(number(4, 8)),
        "model.qk_rope_head_dim": draw(option(2, 4, 6)),
        "model.v_head_dim": draw(number(4, 9)),
        "model.rope_interleave": draw(st.booleans()),
        "model.first_k_dense_replace": min(layers - 1, draw(option(0, 0, 1, 2))),
        "model.n_shared_experts": draw(number(0, 2)),
        "model.scoring_func": draw(option("softmax", "sigmoid")),
        "model.routed_scaling_factor": draw(option(1.0, 0.6, 2.5)),
        "model.num_experts": experts,
        "model.n_group": groups,
        "model.topk_group": kept,
        "model.num_nextn_predict_layers": draw(option(0, 0, 1, 2, 3)),
        "model.num_experts_per_tok": draw(number(1, min(experts // groups * kept, 4))),
    }


def yarn() -> st.SearchStrategy[Options]:
    return st.fixed_dictionaries(
        {
            "model.rope_scaling.type": st.just("yarn"),
            "model.rope_scaling.factor": option(1.0, 2.0, 4.5),
            "model.rope_scaling.original_max_position_embeddings": option(4, 8, 16),
            "model.rope_scaling.beta_fast": option(2.0, 32.0),
            "model.rope_scaling.beta_slow": option(0.2, 1.0),
            "model.rope_scaling.mscale": option(0.0, 0.7, 1.0),
            "model.rope_scaling.mscale_all_dim": option(0.0, 1.0, 1.3),
            "model.rope_scaling.attention_factor": option(0.0, 0.0, 1.2),
            "model.rope_scaling.truncate": st.booleans(),
        }
    )


@st.composite
def routers(draw: DrawFn, model: Options) -> Options:
    layers = len(moe_layers(model))
    router = draw(
        st.fixed_dictionaries(
            {
                "router.kind": option("hero", "hero", "hero", "rmoe", "rmoe", "baseline"),
                "router.detach": option(True, True, True, False),
                "router.dtype": option("train", "fp32"),
                "router.balance": option("none", "micro_batch", "sequence", "global", "pooled"),
                "router.balance_loss": option(0.0, 1e-2, 0.3, 0.3),
                "router.z_loss": option(0.0, 1e-3, 0.05),
                "router.coupling_loss": option(0.0, 1e-2, 0.4) if layers > 1 else option(0.0),
                "router.capacity_factor": option(0.0, 0.0, 0.6, 1.2),
                "router.eval_capacity_factor": option(0.0, 0.0, 0.8),
                "router.drop_policy": option("probs", "position"),
                "router.jitter": option(0.0, 0.0, 0.1),
                "router.force_balance": option(*[False] * 11, True),
            }
        )
    )
    if model["model.model_type"] == "deepseek_v3":
        router["router.bias_update_rate"] = draw(option(0.0, 1e-3, 0.05))
    if router["router.kind"] == "hero":
        router |= draw(hero_options())
    if router["router.kind"] == "rmoe":
        router["router.state_size"] = draw(number(1, 6))
    return router | draw(stages(layers))


def hero_options() -> st.SearchStrategy[Options]:
    return st.fixed_dictionaries(
        {
            "router.window": number(0, 3),
            "router.scale": option(True, True, False),
            "router.eps": option(0.0, 1e-6, 0.3),
            "router.init": option("uniform", "zero"),
            "router.history": option("stage", "stage", "global"),
        }
    )


@st.composite
def stages(draw: DrawFn, layers: int) -> Options:
    """Router stages: a number of equal stages, or stage sizes."""
    parts = draw(number(1, layers))
    if draw(st.booleans()):
        return {"router.stages": parts}
    bounds = draw(st.lists(number(1, layers - 1), unique=True, max_size=3)) if layers > 1 else []
    ends = [*sorted(bounds), layers]
    sizes = [end - begin for begin, end in zip([0, *ends], ends)]
    return {"router.stages": len(sizes), "router.stage_sizes": sizes}


def optimizer_options(draw: DrawFn) -> Options:
    options = {"optim.kind": draw(option("adamw", "muon"))}
    if options["optim.kind"] == "muon":
        options["optim.muon_momentum"] = draw(option(0.0, 0.5, 0.95))
        options["optim.muon_router"] = draw(st.booleans())
    if draw(st.booleans()):
        options["optim.router_lr"] = draw(option(0.0, 0.3, 2.0))
        options["optim.history_lr"] = draw(option(0.0, 0.3, 2.0))
        options["optim.history_weight_decay"] = draw(option(-1.0, 0.0, 0.4))
    return options


def schedule_options(draw: DrawFn, steps: int) -> Options:
    schedule = draw(option("cosine", "wsd", "linear", "constant"))
    warmup = draw(number(0, steps))
    return {
        "optim.warmup_steps": warmup,
        "optim.schedule": schedule,
        "optim.decay_steps": draw(number(0, steps - warmup if schedule == "wsd" else steps + 2)),
        "optim.decay_shape": draw(option("linear", "cosine", "1-sqrt")),
    }


@st.composite
def training(draw: DrawFn, model: Options, router: Options) -> Options:
    micro_batch = draw(number(1, 3))
    steps = draw(number(1, 4))
    lr = draw(option(1e-4, 1e-3, 1e-2))
    # Gradient through the history is not supported with recomputation: this combination is rare.
    recompute = [False, True] if router["router.detach"] else [*[False] * 9, True]
    return (
        optimizer_options(draw)
        | schedule_options(draw, steps)
        | {
            "train.seed": draw(number(0, 2**32)),
            "train.steps": steps,
            "train.sequence": draw(number(6, min(12, model["model.max_position_embeddings"]))),
            "train.micro_batch": micro_batch,
            "train.global_batch": micro_batch * draw(number(1, 4)),
            "train.dtype": "fp64",
            "train.device": "cpu",
            "train.threads": 1,
            "train.recompute": draw(st.sampled_from(recompute)),
            "train.trainable": draw(option(*["all"] * 5, "routers")),
            "train.document_mask": draw(st.booleans()),
            "train.document_positions": draw(st.booleans()),
            "train.mtp_loss": draw(option(0.0, 0.3, 2.0)),
            "optim.lr": lr,
            "optim.min_lr": lr * draw(option(0.0, 0.1, 1.0)),
            "optim.beta1": draw(option(0.0, 0.9)),
            "optim.beta2": draw(option(0.95, 0.999)),
            "optim.eps": draw(option(1e-8, 1e-6)),
            "optim.weight_decay": draw(option(0.0, 0.1, 0.5)),
            "optim.clip_norm": draw(option(0.0, 0.05, 1.0, 100.0)),
        }
    )
