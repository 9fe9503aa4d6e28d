// The ladder: how many messages sleep on which rung, or, without rungs, on which queue.

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

  view({ data }) {
    return data.native ? queuesView(data) : rungsView(data);
  },
};

function unasked(why) {
  return why && notice("warning", "The broker cannot be asked: ", text(why, 600));
}

function rungsView({ rungs, sleeping, broker_why: brokerWhy }) {
  const sorted = rungs.slice().sort((one, other) => other.delay_ms - one.delay_ms);
  const onRungs = sorted.reduce((sum, { ready }) => sum + (ready ?? 0), 0);
  return [
    h("p", { class: "lead" }, h("strong", null, plural(sleeping, "chain sleeps", "chains sleep")),
      brokerWhy ? ". " : `, and ${plural(onRungs, "message is", "messages are")} on the rungs. `,
      "A message waits on the rung of its delay, or comes down over several, and then goes to its queue."),
    unasked(brokerWhy),
    bars("Rungs, from the longest delay to the shortest", sorted.map(({ name, delay_ms: delay, ready }) => ({ name, label: delayOf(delay), number: ready }))),
    h("p", { class: "hint" }, "Lengths are logarithmic: each tenfold is one step longer. The counts come from RabbitMQ, which refreshes them with a delay of some seconds. A rung that nothing leaves although its time is over is stuck: where its messages lead refuses them."),
  ];
}

function queuesView({ queues, sleeping, broker_why: brokerWhy }) {
  const known = queues.filter(({ asleep }) => asleep !== null);
  const sleepers = known.reduce((sum, { asleep }) => sum + asleep, 0);
  return [
    h("p", { class: "lead" }, h("strong", null, plural(sleeping, "chain sleeps", "chains sleep")),
      known.length === 0 ? ". " : `, and ${plural(sleepers, "message sleeps", "messages sleep")} on their queues. `,
      "There are no rungs in use: each message sleeps on its own queue until it is due."),
    unasked(brokerWhy),
    bars("Queues with the messages that sleep there", queues.map(({ name, asleep }) => ({ name, label: "", number: asleep }))),
    h("p", { class: "hint" }, "Lengths are logarithmic: each tenfold is one step longer. The counts come from RabbitMQ's management API, which refreshes them with a delay of some seconds. Messages that went to sleep on rungs before still wake from there."),
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
