#!/usr/bin/env python3
"""Handles the jobs of a kind: the worker POSTs each of them here.

    handler.py [PORT]                             (default: 8000, on 127.0.0.1)

Needs nothing but Python. With WEBHOOK_SECRET, the `sign` of the kind, only calls that are signed with it
are answered; that needs standardwebhooks (pip install standardwebhooks). What it gets and may answer is in
docs/handlers.md.
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


# Whoever reaches this port could call; the signature tells that it was the worker.
webhook = None
if os.environ.get("WEBHOOK_SECRET"):
    from standardwebhooks.webhooks import Webhook

    webhook = Webhook(os.environ["WEBHOOK_SECRET"])


class Busy(Exception):
    """The upstream asks to be left alone for so many seconds."""


# A job may come again: its worker may die after the work and before the record. Keep this where the
# effect is, in the same transaction; here it is gone with the process.
done, asked = set(), set()


def sync(job):
    """The work. A payload with "busy" stands for an upstream that is busy when it is asked first."""
    if job["payload"].get("busy") and job["id"] not in asked:
        asked.add(job["id"])
        raise Busy(1)
    print("synced", job["key"], job["id"], flush=True)


def answer(job):
    """A status, further headers, and what the run came to."""
    if job["id"] in done:
        return 200, {}, {"outcome": "done"}
    if not isinstance(job["payload"], dict) or "name" not in job["payload"]:
        # Trying again would not help.
        return 200, {}, {"outcome": "fail", "reason": "the payload has no name"}
    try:
        sync(job)
    except Busy as busy:
        # Comes again then, with no attempt charged; whatever else waits for the same throttle waits, too.
        return 503, {"Retry-After": str(busy.args[0])}, {}
    done.add(job["id"])
    return 200, {}, {"outcome": "done"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # Keeps connections open.

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            # Before anything of it is read. Not older than five minutes, either: what was kept is of no use.
            if webhook and (problem := self.not_signed(body)):
                status, headers, outcome = 401, {}, {"error": problem}
            else:
                status, headers, outcome = answer(json.loads(body))
        except Exception as error:  # Tried again, by the kind's `retry`.
            status, headers, outcome = 500, {}, {"outcome": "retry", "reason": repr(error)}
        text = json.dumps(outcome).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def not_signed(self, body):
        """What is wrong with the signature, if anything is."""
        try:
            webhook.verify(body, dict(self.headers))
        except Exception as error:  # The library has errors of several classes for what strangers send.
            return str(error)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int((sys.argv + ["8000"])[1])), Handler).serve_forever()
