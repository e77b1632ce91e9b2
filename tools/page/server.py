"""Servers of Interbed, as the checks of the page need them."""

import json
import re
import subprocess
import threading
import time
import urllib.request


class Server:
    """A server on a free port, until it is left."""

    def __init__(self, binary, model, log, *options):
        self.log = open(log, "w+")
        port = [] if "--port" in options else ["--port", "0"]
        command = [binary, "serve", *([str(model)] if model else []), *port, *map(str, options)]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)

    def __enter__(self):
        end = time.monotonic() + 120
        while time.monotonic() < end and self.process.poll() is None:
            self.log.seek(0)
            found = re.search(r"^Serving .* on (http://\S+)/v1$", self.log.read(), re.M)
            if found:
                self.url = found[1]
                return self
            time.sleep(0.1)
        self.__exit__()
        self.log.seek(0)
        raise SystemExit(f"the server did not start:\n{self.log.read()}")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def ask(url, body, key=None, path="/v1/completions"):
    """The answer to a request."""
    headers = {"content-type": "application/json"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


class Load:
    """So many clients that ask again and again, until it is left."""

    def __init__(self, url, prompts, clients, tokens):
        self.url, self.prompts, self.tokens, self.is_over = url, prompts, tokens, False
        self.threads = [threading.Thread(target=self.ask, args=(number,), daemon=True) for number in range(clients)]

    def ask(self, number):
        turn = number
        while not self.is_over:
            body = {"prompt": self.prompts[turn % len(self.prompts)], "max_tokens": self.tokens + 13 * number,
                    "temperature": 0.9, "seed": turn, "ignore_eos": True}
            try:
                ask(self.url, body)
            except OSError:
                time.sleep(0.2)
            turn += len(self.threads)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.is_over = True
