"""Has coding agents work with a server, and says what they found in its cache. Usage: check.py INTERBED FOLDER [AGENT...],
where FOLDER holds the clients and coder.gguf. The server and the clients run in the network of this process."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

INTERBED, FOLDER = Path(sys.argv[1]), Path(sys.argv[2])
CHOSEN = sys.argv[3:] or ["claude", "codex", "opencode", "aider"]
PORT = 18765
URL = f"http://127.0.0.1:{PORT}"
MODEL = "coder"
# Prefill of an agent's first turn takes minutes on two cores.
TURN_SECONDS = 1500
# Of the prompt of the first turn in the second, and of what comes before a conversation in another.
SECOND_TURN, SECOND_CONVERSATION = 0.95, 0.9

ADD = "def add(a, b):\n    return a - b\n"
FIRST = f"The file add.py has this text:\n\n{ADD}\nSay in one sentence what is wrong with it. Use no tools."
SECOND = "Say in one word which operator is right. Use no tools."
OTHER = "Say in one sentence what a list comprehension is. Use no tools."

failures = 0


def check(holds, what, got=""):
    global failures
    failures += not holds
    print("ok  " if holds else "FAIL", what, "" if holds else f"({str(got)[:600]})", flush=True)


class Server:
    """A server with KV on disk, which is kept from one start to the next."""

    def __init__(self):
        self.kv = FOLDER / "kv"
        shutil.rmtree(self.kv, ignore_errors=True)
        self.log = FOLDER / "server.log"
        self.log.write_bytes(b"")
        self.process = None

    def start(self):
        command = [INTERBED, "serve", FOLDER / "coder.gguf", "--memory", "6G", "--port", str(PORT), "--kv-disk", self.kv,
                   "--served-model-name", MODEL]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        for _ in range(600):
            try:
                urllib.request.urlopen(URL + "/health", timeout=1).close()
                return
            except OSError:
                if self.process.poll() is not None:
                    sys.exit("the server did not start:\n" + self.log.read_text())
                time.sleep(0.2)
        sys.exit("the server did not start within two minutes")

    def stop(self):
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def requests(self, since):
        """The requests that the log has from its byte `since` on, as dictionaries, and where it ends."""
        with self.log.open("rb") as log:
            log.seek(since)
            text = log.read()
        lines = [line for line in text.decode().splitlines() if "request_log: request " in line]
        return [dict(re.findall(r'(\w+)="?([^" ]*)"?', line)) for line in lines], since + len(text)

    def tokens(self, text):
        """How many tokens a text has."""
        body = json.dumps({"prompt": text}).encode()
        request = urllib.request.Request(URL + "/tokenize", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["count"]


class Agent:
    """A client with a home of its own, working in a folder with add.py."""

    def __init__(self, name, server):
        self.name, self.server, self.seen, self.first = name, server, server.log.stat().st_size, None
        self.work = FOLDER / "work" / name
        shutil.rmtree(self.work, ignore_errors=True)
        (self.work / "home").mkdir(parents=True)
        (self.work / "project").mkdir()
        self.project = self.work / "project"
        (self.project / "add.py").write_text(ADD)
        subprocess.run(["git", "init", "-q"], cwd=self.project, check=True)
        home = str(self.work / "home")
        self.env = {"PATH": os.environ["PATH"], "HOME": home, "TERM": "dumb", "XDG_CONFIG_HOME": home + "/.config",
                    "XDG_DATA_HOME": home + "/.data", "XDG_CACHE_HOME": home + "/.cache", "LANG": "C.UTF-8",
                    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_COMMITTER_NAME": "a",
                    "GIT_COMMITTER_EMAIL": "a@example.org"}

    def run(self, what, command):
        """Runs a turn; returns what it printed, and the largest of its requests: that of the turn itself. A small model
        that samples sometimes repeats itself without end, so a turn that takes too long is run once more."""
        for tries_left in (1, 0):
            begun = time.monotonic()
            try:
                done = subprocess.run(command, cwd=self.project, env=self.env, stdin=subprocess.DEVNULL,
                                      capture_output=True, text=True, timeout=TURN_SECONDS)
                break
            except subprocess.TimeoutExpired as late:
                if tries_left:
                    print(f"     {self.name}, {what}: not over after {TURN_SECONDS} s, so once more", flush=True)
                    continue
                check(False, f"{self.name}, {what}: ends within {TURN_SECONDS} s", late.stdout)
                return "", None
        seconds = time.monotonic() - begun
        time.sleep(1)
        requests, self.seen = self.server.requests(self.seen)
        told = [request for request in requests if "prompt_tokens" in request]
        refused = [request for request in requests if int(request.get("status", "200")) >= 400
                   and request.get("method") == "POST"]
        largest = max(told, key=lambda request: int(request["prompt_tokens"]), default=None)
        print(f"     {self.name}, {what}: {seconds:.0f} s, exit {done.returncode}, requests "
              + ", ".join(f"{r['prompt_tokens']} ({r.get('cached_tokens', 0)} found)" for r in told), flush=True)
        check(done.returncode == 0, f"{self.name}, {what}: ends well", done.stdout[-400:] + done.stderr[-400:])
        check(not refused, f"{self.name}, {what}: no request is refused", refused)
        check(largest is not None, f"{self.name}, {what}: asks the model")
        return done.stdout, largest

    def conversation(self, first, second, other):
        """Two turns of a conversation, and another conversation; the commands are functions of the text."""
        text, one = self.run("first turn", first(FIRST))
        check(text.strip() and "API Error" not in text, f"{self.name}, first turn: says something", text)
        text, two = self.run("second turn", second(SECOND))
        check(text.strip() and "API Error" not in text, f"{self.name}, second turn: says something", text)
        if one and two:
            prompt, found = int(one["prompt_tokens"]), int(two.get("cached_tokens", 0))
            check(found >= SECOND_TURN * prompt, f"{self.name}: the second turn finds {found} of {prompt} tokens", two)
        self.first = one
        self.other("second conversation", other)

    def other(self, what, other):
        """Another conversation, which begins with what the first one began with."""
        one = self.first
        text, three = self.run(what, other(OTHER))
        check(text.strip() and "API Error" not in text, f"{self.name}, {what}: says something", text)
        if one and three:
            # What a conversation begins with is all of the first prompt but the text that was asked.
            before, found = int(one["prompt_tokens"]) - self.server.tokens(FIRST), int(three.get("cached_tokens", 0))
            check(found >= SECOND_CONVERSATION * before, f"{self.name}, {what}: finds {found} of {before} tokens", three)


def claude(server):
    agent = Agent("claude", server)
    agent.env |= {"ANTHROPIC_BASE_URL": URL, "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": MODEL,
                  "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL, "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
                  "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
                  "API_TIMEOUT_MS": str(TURN_SECONDS * 1000)}
    program = FOLDER / "npm/node_modules/.bin/claude"
    return agent, (lambda text: [program, "-p", text], lambda text: [program, "-c", "-p", text],
                   lambda text: [program, "-p", text])


def codex(server):
    agent = Agent("codex", server)
    provider = f'{{name="local", base_url="{URL}/v1", wire_api="responses"}}'
    options = ["-m", MODEL, "-c", "model_provider=local", "-c", f"model_providers.local={provider}",
               "-c", "check_for_update_on_startup=false", "--skip-git-repo-check"]
    program = FOLDER / "npm/node_modules/.bin/codex"
    return agent, (lambda text: [program, "exec", *options, text],
                   lambda text: [program, "exec", "resume", "--last", *options, text],
                   lambda text: [program, "exec", *options, text])


def opencode(server):
    agent = Agent("opencode", server)
    limit = {"context": 32768, "output": 2048}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "local", "options": {"baseURL": URL + "/v1"},
                "models": {MODEL: {"name": MODEL, "limit": limit}}}
    config = {"$schema": "https://opencode.ai/config.json", "provider": {"local": provider}, "autoupdate": False,
              "share": "disabled"}
    (agent.project / "opencode.json").write_text(json.dumps(config))
    program = FOLDER / "npm/node_modules/.bin/opencode"
    command = [program, "run", "-m", f"local/{MODEL}"]
    return agent, (lambda text: [*command, text], lambda text: [*command, "-c", text], lambda text: [*command, text])


def aider(server):
    agent = Agent("aider", server)
    agent.env |= {"OPENAI_API_BASE": URL + "/v1", "OPENAI_API_KEY": "none", "AIDER_ANALYTICS": "false"}
    command = [FOLDER / "aider/bin/aider", "--model", f"openai/{MODEL}", "--edit-format", "whole", "--yes-always",
               "--no-show-model-warnings", "--no-check-update", "--no-pretty", "--no-gitignore", "add.py"]
    agent.run("mends add.py", [*command, "--message", "The function add must add its arguments: mend it."])
    text = (agent.project / "add.py").read_text()
    check("a + b" in text and "a - b" not in text, "aider: the function adds", text)


def main():
    server = Server()
    agents = {"claude": claude, "codex": codex, "opencode": opencode}
    again = []
    try:
        server.start()
        for name in CHOSEN:
            if name == "aider":
                aider(server)
                continue
            agent, commands = agents[name](server)
            agent.conversation(*commands)
            again.append((agent, commands[2]))
        if again:
            # What was found is found again by the next process.
            server.stop()
            server.start()
        for agent, other in again:
            agent.seen = server.log.stat().st_size
            agent.other("after a restart", other)
    finally:
        server.stop()
    sys.exit(1 if failures else 0)


main()
