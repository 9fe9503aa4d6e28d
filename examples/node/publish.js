#!/usr/bin/env node
// Publishes one job to Roundelay and exits with 0 only when it is safe.
//
//   publish.js EXCHANGE QUEUE ENVELOPE        (the broker: AMQP_URL)
//
//   publish.js roundelay.jobs sync-npm '{"v":1,"kind":"sync","key":"npm/ms","id":"order-7"}'
//   publish.js roundelay.jobs sync-npm -          # the envelope from standard input
//
// Needs amqplib (npm install amqplib). The format of ENVELOPE is in docs/messages.md.
"use strict";

const fs = require("node:fs");
const amqp = require("amqplib");

/** Resolves when the broker has the job; rejects when it has not, or may not have. */
async function publish(connection, exchange, queue, envelope) {
  const channel = await connection.createConfirmChannel();
  const broken = new Promise((_, reject) => channel.on("error", reject));
  const confirmed = (async () => {
    // A wrong queue name would not come back: `roundelay.jobs` keeps such messages aside, and a
    // rung looks at the name only when its time is over. So ask for the queue first.
    await channel.checkQueue(queue);
    let returned = false;
    channel.on("return", () => (returned = true)); // Comes before the confirmation.
    await new Promise((resolve, reject) => {
      // Fresh options for every message. Never copy the headers of a message that was received:
      // with an old `x-death` RabbitMQ takes a delayed job for one that goes in circles.
      const options = {
        persistent: true,
        mandatory: true,
        contentType: "application/json",
        messageId: envelope.id,
        // From RabbitMQ 4.4 on, a job with `due` sleeps on its queue until then; older brokers ignore
        // this. Not for a rung, which has its own time. A number of this size goes as an AMQP long.
        headers: "due" in envelope && exchange === "roundelay.jobs" ? { "x-opt-delivery-time": envelope.due } : {},
      };
      const body = Buffer.from(JSON.stringify(envelope));
      channel.publish(exchange, queue, body, options, (error) => (error ? reject(error) : resolve()));
    });
    if (returned) throw new Error(`returned: exchange ${exchange} leads to no queue`);
  })();
  await Promise.race([broken, confirmed]);
}

async function main([exchange, queue, text]) {
  if (text === undefined) throw new Error("usage: publish.js EXCHANGE QUEUE ENVELOPE");
  const envelope = JSON.parse(text === "-" ? fs.readFileSync(0, "utf8") : text);
  const connection = await amqp.connect(process.env.AMQP_URL || "amqp://guest:guest@localhost:5672/%2f");
  connection.on("error", () => {}); // Whatever waits on it fails, and that is told below.
  await publish(connection, exchange, queue, envelope);
  await connection.close();
}

main(process.argv.slice(2)).catch((error) => {
  // Unless it was returned, the broker may have the job all the same. Publish it again with the
  // same `id`, on which handlers are idempotent.
  console.error(`not published: ${error.message}`);
  process.exit(1);
});
