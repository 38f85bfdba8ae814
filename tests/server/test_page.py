"""The page, in a headless Chromium: what it shows is what the engine says."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from server_harness import RunningServer, serving

from rtlang.testing import Reply, ScriptedModel

PATIENCE_MS = 30_000
#: Where ``make`` puts it; see ``tests/install_browser.py``.
INSTALLED = Path(sys.prefix) / "browser"
HOSTILE = '<img src=x onerror="document.title=1">'


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    own = INSTALLED / "chromium"
    path = str(own) if own.exists() else shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium: python tests/install_browser.py .venv/browser")
    libraries = [str(INSTALLED / "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    with sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=path,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
            env={**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)},
        )
        yield started
        started.close()


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    def script(prompt: str) -> Reply:
        return Reply("x", eos=False, delay_s=0) if "for ever" in prompt else Reply(f"Hi {HOSTILE}")

    model = ScriptedModel(script, step_s=0.01)
    with serving(model, log_prompts=True) as running:
        yield running


@pytest.fixture
def page(browser: Browser, server: RunningServer) -> Iterator[Page]:
    opened = browser.new_page(viewport={"width": 1280, "height": 1500})
    opened.set_default_timeout(PATIENCE_MS)
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    opened.goto(server.url)
    yield opened
    opened.close()
    assert problems == []  # no exception, nothing that the content policy refused


def generate(server: RunningServer, text: str, count: int = 4) -> None:
    body = {"text": text, "sampling_params": {"max_new_tokens": count}}
    assert httpx.post(f"{server.url}/generate", json=body).status_code == 200


def test_a_chat_is_streamed_and_counted(page: Page) -> None:
    page.fill("#chat-text", "hello")
    page.press("#chat-text", "Enter")
    answer = page.locator(".turn.assistant")
    expect(answer).to_contain_text(f"Hi {HOSTILE}", timeout=PATIENCE_MS)  # as text
    expect(answer.locator("small")).to_contain_text("prompt tokens cached", timeout=PATIENCE_MS)
    page.fill("#chat-text", "and again")
    page.click("#chat-send")
    cached = page.locator(".turn.assistant small").nth(1)
    expect(cached).to_be_visible(timeout=PATIENCE_MS)
    assert int(cached.inner_text().split()[0]) > 40  # the first turn and its answer
    assert page.title() == "rtlang"


def test_recent_calls_show_what_the_cache_gave(page: Page, server: RunningServer) -> None:
    generate(server, "shared by two " * 10 + "first")
    generate(server, "shared by two " * 10 + "second")
    row = page.locator("#calls tbody tr").first
    expect(row).to_contain_text("140 + 6", timeout=PATIENCE_MS)
    expect(row).to_contain_text("/generate")
    assert "second" in (row.get_attribute("title") or "")


def test_the_tree_shows_nodes_and_their_text(page: Page, server: RunningServer) -> None:
    server.engine.flush_cache()
    generate(server, "trunk of the tree, branch one")
    generate(server, "trunk of the tree, branch two")
    expect(page.locator("#tree-size")).to_contain_text("5 nodes", timeout=PATIENCE_MS)
    nodes = page.locator("#tree circle.node")
    assert nodes.count() == 5 and page.locator("#tree path.edge").count() == 4
    radii = [float(node.get_attribute("r") or 0) for node in nodes.all()]
    assert max(radii) == radii[0]  # the trunk has most tokens
    nodes.first.hover()
    expect(page.locator("#node-text")).to_contain_text("trunk of the tree, branch ")
    expect(page.locator("#node-text")).to_contain_text("used 1 times")


def test_a_running_request_is_in_its_state_and_locks_its_nodes(
    page: Page, server: RunningServer
) -> None:
    body = {"text": "go on for ever", "stream": True, "sampling_params": {"max_new_tokens": 8000}}
    with httpx.stream("POST", f"{server.url}/generate", json=body, timeout=60) as answer:
        received = answer.iter_bytes()  # dropped, it would close the stream
        next(received)
        expect(page.locator('[data-state="running"] b')).to_have_text("1", timeout=PATIENCE_MS)
        expect(page.locator("#tree circle.locked").first).to_be_attached(timeout=PATIENCE_MS)
        expect(page.locator("#phase")).to_have_text("ready")
        expect(page.locator("#itl_p50")).to_contain_text("ms", timeout=PATIENCE_MS)
    expect(page.locator('[data-state="running"] b')).to_have_text("0", timeout=PATIENCE_MS)


def test_the_page_fits_a_telephone(browser: Browser, server: RunningServer) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(server.url)
    expect(page.locator("#phase")).to_have_text("ready", timeout=PATIENCE_MS)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


@pytest.mark.parametrize("name", ["..%2fconfig.py", "config.py", "%2e%2e/app.py", "none.js", "."])
def test_only_the_pages_own_files_are_served(server: RunningServer, name: str) -> None:
    assert httpx.get(f"{server.url}/page/{name}").status_code == 404
