#!/usr/bin/env node
// Plays the missions of a game: the worker POSTs each tick to /missions/MISSION/tick, the flush of a channel to
// /channels/CHANNEL/flush, and the end of what has run out of time to /end-missions.
//
//   UPSTREAM=https://game.example handler.js [PORT]        (default: 8000, on 127.0.0.1)
//
// Needs nothing but Node.js. What it gets and may answer is in docs/handlers.md.
"use strict";

const http = require("node:http");

const upstream = new URL(process.env.UPSTREAM);
const client = upstream.protocol === "https:" ? require("node:https") : http;
const agent = new client.Agent({ keepAlive: true });

/** Dice that fall alike on every attempt at a tick: splitmix64. */
function dice(seed) {
  let state = BigInt(seed);
  return (sides) => {
    state = BigInt.asUintN(64, state + 0x9e3779b97f4a7c15n);
    let bits = state;
    bits = BigInt.asUintN(64, (bits ^ (bits >> 30n)) * 0xbf58476d1ce4e5b9n);
    bits = BigInt.asUintN(64, (bits ^ (bits >> 27n)) * 0x94d049bb133111ebn);
    return Number((bits ^ (bits >> 31n)) % BigInt(sides)) + 1;
  };
}

/** An encounter: whoever repeats the tick rolls the same. */
function encounter(job) {
  const roll = dice(job.seed);
  const [heroes, monsters] = [roll(20), roll(20)];
  return { won: heroes >= monsters, heroes, monsters, loot: roll(100) };
}

/** Asks the game, and waits no longer than the run may take. What it is asked says which run it is for. */
function game(path, job, body) {
  const run = { ...job.chain, attempt: job.attempt, nominal: job.nominal, deadline: job.deadline };
  const left = job.deadline - Date.now();
  // What is over must not begin any more: another worker may have taken the tick over.
  if (left <= 0) throw new Error("the run was over before the game was asked");
  return new Promise((resolve, reject) => {
    const options = { method: "POST", agent, headers: { "Content-Type": "application/json" }, signal: AbortSignal.timeout(left) };
    const request = client.request(new URL(path, upstream), options, async (response) => {
      try {
        let text = "";
        for await (const part of response) text += part;
        if (response.statusCode >= 300) throw new Error(`${path}: HTTP ${response.statusCode}`);
        resolve(text ? JSON.parse(text) : {});
      } catch (error) {
        reject(error);
      }
    });
    request.on("error", reject);
    request.end(JSON.stringify({ ...run, ...body }));
  });
}

/** A tick: an encounter, and a message about it on the mission's channel. */
async function mission(job) {
  const message = { mission: job.key, result: encounter(job) };
  const { over } = await game(`/channels/${job.payload.channel}/encounters`, job, message);
  return over ? { outcome: "retire", reason: "the mission is over" } : { outcome: "done" };
}

async function flushChannel(job) {
  await game(`/channels/${job.key}/flushes`, job, {});
  return { outcome: "done" };
}

async function endMissions(job) {
  await game("/end-missions", job, {});
  return { outcome: "done" };
}

const kinds = { mission, "flush-channel": flushChannel, "end-missions": endMissions };

const server = http.createServer(async (request, response) => {
  let answer;
  try {
    const parts = [];
    for await (const part of request) parts.push(part);
    const job = JSON.parse(Buffer.concat(parts));
    answer = await kinds[job.kind](job);
  } catch (error) {
    // Tried again, by the kind's `retry`.
    answer = { outcome: "retry", reason: error.message };
  }
  response.writeHead(200, { "Content-Type": "application/json" });
  response.end(JSON.stringify(answer));
});
server.listen(Number(process.argv[2] ?? 8000), "127.0.0.1");
