#!/usr/bin/env node
// Handles the jobs of a kind: the worker POSTs each of them here.
//
//   handler.js [PORT]                            (default: 8000, on 127.0.0.1)
//
// Needs nothing but Node.js. What it gets and may answer is in docs/handlers.md.
"use strict";

const http = require("node:http");

/** The upstream asks to be left alone for so many seconds. */
class Busy extends Error {
  constructor(seconds) {
    super(`busy for ${seconds} s`);
    this.seconds = seconds;
  }
}

// A job may come again: its worker may die after the work and before the record. Keep this where the
// effect is, in the same transaction; here it is gone with the process.
const done = new Set();
const asked = new Set();

/** The work. A payload with "busy" stands for an upstream that is busy when it is asked first. */
async function sync(job) {
  if (job.payload.busy && !asked.has(job.id)) {
    asked.add(job.id);
    throw new Busy(1);
  }
  console.log("synced", job.key, job.id);
}

/** A status, further headers, and what the run came to. */
async function answer(job) {
  if (done.has(job.id)) return [200, {}, { outcome: "done" }];
  // Trying again would not help.
  if (!job.payload?.name) return [200, {}, { outcome: "fail", reason: "the payload has no name" }];
  try {
    await sync(job);
  } catch (error) {
    if (!(error instanceof Busy)) throw error;
    // Comes again then, with no attempt charged; whatever else waits for the same throttle waits, too.
    return [503, { "Retry-After": String(error.seconds) }, {}];
  }
  done.add(job.id);
  return [200, {}, { outcome: "done" }];
}

const server = http.createServer(async (request, response) => {
  let status, headers, outcome;
  try {
    const parts = [];
    for await (const part of request) parts.push(part);
    const body = Buffer.concat(parts);
    // Where strangers reach this port, check here that the worker has sent `body`, before it is read.
    [status, headers, outcome] = await answer(JSON.parse(body));
  } catch (error) {
    // Tried again, by the kind's `retry`.
    [status, headers, outcome] = [500, {}, { outcome: "retry", reason: error.message }];
  }
  response.writeHead(status, headers);
  response.end(JSON.stringify(outcome));
});
server.listen(Number(process.argv[2] ?? 8000), "127.0.0.1");
