"""/v1/completions over plain HTTP: prompts, echo, log-probabilities, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from api_models import LIKELY, next_byte
from server_harness import PATIENCE_S, RunningServer, serving

from rtlang.errors import NumericalError
from rtlang.testing import Reply, ScriptedModel

PATH = "/v1/completions"


def script(prompt: str) -> Reply | str:
    if prompt.endswith("fail"):
        return Reply(error=NumericalError("NaN in the logits"), delay_s=0.02)
    if prompt.endswith("endless"):
        return Reply("ab", eos=False)
    return f"<{prompt}>"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving(ScriptedModel(script), served_model_name="m") as running:
        yield running


@pytest.fixture(scope="module")
def likely() -> Iterator[RunningServer]:
    with serving(ScriptedModel(logits=next_byte)) as running:
        yield running


def post(server: RunningServer, **body: Any) -> httpx.Response:
    return httpx.post(server.url + PATH, json=body, timeout=PATIENCE_S)


def answer(server: RunningServer, **body: Any) -> dict[str, Any]:
    reply = post(server, **body)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def events(server: RunningServer, **body: Any) -> list[dict[str, Any]]:
    reply = post(server, stream=True, **body)
    assert reply.status_code == 200, reply.text
    lines = [line for line in reply.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def choices(chunks: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    return [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]


def refused(server: RunningServer, **body: Any) -> dict[str, Any]:
    error: dict[str, Any] | None = None
    for stream in (False, True):
        reply = post(server, **{"prompt": "x", "stream": stream, **body})
        assert reply.status_code == 400, reply.text
        found = reply.json()["error"]
        assert error in (None, found)
        error = found
    assert error is not None
    return error


def test_an_answer_has_openais_fields(server: RunningServer) -> None:
    found = answer(server, prompt="ab")
    assert found["object"] == "text_completion"
    assert found["id"].startswith("cmpl-")
    assert found["model"] == "m"
    assert found["choices"] == [
        {
            "index": 0,
            "text": "<ab>",
            "logprobs": None,
            "finish_reason": "stop",
            "matched_stop": 256,
        }
    ]
    assert found["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 5,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert answer(server, prompt="ab")["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["<ab>"]),
        (["ab", "c"], ["<ab>", "<c>"]),
        ([97, 98], ["<ab>"]),
        ([[97, 98], [99]], ["<ab>", "<c>"]),
    ],
)
def test_all_forms_of_a_prompt(server: RunningServer, prompt: Any, texts: list[str]) -> None:
    found = answer(server, prompt=prompt)
    assert [c["text"] for c in found["choices"]] == texts
    assert [c["index"] for c in found["choices"]] == list(range(len(texts)))
    chunks = events(server, prompt=prompt)
    for index, text in enumerate(texts):
        assert "".join(c["text"] for c in choices(chunks, index)) == text


def test_choices_of_several_prompts_are_numbered_through(server: RunningServer) -> None:
    found = answer(server, prompt=["a", "b"], n=2)
    assert [c["text"] for c in found["choices"]] == ["<a>", "<a>", "<b>", "<b>"]
    assert [c["index"] for c in found["choices"]] == [0, 1, 2, 3]
    assert found["usage"]["prompt_tokens"] == 2  # each prompt once
    assert found["usage"]["completion_tokens"] == 16


def test_e2_the_default_length_is_sixteen(server: RunningServer) -> None:
    for body in ({}, {"max_tokens": None}):
        found = answer(server, prompt="endless", **body)
        assert found["usage"]["completion_tokens"] == 16
        assert found["choices"][0]["finish_reason"] == "length"
        assert found["choices"][0]["matched_stop"] is None


def test_c4_c5_streams_tell_usage_and_end_once(server: RunningServer) -> None:
    body: dict[str, Any] = {"prompt": ["ab", "endless"], "n": 2}
    chunks = events(server, **body, stream_options={"include_usage": True})
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    whole = answer(server, **body)
    totals, usage = chunks[-1]["usage"], whole["usage"]
    assert totals == usage | {"prompt_tokens_details": totals["prompt_tokens_details"]}
    for index, choice in enumerate(whole["choices"]):
        pieces = choices(chunks, index)
        reasons = [c["finish_reason"] for c in pieces]
        assert reasons == [None] * (len(reasons) - 1) + [choice["finish_reason"]]
        assert "".join(c["text"] for c in pieces) == choice["text"]
    assert not any("usage" in chunk for chunk in events(server, **body))


def test_c7_a_failure_in_a_stream_is_an_error_event_and_no_success(server: RunningServer) -> None:
    reply = post(server, prompt="fail", max_tokens=4000, stream=True)
    assert reply.status_code == 200
    *chunks, last = [json.loads(x.removeprefix("data: ")) for x in reply.text.split("\n\n") if x]
    assert last["error"]["code"] == "numerical_error"
    assert chunks
    assert all(c["finish_reason"] is None for chunk in chunks for c in chunk["choices"])
    assert post(server, prompt="fail", max_tokens=4000).status_code == 500


@pytest.mark.parametrize("max_tokens", [0, 2])
def test_e9_echo_gives_the_prompt_with_a_logprob_for_each_token(
    likely: RunningServer, max_tokens: int
) -> None:
    body = {"prompt": "abz", "echo": True, "logprobs": 1, "max_tokens": max_tokens}
    body["temperature"] = 0
    found = answer(likely, **body)
    [choice] = found["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"] == "abz" + "{|"[:max_tokens]
    assert found["usage"]["completion_tokens"] == max_tokens
    assert logprobs["tokens"] == list(choice["text"])
    assert logprobs["text_offset"] == list(range(len(choice["text"])))
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["token_logprobs"][1] == pytest.approx(LIKELY)
    # "z" is no continuation that the model knows: it has the best one, and itself.
    assert set(logprobs["top_logprobs"][2]) == {"c", "z"}
    assert logprobs["token_logprobs"][3:] == [pytest.approx(LIKELY)] * max_tokens
    chunks = events(likely, **body)
    pieces = [c["logprobs"] for c in choices(chunks) if c["logprobs"] is not None]
    for name, column in logprobs.items():
        assert [value for piece in pieces for value in piece[name]] == column
    assert "".join(c["text"] for c in choices(chunks)) == choice["text"]


def test_e9_logprobs_of_0_are_of_the_chosen_token_alone(likely: RunningServer) -> None:
    found = answer(likely, prompt="a", logprobs=0, max_tokens=3, temperature=0)
    logprobs = found["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["b", "c", "d"]
    assert [list(top) for top in logprobs["top_logprobs"]] == [["b"], ["c"], ["d"]]
    assert logprobs["text_offset"] == [0, 1, 2]
    assert answer(likely, prompt="a", max_tokens=3)["choices"][0]["logprobs"] is None


def test_offsets_are_of_characters_where_tokens_are_bytes(likely: RunningServer) -> None:
    body = {"prompt": "é!", "echo": True, "logprobs": 0, "max_tokens": 0}
    logprobs = answer(likely, **body)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", "!"]
    assert logprobs["text_offset"] == [0, 0, 1]


def test_e9_best_of_keeps_the_likeliest(likely: RunningServer) -> None:
    body = {"prompt": "a", "max_tokens": 4, "temperature": 1.0, "seed": 3}
    found = answer(likely, **body, n=2, best_of=8, logprobs=0)
    means = [
        sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["token_logprobs"])
        for c in found["choices"]
    ]
    assert [c["index"] for c in found["choices"]] == [0, 1]
    everything = answer(likely, **body, n=8, logprobs=0)
    all_means = sorted(
        (sum(c["logprobs"]["token_logprobs"]) / 4 for c in everything["choices"]), reverse=True
    )
    assert means == pytest.approx(all_means[:2])
    assert all_means[0] > all_means[-1]
    assert found["usage"]["completion_tokens"] == 32  # what was generated
    assert answer(likely, **body, n=2, best_of=8)["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 100_000}, "n"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"suffix": "x"}, "suffix"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, None),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, None),
        ({"prompt": [-1]}, None),
        ({"prompt": [264]}, None),
        ({"prompt": [10**30]}, None),
        ({"stream_options": {"colour": True}}, "stream_options.colour"),
        ({"max_completion_tokens": 3}, "max_completion_tokens"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, None),
    ],
)
def test_e9_what_is_wrong_is_refused_at_once(
    server: RunningServer, body: dict[str, Any], param: str | None
) -> None:
    before = server.engine.stats()
    assert refused(server, **body).get("param") == param
    after = server.engine.stats()
    assert (before["free_len"], before["evictable_len"]) == (
        after["free_len"],
        after["evictable_len"],
    )


def test_best_of_has_its_bound_and_none_in_a_stream(server: RunningServer) -> None:
    for body in ({"best_of": 100_000}, {"best_of": 2, "stream": True}):
        reply = post(server, prompt="x", **body)
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "best_of"
    assert len(events(server, prompt="x", best_of=2, n=2)) > 2


def test_prompts_of_mixed_kinds_are_refused(server: RunningServer) -> None:
    assert refused(server, prompt=["a", 1])["code"] == "invalid_parameter"
    assert refused(server, prompt=["a", [1]])["code"] == "invalid_parameter"


def test_a_constraint_holds(server: RunningServer) -> None:
    given = {"type": "json_schema", "json_schema": {"schema": {"const": "a"}}}
    assert answer(server, prompt="x", response_format=given)["choices"][0]["text"] == '"a"'
    assert answer(server, prompt="x", guided_choice=["<x>", "no"])["choices"][0]["text"] == "<x>"


def test_ids_are_given_back(server: RunningServer) -> None:
    [choice] = answer(server, prompt="ab", return_token_ids=True)["choices"]
    assert choice["prompt_token_ids"] == [97, 98]
    assert choice["token_ids"] == [*b"<ab>", 256]
    pieces = choices(events(server, prompt="ab", return_token_ids=True))
    assert [i for c in pieces for i in c["token_ids"]] == [*b"<ab>", 256]
    assert [c.get("prompt_token_ids") for c in pieces] == [[97, 98]] + [None] * (len(pieces) - 1)


def test_salts_share_nothing(server: RunningServer) -> None:
    """Nor does a salt that spells what another one and an extra key are together (A5)."""
    prompt = "namespaces " * 4

    def cached(**body: Any) -> int:
        usage = answer(server, prompt=prompt, max_tokens=1, **body)["usage"]
        found: int = usage["prompt_tokens_details"]["cached_tokens"]
        return found

    spaces: list[dict[str, Any]] = [
        {"cache_salt": "a", "extra_key": "b"},
        {"cache_salt": "a"},
        {"extra_key": "b"},
        {"cache_salt": "a|extra:b"},
        {"cache_salt": "extra:1:b|salt:a"},
        {},
    ]
    assert [cached(**space) for space in spaces] == [0] * len(spaces)
    assert all(cached(**space) == len(prompt) - 1 for space in spaces)
    assert refused(server, cache_salt="")["param"] == "cache_salt"
