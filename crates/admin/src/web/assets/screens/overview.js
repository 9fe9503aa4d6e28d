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
        tile("Wait for a slot", count(told.waiting_for_slot), { shape: "waits", href: to("throttles"), note: "of a throttle" }),
        tile("Running", count(chains.running), { shape: "runs", href: to("chains", [], { state: "running" }),
          note: chains.gathering ? `${plural(chains.gathering, "waits", "wait")} for a batch` : "now" }),
        tile("Late", count(chains.overdue), { shape: "late", tone: chains.overdue > 0 ? "bad" : null,
          href: to("chains", [], { state: "late" }), ...lateness(told) }),
        tile("Held", count(chains.held), { shape: "held", href: to("chains", [], { state: "held" }),
          title: "Due, and not started because an operator has paused the queue or holds its throttle",
          note: `${chains.held > 0 ? "by operators" : "none"}${chains.paused > 0 ? `; ${count(chains.paused)} paused` : ""}` }),
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
          id: "failures", title: "Failure rate", unit: "each minute", tone: "second", say: percent,
          points: told.attempts.slice(0, -1).map(({ at: when, done, failed, retried }) => ({
            at: when, value: done + failed + retried > 0 ? (failed + retried) / (done + failed + retried) : null })),
        })),
      h("div", { class: "columns" },
        section("How well", facts(
          ["Late by", late ? `${span(late.p50)} (median), ${span(late.p99)} (p99), ${span(late.max)} (worst)` : "nothing has started lately"],
          told.latest_kind && ["Latest kind", [link(to("kinds"), text(told.latest_kind.kind, 60)), `: starts ${span(told.latest_kind.p99_ms)} late (p99), in the last ten minutes`]],
          ["Flatness", starts.peak_to_mean === null ? "not known yet"
            : [`${rate(starts.peak_to_mean)}× `, h("span", { class: "dim" }, "the busiest second by the mean; 1 is flat")]],
          ["Oldest due", told.oldest_due ? both(told.oldest_due) : "nothing is due"],
          ["Workers", link(to("workers"), [
            `${count(workers.working)} working`,
            workers.draining > 0 && `, ${count(workers.draining)} draining`,
            workers.silent > 0 && `, ${count(workers.silent)} silent`].filter(Boolean))],
          chains.unsent > 0 && ["Unsent", `${plural(chains.unsent, "chain")} with a message that the broker has not confirmed`],
          told.broker_why && ["Broker", h("span", { class: "bad" }, text(told.broker_why))])),
        section("Other counts", facts(
          ["Paused", link(to("chains", [], { state: "paused" }), plural(chains.paused, "chain"))],
          ["Quarantined", [link(to("chains", [], { state: "quarantined" }), plural(chains.quarantined, "chain")), ", ",
            link(to("quarantine"), plural(told.quarantined_messages, "message"))]],
          ["Retired", [link(to("chains", [], { state: "retired" }), plural(chains.retired, "chain")),
            chains.unavailable > 0 && `, ${count(chains.unavailable)} of them unavailable`]],
          ["One-off jobs", h("span", { title: "Waiting to be sent, or on the embedded broker not ended yet" }, count(told.kept_jobs))]))),
      h("p", { class: "hint" }, told.counted_at ? ["Chains were counted ", at(told.counted_at), " (", ago(told.counted_at), ")."] : "Chains have not been counted yet."),
    ];
  },
};

/** What the stream has told, unless what was asked for is newer. */
function latest({ live, data }) {
  return live.overview && live.overview.now > data.now ? live.overview : data;
}

/** What the tile of late chains says of them. */
function lateness({ chains: { overdue }, late_after_ms: after }) {
  const known = after !== undefined;
  const than = known ? [" for more than ", h("span", { class: "whole" }, span(after))] : [];
  return {
    note: overdue > 0 ? ["due", than, `, and ${overdue === 1 ? "does" : "do"} not start`] : known ? ["none due", than] : "none",
    title: `Due${known ? ` for more than ${span(after)}` : ""}, not running, and not held`,
  };
}

function troubles({ troubles: told }) {
  if (!told.length) return h("section", { class: "troubles", "aria-label": "What is wrong" }, notice("done", "Nothing is wrong, as far as the engine can tell."));
  const held = told.filter(({ level }) => level === "held");
  return h("section", { class: "troubles", "aria-label": "What is wrong" },
    told.length > held.length && h("h2", null, "What is wrong"),
    told.length > held.length && h("ul", null, told.filter(({ level }) => level !== "held").map(line)),
    told.length === held.length && notice("done", "Nothing is wrong."),
    held.length > 0 && [h("h2", null, "Paused or held by operators"), h("ul", null, held.map(line))]);
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
