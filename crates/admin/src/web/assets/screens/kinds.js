// The kinds: how much each does, how well, and whether that is what its schedule promises.

import { overTime } from "../charts.js";
import { h } from "../dom.js";
import { clock, count, instant, percent, plural, rate, span } from "../format.js";
import { ago, at, figure, filters, link, none, section, table, text, to } from "../parts.js";

const PERIODS = [["", "the last hour"], ["24h", "the last day"], ["7d", "the last week"]];
/** From this share of failed attempts on, a step or a rate is drawn as bad. */
const BAD = 0.2;

export const kinds = {
  title: "Kinds",
  query: { period: PERIODS.map(([value]) => value) },
  every: 10_000,
  load: (ctx) => ctx.get("kinds", ctx.place.query),

  view(ctx) {
    const { kinds: all, now, counted_at: counted } = ctx.data;
    const rows = all.filter(({ own }) => !own);
    const steps = stepsOf(ctx.data);
    const own = all.filter(({ own: engine, attempts }) => engine && attempts.failed + attempts.retried > 0);
    return [
      filters(ctx, [{ name: "period", label: "Time", options: PERIODS }]),
      h("div", { class: "columns" },
        overTime({ id: "done", title: "Done", unit: "each minute", points: sums(ctx.data, steps, ({ done }) => done) }),
        overTime({ id: "bad", title: "Failed or retried", unit: "each minute", tone: "second",
          points: sums(ctx.data, steps, ({ failed, retried }) => failed + retried) })),
      table({
        label: "Kinds", rows, keyOf: ({ kind }) => kind, empty: "No kind is configured, and none has run.",
        columns: [
          { head: "Kind", row: true, wide: true, cell: ({ kind, schedule, throttles }) => [
            h("a", { class: "name", href: to("chains", [], { kind }) }, text(kind, 80)),
            schedule && h("span", { class: "sub" }, text(schedule, 80)),
            throttles.length > 0 && h("span", { class: "sub" }, "throttle ",
              throttles.map((name, place) => [place > 0 && ", ", link(to("throttles", [name]), text(name, 60))]))] },
          { head: "Chains", num: true, cell: ({ chains }) => figure(chains) },
          { head: "Over time", wide: true, cell: (report) => strip(ctx.data, steps, report) },
          { head: "Done", num: true, cell: ({ attempts, per_minute: each }) => perMinute(attempts.done, each.done) },
          { head: "Failed", num: true, cell: ({ kind, attempts, per_minute: each }) => (attempts.failed > 0
            ? link(to("runs", [], { kind, verdict: "failed" }), perMinute(attempts.failed, each.failed)) : figure(0)) },
          { head: "Retried", num: true, cell: ({ kind, attempts, per_minute: each }) => (attempts.retried > 0
            ? link(to("runs", [], { kind, verdict: "retried" }), perMinute(attempts.retried, each.retried)) : figure(0)) },
          { head: "Failure rate", num: true, cell: ({ failure_rate: share }) => (share === null ? none()
            : h("span", { class: share >= BAD ? "bad" : share > 0 ? "warn" : null }, percent(share))) },
          { head: "Took", num: true, cell: ({ took_ms: took }) => quantiles(took) },
          { head: "Late by", num: true, cell: ({ late_ms: late }) => quantiles(late) },
          { head: "Each chain runs", num: true, cell: promise },
        ],
      }),
      ctx.data.budgets.length > 0 && section("Budgets of calls", table({
        label: "Budgets of calls", rows: ctx.data.budgets, keyOf: ({ budget }) => budget, empty: "",
        columns: [
          { head: "Budget", row: true, wide: true, cell: ({ budget, kinds: sharing, objective }) => [text(budget, 80),
            h("span", { class: "sub" }, text(sharing.join(", "), 80)), h("span", { class: "sub" }, `objective: ${objective}`)] },
          { head: "Chains", num: true, cell: ({ chains }) => `about ${count(Math.round(chains))}` },
          { head: "Allowed", num: true, cell: ({ allowed_per_minute: n }) => `${rate(n)}/min` },
          { head: "Wanted", num: true, cell: ({ wanted_per_minute: n }) => `${rate(n)}/min` },
          { head: "Made", num: true, cell: ({ made_per_minute: n, others_per_minute: others }) => [`${rate(n)}/min`,
            others > 0 && h("span", { class: "sub whole" }, `others ${rate(others)}/min`)] },
          { head: "Right", num: true, cell: ({ freshness }) => (freshness === null ? none() : percent(freshness)) },
          { head: "Age", num: true, cell: ({ age_ms: age }) => (age === null ? none() : span(age)) },
          { head: "A tenth more calls", num: true, cell: ({ a_tenth_more: gain, objective }) => (gain === null ? none()
            : objective === "age" ? `age −${span(gain)}` : `right +${percent(gain)}`) },
        ],
      })),
      ctx.data.budgets.length > 0 && h("p", { class: "hint" }, "Right: the share of time in which what is known of an entity is right; age: for how long it has been out of date. Both are expected of what was learned, by weight."),
      rows.filter(({ intervals }) => intervals).map(({ kind, intervals }) => section(`Where the calls of ${kind} go`, table({
        label: `Where the calls of ${kind} go`, rows: intervals, keyOf: ({ from_ms: from }) => from, empty: "",
        columns: [
          { head: "Interval", row: true, cell: ({ from_ms: from, to_ms: until }) => `${from > 0 ? span(from) : "0 s"} to ${span(until)}` },
          { head: "Chains", num: true, cell: ({ chains }) => `about ${count(Math.round(chains))}` },
          { head: "Share of calls", num: true, cell: ({ calls }) => percent(calls) },
          { head: "Share of weight", num: true, cell: ({ weight }) => percent(weight) },
        ],
      }))),
      h("p", { class: "hint" },
        "Attempts that ended: what is retried ends more than once. Failure rate: of all attempts, those that failed or are retried. ",
        "Took and late by: the median, and below it what one in a hundred reaches. ",
        counted ? ["Chains were counted ", at(counted), " (", ago(counted), "). "] : "Chains have not been counted yet. ",
        own.length > 0 ? ["The engine’s own chains that had errors: ", own.map(({ kind }, place) => [place > 0 && ", ", text(kind, 60)]), "."] : "",
        ` Until ${clock(now)}.`),
    ];
  },
};

