"""HERO models in transformers: generation, saved folders, devices, torch.compile and invalid settings."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import hero_moe
import hero_moe.hf
from hero_models import HERO, LAYERS, E, hero_model
from hf_models import HERO as FAMILIES
from hf_models import random_ids, read_config


@pytest.mark.parametrize("hero", ["all", "global-two"])
@pytest.mark.parametrize("family", FAMILIES)
def test_generation_with_and_without_cache(family: str, hero: str) -> None:
    model = hero_model(family, HERO[hero])
    ids = random_ids(model.config, (2, 6))
    options: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    options["attention_mask"] = torch.ones_like(ids)
    cached, whole = (model.generate(ids, use_cache=cache, **options) for cache in (True, False))
    assert cached.shape == (2, 26) and torch.equal(cached, whole)
    with torch.no_grad():
        assert torch.equal(model(cached).logits.argmax(-1)[:, 5:-1], cached[:, 6:])
        start = model(cached[:, :20], use_cache=True)
        rest = model(cached[:, 20:], past_key_values=start.past_key_values).logits
        torch.testing.assert_close(rest, model(cached).logits[:, 20:], rtol=1e-5, atol=1e-5)


def test_balance_loss() -> None:
    model = hero_model("qwen3", {}, router_aux_loss_coef=0.05)
    ids = random_ids(model.config, (2, 9))
    plain = model(ids, labels=ids)
    out = model(ids, labels=ids, output_router_logits=True)
    assert [tuple(z.shape) for z in out.router_logits] == [(18, E)] * LAYERS
    probs = torch.cat(out.router_logits).softmax(-1)
    shares = torch.bincount(probs.topk(2, -1).indices.flatten(), minlength=E) / len(probs)
    torch.testing.assert_close(out.aux_loss, E * (shares * probs.mean(0)).sum(), rtol=1e-6, atol=0)
    torch.testing.assert_close(out.loss, plain.loss + 0.05 * out.aux_loss, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("family", "hero"), [("qwen3", "global-two"), ("deepseek", "stages"), ("deepseek", None)]
)
def test_saved_models_load_again(family: str, hero: str | None, tmp_path: Path) -> None:
    """Bit-identical, also after saving the loaded model in shards."""
    more = {} if family == "qwen3" else {"scoring_func": "softmax"}
    model = hero_model(family, hero and HERO[hero], tie_word_embeddings=hero == "stages", **more)
    folders = [tmp_path / "one", tmp_path / "two"]
    model.save_pretrained(folders[0])
    config = read_config(folders[0])
    classes = config["auto_map"]
    classes["AutoModel"] = classes["AutoModelForCausalLM"].replace("ForCausalLM", "Model")
    (folders[0] / "config.json").write_text(json.dumps(config))
    ids = random_ids(model.config, (2, 9))
    for old, new in pairwise([*folders, None]):
        opened = AutoModelForCausalLM.from_pretrained(old, trust_remote_code=True)
        assert type(opened).__name__ == FAMILIES[family].__name__ and type(opened) is not FAMILIES[family]
        state = opened.state_dict()
        assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
        with torch.no_grad():
            assert torch.equal(opened(ids).logits, model(ids).logits)
        if new:
            opened.save_pretrained(new, max_shard_size="20KB")
    module = f"modeling_hero_{model.config.model_type}.py"
    for folder in folders:
        assert {p.name for p in folder.glob("*.py")} == {module, "hero_router.py"}
        for file in folder.glob("*.py"):
            assert file.read_bytes() == (Path(hero_moe.hf.__file__).parent / file.name).read_bytes()
        names = {name for file in folder.glob("*.safetensors") for name in load_file(file)}
        assert "model.layers.1.mlp.experts.7.down_proj.weight" in names
        assert not any("gate_up_proj" in name for name in names)
    assert len(list(folders[1].glob("model-*.safetensors"))) > 3
    second = read_config(folders[1])
    assert second == config | {"dtype": "float32"} and second.get("hero_router") == (hero and HERO[hero])
    assert second["model_type"] == {"qwen3": "qwen3_moe", "deepseek": "deepseek_v3"}[family]
    assert AutoConfig.from_pretrained(folders[1]).to_dict() == opened.config.to_dict()
    base = AutoModel.from_pretrained(folders[1], trust_remote_code=True)
    assert all(torch.equal(t, state["model." + name]) for name, t in base.state_dict().items())


def test_rejects_a_hero_folder_without_its_code(tmp_path: Path) -> None:
    hero_model("qwen3", {}).save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_on_other_devices(family: str, tmp_path: Path) -> None:
    """Layers offloaded to disk: hooks move the arguments."""
    model = hero_model(family, {})
    model.save_pretrained(tmp_path)
    places = dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    places |= {f"model.layers.{i}": ("cpu", "disk")[i % 2] for i in range(model.config.num_hidden_layers)}
    opened = AutoModelForCausalLM.from_pretrained(
        tmp_path, trust_remote_code=True, device_map=places, offload_folder=tmp_path / "offload"
    )
    ids = random_ids(model.config, (2, 9))
    with torch.no_grad():
        assert torch.equal(opened(ids).logits, model(ids).logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_compiles_to_one_graph(family: str) -> None:
    """`torch.compile` has no graph breaks."""
    model = hero_model(family, {"window": 2})
    model.set_experts_implementation("batched_mm")
    ids = random_ids(model.config, (2, 9))
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        got = torch.compile(model, backend="eager", fullgraph=True)(ids, use_cache=False).logits
    assert torch.equal(got, expected)


@pytest.mark.parametrize(
    ("hero", "message"),
    [
        ({"windows": 2}, "expected an object with keys of"),
        ([], "expected an object with keys of"),
        ({"window": 0}, "hero_router.window: found 0, expected null or an integer of at least 1"),
        ({"window": True}, "hero_router.window: found True"),
        ({"scale": 1}, "hero_router.scale: found 1, expected true or false"),
        ({"detach": None}, "hero_router.detach: found None, expected true or false"),
        ({"eps": -1.0}, "hero_router.eps: found -1.0, expected a non-negative number"),
        ({"eps": "1"}, "hero_router.eps: found '1'"),
        ({"history": "all"}, 'hero_router.history: found \'all\', expected "stage" or "global"'),
        ({"stages": [0, 0]}, "expected an integer for each of the 5 MoE layers"),
        ({"stages": 2}, "hero_router.stages: found 2"),
    ],
)
def test_rejects_invalid_settings(hero: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        hero_model("qwen3", hero)
    assert message in str(error.value)


def test_rejects_invalid_scoring_func() -> None:
    with pytest.raises(ValueError, match='scoring_func: found \'tanh\', expected "sigmoid" or "softmax"'):
        hero_model("deepseek", None, scoring_func="tanh")
