// Talks to the server. Every answer is data; every refusal becomes a `Refusal` with the server's own words.

import { setClock } from "./format.js";

/** The server said no, or nothing. */
export class Refusal extends Error {
  constructor(status, title, detail, order) {
    super(detail || title);
    this.status = status;
    this.title = title;
    this.detail = detail;
    /** What was asked for, if asking again with the same key is safe and may help. */
    this.order = order ?? null;
  }
}

const PATIENCE_MS = 30_000;
const AGAIN_AFTER_MS = [500, 2_000];

let token = null;

export function setToken(text) {
  token = text || null;
}

/** A path of the API; each segment after the first word is data. */
export function path(...segments) {
  return segments.map((segment) => {
    const text = wellFormed(segment);
    // Browsers take these for steps in the path, even when they are encoded.
    if (text === "" || text === "." || text === "..") {
      throw new Refusal(0, "No such address", `“${text}” cannot stand in an address; use the command line for it`);
    }
    return encodeURIComponent(text);
  }).join("/");
}

/** A query of those entries that say something. */
export function query(entries) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(entries ?? {})) {
    if (value !== null && value !== undefined && value !== "") search.set(name, wellFormed(value));
  }
  const text = search.toString();
  return text && `?${text}`;
}

function wellFormed(value) {
  const text = String(value);
  return text.toWellFormed ? text.toWellFormed() : text;
}

/** Reads. `signal` ends it when nobody waits any more. */
export function get(where, entries, signal) {
  return call("GET", where + query(entries), { signal });
}

/** Something to be done. Its key goes with it however often it is sent, so it is done at most once. */
export function order(method, where, body) {
  return { method, where, body, key: uuid() };
}

/** Sends an order; again when there was no answer, since nobody can know whether it arrived. */
export async function send(asked) {
  for (let tries = 0; ; tries++) {
    try {
      return await call(asked.method, asked.where, {
        body: JSON.stringify(asked.body ?? {}),
        headers: { "Content-Type": "application/json", "Idempotency-Key": asked.key },
      });
    } catch (refusal) {
      if (refusal.status !== 0) throw refusal;
      if (tries === AGAIN_AFTER_MS.length) {
        throw new Refusal(0, refusal.title,
          "There was no answer, so it may or may not have been done. Sending it again does it at most once.", asked);
      }
      await new Promise((resolve) => setTimeout(resolve, AGAIN_AFTER_MS[tries]));
    }
  }
}

/** The stream of events, as an async iterator of `{event, data}`; ends or throws when it breaks off. */
export async function* events(signal) {
  const answer = await reach("GET", "events", { headers: { Accept: "text/event-stream" }, signal });
  if (!answer.ok) throw await refusalOf(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value.replaceAll("\r", "")).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) yield parse(block);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parse(block) {
  let event = "message";
  const data = [];
  for (const line of block.split("\n")) {
    const [, field, value] = /^([^:]*):? ?(.*)$/.exec(line);
    if (field === "event") event = value;
    if (field === "data") data.push(value);
  }
  if (!data.length) return { event: "comment", data: null };
  const told = JSON.parse(data.join("\n"));
  setClock(told.now);
  return { event, data: told };
}

async function call(method, where, { body, headers, signal }) {
  const patience = AbortSignal.timeout(PATIENCE_MS);
  const text = await worded(async () => {
    const answer = await reach(method, where, {
      body, headers, signal: signal ? AbortSignal.any([signal, patience]) : patience,
    });
    if (!answer.ok) throw await refusalOf(answer);
    return answer.text();
  });
  let told;
  try {
    told = text ? JSON.parse(text) : {};
  } catch {
    throw new Refusal(0, "Not an answer",
      "What came back is not JSON: is something between this page and the server?");
  }
  if (told && told.now) setClock(told.now);
  return told;
}

function reach(method, where, { body, headers, signal }) {
  return worded(() => fetch(`api/v1/${where}`, {
    method, body, signal,
    headers: { Accept: "application/json", ...headers, ...(token && { Authorization: `Bearer ${token}` }) },
    cache: "no-store", credentials: "same-origin", redirect: "error", referrerPolicy: "no-referrer",
  }));
}

/** Says in words why there was no answer. */
async function worded(asked) {
  try {
    return await asked();
  } catch (error) {
    if (error instanceof Refusal || error.name === "AbortError") throw error;
    if (error.name === "TimeoutError") throw new Refusal(0, "No answer", "The server has not answered within 30 s.");
    throw new Refusal(0, "No answer", "The server cannot be reached from here.");
  }
}

async function refusalOf(answer) {
  const text = await answer.text().catch(() => "");
  try {
    const { title, detail } = JSON.parse(text);
    return new Refusal(answer.status, String(title ?? answer.statusText), String(detail ?? ""));
  } catch {
    return new Refusal(answer.status, `${answer.status} ${answer.statusText}`.trim(), text.slice(0, 500));
  }
}

// crypto.randomUUID is only there on https and localhost.
function uuid() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}
