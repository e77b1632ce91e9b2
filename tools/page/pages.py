"""Pages in a real browser, as the checks of the page need them."""

import time
from pathlib import Path

import axe_playwright_python

KEY = "sesame"
WIDE, NARROW = {"width": 1440, "height": 1000}, {"width": 390, "height": 844}
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()


class Pages:
    """Opens pages, and minds what they ask for and complain about."""

    def __init__(self, browser):
        self.browser = browser

    def open(self, url, size=WIDE, scheme="light", key=None, script=None, **options):
        context = self.browser.new_context(viewport=size, color_scheme=scheme, **options)
        page = context.new_page()
        page.complaints, page.asked = [], []
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("console", lambda said: said.type in ("error", "warning") and page.complaints.append(said.text))
        page.on("request", lambda request: page.asked.append(request.url))
        if script:
            page.add_init_script(script)
        if key:
            page.add_init_script(f"sessionStorage.setItem('key', {key!r})")
        page.goto(url)
        return page

    def close(self, page, url):
        outside = [asked for asked in page.asked if not asked.startswith(url)]
        assert not outside, f"the page asked others: {outside}"
        assert not page.complaints, page.complaints
        page.context.close()


def until(page, holds, within=60):
    """Waits until an expression holds. Playwright's own way of it is what the page's policy forbids."""
    end = time.monotonic() + within
    while not page.evaluate(holds):
        assert time.monotonic() < end, f"after {within} s, this does not hold: {holds}"
        time.sleep(0.02)


def ready(page):
    until(page, "document.querySelector('#health').dataset.state === 'ok'")
    until(page, "document.querySelector('#blocks-legend b').textContent !== ''")


def accessible(page, what):
    page.evaluate(AXE)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    bad = [f"{rule['id']}: {rule['nodes'][0]['html']}" for rule in found if rule["impact"] in ("serious", "critical")]
    minor = [rule["id"] for rule in found if rule["impact"] not in ("serious", "critical")]
    print(f"axe, {what}: {len(bad)} serious, others {minor}")
    assert not bad, bad
