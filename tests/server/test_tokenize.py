"""/tokenize and /detokenize: the ids that the other endpoints use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from server_harness import RunningServer, serving

from rtlang.runtime.byte_tokenizer import BOS, ByteTokenizer
from rtlang.testing import ScriptedModel

USER = [{"role": "user", "content": "hé"}]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    model = ScriptedModel(lambda _: "ok", tokenizer=ByteTokenizer(bos=True))
    with serving(model, served_model_name="m") as running:
        yield running


def post(server: RunningServer, path: str, **body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body)


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_texts_become_ids_and_ids_texts(server: RunningServer, prefix: str) -> None:
    found = post(server, f"{prefix}/tokenize", prompt="hé", model="m").json()
    assert found == {"tokens": [BOS, *"hé".encode()], "count": 4, "max_model_len": 8192}
    bare = post(server, f"{prefix}/tokenize", prompt="hé", add_special_tokens=False).json()
    assert bare["tokens"] == [*"hé".encode()]
    text = post(server, f"{prefix}/detokenize", tokens=found["tokens"]).json()
    assert text == {"text": "hé"}
    body = {"tokens": found["tokens"], "skip_special_tokens": False}
    assert post(server, f"{prefix}/detokenize", **body).json() == {"text": "<|bos|>hé"}


def test_i1_a_text_has_the_ids_of_a_completion(server: RunningServer) -> None:
    found = post(server, "/tokenize", prompt="hé").json()
    reply = post(server, "/v1/completions", prompt="hé", return_token_ids=True).json()
    assert reply["choices"][0]["prompt_token_ids"] == found["tokens"]


@pytest.mark.parametrize("more", [{}, {"tools": [{"type": "function", "function": {"name": "f"}}]}])
def test_i1_a_chat_has_the_ids_of_a_chat_completion(
    server: RunningServer, more: dict[str, Any]
) -> None:
    found = post(server, "/tokenize", messages=USER, **more).json()
    body = {"messages": USER, "return_token_ids": True, **more}
    reply = post(server, "/v1/chat/completions", **body).json()
    assert reply["prompt_token_ids"] == found["tokens"]


def test_the_generation_prompt_can_be_left_out(server: RunningServer) -> None:
    whole = post(server, "/tokenize", messages=USER).json()["tokens"]
    bare = post(server, "/tokenize", messages=USER, add_generation_prompt=False).json()["tokens"]
    assert whole[: len(bare)] == bare
    assert len(bare) < len(whole)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "x", "messages": USER}),
        ("/tokenize", {"prompt": "x", "tools": []}),
        ("/tokenize", {"messages": USER, "add_special_tokens": True}),
        ("/tokenize", {"messages": []}),
        ("/tokenize", {"messages": USER, "chat_template_kwargs": {"colour": 1}}),
        ("/tokenize", {"prompt": 7}),
        ("/tokenize", {"prompt": "x", "colour": 1}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [264]}),
        ("/detokenize", {"tokens": [10**40]}),
        ("/detokenize", {"tokens": [1.5]}),
        ("/detokenize", {"tokens": ["a"]}),
    ],
)
def test_e3_what_is_wrong_is_refused(
    server: RunningServer, path: str, body: dict[str, Any]
) -> None:
    reply = post(server, path, **body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["message"]


def test_e5_the_model_is_checked(server: RunningServer) -> None:
    assert post(server, "/tokenize", prompt="x", model="other").status_code == 404
    assert post(server, "/detokenize", tokens=[1], model="other").status_code == 404
