#!/usr/bin/env python3
"""Runs the tasks of the gateway's channels: the worker POSTs each of them to /inbox/ID, /pop3/ID, /qst/push/ID or
/qst/pull/ID.

    UPSTREAM=https://gateway.example handler.py [PORT]        (default: 8000, on 127.0.0.1)

Needs nothing but Python. A task fetches (or pushes) message after message, and minds its time box: before the
deadline it ends by itself and hands on the number of the next message, with which its next run begins. What it gets
and may answer is in docs/handlers.md.
"""

import json
import os
import sys
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

# So many seconds after the deadline a message may still come in that was asked for before. The worker waits for longer,
# by the kind's `time_box_grace`, and then cuts the run: what that would hand on is lost.
GRACE = 1

upstream = urlsplit(os.environ["UPSTREAM"])


class Session:
    """A connection to one mailbox, inbox or node, for one run."""

    def __init__(self, path, job):
        self.path, self.until = path, job["deadline"] / 1000
        connect = HTTPSConnection if upstream.scheme == "https" else HTTPConnection
        self.connection = connect(upstream.netloc)
        self.run = {**job["chain"], **{name: job[name] for name in ("attempt", "nominal", "deadline")}}
        self.call("sessions")

    def left(self):
        return self.until - time.time()

    def call(self, below, grace=0):
        """True when there was something, False when there is nothing more."""
        self.connection.timeout = max(self.left() + grace, 0.05)
        if self.connection.sock:
            self.connection.sock.settimeout(self.connection.timeout)
        self.connection.request("POST", f"{self.path}/{below}", json.dumps(self.run), {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{self.path}/{below}: HTTP {answer.status}")
        return answer.status != 204

    def close(self):
        self.connection.close()


def run(path, job):
    """All messages that there are, as far as the time box goes."""
    first = number = (job.get("carry") or {}).get("next", 1)
    begun = time.time()
    session = Session(path, job)
    # What a message may take has to fit in, and so has the answer.
    margin = max(0.05, (job["deadline"] / 1000 - begun) / 10)
    try:
        while session.left() > margin and session.call(f"messages/{number}", GRACE):
            number += 1
    except (OSError, HTTPException, RuntimeError):
        # What has been fetched stays fetched: the next run goes on after it.
        if number == first:
            raise
    finally:
        session.close()
    return {"outcome": "done", "carry": {"next": number}}


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
