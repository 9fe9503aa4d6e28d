// What is wrong, how much there is of what, and how it goes right now.

import { overTime } from "../charts.js";
import { h } from "../dom.js";
import { count, instant, percent, plural, rate, span } from "../format.js";
import { ago, at, both, facts, link, notice, section, sentence, shape, text, tile, to } from "../parts.js";
import { act, pauseAll, publish } from "../steering.js";

const SEE = new Set(["queues", "throttles", "workers", "chains", "failures", "quarantine"]);

export const overview = {
  title: "Overview",
  every: 5_000,
  streamed: true,
  load: (ctx) => ctx.get("overview"),
  actions: (ctx) => [act("Publish a job…", () => publish(ctx)), act("Pause all queues…", () => pauseAll(ctx))],

  view(ctx) {
    const told = latest(ctx);
    const { chains, starts, late_ms: late, workers } = told;
    const failing = told.failures - told.recovered;
    const hour = starts.hour.map(({ at: when, starts: n, seconds, p99_ms: p99 }) =>
      ({ at: when, perSecond: seconds > 0 ? n / seconds : null, p99 }));
    // What there is: a new installation has no hour yet.
    const lately = hour.length > 1 ? `last ${span(instant(told.now) - instant(hour[0].at))}` : "";
    return [
      troubles(told),
      h("section", { class: "tiles", "aria-label": "Chains by what they do" },
        tile("Sleeping", count(chains.sleeping), { shape: "sleeps", href: to("ladder"), note: `of ${count(chains.total)}` }),
        tile("Due", count(chains.due), { shape: "due", href: to("queues"), note: told.oldest_due ? ["oldest ", ago(told.oldest_due)] : "none waits" }),
        tile("For a slot", count(told.waiting_for_slot), { shape: "held", href: to("throttles"), note: "of a throttle, they wait" }),
        tile("Running", count(chains.running), { shape: "runs", href: to("chains", [], { state: "running" }),
          note: chains.gathering ? plural(chains.gathering, "batch gathers", "batches gather") : "now" }),
        tile("Late", count(chains.overdue), { shape: "late", tone: chains.overdue > 0 ? "bad" : null,
          href: to("chains", [], { state: "late" }), note: chains.overdue > 0 ? "due, and do not start" : "none" }),
        tile("Held", count(chains.held + chains.paused), { shape: "held", href: to("chains", [], { state: chains.held > 0 ? "held" : "paused" }),
          note: chains.paused > 0 ? `${count(chains.paused)} paused one by one` : chains.held > 0 ? "by operators" : "nothing" }),
        tile("Failing", count(failing), { shape: "failed", tone: failing > 0 ? "warn" : null,
          href: to("failures", [], { recovered: "false" }), note: told.recovered > 0 ? `${count(told.recovered)} recovered` : "now" })),
      h("div", { class: "columns" },
        overTime({
          id: "starts", title: "Starts per second", unit: lately, now: starts.per_second,
          points: hour.map(({ at: when, perSecond: value }) => ({ at: when, value })),
        }),
        overTime({
          id: "late", title: "Lateness of starts, p99", unit: lately, tone: "second", say: span,
          now: late?.p99, points: hour.map(({ at: when, p99: value }) => ({ at: when, value })),
        }),
        overTime({
          id: "failures", title: "Failed attempts", unit: "of all, each minute", tone: "second", say: percent,
          points: told.attempts.slice(0, -1).map(({ at: when, done, failed, retried }) => ({
            at: when, value: done + failed + retried > 0 ? (failed + retried) / (done + failed + retried) : null })),
        })),
      h("div", { class: "columns" },
        section("How well", facts(
          ["Late by", late ? `${span(late.p50)} (median), ${span(late.p99)} (p99), ${span(late.max)} (worst)` : "nothing has started lately"],
          ["Flatness", starts.peak_to_mean === null ? "not known yet"
            : [`${rate(starts.peak_to_mean)}× `, h("span", { class: "dim" }, "the busiest second by the mean; 1 is flat")]],
          ["Oldest due", told.oldest_due ? both(told.oldest_due) : "nothing is due"],
          ["Workers", link(to("workers"), [
            `${count(workers.working)} working`,
            workers.draining > 0 && `, ${count(workers.draining)} draining`,
            workers.silent > 0 && `, ${count(workers.silent)} silent`].filter(Boolean))],
          chains.unsent > 0 && ["Unsent", `${plural(chains.unsent, "chain")} with a message that the broker has not confirmed`],
          told.broker_why && ["Broker", h("span", { class: "bad" }, text(told.broker_why))])),
        section("Set aside", facts(
          ["Paused", link(to("chains", [], { state: "paused" }), plural(chains.paused, "chain"))],
          ["Quarantined", [link(to("chains", [], { state: "quarantined" }), plural(chains.quarantined, "chain")), ", ",
            link(to("quarantine"), plural(told.quarantined_messages, "message"))]],
          ["Retired", [link(to("chains", [], { state: "retired" }), plural(chains.retired, "chain")),
            chains.unavailable > 0 && `, ${count(chains.unavailable)} of them unavailable`]],
          ["Kept jobs", count(told.kept_jobs)]))),
      h("p", { class: "hint" }, told.counted_at ? ["Chains were counted ", at(told.counted_at), " (", ago(told.counted_at), ")."] : "Chains have not been counted yet."),
    ];
  },
};

/** What the stream has told, unless what was asked for is newer. */
function latest({ live, data }) {
  return live.overview && live.overview.now > data.now ? live.overview : data;
}

function troubles({ troubles: told }) {
  if (!told.length) return h("section", { class: "troubles", "aria-label": "What is wrong" }, notice("done", "Nothing is wrong, as far as the engine can tell."));
  const held = told.filter(({ level }) => level === "held");
  return h("section", { class: "troubles", "aria-label": "What is wrong" },
    told.length > held.length && h("h2", null, "What is wrong"),
    told.length > held.length && h("ul", null, told.filter(({ level }) => level !== "held").map(line)),
    told.length === held.length && notice("done", "Nothing is wrong."),
    held.length > 0 && [h("h2", null, "Held by operators"), h("ul", null, held.map(line))]);
}

const LEVELS = { error: ["bad", "Error: "], warning: ["warn", "Warning: "], held: ["calm", "Held: "] };

function line({ level, what, see }) {
  const [tone, words] = LEVELS[level] ?? LEVELS.warning;
  return h("li", { key: what, class: tone },
      shape(level), h("span", { class: "unseen-text" }, words),
      see && SEE.has(see.screen)
        ? link(to(see.screen, [], see.query), sentence(what, 1_000))
        : h("span", null, sentence(what, 1_000)));
}
