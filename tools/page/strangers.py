"""Checks in a real browser what pages of others can do with a server that asks for no key: nothing, unless they are
allowed to. Usage: strangers.py INTERBED FOLDER

One page comes from another origin; one has a name that was made to mean this machine after it was loaded (DNS
rebinding), so that to the browser it is the server's own.
"""

import http.server
import json
import re
import shutil
import socket
import socketserver
import sys
import threading
import urllib.request
from pathlib import Path

from playwright.sync_api import sync_playwright

from chat import chat
from pages import Pages, ready, until
from server import Server

STRANGER, FRIEND, REBOUND = "stranger.example", "friend.example", "rebound.example"

# What a page of another origin can try without being asked first, and what it can read. Each try says what it came to.
TRY_ALL = """
async (server) => {
  const prompt = JSON.stringify({ prompt: 'Once upon a time', max_tokens: 8 });
  const said = {};
  const tries = {
    text: () => navigator.sendBeacon(server + '/v1/completions', prompt),
    untyped: () => navigator.sendBeacon(server + '/v1/completions', new Blob([prompt])),
    bytes: () => navigator.sendBeacon(server + '/v1/completions', new TextEncoder().encode(prompt)),
    plain: () => navigator.sendBeacon(server + '/v1/completions', new Blob([prompt], { type: 'text/plain' })),
    form: () => navigator.sendBeacon(server + '/v1/completions', new URLSearchParams({ [prompt]: '' })),
    json: () => navigator.sendBeacon(server + '/v1/completions', new Blob([prompt], { type: 'application/json' })),
  };
  for (const [name, attempt] of Object.entries(tries)) {
    try { said[name] = `sent: ${attempt()}`; } catch (error) { said[name] = `${error}`; }
  }
  for (const mode of ['cors', 'no-cors']) {
    for (const headers of [{}, { 'content-type': 'application/json' }]) {
      for (const body of [prompt, new Blob([prompt])]) {
        const name = `${mode} ${JSON.stringify(headers)} ${body.constructor.name}`;
        try {
          const answer = await fetch(server + '/v1/completions', { method: 'POST', mode, headers, body });
          said[name] = `${answer.status} ${await answer.text()}`;
        } catch (error) { said[name] = `${error}`; }
      }
    }
  }
  for (const path of ['/v1/models', '/metrics', '/live/events', '/server_info', '/']) {
    try {
      const answer = await fetch(server + path);
      const { value } = await answer.body.getReader().read();
      said[path] = `${answer.status} ${new TextDecoder().decode(value)}`;
    } catch (error) { said[path] = `${error}`; }
  }
  said.events = await new Promise((resolve) => {
    const events = new EventSource(server + '/live/events');
    events.addEventListener('whole', (event) => resolve(`read: ${event.data.slice(0, 100)}`));
    events.onerror = () => resolve('refused');
    setTimeout(() => resolve('silent'), 5000);
  });
  return said;
}
"""

FORM = """<form method="post" enctype="text/plain" action="{url}/v1/completions">
<input name='{{"prompt": "Once upon a time", "max_tokens": 8, "user": "' value='"}}'></form>"""


class Site(http.server.BaseHTTPRequestHandler):
    """A page with nothing on it but a link and a form to the server."""

    target = ""

    def do_GET(self):
        page = f'<!doctype html><title>site</title><a href="{self.target}/">look</a>{FORM.format(url=self.target)}'
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(page.encode())

    def log_message(self, *_):
        pass


class Rebinding(socketserver.BaseRequestHandler):
    """What a name means: a page at first, and the server for all else that is asked under it."""

    target = ""

    def handle(self):
        first = self.request.recv(1 << 16)
        if first.startswith(b"GET /loaded "):
            page = b"<!doctype html><title>rebound</title>"
            self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n"
                                 b"Content-Length: %d\r\n\r\n%s" % (len(page), page))
            return
        with socket.create_connection(("127.0.0.1", int(port_of(self.target)))) as server:
            server.sendall(first)
            threading.Thread(target=self.pass_on, args=(server, self.request), daemon=True).start()
            self.pass_on(self.request, server)

    @staticmethod
    def pass_on(source, sink):
        try:
            while piece := source.recv(1 << 16):
                sink.sendall(piece)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def serving(server):
    """Its port."""
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def prompt_tokens(url):
    """Tokens that the server has computed for anybody."""
    page = urllib.request.urlopen(url + "/metrics").read().decode()
    return float(re.search(r"^vllm:prompt_tokens_total\{[^}]*\} (\S+)$", page, re.M)[1])


