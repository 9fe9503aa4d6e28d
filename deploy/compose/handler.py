#!/usr/bin/env python3
"""Runs the jobs of docker-compose.yml, and says so: `docker compose logs --follow handler`.

    handler.py [ADDRESS:PORT]        (default: 127.0.0.1:8000)

Put your own work in place of `sync`. What a handler gets and may answer is in docs/handlers.md.
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def sync(job):
    """Takes a moment, as a call to a store would."""
    time.sleep(0.2)
    run = f"tick {job['chain']['tick']}" if job.get("chain") else "once"
    print(f"synced {job['key']}, {run}, attempt {job['attempt']}", flush=True)
    return {"outcome": "done"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open

    def do_POST(self):
        job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(sync(job)).encode()
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
    address, port = (sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000").rsplit(":", 1)
    Server((address, int(port)), Handler).serve_forever()
