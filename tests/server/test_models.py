"""/v1/models: what is served, under which name."""

from __future__ import annotations

import httpx
from server_harness import serving

from rtlang.testing import ScriptedModel


def test_the_one_model_is_listed_and_found_by_its_name() -> None:
    with serving(ScriptedModel(context_length=99), served_model_name="org/name") as server:
        found = httpx.get(f"{server.url}/v1/models").json()
        [card] = found["data"]
        assert found["object"] == "list"
        assert (card["id"], card["object"], card["max_model_len"]) == ("org/name", "model", 99)
        assert isinstance(card["created"], int)
        assert httpx.get(f"{server.url}/v1/models/org/name").json() == card


def test_e5_an_unknown_model_is_not_found_and_the_served_one_named() -> None:
    with serving(ScriptedModel(), served_model_name="m") as server:
        reply = httpx.get(f"{server.url}/v1/models/other/one")
        assert reply.status_code == 404
        error = reply.json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "'m'" in error["message"]


def test_e5_any_name_is_served_where_the_operator_says_so() -> None:
    with serving(ScriptedModel(lambda _: "ok"), accept_any_model=True) as server:
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
            ("/v1/completions", {"prompt": "x"}),
        ):
            reply = httpx.post(server.url + path, json={"model": "any", **body})
            assert reply.status_code == 200
            assert reply.json()["model"] == "any"