def port_of(url):
    return url.rsplit(":", 1)[1]


def told(said, what):
    print(f"{what}:")
    for name, came in said.items():
        print(f"  {name}: {came[:100]}")


def strangers_get_nothing(browser, server, site):
    page = browser.new_context().new_page()
    page.goto(f"http://{STRANGER}:{site}/")
    said = page.evaluate(TRY_ALL, server.url)
    told(said, "a page of another origin")
    assert not [name for name, came in said.items() if came.startswith(("200", "read"))], said
    # What was sent without an answer has come by now, too.
    page.wait_for_timeout(1000)
    assert prompt_tokens(server.url) == 0, "the model has worked for a page of another origin"
    page.evaluate("document.forms[0].submit()")
    page.wait_for_url(server.url + "/v1/completions")
    assert "may not call" in page.inner_text("body"), page.inner_text("body")
    assert prompt_tokens(server.url) == 0, "the model has worked for a form of another origin"
    page.context.close()


def a_rebound_page_gets_nothing(browser, server, port):
    url = f"http://{REBOUND}:{port}"
    page = browser.new_context().new_page()
    page.goto(url + "/loaded")
    said = page.evaluate(TRY_ALL, url)
    told(said, "a page whose name was bound anew")
    assert not [name for name, came in said.items() if came.startswith(("200", "read"))], said
    page.goto(url + "/")
    assert "--allow-host" in page.inner_text("body"), page.inner_text("body")
    assert prompt_tokens(server.url) == 0, "the model has worked for a page that was bound anew"
    page.context.close()


def a_link_leads_to_the_page(browser, server, site):
    page = browser.new_context().new_page()
    page.goto(f"http://{STRANGER}:{site}/")
    with page.expect_navigation():
        page.click("a")
    ready(page)
    page.context.close()


def friends_may_call(browser, server, site):
    page = browser.new_context().new_page()
    page.goto(f"http://{FRIEND}:{site}/")
    said = page.evaluate(TRY_ALL, server.url)
    told(said, "a page that is allowed")
    typed = [came for name, came in said.items() if name.startswith("cors") and "json" in name]
    assert typed and all(came.startswith("200") for came in typed), said
    assert said["events"].startswith("read") and json.loads(said["/v1/models"][4:])["data"], said
    untyped = [came for name, came in said.items() if name.startswith("cors {}")]
    assert untyped and all(came.startswith("415") for came in untyped), said
    page.context.close()


def main():
    binary, folder = str(Path(sys.argv[1]).resolve()), Path(sys.argv[2])
    storyteller = folder / "storyteller"
    shutil.copytree(Path(__file__).resolve().parents[2] / "models/storyteller", storyteller, dirs_exist_ok=True)
    site = serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site))
    rebinding = serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Rebinding))
    friend = f"http://{FRIEND}:{site}"
    with sync_playwright() as playwright:
        # Older browsers ask nobody before they let a page call its own machine.
        names = ", ".join(f"MAP {name} 127.0.0.1" for name in [STRANGER, FRIEND, REBOUND])
        options = ["--no-sandbox", "--disable-gpu", "--disable-features=LocalNetworkAccessChecks",
                   f"--host-resolver-rules={names}"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        options = ["--memory", "1G", "--allow-origin", friend]
        with Server(binary, storyteller, folder / "strangers.log", *options) as server:
            Site.target = Rebinding.target = server.url
            strangers_get_nothing(browser, server, site)
            a_rebound_page_gets_nothing(browser, server, rebinding)
            a_link_leads_to_the_page(browser, server, site)
            friends_may_call(browser, server, site)
            # People's own pages work by every name of the machine.
            pages = Pages(browser)
            for name in ["127.0.0.1", "localhost"]:
                url = f"http://{name}:{port_of(server.url)}"
                page = pages.open(url)
                ready(page)
                until(page, "document.querySelector('#send') !== null")
                pages.close(page, url)
            chat(pages, f"http://localhost:{port_of(server.url)}")
        browser.close()
    print("pages of others get what they may")


if __name__ == "__main__":
    main()
