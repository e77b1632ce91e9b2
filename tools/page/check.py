"""Checks the live page in a real browser, and takes its pictures. Usage: check.py INTERBED FOLDER [quick]

FOLDER is for what the checks write: logs, a model, pictures. Without pictures it is quick.
"""

import shutil
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from chat import chat, markdown_is_no_html, one_that_failed_poisons_nothing, what_is_kept
from headline import cache_hits_are_told, the_fact
from pages import KEY, NARROW, WIDE, Pages, accessible, ready, until
from replay import Busy, Replay, recorded
from server import Load, Server
from states import key_is_asked, loading_and_gone, send_is_in_sight

PICTURE = {"width": 1400, "height": 1120}
PAINT_MS_MAX = 200
FRAMES_LEAST = 20
BLOCKS_MANY = 100_000

# A reader of a hundred thousand blocks needs frames, so they are counted, and so are those in which a map was drawn.
COUNT_FRAMES = """
window.frames_ = { all: 0, drawn: 0 };
const put = CanvasRenderingContext2D.prototype.putImageData;
CanvasRenderingContext2D.prototype.putImageData = function (...args) {
  if (this.canvas.id === 'blocks-map') window.frames_.drawn += 1;
  return put.apply(this, args);
};
const tick = () => { window.frames_.all += 1; requestAnimationFrame(tick); };
requestAnimationFrame(tick);
"""


def first_paint(pages, url):
    def best(path):
        times = []
        for _ in range(8):
            page = pages.open(url + path, key=KEY)
            until(page, "performance.getEntriesByName('first-contentful-paint').length")
            times.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            # Of the other page's missing icon the browser complains.
            page.complaints.clear()
            pages.close(page, url)
        return min(times)

    # What else the machine does only adds to it, and adds as much to a page of one line.
    paint, line = best("/"), best("/version")
    print(f"first paint after {paint:.0f} ms; that of a page of one line after {line:.0f} ms")
    assert paint < max(PAINT_MS_MAX, 4 * line)


def keyboard(pages, url):
    page = pages.open(url, key=KEY)
    ready(page)
    visited = []
    for _ in range(16):
        page.keyboard.press("Tab")
        visited.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
    for wanted in ["skip", "theme", "blocks-slider", "messages", "prompt", "length", "send", "settings-open"]:
        assert wanted in visited, f"{wanted} is not reached: {visited}"
    slider = page.locator("#blocks-slider")
    slider.focus()
    told = [slider.get_attribute("aria-valuetext")]
    for pressed in ["ArrowRight", "ArrowDown", "End", "Home"]:
        page.keyboard.press(pressed)
        told.append(slider.get_attribute("aria-valuetext"))
    assert len(set(told)) == len(told) and all(text.startswith("Block ") for text in told[1:]), told
    theme = page.locator("#theme")
    theme.focus()
    grounds = set()
    for _ in range(3):
        page.keyboard.press("Enter")
        grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2, grounds
    print("keyboard: reaches all, blocks are told, the theme changes")
    pages.close(page, url)


def many_blocks(pages, url):
    busy = Busy(BLOCKS_MANY)
    replay = Replay(url, recorded(busy, 300, 0.033), 0.033)
    page = pages.open(replay.url, script=COUNT_FRAMES)
    ready(page)
    time.sleep(1)
    before, begin = page.evaluate("({...frames_})"), time.monotonic()
    time.sleep(5)
    after, elapsed = page.evaluate("({...frames_})"), time.monotonic() - begin
    rates = {kind: (after[kind] - before[kind]) / elapsed for kind in after}
    print(f"{BLOCKS_MANY} blocks: {rates['all']:.0f} frames a second, {rates['drawn']:.0f} of them with a new map")
    assert min(rates.values()) >= FRAMES_LEAST
    # What was drawn is what was told.
    free = page.evaluate("[...document.querySelectorAll('#blocks-legend b')].map((node) => node.textContent)")
    assert sum(int(number.replace(",", "")) for number in free) == BLOCKS_MANY, free
    pages.close(page, replay.url)


def accessible_everywhere(pages, url):
    replay = Replay(url, recorded(Busy(3_000), 20, 0.05), 0.05)
    for scheme in ["light", "dark"]:
        for name, size in [("wide", WIDE), ("narrow", NARROW)]:
            page = pages.open(replay.url, size, scheme)
            ready(page)
            time.sleep(1.5)
            accessible(page, f"{scheme}, {name}")
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= size["width"], f"{width} pixels at {size}"
            pages.close(page, replay.url)
    page = pages.open(replay.url, reduced_motion="reduce")
    ready(page)
    assert page.evaluate("getComputedStyle(document.querySelector('.piece')).transitionDuration") == "0s"
    pages.close(page, replay.url)


