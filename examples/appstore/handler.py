#!/usr/bin/env python3
"""Crawls two app stores: the worker POSTs each sync to /apps/PLATFORM/APP and each chart to
/charts/PLATFORM/COUNTRY/CHART.

    UPSTREAM=https://scraper.example handler.py [PORT]        (default: 8000, on 127.0.0.1)

Needs nothing but Python. A sync goes through its phases (identity, listings of each country, metrics, finalize), says
which it is at, leaves out the countries in which the app is known to be unavailable, and reports those that fail now.
What it gets and may answer is in docs/handlers.md.
"""

import hashlib
import json
import os
import sys
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

COUNTRIES = ["us", "de", "fr", "jp", "br"]
# What a store's answer means for a part of a sync. roundelay.toml says what follows from each.
CODES = {404: "empty_response", 429: "rate_limited"}

upstream = urlsplit(os.environ["UPSTREAM"])


class Refused(Exception):
    """The store answers, and not with what was asked for."""

    def __init__(self, status):
        super().__init__(f"HTTP {status}")
        self.status = status


def send(url, path, body, timeout):
    connect = HTTPSConnection if url.scheme == "https" else HTTPConnection
    connection = connect(url.netloc, timeout=timeout)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status >= 300:
        raise Refused(answer.status)
    return json.loads(text) if text else {}


class Run:
    """One job: what it asks of the store says for which job that is."""

    def __init__(self, job):
        self.job, self.payload = job, job["payload"]
        self.until = job["deadline"] / 1000
        self.about = {name: job[name] for name in ("id", "attempt", "kind", "queue", "nominal", "deadline")}
        self.about |= {"class": self.payload.get("class", "backlog"), "part": "item" in self.payload}
        self.seen = hashlib.sha256()

    def ask(self, path):
        answer = send(upstream, path, self.about, max(self.until - time.time(), 0.1))
        self.seen.update(json.dumps(answer, sort_keys=True).encode())
        return answer

    def changed(self):
        """Whether the store says something else of the app than in the run before. `carry` comes back in the next run."""
        seen, before = self.seen.hexdigest()[:16], (self.job.get("carry") or {}).get("seen")
        return {"carry": {"seen": seen}} | ({"changed": seen != before} if before else {})

    def progress(self, phase, done, total):
        if not self.job.get("progress"):
            return
        try:
            url = urlsplit(self.job["progress"])
            send(url, url.path, {"phase": phase, "done": done, "total": total}, 1)
        except (OSError, HTTPException, Refused):
            pass  # a courtesy: no run fails for it

    def listing(self, app, country):
        """None, or how it failed."""
        try:
            self.ask(f"{app}/listings/{country}")
        except Refused as refused:
            code = CODES.get(refused.status, "store_error")
            return {"item": country, "reason": str(refused), "code": code}
        except (OSError, HTTPException) as error:
            return {"item": country, "reason": f"{type(error).__name__}: {error}", "code": "store_error"}

    def sync(self, app):
        if country := self.payload.get("item"):
            # A part that failed before, by itself.
            failed = self.listing(app, country)
            return {"outcome": "done", "failed": [failed]} if failed else {"outcome": "done"}
        self.ask(f"{app}/identity")
        countries = [country for country in COUNTRIES if country not in self.job.get("unavailable", [])]
        failed = []
        for done, country in enumerate(countries):
            self.progress("listings", done, len(countries))
            failed.append(self.listing(app, country))
        # From here on, what fails is not tried again for itself: the countries above would be lost with it.
        for phase in ("metrics", "finalize"):
            self.progress(phase, 0, 1)
            try:
                self.ask(f"{app}/{phase}")
            except (OSError, HTTPException, Refused):
                return {"outcome": "done", "failed": [part for part in failed if part]}
        failed = [part for part in failed if part]
        # A part that is missing says nothing of the app.
        return {"outcome": "done", "failed": failed} | ({} if failed else self.changed())

    def chart(self, path, platform):
        apps = self.ask(path)["apps"]
        payload = {"platform": platform, "class": "backlog"}
        chains = [{"kind": "sync-app", "key": f"{platform}/{app}", "payload": payload | {"app_id": app}} for app in apps]
        return {"outcome": "done", "chains": chains}


def run(path, job):
    """/apps/ios/284882215 or /charts/ios/us/top_free: the scraper has the same paths."""
    sort, platform = path.split("/")[1:3]
    return Run(job).sync(path) if sort == "apps" else Run(job).chart(path, platform)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open

    def do_POST(self):
        job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            answer = run(self.path, job)
        except Exception as error:  # tried again, by the kind's `retry`
            answer = {"outcome": "retry", "reason": f"{type(error).__name__}: {error}"}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8000), Handler).serve_forever()
