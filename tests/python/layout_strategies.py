"""Random layouts: the number of processes and all parallelism options for a random model. A case is
{"options": the model and its training, "ranks": number of processes, "layout": options that must not change
the result}."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from hypothesis import strategies as st

from strategies import DrawFn, Options, deepseek_v3, divisors, models, moe_layers, option, routers, training

Case = dict[str, Any]

STEPS = 4


def depends_on_the_micro_batch(options: Options) -> bool:
    """Whether the micro-batch size affects the loss or the routing."""
    balanced = options["router.balance_loss"] > 0
    return (
        (balanced and options["router.balance"] in ("micro_batch", "pooled"))
        or options["router.capacity_factor"] > 0
        or options["router.force_balance"]
    )


def pipelines(options: Options) -> list[int]:
    """Allowed numbers of pipeline ranks of a model. Few rmoe models allow several, so these are repeated."""
    single_stage = (
        options["model.tie_word_embeddings"]
        or not options["router.detach"]
        or options["router.balance"] == "pooled"
    )
    numbers = [1] if single_stage else [n for n in (1, 2, 3, 4) if n <= most_chunks(options)]
    return numbers + 2 * numbers[1:] if options["router.kind"] == "rmoe" else numbers


def stage_sizes(options: Options) -> list[int]:
    """Number of MoE layers of every router stage."""
    stages = options["router.stages"]
    quotient, rest = divmod(len(moe_layers(options)), stages)
    return options.get("router.stage_sizes", [quotient + (stage < rest) for stage in range(stages)])


def stage_boundaries(options: Options) -> list[range]:
    """Decoder layers, from 0, that may start a model chunk between each two adjacent router stages."""
    layers = moe_layers(options)
    firsts = list(accumulate(stage_sizes(options)))[:-1]
    return [range(layers[first - 1] + 1, layers[first] + 1) for first in firsts]


def most_chunks(options: Options) -> int:
    """Maximum number of model chunks. The GRU of an rmoe router stage is in one chunk."""
    rmoe = options["router.kind"] == "rmoe"
    return options["router.stages"] if rmoe else options["model.num_hidden_layers"]


@st.composite
def parts(draw: DrawFn, total: int, count: int) -> list[int]:
    """`count` sizes of at least 1 with sum `total`."""
    ends = draw(st.lists(st.integers(1, total - 1), unique=True, min_size=count - 1, max_size=count - 1))
    bounds = [0, *sorted(ends), total]
    return [end - begin for begin, end in zip(bounds, bounds[1:])]


@st.composite
def stage_parts(draw: DrawFn, options: Options, count: int) -> list[int]:
    """Sizes of `count` model chunks, each with whole router stages."""
    boundaries = stage_boundaries(options)
    numbers = st.sampled_from(range(len(boundaries)))
    chosen = draw(st.lists(numbers, unique=True, min_size=count - 1, max_size=count - 1))
    starts = [draw(st.sampled_from(boundaries[number])) for number in sorted(chosen)]
    bounds = [0, *starts, options["model.num_hidden_layers"]]
    return [end - begin for begin, end in zip(bounds, bounds[1:])]


@st.composite
def pipeline_options(draw: DrawFn, options: Options, ranks: int) -> Options:
    if ranks == 1:
        return {"parallel.pipeline": 1}
    chunks = draw(st.integers(1, most_chunks(options) // ranks))
    schedule = (
        "interleaved" if chunks > 1 else draw(option("1f1b", "zero_bubble", "zero_bubble", "interleaved"))
    )
    layout = {"parallel.pipeline": ranks, "parallel.schedule": schedule, "parallel.chunks": chunks}
    count, layers = ranks * chunks, options["model.num_hidden_layers"]
    if options["router.kind"] == "rmoe":
        # The default chunks are the router stages if there are as many.
        if count != options["router.stages"] or draw(st.booleans()):
            layout["parallel.chunk_sizes"] = draw(stage_parts(options, count))
    elif draw(st.booleans()):
        layout["parallel.chunk_sizes"] = draw(parts(layers, count))
    return layout


@st.composite
def layouts(draw: DrawFn, options: Options, sequences: int) -> tuple[int, Options]:
    """Processes and layout for a global batch of `sequences` sequences."""
    pipeline = draw(st.sampled_from(pipelines(options)))
    layout = draw(pipeline_options(options, pipeline))
    micro_batches = [options["train.micro_batch"]]
    if not depends_on_the_micro_batch(options):
        micro_batches = divisors(sequences)
    # Interleaved schedules need a number of micro-batches per data rank that the pipeline ranks divide.
    unit = pipeline if layout.get("parallel.schedule") == "interleaved" else 1
    fitting = [
        (data, micro)
        for data in (1, 2, 3, 4)
        for micro in micro_batches
        if data * pipeline <= 4 and sequences % (data * micro * unit) == 0
    ]
    if not fitting:
        return 1, {"parallel.pipeline": 1, **draw(free_options(options))}
    # Data ranks are drawn first: most fitting pairs have only one.
    data = draw(st.sampled_from(sorted({d for d, _ in fitting})))
    micro = draw(st.sampled_from([m for d, m in fitting if d == data]))
    experts = [e for e in divisors(data) if options["model.num_experts"] % e == 0]
    layout |= {"train.micro_batch": micro, "parallel.expert": draw(st.sampled_from(experts))}
    if draw(st.booleans()):
        layout["parallel.data"] = data
    return data * pipeline, layout | draw(free_options(options))


@st.composite
def free_options(draw: DrawFn, options: Options) -> Options:
    """Options that affect memory or files but no result."""
    recompute = draw(st.booleans()) and options["router.detach"]
    asynchronous = draw(st.booleans())
    offload = not asynchronous and draw(st.booleans())
    return {
        "train.recompute": recompute,
        "checkpoint.asynchronous": asynchronous,
        "optim.offload_folder": "files" if offload else "",
    }


@st.composite
def data_options(draw: DrawFn, options: Options) -> Options:
    """Packing, loss masks, validation and data phases, which name the sources of random_data.py."""
    data = {
        "train.pack": draw(option("concat", "best_fit")),
        "train.loss_mask": draw(st.booleans()),
    }
    # A capacity outside training depends on the tokens of a validation batch.
    if options["router.eval_capacity_factor"] == 0 and draw(st.booleans()):
        data |= {"eval.every": draw(option(1, 3)), "eval.batches": draw(option(0, 1, 2))}
    if draw(st.booleans()):
        untils = sorted(draw(st.lists(st.integers(1, STEPS - 1), unique=True, max_size=2)))
        data["data.phase"] = [
            ({} if until is None else {"until_step": until}) | {"blend": draw(blends())}
            for until in [*untils, None]
        ]
    return data


@st.composite
def blends(draw: DrawFn) -> list[str]:
    names = draw(st.lists(option("first", "second"), unique=True, min_size=1))
    return [f"{draw(st.integers(1, 3))}:{name}" for name in names]


@st.composite
def with_training(draw: DrawFn, model: Options) -> Options:
    """Model and training options for one process without recomputation."""
    router = draw(routers(model))
    options = model | router | draw(training(model, router))
    options |= {
        "train.steps": STEPS,
        "train.recompute": False,
        "optim.warmup_steps": draw(st.integers(0, STEPS)),
    }
    micro = draw(option(1, 1, 2))
    if options["router.capacity_factor"] > 0 and options["router.drop_policy"] == "probs":
        # Equal first tokens of documents or sequences have equal scores: rounding would select among them.
        micro = 1
        options["train.document_mask"] = False
    options |= {"train.micro_batch": micro, "train.global_batch": micro * draw(option(2, 4, 4, 6, 8, 12))}
    return options | draw(data_options(options))


@st.composite
def trained_models(draw: DrawFn) -> Options:
    return draw(with_training(draw(models())))


@st.composite
def models_with_modules(draw: DrawFn) -> Options:
    """With multi-token prediction modules, and nothing that a pipeline rejects. Without a weight of their loss,
    the gradient of the last router is only the rounding error of R_cp if all experts are selected."""
    modules = {"model.num_nextn_predict_layers": draw(option(1, 2, 3)), "model.tie_word_embeddings": False}
    options = draw(with_training(draw(models(deepseek_v3)) | modules))
    options |= {"router.detach": True, "train.mtp_loss": draw(option(0.3, 2.0))}
    return options | ({"router.balance": "global"} if options["router.balance"] == "pooled" else {})


@st.composite
def layout_cases(draw: DrawFn, trained: st.SearchStrategy[Options] = trained_models()) -> Case:
    options = draw(trained)
    ranks, layout = draw(layouts(options, options["train.global_batch"]))
    return {"options": options, "ranks": ranks, "layout": layout}


@st.composite
def resharding_cases(draw: DrawFn, trained: st.SearchStrategy[Options] = trained_models()) -> Case:
    """Two layouts of one model, and the step after which the second resumes. Options that may not change on
    resume are equal in both."""
    options = draw(trained)
    sequences = options["train.global_batch"]
    ranks, layout = draw(layouts(options, sequences))
    own = {key: layout.pop(key) for key in ("train.micro_batch", "train.recompute") if key in layout}
    fixed = options | own
    for _ in range(8):
        next_ranks, after = draw(layouts(fixed, sequences))
        if after.get("train.micro_batch", fixed["train.micro_batch"]) == fixed["train.micro_batch"]:
            break
    else:
        next_ranks, after = ranks, dict(layout)
    for key in own | {"train.micro_batch": 0, "train.recompute": False}:
        after.pop(key, None)
    return {
        "options": fixed,
        "ranks": ranks,
        "layout": layout,
        "stop": draw(st.integers(1, STEPS - 1)),
        "next_ranks": next_ranks,
        "next_layout": after,
    }
