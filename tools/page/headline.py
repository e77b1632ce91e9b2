"""Checks of what the page says first: the fact, what memory is used for, and what the cache spares."""

import re

from pages import KEY, ready, until
from server import ask

UNITS = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


def as_bytes(text):
    number, unit = text.split()
    return float(number.replace(",", "")) * UNITS[unit]


def the_fact(pages, url, model):
    page = pages.open(url, key=KEY)
    ready(page)
    fact = page.locator("#fact").inner_text()
    found = re.fullmatch(r"(\S+ \S+) of model in (\S+ \S+) of memory", fact)
    stored = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    assert found and abs(as_bytes(found[1]) / stored - 1) < 0.02, f"{fact}, of {stored} bytes"
    assert found[2] == "1.07 GB", fact
    told = page.locator("#facts").inner_text()
    facts = dict(re.findall(r"^(Model|Computes on|Context|Version|Up)\s+(.*)$", told, re.M))
    assert facts["Model"] == model.name and re.fullmatch(r"Interbed \d+\.\d+\.\d+\S*", facts["Version"]), facts
    assert re.search(r"\d+ threads?, \w+", facts["Computes on"]) and re.match(r"\d+ (s|min)", facts["Up"]), facts
    assert re.fullmatch(r"[\d,]+ tokens", facts["Context"]), facts
    # What memory is for, "unused" by itself, comes to all of it.
    parts = page.locator("#tiers .tier").first.locator(".legend li:not([hidden])").all_inner_texts()
    sizes = {name: as_bytes(size) for size, name in (re.match(r"(\S+ \S+)\s+(.*)", part).groups() for part in parts)}
    assert {"the program", "passes", "requests", "unused"} <= set(sizes), sizes
    assert abs(sum(sizes.values()) / 2**30 - 1) < 0.01, sizes
    assert "At rest." in page.locator("#limit").inner_text()
    assert f"curl {url}/v1/chat/completions" in page.locator("#rest code").inner_text()
    print(f"headline: {fact}; {facts}")
    pages.close(page, url)


def cache_hits_are_told(pages, url):
    """A prompt that was asked before is found, and what that saved is told with the name of its key."""
    page = pages.open(url, key=KEY)
    ready(page)
    prompt = "Once upon a time there was a fox who lived by the sea. " * 12
    for _ in range(2):
        ask(url, {"prompt": prompt, "max_tokens": 20, "ignore_eos": True}, KEY)
    until(page, "/found, saved/.test(document.querySelector('.ended tr')?.textContent)")
    row = page.locator(".ended tr").first.locator("td").all_inner_texts()
    found = re.search(r"([\d,]+) \+ 20\s*([\d,]+) found, saved ([\d.]+) (ms|s)", row[3])
    assert row[1] == "alice" and found, row
    tokens, cached = (int(number.replace(",", "")) for number in found.groups()[:2])
    assert 0 < cached < tokens, row
    until(page, "/In the last minute .*found in the cache/.test(document.querySelector('#limit').textContent)")
    until(page, "/saved/.test(document.querySelector('#figures').textContent)")
    print(f"requests: {row}")
    pages.close(page, url)
