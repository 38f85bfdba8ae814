"""What happens around every route: sizes, ids, origins, TLS, and the log's lines."""

from __future__ import annotations

import json
import logging
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_harness import RunningServer, serving, wait_until

from rtlang.errors import ConfigError
from rtlang.runtime.server.config import ServerConfig
from rtlang.runtime.server.listen import check_tls
from rtlang.runtime.server.logs import JsonFormatter, TextFormatter
from rtlang.testing import ScriptedModel

MIB = 1 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving(ScriptedModel(lambda _: "fine"), max_body_mib=1) as running:
        yield running


def test_a_body_beyond_the_limit_is_413_whether_it_says_its_length_or_not(
    server: RunningServer,
) -> None:
    url = f"{server.url}/generate"
    large = json.dumps({"text": "x" * MIB}).encode()
    headers = {"content-type": "application/json"}

    def parts() -> Iterator[bytes]:
        for at in range(0, len(large), 65536):
            yield large[at : at + 65536]

    for content in (large, parts()):
        answer = httpx.post(url, content=content, headers=headers)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "body_too_large"
        assert answer.json()["error"]["limit"] == MIB
    fits = json.dumps({"text": "x", "no_logs": "y" * (MIB - 100)}).encode()
    for content in (fits, iter([fits[:1000], fits[1000:]])):
        assert httpx.post(url, content=content, headers=headers).status_code == 200


