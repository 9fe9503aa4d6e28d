#!/usr/bin/env node
// Publishes a job to Roundelay with amqplib, and fails loudly when it did not get there.
//
//     publish.js AMQP_URL EXCHANGE QUEUE KIND KEY [PAYLOAD]
//
// EXCHANGE is roundelay.jobs for now, roundelay.delay.30s for 30 seconds later. PAYLOAD is JSON.
// Exit code 0 means that the broker has confirmed the message.
'use strict';

const { randomUUID } = require('node:crypto');
const amqp = require('amqplib');

async function main([url, exchange, queue, kind, key, payload, ...rest]) {
  if (key === undefined || rest.length > 0) {
    throw new Error('usage: publish.js AMQP_URL EXCHANGE QUEUE KIND KEY [PAYLOAD]');
  }
  const job = { v: 1, kind, key, id: randomUUID() };
  if (payload !== undefined) job.payload = JSON.parse(payload);

  const connection = await amqp.connect(url);
  const channel = await connection.createConfirmChannel();
  // A returned message is confirmed all the same, after its return.
  let returned = false;
  channel.on('return', () => { returned = true; });
  const closed = new Promise((_, reject) => channel.on('error', reject));
  channel.publish(exchange, queue, Buffer.from(JSON.stringify(job)), {
    persistent: true,
    mandatory: true,
    contentType: 'application/json',
    messageId: job.id,
  });
  await Promise.race([channel.waitForConfirms(), closed]);
  await connection.close();
  if (returned) throw new Error(`${exchange} leads nowhere for ${queue}: returned`);
  console.log(job.id);
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error.message);
  process.exit(1);
});