def policy(pages, url):
    """The page is bound to its own server, and sent again only when it has changed."""
    request = pages.browser.new_context().request
    for path in ["/", "/page/style.css", "/page/app.js", "/page/icon.svg"]:
        answer = request.get(url + path)
        assert answer.status == 200 and "default-src 'none'" in answer.headers["content-security-policy"]
        again = request.get(url + path, headers={"if-none-match": answer.headers["etag"]})
        assert again.status == 304, again.status
        assert request.head(url + path).status == 200
    assert request.get(url + "/page/none.js").status == 404
    assert request.get(url + "/live/events").status == 401


def picture(page, path):
    page.screenshot(path=path)
    print(f"{path}: {path.stat().st_size / 1000:.0f} KB")


# Some begin alike, for so long that they share blocks.
BEGINNINGS = [f"Once upon a time there was a little village by the {place}. Every day its children went out to play, "
              "and every evening they came home late and tired. One day they met "
              for place in ["sea", "forest", "river"]]
PROMPTS = [beginning + end for end in ["a fox", "a bear", "a mouse", "a bird", "a turtle"] for beginning in BEGINNINGS]


def pictures(pages, binary, folder):
    """A busy server whose weights stream, and an idle one that has answered somebody."""
    model = folder / "random"
    if not model.exists():
        subprocess.run([binary, "synth", "--config", Path(__file__).parent / "config.json", model], check=True)
    with Server(binary, model, folder / "busy.log", "--memory", "300M") as server:
        page = pages.open(server.url, PICTURE)
        ready(page)
        seen = set()
        with Load(server.url, PROMPTS, 14, 100):
            # The history fills, blocks are shared, the window moves, and weights make room.
            end = time.monotonic() + 45
            while time.monotonic() < end:
                time.sleep(0.2)
                seen.update(page.evaluate(SEEN))
            missing = {"stays", "ready", "loading", "use", "disk", "own", "shared", "free", "withdrawn"} - seen
            assert not missing, f"never seen: {missing}"
            assert "Passes waited for the disk" in page.locator("#waits").inner_text()
            accessible(page, "busy")
            for _ in range(100):
                if {"use", "loading"} <= set(page.evaluate(SEEN)):
                    break
                time.sleep(0.05)
            picture(page, folder / "page-busy.png")
        pages.close(page, server.url)
    with Server(binary, folder / "storyteller", folder / "idle.log", "--memory", "256M") as server:
        page = pages.open(server.url, PICTURE, "dark")
        ready(page)
        for said in ["Tell me a story of a fox and the sea.", "And then?"]:
            page.locator("#prompt").fill(said)
            page.locator("#length").fill("200")
            page.locator("#send").click()
            until(page, "document.querySelector('#stop').hidden && "
                        "document.querySelector('.turn.model:last-child .note').textContent")
        until(page, "document.querySelector('#health-text').textContent === 'idle'")
        time.sleep(8)
        page.evaluate("document.activeElement.blur()")
        accessible(page, "idle")
        picture(page, folder / "page-idle.png")
        pages.close(page, server.url)


# What the legends say that there is, of weights and of blocks.
SEEN = """[...document.querySelectorAll('#weights-legend li, #blocks-legend li')]
  .filter((entry) => !/^0( |$)/.test(entry.querySelector('b').textContent))
  .map((entry) => /(unit|block)-(\\w+)/.exec(entry.querySelector('i').className)[2])"""


def main():
    binary, folder = str(Path(sys.argv[1]).resolve()), Path(sys.argv[2])
    root = Path(__file__).resolve().parents[2]
    storyteller = folder / "storyteller"
    shutil.copytree(root / "models/storyteller", storyteller, dirs_exist_ok=True)
    shutil.copy(root / "tools/clients/template.jinja", storyteller / "chat_template.jinja")
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        pages = Pages(browser)
        keys = folder / "keys"
        keys.write_text(f"{KEY} alice\n")
        with Server(binary, storyteller, folder / "server.log", "--memory", "1G", "--api-key-file", keys) as server:
            policy(pages, server.url)
            first_paint(pages, server.url)
            key_is_asked(pages, server.url)
            send_is_in_sight(pages, server.url)
            keyboard(pages, server.url)
            the_fact(pages, server.url, storyteller)
            cache_hits_are_told(pages, server.url)
            chat(pages, server.url, KEY)
            what_is_kept(pages, server.url)
            one_that_failed_poisons_nothing(pages, server.url)
            markdown_is_no_html(pages, server.url)
            many_blocks(pages, server.url)
            accessible_everywhere(pages, server.url)
        loading_and_gone(pages, binary, storyteller, folder)
        if "quick" not in sys.argv:
            pictures(pages, binary, folder)
        browser.close()
    print("the page is as it should be")


if __name__ == "__main__":
    main()
