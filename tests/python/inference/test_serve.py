"""`hero serve` with the openai client: completions, probabilities, streams, metrics."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from hero_moe import load
from program import ENVIRONMENT, run_hero, training
from serving import ENDLESS, PROMPT, Server, events, served_run, serving, wait_for

LOGPROB = 1e-9  # tolerance of a token's log-probability in fp64


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return served_run(tmp_path_factory.mktemp("serve") / "tiny", data)


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Server]:
    with serving(run) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def create(client: openai.OpenAI, prompt: Any = PROMPT, **options: Any) -> Any:
    return client.completions.create(model="tiny", prompt=prompt, **options)


def test_text_matches_hero_generate(run: Path, client: openai.OpenAI) -> None:
    for words in ({"seed": 3}, {"seed": 4, "top_p": 0.9}, {"temperature": 0}):
        options = [word for name, value in words.items() for word in (f"--{name.replace('_', '-')}", value)]
        text = run_hero("generate", run, "--prompt", PROMPT, "--max-tokens", 24, *options).stdout
        found = create(client, max_tokens=24, **words)
        # The program prints the whole text and a newline.
        assert PROMPT + found.choices[0].text + "\n" == text
        assert found.choices[0].finish_reason == "length" and found.object == "text_completion"
        assert found.usage.completion_tokens == 24 and found.model == "tiny"
    assert create(client, seed=5, extra_body={"top_k": 1}).choices[0].text == create(
        client, temperature=0).choices[0].text  # fmt: skip


def test_seeds(client: openai.OpenAI) -> None:
    texts = [create(client, seed=seed, max_tokens=30).choices[0].text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert create(client, max_tokens=30).choices[0].text != create(client, max_tokens=30).choices[0].text


def test_several_prompts_and_choices(client: openai.OpenAI) -> None:
    prompts = ["def", "的一是", PROMPT]
    choices = create(client, prompts, n=3, seed=7, max_tokens=20).choices
    assert [choice.index for choice in choices] == list(range(9))
    for choice in choices:
        alone = create(client, prompts[choice.index // 3], seed=7 + choice.index % 3, max_tokens=20)
        assert alone.choices[0].text == choice.text
    assert len({choice.text for choice in choices}) == 9


def test_streams_concatenate_to_the_whole_text(client: openai.OpenAI) -> None:
    """At a high temperature most tokens are single bytes; chunks never split a character."""
    options: dict[str, Any] = {"n": 3, "seed": 5, "temperature": 50, "max_tokens": 60}
    options["extra_body"] = {"ignore_eos": True}
    whole = create(client, **options)
    pieces, finish, usage = ["", "", ""], [None] * 3, None
    count = 0
    for chunk in create(client, stream=True, stream_options={"include_usage": True}, **options):
        assert usage is None
        usage = chunk.usage
        for choice in chunk.choices:
            count += 1
            pieces[choice.index] += choice.text
            assert finish[choice.index] is None
            finish[choice.index] = choice.finish_reason
    assert pieces == [choice.text for choice in whole.choices]
    assert "\N{REPLACEMENT CHARACTER}" in "".join(pieces)
    assert finish == ["length"] * 3 and usage == whole.usage
    # A chunk holds the tokens of a choice since its last chunk: one, or several while the machine is busy.
    assert count > 3


def test_stop_strings(client: openai.OpenAI) -> None:
    text = create(client, seed=3, max_tokens=60).choices[0].text
    stops = [text[20:24], text[9:12], "nowhere"]
    expected = text[: min(text.find(stop) for stop in stops[:2])]
    for stop in (stops, [stops[1]]):
        choice = create(client, seed=3, max_tokens=60, stop=stop).choices[0]
        assert choice.finish_reason == "stop"
        assert choice.text == (expected if stop is stops else text[: text.find(stops[1])])
        streamed = create(client, seed=3, max_tokens=60, stop=stop, stream=True)
        assert "".join(chunk.choices[0].text for chunk in streamed) == choice.text


def test_completions_end_at_every_end_token(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    run_hero("export", run, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, *range(10, 200)]}))
    text = run_hero("generate", folder, "--prompt", PROMPT, "--max-tokens", 24, "--seed", 2).stdout
    with serving(folder, "--model-name", "tiny") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        choice = create(client, seed=2, max_tokens=24).choices[0]
        assert PROMPT + choice.text + "\n" == text and choice.finish_reason == "stop"
        ignored = create(client, seed=2, max_tokens=24, extra_body={"ignore_eos": True}).choices[0]
        assert ignored.finish_reason == "length" and ignored.text.startswith(choice.text)


@pytest.mark.parametrize("request_body", [{"prompt": "a"}, {"tokens": [50]}])
def test_tokenize_checks_the_model(server: Server, request_body: dict[str, Any]) -> None:
    endpoint = "/tokenize" if "prompt" in request_body else "/detokenize"
    assert server.request(endpoint, request_body | {"model": "tiny"})[0] == 200
    assert server.request(endpoint, request_body | {"model": "other"})[0] == 404
    assert server.request(endpoint, request_body | {"model": 5})[0] == 400


def test_echo_with_probabilities(run: Path, server: Server, client: openai.OpenAI) -> None:
    model = load(str(run), device="cpu")
    ids = json.loads(server.request("/tokenize", {"prompt": PROMPT})[1])["tokens"]
    logs = model.logits(torch.tensor([ids]))[0].log_softmax(-1)
    for max_tokens in (0, 1, 5):
        choice = create(client, [ids], echo=True, logprobs=3, max_tokens=max_tokens, seed=1).choices[0]
        found = choice.logprobs
        assert choice.text.startswith(PROMPT) and "".join(found.tokens[: len(ids)]) == PROMPT
        assert len(found.token_logprobs) == len(found.top_logprobs) == len(ids) + max_tokens
        assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
        for i, id in enumerate(ids[1:], 1):
            assert found.token_logprobs[i] == pytest.approx(logs[i - 1][id].item(), abs=LOGPROB)
            top = sorted(found.top_logprobs[i].values(), reverse=True)[:3]
            assert top == pytest.approx(logs[i - 1].topk(3).values.tolist(), abs=LOGPROB)
            assert found.top_logprobs[i][found.tokens[i]] == found.token_logprobs[i]
        for offset, token in zip(found.text_offset[: len(ids)], found.tokens, strict=False):
            assert choice.text[offset:].startswith(token)


def test_greedy_tokens_have_the_maximum_logprob(client: openai.OpenAI) -> None:
    text = create(client, temperature=0, max_tokens=30).choices[0].text
    options = {"logprobs": 1, "temperature": 0}
    greedy = create(client, max_tokens=30, **options).choices[0].logprobs
    for log, top in zip(greedy.token_logprobs, greedy.top_logprobs, strict=True):
        assert log == max(top.values())
    found = create(client, PROMPT + text, echo=True, max_tokens=1, **options).choices[0].logprobs
    assert found.token_logprobs[-1] == max(found.top_logprobs[-1].values())


def test_logprobs_of_streams(client: openai.OpenAI) -> None:
    options = {"echo": True, "logprobs": 2, "max_tokens": 12, "seed": 2, "temperature": 50}
    whole = create(client, **options).choices[0].logprobs
    for name in ("tokens", "token_logprobs", "text_offset"):
        pieces: list[Any] = []
        for chunk in create(client, stream=True, **options):
            pieces += getattr(chunk.choices[0].logprobs, name)
        assert pieces == getattr(whole, name)


def test_empty_prompt_starts_a_document(client: openai.OpenAI) -> None:
    found = create(client, "", temperature=0, max_tokens=4)
    assert found.choices[0].text == create(client, [1], temperature=0, max_tokens=4).choices[0].text
    assert found.usage.prompt_tokens == 1


def test_errors_raise_openai_exceptions(client: openai.OpenAI) -> None:
    for options, field in (({"n": 0}, "n"), ({"suffix": "x"}, "suffix"), ({"max_tokens": 5000}, "max_tokens"),
                           ({"best_of": 3}, "best_of"), ({"extra_body": {"min_p": 0.1}}, "min_p"),
                           ({"prompt": [600]}, "prompt"), ({"max_tokens": 128}, "prompt")):  # fmt: skip
        with pytest.raises(openai.BadRequestError) as caught:
            create(client, **options)
        assert caught.value.body["param"] == field and "found" in caught.value.body["message"]
    with pytest.raises(openai.NotFoundError, match='expected \\\\?"tiny'):
        client.completions.create(model="gpt-2", prompt="x")
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_tokenize_and_detokenize(server: Server) -> None:
    for text in ("", PROMPT, "汉字 – Ünïcödé 🙂\x00", "</s> in a text"):
        answer = json.loads(server.request("/tokenize", {"prompt": text, "add_special_tokens": False})[1])
        assert answer["count"] == len(answer["tokens"]) and 1 not in answer["tokens"]
        assert json.loads(server.request("/detokenize", {"tokens": answer["tokens"]})[1]) == {"prompt": text}
    info = json.loads(server.request("/tokenizer_info")[1])
    assert info["eos_token"] == "</s>" and info["bos_token"] is None
    assert json.loads(server.request("/tokenize", {"prompt": "</s>"})[1])["tokens"] == [1]
    assert server.request("/detokenize", {"tokens": [500]})[0] == 400


def test_metrics(server: Server) -> None:
    before = server.metrics()
    server.complete([PROMPT, "def"], n=2, max_tokens=10, ignore_eos=True)
    server.request("/v1/completions", {"prompt": 1})
    server.request("/nowhere/at/all")
    after: dict[str, float] = {}

    def more(name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    def settled() -> bool:
        """Whether all counters that update after the response are up to date."""
        after.update(server.metrics())
        answers = (("/v1/completions", 200), ("/v1/completions", 400), ("other", 404))
        counts = [
            more(f'hero_requests_total{{endpoint="{path}",status="{status}"}}') for path, status in answers
        ]
        return counts == [1, 1, 1] and after["hero_queue_length"] == after["hero_running_texts"] == 0

    wait_for(settled)
    assert more("hero_generated_tokens_total") == 40
    assert more("hero_time_to_first_token_seconds_count") == 1
    assert more("hero_time_per_token_seconds_count") == 36
    assert more("hero_batch_size_sum") == 40
    for name in ("hero_time_to_first_token_seconds", "hero_time_per_token_seconds", "hero_batch_size"):
        buckets = [value for key, value in after.items() if key.startswith(f"{name}_bucket")]
        assert buckets == sorted(buckets) and buckets[-1] == after[f"{name}_count"]


def test_client_disconnect_cancels_the_request(server: Server) -> None:
    before = server.metrics()["hero_cancelled_requests_total"]
    for stream in (True, False):
        connection = server.connect()
        body = json.dumps(ENDLESS | {"stream": stream})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        if stream:
            assert connection.getresponse().readline().startswith(b"data: {")
        wait_for(lambda: server.metrics()["hero_running_texts"] > 0)
        assert connection.sock
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        wait_for(lambda: server.metrics()["hero_running_texts"] == 0)
    assert server.metrics()["hero_cancelled_requests_total"] == before + 2


def test_many_streams_at_once(server: Server) -> None:
    expected = [server.complete(PROMPT, seed=i, max_tokens=20)["choices"][0]["text"] for i in range(64)]
    found: list[str] = [""] * 64

    def stream(i: int) -> None:
        body = {"prompt": PROMPT, "seed": i, "max_tokens": 20, "stream": True}
        status, text, headers = server.request("/v1/completions", body)
        assert status == 200 and headers["Content-Type"] == "text/event-stream"
        found[i] = "".join(chunk["choices"][0]["text"] for chunk in events(text))

    threads = [threading.Thread(target=stream, args=(i,)) for i in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_only_the_engine_has_openmp_threads(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every thread that runs parallel regions has a pool of threads for them; if all pools together have more threads
    than there are cores, libgomp's threads sleep whenever they wait."""
    large_enough = {"model.hidden_size": 128, "train.steps": 2}  # to be loaded in parallel
    run_hero(*training(tmp_path, data, large_enough))
    counts = []
    for threads in (1, 2):
        monkeypatch.setitem(ENVIRONMENT, "OMP_NUM_THREADS", str(threads))
        with serving(tmp_path, "--dtype", "bf16", "--chat-template", "plain") as server:
            server.complete([PROMPT * 10] * 8, max_tokens=4, echo=True, logprobs=3)
            messages = [{"role": "user", "content": PROMPT}]
            assert server.request("/v1/chat/completions", {"messages": messages, "max_tokens": 4})[0] == 200
            counts.append(len(list(Path(f"/proc/{server.process.pid}/task").iterdir())))
    assert counts[1] - counts[0] == 1