def test_every_answer_carries_an_id_and_the_client_s_own_is_kept(server: RunningServer) -> None:
    for path, status in (("/health", 200), ("/no-such", 404), ("/generate", 405)):
        answer = httpx.get(server.url + path, headers={"x-request-id": "mine-1"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (status, "mine-1")
    made = {httpx.get(f"{server.url}/health").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    for wrong in ("a b", "x" * 129, "é"):
        answer = httpx.get(f"{server.url}/health", headers={b"x-request-id": wrong.encode()})
        assert len(answer.headers["x-request-id"]) == 32


def test_a_bug_of_ours_is_500_without_details_and_has_an_id(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(type(server.state), "check_model", lambda *_: 1 / 0)
    with caplog.at_level(logging.ERROR):
        answer = httpx.post(f"{server.url}/generate", json={"text": "a"})
    assert answer.status_code == 500
    assert "Zero" not in answer.text
    assert answer.json()["error"]["message"] == "internal error"
    assert answer.headers["x-request-id"]
    assert any(r.exc_info for r in caplog.records)


def preflight(url: str, origin: str) -> httpx.Response:
    asks = {
        "origin": origin,
        "access-control-request-method": "DELETE",
        "access-control-request-headers": "authorization,x-stainless-lang",  # as OpenAI's client
    }
    return httpx.options(f"{url}/v1/responses/r", headers=asks)


def test_cors_is_off_by_default_and_on_for_the_given_origins(server: RunningServer) -> None:
    answer = preflight(server.url, "https://a.example")
    assert answer.status_code == 405
    plain = httpx.get(f"{server.url}/health", headers={"origin": "https://a.example"})
    assert not [h for h in (*answer.headers, *plain.headers) if h.startswith("access-control")]
    origins = ("https://a.example",)
    with serving(ScriptedModel(lambda _: "fine"), cors_origins=origins) as open_server:
        allowed = preflight(open_server.url, "https://a.example")
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://a.example"
        assert "access-control-allow-credentials" not in allowed.headers
        other = preflight(open_server.url, "https://b.example")
        assert "access-control-allow-origin" not in other.headers


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(certificate, key) for 127.0.0.1, signed by itself."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", key, "-out", cert],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return cert, key


def test_tls(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    model = ScriptedModel(lambda _: "fine")
    with serving(model, tls_cert=str(cert), tls_key=str(key)) as server:
        url = server.url.replace("http:", "https:")
        context = ssl.create_default_context(cafile=str(cert))
        answer = httpx.post(f"{url}/generate", json={"text": "a"}, verify=context)
        assert answer.json()["text"] == "fine"
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{server.url}/health")


def test_tls_files_that_cannot_be_used_are_told_before_anything_loads(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = certificate
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "rsa", "-aes128", "-passout", "pass:secret", "-in", key, "-out", locked],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    for wrong in (str(tmp_path / "none"), str(cert), str(locked)):
        with pytest.raises(ConfigError, match="tls_"):
            check_tls(ServerConfig(tls_cert=str(cert), tls_key=wrong))
    with pytest.raises(ConfigError, match="both"):
        ServerConfig(tls_cert=str(cert))


def lines(caplog: pytest.LogCaptureFixture, count: int) -> list[logging.LogRecord]:
    """As many as were waited for: a call's line is written after its answer was sent."""

    def found() -> list[logging.LogRecord]:
        return [r for r in caplog.records if r.name == "rtlang.runtime.server.logs"]

    wait_until(lambda: len(found()) >= count)
    return found()


def call_of(record: logging.LogRecord) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(JsonFormatter().format(record))
    return line


def test_one_line_per_call_with_its_tokens_and_times(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"text": "count my tokens", "sampling_params": {"max_new_tokens": 3, "n": 2}}
    with caplog.at_level(logging.INFO, "rtlang"):
        httpx.get(f"{server.url}/health")
        for stream in (False, True):
            headers = {"x-request-id": f"id-{stream}"}
            sent = {**body, "stream": stream}
            httpx.post(f"{server.url}/generate", json=sent, headers=headers)
        httpx.post(f"{server.url}/generate", json={"text": "a", "temprature": 1})
        found = [call_of(r) for r in lines(caplog, 3)]
    assert [(c["id"], c["status"], c["stream"]) for c in found[:2]] == [
        ("id-False", 200, False), ("id-True", 200, True),
    ]  # fmt: skip
    for call in found[:2]:
        assert (call["route"], call["key"], call["sequences"]) == ("/generate", "", 2)
        assert (call["prompt"], call["completion"], call["finish"]) == (30, 6, "length")
        assert 0 < call["cached"] <= 28
        assert 0 < call["sent_s"] <= call["first_s"] <= call["total_s"]
    assert (found[2]["status"], found[2]["error"]) == (400, "invalid_parameter")
    assert len(found) == 3  # and none for /health


def test_prompts_are_not_logged_unless_asked(caplog: pytest.LogCaptureFixture) -> None:
    for wanted in (False, True):
        caplog.clear()
        model = ScriptedModel(lambda _: "the answer's text")
        with (
            caplog.at_level(logging.DEBUG),
            serving(model, log_prompts=wanted) as server,
        ):
            httpx.post(f"{server.url}/generate", json={"text": "the secret prompt"})
            (record,) = lines(caplog, 1)
        for formatter in (JsonFormatter(), TextFormatter()):
            line = formatter.format(record)
            assert ("secret" in line) is ("the answer" in line) is wanted
        if not wanted:
            assert "secret" not in caplog.text


def test_a_client_cannot_write_lines_of_its_own(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "rtlang"):
        httpx.get(f"{server.url}/no%0Asuch%1b%20path")
        (record,) = lines(caplog, 1)
    assert TextFormatter().format(record).isprintable()
    assert len(JsonFormatter().format(record).splitlines()) == 1


def test_an_exception_is_one_line_of_json() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError as error:
        exc = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "it failed: %s", ("a\nb",), exc)
    line = JsonFormatter().format(record)
    assert len(line.splitlines()) == 1
    assert json.loads(line)["exception"].endswith("ValueError: first\nsecond")


def test_a_page_of_another_site_cannot_make_a_browser_ask(server: RunningServer) -> None:
    url = f"{server.url}/flush_cache"
    for site in ("cross-site", "same-site"):
        headers = {"sec-fetch-site": site, "origin": "https://a.example"}
        assert httpx.post(url, headers=headers).status_code == 403
        assert httpx.get(url, headers={"sec-fetch-site": site}).status_code == 403  # an image, say
        assert httpx.get(server.url, headers=headers).status_code == 200  # a link to the page
    assert httpx.post(url, headers={"sec-fetch-site": "same-origin"}).status_code == 200
    origins = ("https://a.example",)
    with serving(ScriptedModel(lambda _: "fine"), cors_origins=origins) as open_server:
        headers = {"sec-fetch-site": "cross-site", "origin": "https://a.example"}
        assert httpx.post(f"{open_server.url}/flush_cache", headers=headers).status_code == 200