/** When each step begins, in milliseconds since 1970. */
function stepsOf({ since, now, step_ms: step }) {
  const first = instant(since);
  return Array.from({ length: Math.max(1, Math.ceil((instant(now) - first) / step)) }, (_, place) => first + place * step);
}

/** By when the attempts of a step began, those of a kind. */
const pointsOf = ({ series }) => new Map(series.map((point) => [instant(point.at), point]));

/** Attempts of all kinds but the engine's own, for each minute of each step. The last step has only begun. */
function sums({ kinds: all, step_ms: step }, steps, value) {
  const told = all.filter(({ own }) => !own).map(pointsOf);
  const known = told.flatMap((points) => [...points.keys()]);
  const first = Math.min(...known);
  return steps.slice(0, -1).map((begin) => ({
    at: new Date(begin).toISOString(),
    value: begin < first ? null : told.reduce((sum, points) => sum + (points.has(begin) ? value(points.get(begin)) : 0), 0) / (step / 60_000),
  }));
}

const perMinute = (all, each) => [count(all), h("span", { class: "sub whole" }, `${rate(each)}/min`)];

const quantiles = (told) => (told === null ? none() : [h("span", { class: "whole" }, span(told.p50)), h("span", { class: "sub whole" }, `p99 ${span(told.p99)}`)]);

/** How far apart the runs of a chain are, and how far they were to be. */
function promise({ apart_ms: apart, promised_ms: promised, left_out: left, excluded }) {
  const behind = apart !== null && promised !== null && apart > promised * 1.25;
  return [
    apart === null ? none() : h("span", { class: behind ? "warn" : null }, `every ${span(apart)}`),
    promised !== null && h("span", { class: "sub whole" }, `promised: ${span(promised)}`),
    left > 0 && h("span", { class: "sub whole" }, `${count(left)} left out`),
    excluded > 0 && h("span", { class: "sub whole" }, `${count(excluded)} by calendars`),
  ];
}

/** A bar for each step: as high as there were attempts, coloured by how many of them failed. Each leads to its runs. */
function strip({ step_ms: step }, steps, report) {
  const points = pointsOf(report);
  const all = ({ done, failed, retried, other }) => done + failed + retried + other;
  const most = Math.max(1, ...report.series.map(all));
  const { attempts } = report;
  const words = `${plural(all(attempts), "attempt")}: ${count(attempts.done)} done, ${count(attempts.failed)} failed, ${count(attempts.retried)} retried.`;
  return h("div", { class: "strip", role: "group", "aria-label": words }, steps.map((begin) => {
    const point = points.get(begin);
    if (!point || all(point) === 0) return h("span", { key: begin });
    const bad = point.failed + point.retried;
    const share = bad + point.done > 0 ? bad / (bad + point.done) : 0;
    const [from, until] = [begin, begin + step].map((time) => new Date(time).toISOString());
    return h("a", {
      key: begin, tabindex: "-1", class: share >= BAD ? "bad" : share > 0 ? "warn" : "good",
      href: to("runs", [], { kind: report.kind, since: from, until }),
      title: `${clock(from)}: ${count(point.done)} done, ${count(point.failed)} failed, ${count(point.retried)} retried, ${count(point.other)} other`,
    }, h("i", { style: { height: `${Math.max(8, all(point) / most * 100)}%` } }));
  }));
}
