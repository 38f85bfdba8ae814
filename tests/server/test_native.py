"""/generate: SGLang's JSON, field by field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from api_models import LIKELY, UNLIKELY, next_byte
from server_harness import PATIENCE_S, RunningServer, serving

from rtlang.testing import Reply, ScriptedModel


def script(prompt: str) -> Reply | str:
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
    return httpx.post(f"{server.url}/generate", json=body, timeout=PATIENCE_S)


def answer(server: RunningServer, **body: Any) -> Any:
    reply = post(server, **body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def events(server: RunningServer, **body: Any) -> list[dict[str, Any]]:
    reply = post(server, stream=True, **body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in reply.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def refused(server: RunningServer, **body: Any) -> dict[str, Any]:
    error: dict[str, Any] | None = None
    for stream in (False, True):
        reply = post(server, stream=stream, **body)
        assert reply.status_code == 400, reply.text
        found = reply.json()["error"]
        assert error in (None, found)
        error = found
    assert error is not None
    return error


# -- the answer -----------------------------------------------------------------------------


def test_an_answer_has_sglangs_fields(server: RunningServer) -> None:
    found = answer(server, text="ab", rid="mine")
    assert set(found) == {"text", "output_ids", "meta_info"}
    assert found["text"] == "<ab>"
    assert found["output_ids"] == [*b"<ab>", 256]
    meta = found["meta_info"]
    assert meta["id"] == "mine"
    assert meta["finish_reason"]["type"] == "stop"
    assert meta["finish_reason"]["matched"] == 256
    assert meta["prompt_tokens"] == 2
    assert meta["completion_tokens"] == 5
    assert meta["reasoning_tokens"] == 0
    assert meta["cached_tokens"] == 0
    assert meta["cached_tokens_details"] == {"device": 0, "host": 0, "storage": 0}
    assert meta["weight_version"] == "default"
    assert meta["num_retractions"] == 0
    assert meta["e2e_latency"] >= meta["first_token_latency"] > 0
    again = answer(server, text="ab")["meta_info"]
    assert again["cached_tokens"] == again["cached_tokens_details"]["device"] == 1


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        ({"text": "ab"}, "<ab>"),
        ({"input_ids": [97, 98]}, "<ab>"),
        ({"text": ["ab"]}, ["<ab>"]),
        ({"text": ["ab", "c"]}, ["<ab>", "<c>"]),
        ({"input_ids": [[97], [98]]}, ["<a>", "<b>"]),
        ({"text": "a", "sampling_params": {"n": 2}}, ["<a>", "<a>"]),
        ({"text": ["a", "b"], "sampling_params": {"n": 2}}, ["<a>", "<a>", "<b>", "<b>"]),
    ],
)
def test_one_prompt_gives_one_answer_a_list_gives_a_list(
    server: RunningServer, body: dict[str, Any], texts: Any
) -> None:
    found = answer(server, **body)
    if isinstance(texts, str):
        assert found["text"] == texts
    else:
        assert [one["text"] for one in found] == texts


def test_put_is_post(server: RunningServer) -> None:
    reply = httpx.put(f"{server.url}/generate", json={"text": "ab"})
    assert reply.json()["text"] == "<ab>"


def test_streams_are_cumulative_or_incremental(server: RunningServer) -> None:
    whole = answer(server, text="ab")
    texts = [event["text"] for event in events(server, text="ab")]
    assert texts == ["<", "<a", "<ab", "<ab>", "<ab>"]
    last = events(server, text="ab")[-1]
    assert last["output_ids"] == whole["output_ids"]
    assert last["meta_info"]["finish_reason"] == whole["meta_info"]["finish_reason"]
    pieces = events(server, text="ab", incremental=True)
    assert [piece["text"] for piece in pieces] == ["<", "a", "b", ">", ""]
    assert [i for piece in pieces for i in piece["output_ids"]] == whole["output_ids"]
    for chunks in (pieces, events(server, text="ab")):
        assert [c["meta_info"]["completion_tokens"] for c in chunks] == [1, 2, 3, 4, 5]
        reasons = [c["meta_info"]["finish_reason"] for c in chunks]
        assert reasons[:-1] == [None] * 4
        assert reasons[-1]["type"] == "stop"


def test_streams_of_a_batch_are_numbered(server: RunningServer) -> None:
    found: dict[int, str] = {}
    body = {"text": ["a", "b"], "sampling_params": {"n": 2}}
    for event in events(server, **body):
        found[event["index"]] = event["text"]
    assert found == {0: "<a>", 1: "<a>", 2: "<b>", 3: "<b>"}
    assert "index" not in events(server, text="a")[0]


@pytest.mark.parametrize("incremental", [False, True])
def test_length_is_told(server: RunningServer, incremental: bool) -> None:
    params = {"max_new_tokens": 3}
    expected = {"type": "length", "length": 3}
    found = answer(server, text="endless", sampling_params=params)["meta_info"]["finish_reason"]
    assert found.items() >= expected.items()
    last = events(server, text="endless", sampling_params=params, incremental=incremental)[-1]
    assert last["meta_info"]["finish_reason"].items() >= expected.items()


def test_the_default_length_is_128(server: RunningServer) -> None:
    assert answer(server, text="endless")["meta_info"]["completion_tokens"] == 128


def test_nothing_new_fills_the_cache(server: RunningServer) -> None:
    found = answer(server, text="prefix!", sampling_params={"max_new_tokens": 0})
    assert (found["text"], found["output_ids"]) == ("", [])
    assert answer(server, text="prefix!x")["meta_info"]["cached_tokens"] == 7


def test_stops_are_matched_and_trimmed(server: RunningServer) -> None:
    found = answer(server, text="abc", sampling_params={"stop": ["bc", "zz"]})
    assert found["text"] == "<a"
    assert found["meta_info"]["finish_reason"]["matched"] == "bc"
    kept = answer(server, text="abc", sampling_params={"stop": "bc", "no_stop_trim": True})
    assert kept["text"] == "<abc"
    by_id = answer(server, text="abc", sampling_params={"stop_token_ids": [98]})
    assert (by_id["text"], by_id["meta_info"]["finish_reason"]["matched"]) == ("<a", 98)
    by_regex = answer(server, text="a12", sampling_params={"stop_regex": "[0-9]+"})
    assert by_regex["text"] == "<a"


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"regex": "<[a-c]+>"}, "<ab>"),
        ({"ebnf": 'root ::= "<ab>" | "no"'}, "<ab>"),
        ({"json_schema": '{"const": 1}'}, "1"),
        ({"structural_tag": '{"type": "structural_tag", "format": {"type": "const_string", '
                            '"value": "<ab>"}}'}, "<ab>"),
    ],
)  # fmt: skip
def test_constraints_are_strings(server: RunningServer, params: dict[str, Any], text: str) -> None:
    assert answer(server, text="ab", sampling_params=params)["text"] == text


def test_each_prompt_may_have_parameters_of_its_own(server: RunningServer) -> None:
    params = [{"max_new_tokens": 1}, {"max_new_tokens": 2}]
    found = answer(server, text=["ab", "cd"], sampling_params=params)
    assert [one["text"] for one in found] == ["<", "<c"]


def test_prompt_ids_are_given_back(server: RunningServer) -> None:
    assert answer(server, text="ab", return_prompt_token_ids=True)["prompt_token_ids"] == [97, 98]


def test_ids_of_a_batch_and_of_siblings(server: RunningServer) -> None:
    found = answer(server, text=["a", "b"], rid=["r1", "r2"])
    assert [one["meta_info"]["id"] for one in found] == ["r1", "r2"]
    siblings = answer(server, text="a", rid="r", sampling_params={"n": 2})
    assert len({one["meta_info"]["id"] for one in siblings}) == 2


# -- log-probabilities ----------------------------------------------------------------------


def test_output_logprobs(likely: RunningServer) -> None:
    params = {"max_new_tokens": 2, "temperature": 0}
    body = {"text": "ab", "sampling_params": params, "return_logprob": True}
    meta = answer(likely, **body)["meta_info"]
    assert meta["output_token_logprobs"] == [
        [pytest.approx(LIKELY), ord("c"), None],
        [pytest.approx(LIKELY), ord("d"), None],
    ]
    assert meta["output_token_logprobs_length"] == 2
    assert "output_top_logprobs" not in meta
    assert "input_token_logprobs" not in meta  # logprob_start_len is -1
    more = {"top_logprobs_num": 2, "token_ids_logprob": [126, 0], "return_text_in_logprobs": True}
    meta = answer(likely, **body, **more)["meta_info"]
    assert meta["output_token_logprobs"][0] == [pytest.approx(LIKELY), ord("c"), "c"]
    assert meta["output_top_logprobs"][0] == [
        [pytest.approx(LIKELY), ord("c"), "c"],
        [pytest.approx(UNLIKELY), ord("~"), "~"],
    ]
    [known, impossible] = meta["output_token_ids_logprobs"][1]
    assert known == [pytest.approx(UNLIKELY), 126, "~"]
    assert impossible[0] < -1000  # a finite floor (D1)
    assert impossible[1:] == [0, "\0"]


def test_input_logprobs(likely: RunningServer) -> None:
    params = {"max_new_tokens": 1, "temperature": 0}
    body = {"text": "abz", "sampling_params": params, "return_logprob": True}
    meta = answer(likely, **body, logprob_start_len=0, top_logprobs_num=1)["meta_info"]
    first, second, third = meta["input_token_logprobs"]
    assert first == [None, ord("a"), None]
    assert second == [pytest.approx(LIKELY), ord("b"), None]
    assert third[1] == ord("z")
    assert meta["input_top_logprobs"][0] is None
    assert meta["input_top_logprobs"][2] == [[pytest.approx(LIKELY), ord("c"), None]]
    tail = answer(likely, **body, logprob_start_len=2)["meta_info"]
    assert [item[1] for item in tail["input_token_logprobs"]] == [ord("z")]
    streamed = events(likely, **body, logprob_start_len=0)[-1]["meta_info"]
    assert streamed["input_token_logprobs"] == meta["input_token_logprobs"]
    assert refused(likely, text="a", top_logprobs_num=1)["param"] == "return_logprob"


# -- ids, namespaces, refusals --------------------------------------------------------------


def test_aborting_needs_the_exact_id(server: RunningServer) -> None:
    body = {"text": "endless", "rid": "req-10", "stream": True, "incremental": True}
    body["sampling_params"] = {"max_new_tokens": 8000}
    with httpx.stream("POST", f"{server.url}/generate", json=body, timeout=PATIENCE_S) as reply:
        lines = reply.iter_lines()
        next(lines)
        httpx.post(f"{server.url}/abort_request", json={"rid": "req-1"})
        assert "req-10" in server.state.running
        httpx.post(f"{server.url}/abort_request", json={"rid": "req-10"})
        said = [line for line in lines if line and line != "data: [DONE]"]
    assert json.loads(said[-1].removeprefix("data: "))["error"]["code"] == "aborted"


def test_a5_namespaces_share_nothing(server: RunningServer) -> None:
    prompt = "native namespaces " * 4

    def cached(**body: Any) -> int:
        params = {"max_new_tokens": 1}
        found: int = answer(server, text=prompt, sampling_params=params, **body)["meta_info"][
            "cached_tokens"
        ]
        return found

    spaces: list[dict[str, Any]] = [
        {"cache_salt": "a", "extra_key": "b"},
        {"cache_salt": "a"},
        {"extra_key": "a"},
        {"cache_salt": "a|extra:b"},
        {},
    ]
    assert [cached(**space) for space in spaces] == [0] * len(spaces)
    assert all(cached(**space) == len(prompt) - 1 for space in spaces)
    # The same salt is the same namespace at every endpoint.
    body = {"prompt": prompt, "cache_salt": "a", "max_tokens": 1}
    usage = httpx.post(f"{server.url}/v1/completions", json=body).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == len(prompt) - 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"text": []}, "text"),
        ({"text": ""}, None),
        ({"input_ids": []}, "text"),
        ({"input_ids": [10**30]}, None),
        ({"text": "a", "sampling_params": {"colour": 1}}, "colour"),
        ({"text": "a", "sampling_params": {"beam_width": 2}}, "beam_width"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "temperature"),
        ({"text": "a", "sampling_params": [{}, {}]}, "sampling_params"),
        ({"text": "a", "sampling_params": {"regex": "(["}}, None),
        ({"text": "a", "sampling_params": {"regex": "a", "ebnf": 'root ::= "a"'}}, None),
        ({"text": "a", "image_data": "x"}, "image_data"),
        ({"text": "a", "colour": 1}, "colour"),
        ({"text": "a", "cache_salt": ""}, "cache_salt"),
        ({"text": ["a", "b", "c"], "rid": ["x", "y"]}, "rid"),
        ({"text": ["a", "b"], "rid": ["x", "x"]}, "rid"),
        ({"text": "a", "timeout": -1}, "timeout"),
        ({"text": "a", "priority": 2**70}, "priority"),
        ({"text": "a", "announce": 2}, "announce"),
        ({"text": "a", "stream": "yes"}, "stream"),
    ],
)
def test_e3_e4_what_is_wrong_is_refused(
    server: RunningServer, body: dict[str, Any], param: str | None
) -> None:
    if "stream" in body:
        assert post(server, **body).json()["error"]["param"] == param
    else:
        assert refused(server, **body)["param"] == param


def test_null_is_not_given_and_fields_without_effect_are_accepted(server: RunningServer) -> None:
    nulls = ("stream", "incremental", "sampling_params", "return_logprob", "rid", "chat", "choice",
             "image_data", "never_heard_of", "input_ids")  # fmt: skip
    quiet = {"conversation_id": "c", "custom_labels": {}, "no_logs": True, "log_metrics": False}
    assert answer(server, text="ab", **quiet, **dict.fromkeys(nulls))["text"] == "<ab>"


@pytest.mark.parametrize(
    "content",
    [
        '{"text": "\\ud800"}',
        '{"text": "a", "\\ud800": 1}',
        '{"text": "a", "sampling_params": {"\\ud800": 1}}',
        '{"text": "a", "sampling_params": {"temperature": NaN}}',
        '{"text": "a", "sampling_params": {"max_new_tokens": 1' + "0" * 400 + "}}",
        '{"text": "a", "sampling_params": ' + '{"a":' * 500 + "1" + "}" * 501,
        '{"text": ' + "[" * 20000,
    ],
    ids=range(7),
)
def test_e3_hostile_bodies_get_an_error_that_can_be_told(
    server: RunningServer, content: str
) -> None:
    headers = {"content-type": "application/json"}
    reply = httpx.post(f"{server.url}/generate", content=content, headers=headers)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["message"]


def test_c7_a_dropped_stream_leaves_nothing(server: RunningServer) -> None:
    body = {"text": "endless", "stream": True, "sampling_params": {"max_new_tokens": 8000}}
    with httpx.stream("POST", f"{server.url}/generate", json=body, timeout=PATIENCE_S) as reply:
        lines = reply.iter_lines()
        next(lines)
    server.wait_idle()
