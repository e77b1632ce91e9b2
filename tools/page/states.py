"""Checks of the page where it cannot show the server, and of what is in sight at once."""

import json
import re

from pages import KEY, accessible, ready, until
from server import Server


def key_is_asked(pages, url):
    page = pages.open(url)
    form = page.locator("#key-form")
    form.wait_for(state="visible")
    assert page.evaluate("document.activeElement.id") == "key"
    assert not page.locator("main").is_visible()
    accessible(page, "locked")
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('#key-error').textContent.includes('does not know')")
    page.keyboard.type(KEY)
    page.keyboard.press("Enter")
    form.wait_for(state="hidden")
    ready(page)
    # What the browser says of answers without a key is no complaint of the page's.
    page.complaints = [said for said in page.complaints if "401" not in said]
    pages.close(page, url)


def send_is_in_sight(pages, url):
    for width, height in [(1280, 720), (1440, 900), (2560, 1440), (390, 844), (390, 664)]:
        page = pages.open(url, {"width": width, "height": height}, key=KEY)
        ready(page)
        box = page.locator("#send").bounding_box()
        assert box["y"] + box["height"] <= height, f"at {width} x {height}, Send is at {box}"
        chat, figures = (page.locator(part).bounding_box() for part in ["#chat", "#figures"])
        assert width > 1080 or chat["y"] < figures["y"], "on narrow screens the chat comes first"
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"wider than {width}"
        pages.close(page, url)
    print("Send is in sight at once, on wide, low and narrow screens")


def loading_and_gone(pages, binary, model, folder):
    """A page that is open before the model is there, sees the server go, and come again."""
    with Server(binary, model, folder / "states.log", "--memory", "1G") as server:
        page = pages.open(server.url)
        ready(page)
        port = server.url.rsplit(":", 1)[1]
        server.process.kill()
        server.process.wait()
        until(page, "!document.querySelector('#notice').hidden")
        told = page.locator("#notice").inner_text()
        assert "does not answer" in told and "interbed serve" in told and re.search(r"from \d+:\d\d", told), told
        assert page.locator("#send").is_disabled() and page.locator("#fact").is_visible()
        accessible(page, "gone")
    # The browser says of each try that it failed.
    progress = {"status": "loading", "loaded_bytes": 620_000_000, "total_bytes": 1_120_000_000}
    refusal = {"error": {"message": "the model is still being loaded", "code": "loading"}}
    page.route("**/live/events", lambda route: route.fulfill(status=503, body=json.dumps(refusal)))
    page.route("**/health", lambda route: route.fulfill(status=503, headers={"retry-after": "8"}, json=progress))
    until(page, "/being loaded/.test(document.querySelector('#notice').textContent)")
    told = page.locator("#notice").inner_text()
    assert "620 MB of 1.12 GB" in told and "8 s" in told, told
    assert abs(page.evaluate("document.querySelector('#notice-progress').value") - 0.5536) < 0.001
    accessible(page, "loading")
    page.unroute_all()
    with Server(binary, model, folder / "states.log", "--memory", "1G", "--port", port) as server:
        until(page, "document.querySelector('#health').dataset.state === 'ok'")
        assert not page.locator("#notice").is_visible() and page.locator("#send").is_enabled()
        page.complaints = [said for said in page.complaints if not re.search(r"ERR_|503", said)]
        pages.close(page, server.url)
    print("states: gone, loading and there again are told, with what to do")
