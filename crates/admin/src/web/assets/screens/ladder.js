// The delay queues: how many messages sleep on which, or, without delay queues, on which of the others.

import { h } from "../dom.js";
import { count, plural, span } from "../format.js";
import { notice, text } from "../parts.js";

/** In full: rungs of 1 s and of 1.024 s are two. */
function delayOf(ms) {
  if (ms <= 1_000 || ms % 1_000 === 0) return span(ms);
  // Chains sleep on rungs that are some milliseconds shorter than their delays.
  return ms < 60_000 ? `${ms / 1_000} s` : `< ${span(Math.ceil(ms / 1_000) * 1_000)}`;
}

export const ladder = {
  title: "Delay queues",
  every: 5_000,
  load: (ctx) => ctx.get("ladder"),

  view({ data, session }) {
    if (session.broker === "embedded") {
      return [lead(data, "."),
        notice("calm", "Messages sleep in the worker’s own process: with the embedded broker there are no delay queues.")];
    }
    return data.native ? queuesView(data) : rungsView(data);
  },
};

const lead = ({ sleeping }, ...more) => h("p", { class: "lead" },
  h("strong", null, plural(sleeping, "chain sleeps", "chains sleep")), ", the engine’s own among them", more);

function unasked(why) {
  return why && notice("warning", "The broker cannot be asked: ", text(why, 600));
}

function rungsView(data) {
  const { rungs, broker_why: brokerWhy } = data;
  const sorted = rungs.slice().sort((one, other) => other.delay_ms - one.delay_ms);
  const onRungs = sorted.reduce((sum, { ready }) => sum + (ready ?? 0), 0);
  return [
    lead(data, brokerWhy ? ". " : `; ${plural(onRungs, "message sleeps", "messages sleep")} on delay queues. `,
      "A message sleeps on the delay queue of its delay, or on several one after the other, and then goes to its queue."),
    unasked(brokerWhy),
    bars("Delay queues, from the longest delay to the shortest", sorted.map(({ name, delay_ms: delay, ready }) => ({ name, label: delayOf(delay), number: ready }))),
    h("p", { class: "hint" }, "Lengths are logarithmic: each tenfold is one step longer. The counts come from RabbitMQ, which refreshes them with a delay of some seconds. A delay queue that nothing leaves although its time is over is stuck: the queue that its messages go to refuses them."),
  ];
}

function queuesView(data) {
  const { queues, broker_why: brokerWhy } = data;
  const known = queues.filter(({ asleep }) => asleep !== null);
  const sleepers = known.reduce((sum, { asleep }) => sum + asleep, 0);
  return [
    lead(data, known.length === 0 ? ". " : `; ${plural(sleepers, "message sleeps", "messages sleep")} on their queues. `,
      "There are no delay queues in use: each message sleeps on its own queue until it is due."),
    unasked(brokerWhy),
    bars("Queues with the messages that sleep there", queues.map(({ name, asleep }) => ({ name, label: "", number: asleep }))),
    h("p", { class: "hint" }, "Lengths are logarithmic: each tenfold is one step longer. The counts come from RabbitMQ's management API, which refreshes them with a delay of some seconds. Messages that went to sleep on delay queues before still wake from there."),
  ];
}

function bars(label, rows) {
  const most = Math.max(1, ...rows.map(({ number }) => number ?? 0));
  // By its logarithm: one row may have a million and the next one three, and both must be seen.
  const share = (number) => (number > 0 ? 0.04 + 0.96 * (Math.log10(number + 1) / Math.log10(most + 1)) : 0);
  return h("ol", { class: "ladder", "aria-label": label }, rows.map(({ name, label: delay, number }) =>
    h("li", { key: name },
      h("span", { class: "rung-delay" }, delay),
      h("span", { class: "rung" }, h("span", { class: number > 0 ? "fill" : "fill bare", style: { width: `${share(number) * 100}%` } })),
      h("span", { class: "rung-count" }, number === null ? "unknown" : count(number)),
      h("span", { class: "rung-name" }, text(name, 80)))));
}
