"""Checks of the page's chat."""

import json
import re

from pages import KEY, accessible, ready, until

ENDED = "document.querySelector('#stop').hidden && document.querySelector('.turn.model:last-child .note')?.textContent"

# What a model may write, and what of it must not become a part of the page.
HOSTILE = """# <img src=x onerror="window.hit = 1">

<script>window.hit = 2</script> and <b>bold</b> & [a link](javascript:window.hit=3) and [one](HTTPS://example.org/?a=b)

- an *item* with `<i>code</i>`
- another
  - below it

1. one
2. two

| a | <u>b</u> |
|---|---|
| **1** | 2 |

> quoted ![picture](data:image/svg+xml,<svg onload=alert(1)>)

```html" onmouseover="window.hit = 4
<p>what stays as it is: **stars** &amp; [x](y)</p>

```

The end is open: ```js
~~~
let open = '<br>';"""


def say(page, text, length=None):
    if length:
        page.locator("#length").fill(str(length))
    page.locator("#prompt").fill(text)
    page.locator("#send").click()
    until(page, ENDED)


def chat(pages, url, key=None):
    page = pages.open(url, key=key)
    ready(page)
    page.locator("#prompt").focus()
    page.keyboard.type("Once upon a time there was a fox.")
    page.locator("#length").fill("24")
    page.locator("#prompt").focus()
    page.keyboard.press("Enter")
    until(page, "/first token after/.test(document.querySelector('.turn.model .note')?.textContent)")
    said = page.locator(".turn.model .said").inner_text()
    assert len(said) > 20, said
    # One that would go on for long is stopped; the next goes on from there.
    page.locator("#length").fill("400")
    page.locator("#prompt").fill("Tell a long story.")
    page.locator("#send").focus()
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('.turn.model')[1]?.querySelector('.said').textContent")
    assert page.evaluate("document.activeElement.id") == "stop"
    page.keyboard.press("Enter")
    until(page, "/stopped/.test(document.querySelectorAll('.turn.model')[1].querySelector('.note').textContent)")
    say(page, "Again", 8)
    until(page, "document.querySelectorAll('.turn.model .note')[2]?.textContent.includes('from the cache')")
    # The speed is that of the server's own clock, which the list of requests tells. Some stories are short.
    tokens = 0
    while tokens < 50:
        say(page, "Tell a long story.", 200)
        told = page.locator(".turn.model .note").last.inner_text()
        tokens = int(re.match(r"(\d+) token", told)[1])
    speed = float(re.search(r"([\d.,]+) tokens a second", told)[1].replace(",", ""))
    until(page, f"document.querySelector('.ended tr td:nth-child(4) span')?.textContent.endsWith(' + {tokens}')")
    served = page.locator(".ended tr td:nth-child(5)").first.inner_text()
    assert abs(speed / float(served.replace(",", "")) - 1) < 0.2, f"{told}; the server says {served}"
    page.locator("#chat-new").click()
    assert page.locator(".turn").count() == 0
    print(f"chat: answers, stops, goes on from the cache; {speed:.0f} tokens a second, the server says {served}")
    pages.close(page, url)


def sent(page):
    """The bodies that the page has sent to the model, as they come."""
    bodies = []
    page.on("request", lambda request: "/v1/" in request.url and bodies.append(json.loads(request.post_data)))
    return bodies


