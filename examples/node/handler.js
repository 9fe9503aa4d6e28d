#!/usr/bin/env node
// Handles the jobs of a kind: the worker POSTs each of them here.
//
//   handler.js [PORT]                            (default: 8000, on 127.0.0.1)
//
// Needs nothing but Node.js. With WEBHOOK_SECRET, the `sign` of the kind, only calls that are signed with it are
// answered; that needs standardwebhooks (npm install standardwebhooks). What it gets and may answer is in
// docs/handlers.md.
"use strict";

const http = require("node:http");

// Whoever reaches this port could call; the signature tells that it was the worker.
const secret = process.env.WEBHOOK_SECRET;
const webhook = secret ? new (require("standardwebhooks").Webhook)(secret) : null;

/** What is wrong with the signature, if anything is. */
function notSigned(body, headers) {
  try {
    webhook.verify(body, headers);
  } catch (error) {
    return error.message;
  }
}

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
    // Before anything of it is read. Not older than five minutes, either: what was kept is of no use.
    const problem = webhook && notSigned(body, request.headers);
    if (problem) [status, headers, outcome] = [401, {}, { error: problem }];
    else [status, headers, outcome] = await answer(JSON.parse(body));
  } catch (error) {
    // Tried again, by the kind's `retry`.
    [status, headers, outcome] = [500, {}, { outcome: "retry", reason: error.message }];
  }
  response.writeHead(status, headers);
  response.end(JSON.stringify(outcome));
});
server.listen(Number(process.argv[2] ?? 8000), "127.0.0.1");
