// The ladder: how many messages sleep on which rung.

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
  title: "Ladder",
  every: 5_000,
  load: (ctx) => ctx.get("ladder"),

  view({ data: { rungs, sleeping, broker_why: brokerWhy } }) {
    const sorted = rungs.slice().sort((one, other) => other.delay_ms - one.delay_ms);
    const most = Math.max(1, ...sorted.map(({ ready }) => ready ?? 0));
    // By its logarithm: one rung may have a million and the next one three, and both must be seen.
    const share = (ready) => (ready > 0 ? 0.04 + 0.96 * (Math.log10(ready + 1) / Math.log10(most + 1)) : 0);
    const onRungs = sorted.reduce((sum, { ready }) => sum + (ready ?? 0), 0);
    return [
      h("p", { class: "lead" }, h("strong", null, plural(sleeping, "chain sleeps", "chains sleep")),
        brokerWhy ? "." : `, and ${plural(onRungs, "message is", "messages are")} on the rungs. `,
        "A message waits on the rung of its delay, or comes down over several, and then goes to its queue."),
      brokerWhy && notice("warning", "The broker cannot be asked: ", text(brokerWhy, 600)),
      h("ol", { class: "ladder", "aria-label": "Rungs, from the longest delay to the shortest" }, sorted.map(({ name, delay_ms: delay, ready }) =>
        h("li", { key: name },
          h("span", { class: "rung-delay" }, delayOf(delay)),
          h("span", { class: "rung" }, h("span", { class: ready > 0 ? "fill" : "fill bare", style: { width: `${share(ready) * 100}%` } })),
          h("span", { class: "rung-count" }, ready === null ? "unknown" : count(ready)),
          h("span", { class: "rung-name" }, text(name, 80))))),
      h("p", { class: "hint" }, "Lengths are logarithmic: each tenfold is one step longer. The counts come from RabbitMQ, which refreshes them with a delay of some seconds. A rung that nothing leaves although its time is over is stuck: where its messages lead refuses them."),
    ];
  },
};