def what_is_kept(pages, url):
    """Settings and the conversation outlive the page, until a new chat; the last answer can be had anew."""
    page = pages.open(url, key=KEY)
    ready(page)
    bodies = sent(page)
    page.locator("#settings-open").click()
    page.locator("#system").fill("Speak of <b>ships</b>.")
    page.locator("#temperature").fill("0.5")
    accessible(page, "settings")
    say(page, "A story, please.", 12)
    assert bodies[-1]["messages"][0] == {"role": "system", "content": "Speak of <b>ships</b>."}, bodies
    assert (bodies[-1]["temperature"], bodies[-1]["max_tokens"]) == (0.5, 12), bodies
    before = page.locator(".turn.model .said").inner_text()
    page.locator(".again").click()
    until(page, ENDED)
    assert bodies[-1]["messages"] == bodies[-2]["messages"], "what is asked anew is the same"
    assert page.locator(".turn").count() == 2
    page.reload()
    ready(page)
    assert page.locator(".turn.user").inner_text() == "A story, please."
    assert page.locator(".turn.model .said").inner_text() != "" != before
    assert page.locator("#temperature").input_value() == "0.5"
    say(page, "And then?")
    assert [message["role"] for message in bodies[-1]["messages"]] == ["system", "user", "assistant", "user"], bodies
    page.locator("#chat-new").click()
    page.reload()
    ready(page)
    assert page.locator(".turn").count() == 0
    print("chat: system prompt and temperature are sent, what was said is kept, an answer can be had anew")
    pages.close(page, url)


def one_that_failed_poisons_nothing(pages, url):
    page = pages.open(url, key=KEY)
    ready(page)
    bodies = sent(page)
    say(page, "The first.", 8)
    for failure in [lambda route: route.fulfill(status=500, json={"error": {"message": "it <b>broke</b>"}}),
                    lambda route: route.abort()]:
        page.route("**/v1/chat/completions", failure)
        page.locator("#prompt").fill("The one that fails.")
        page.locator("#send").click()
        until(page, "document.querySelector('.turn.model:last-child .error')")
        page.unroute("**/v1/chat/completions")
    assert "it <b>broke</b>" in page.locator(".error").first.inner_text()
    say(page, "The next.", 8)
    said = [message["content"] for message in bodies[-1]["messages"] if message["role"] == "user"]
    assert said == ["The first.", "The next."], said
    page.complaints = []
    print("chat: an exchange that failed is not sent again")
    pages.close(page, url)


def markdown_is_no_html(pages, url):
    """Whatever a model writes becomes text, or one of the few elements of Markdown."""
    page = pages.open(url, key=KEY)
    ready(page)
    made = page.evaluate(
        """async (text) => {
          const { Markdown } = await import('/page/markdown.js');
          const root = document.createElement('div');
          root.className = 'said';
          document.body.append(root);
          const shown = new Markdown(root);
          // As it comes: a piece at a time.
          for (let end = 1; end <= text.length; end += 1) shown.show(text.slice(0, end));
          const grown = root.innerHTML;
          const again = document.createElement('div');
          new Markdown(again).show(text);
          const nodes = [...root.querySelectorAll('*')];
          return {
            tags: [...new Set(nodes.map((node) => node.localName))].sort(),
            attributes: [...new Set(nodes.flatMap((node) => node.getAttributeNames()))].sort(),
            links: [...root.querySelectorAll('a')].map((node) => node.href),
            code: [...root.querySelectorAll('pre')].map((node) => node.textContent),
            items: [...root.querySelectorAll('li')].map((node) => node.firstChild.textContent),
            same: grown === again.innerHTML, text: root.textContent, hit: window.hit ?? null,
          };
        }""", HOSTILE)
    allowed = {"a", "blockquote", "br", "button", "code", "div", "em", "h3", "li", "ol", "p", "pre", "span", "strong",
               "table", "tbody", "td", "th", "thead", "tr", "ul"}
    assert set(made["tags"]) <= allowed, made["tags"]
    handlers = [name for name in made["attributes"] if name.startswith("on") or name in ("src", "style")]
    assert not handlers and made["hit"] is None, made
    assert made["links"] == ["https://example.org/?a=b"], made["links"]
    for kept in ['<img src=x onerror="window.hit = 1">', "<script>window.hit = 2</script>", "<b>bold</b>",
                 "javascript:"]:
        assert kept in made["text"], kept
    assert made["code"] == ["<p>what stays as it is: **stars** &amp; [x](y)</p>\n", "let open = '<br>';"], made["code"]
    assert made["items"][:2] == ["an ", "another"] and "below it" in made["items"], made["items"]
    assert made["same"], "what grew differs from what was written at once"
    print(f"markdown: {', '.join(made['tags'])}, and never what a model writes as HTML")
    pages.close(page, url)
