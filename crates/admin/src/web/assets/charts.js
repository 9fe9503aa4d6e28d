// Pictures of figures. The drawing is stretched to the room there is; labels are text beside it, which is not.
// Each picture has a text that says its figures, for those who cannot see it.

import { h } from "./dom.js";
import { clock, count, instant, plural, rate, span } from "./format.js";
import { at, shape, text, toneOf, verdictOf, wordsOf } from "./parts.js";

const WIDTH = 1_000;
const HEIGHT = 100;

/** The next round figure up, so that axes are labelled with figures that people say. */
function round(n) {
  if (!(n > 0)) return 1;
  const size = 10 ** Math.floor(Math.log10(n));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * size >= n * 0.9999) * size;
}

/**
 * A figure over time: `{title, unit, points: [{at, value}], limits: [{name, value}], now, say}`. A value of null is a
 * gap. A limit that is far above everything is told in words and not drawn: it would press the curve flat.
 */
export function overTime({ id, title, unit = "", points, limits = [], now, say = rate, tone = "info" }) {
  const known = points.filter(({ value }) => Number.isFinite(value));
  const told = `${title}${unit && `, ${unit}`}`;
  if (known.length < 2) {
    return h("figure", { class: "chart", key: id }, h("figcaption", null, h("span", { class: "chart-title" }, told)),
      h("p", { class: "empty" }, "Not enough figures yet."));
  }
  const highest = known.reduce((most, point) => (point.value > most.value ? point : most));
  const lowest = known.reduce((least, point) => (point.value < least.value ? point : least));
  const mean = known.reduce((sum, { value }) => sum + value, 0) / known.length;
  const drawn = limits.filter(({ value }) => value <= Math.max(highest.value * 4, 1e-9));
  const beyond = limits.filter((limit) => !drawn.includes(limit));
  const top = round(Math.max(highest.value, ...drawn.map(({ value }) => value * 1.05)));
  const first = instant(points[0].at);
  // Each figure stands for the time up to the next one, and so does the last.
  const last = first + (instant(points.at(-1).at) - first) * (points.length / (points.length - 1));
  const x = (at) => ((instant(at) - first) / Math.max(1, last - first)) * WIDTH;
  const y = (value) => HEIGHT - (value / top) * HEIGHT;
  const ticks = [1, 0.5, 0].map((share) => ({ share, words: say(top * share) }));
  const words = `${told}, from ${clock(points[0].at)} to ${clock(points.at(-1).at)}: ${now === undefined ? "" : `${say(now)} now, `}`
    + `mean ${say(mean)}, highest ${say(highest.value)} at ${clock(highest.at)}, lowest ${say(lowest.value)} at ${clock(lowest.at)}.`
    + limits.map(({ name, value }) => ` Limit ${name}: ${say(value)}.`).join("");

  // The figure where the pointer is.
  const point = (event) => {
    const plot = event.currentTarget;
    const box = plot.getBoundingClientRect();
    const place = (event.clientX - box.left) / box.width * WIDTH;
    const nearest = known.reduce((best, other) => (Math.abs(x(other.at) - place) < Math.abs(x(best.at) - place) ? other : best));
    const share = x(nearest.at) / WIDTH;
    const cursor = plot.querySelector(".cursor");
    cursor.style.left = `${share * 100}%`;
    cursor.classList.toggle("before", share > 0.6);
    cursor.dataset.reading = `${clock(nearest.at)}: ${say(nearest.value)}`;
  };

  return h("figure", { class: "chart", key: id },
    h("figcaption", null,
      h("h2", { class: "chart-title" }, title), unit && h("span", { class: "dim" }, unit),
      now !== undefined && h("strong", { class: "chart-now" }, `${say(now)} now`)),
    h("div", { class: "plot", role: "img", "aria-label": words },
      h("div", { class: "axis-y" }, ticks.map(({ share, words: said }) =>
        h("span", { style: { top: `${(1 - share) * 100}%` } }, said))),
      h("div", { class: "canvas", onpointermove: point },
        h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: tone, "aria-hidden": "true" },
          ticks.map(({ share }) => h("path", { class: "grid", d: `M0 ${HEIGHT * (1 - share)}H${WIDTH}` })),
          pieces(points).map((piece) => {
            const line = piece.map(({ at, value }) => `${x(at).toFixed(1)} ${y(value).toFixed(2)}`).join("L");
            return [
              h("path", { class: "area", d: `M${x(piece[0].at).toFixed(1)} ${HEIGHT}L${line}L${x(piece.at(-1).at).toFixed(1)} ${HEIGHT}z` }),
              h("path", { class: "line", d: `M${line}` }),
            ];
          }),
          drawn.map(({ value }) => h("path", { class: "limit", d: `M0 ${y(value).toFixed(2)}H${WIDTH}` }))),
        drawn.map(({ name, value }) => h("span", { class: "limit-name", style: { top: `${y(value) / HEIGHT * 100}%` } },
          text(name, 30), `: ${say(value)}`)),
        h("span", { class: "cursor" })),
      h("div", { class: "axis-x" }, labels(first, last).map((words, place) =>
        h("span", { style: { left: `${place * 25}%` } }, words)))),
    beyond.length > 0 && h("p", { class: "hint" },
      "Far above this picture: ", beyond.map(({ name, value }, place) => [place > 0 && "; ", text(name, 30), `, ${say(value)}`]), "."));
}

/** Times of day at the quarters, with seconds where two would else be the same. */
function labels(first, last) {
  const at = (seconds) => [0, 0.25, 0.5, 0.75, 1].map((share) =>
    clock(new Date(first + (last - first) * share).toISOString(), { seconds }).slice(seconds ? -8 : -5));
  return new Set(at(false)).size === 5 ? at(false) : at(true);
}

/** The stretches without a gap in them. */
function pieces(points) {
  const found = [[]];
  for (const point of points) {
    if (Number.isFinite(point.value)) found.at(-1).push(point);
    else if (found.at(-1).length) found.push([]);
  }
  return found.filter((piece) => piece.length);
}

// How an attempt is drawn: what worked stands on the line, what did not hangs below it, what never ran lies on it.
const STANDS = { done: 1, fanned_out: 1, runs: 1, retired: 1, retried: -0.6, failed: -1, lost: -1, fenced: -1, cut: -0.6 };

/** The latest runs in a few pixels: height is how long they took. */
export function spark(recent) {
  if (!recent?.length) return h("span", { class: "dim" }, "no runs");
  const longest = Math.max(1, ...recent.map(({ took_ms }) => took_ms ?? 0));
  const width = 8;
  const base = 14;
  const tally = new Map();
  for (const run of recent) tally.set(verdictOf(run), (tally.get(verdictOf(run)) ?? 0) + 1);
  const latest = recent.at(-1);
  const words = `Latest ${plural(recent.length, "run")}: ${[...tally].map(([verdict, n]) => `${count(n)} ${wordsOf(verdict)}`).join(", ")}; `
    + `the last ${latest.took_ms === null ? verdictOf(latest) : `took ${span(latest.took_ms)}`}`;
  return h("svg", { class: "spark", viewBox: `0 0 ${12 * width} 24`, role: "img", "aria-label": words },
    h("title", null, words),
    h("path", { class: "grid", d: `M0 ${base}H${12 * width}` }),
    recent.slice(-12).map((run, place) => {
      const verdict = verdictOf(run);
      const stands = STANDS[verdict] ?? 0;
      const tall = stands > 0 ? 3 + 11 * ((run.took_ms ?? longest) / longest) : stands < 0 ? -10 * stands : 3;
      const left = (12 - Math.min(12, recent.length) + place) * width + 1;
      return h("rect", { class: `run ${verdict}`, x: left, width: width - 2, height: tall,
        y: stands > 0 ? base - tall : stands < 0 ? base : base - 1.5 });
    }));
}

const TICKS = 12;
// A tick that takes so many times as long as the usual one would leave nothing to see of the others.
const UNUSUAL = 20;
// The least width of a run, in percent: one of a millisecond is to be seen on an axis of minutes.
const LEAST = 0.3;
const NEVER_RAN = new Set(["skipped", "dropped"]);

/**
 * The latest ticks among `attempts` (latest first), latest first:
 * `{id, tick, manual, due, from, attempts, verdict, segments, length}`. Segments are `{what, begin, end, run}`, in
 * milliseconds since the first due time that is known. `what` is "waits" (due, and not started), "runs", or "between"
 * (until the attempt after `run` is due). An attempt without `started` is one that is still to come.
 */
export function ticksOf(attempts, now) {
  const ticks = new Map();
  const claimed = new Set();
  for (const attempt of attempts) {
    const { epoch, tick, started, finished, verdict } = attempt;
    const id = `${epoch} ${tick}`;
    if (!ticks.has(id)) ticks.set(id, []);
    // Only the latest attempt of a chain can still run.
    ticks.get(id).unshift(started && !finished && !verdict && claimed.has(epoch) ? { ...attempt, verdict: "lost" } : attempt);
    claimed.add(epoch);
  }
  const isToCome = ([first]) => !first.started && instant(first.due) >= now;
  return [...ticks].filter(([, own]) => !isToCome(own)).slice(0, TICKS).map(([id, own]) => {
    const [{ tick, manual, due, attempt: from }] = own;
    const segments = segmentsOf(own, now);
    return { id, tick, manual: Boolean(manual), due, from, attempts: own.filter(({ started }) => started).length,
      verdict: verdictOf(own.at(-1)), segments, length: segments.at(-1)?.end ?? 0 };
  });
}

/** The attempts of a tick, oldest first, as segments. */
function segmentsOf(own, now) {
  const startOf = ({ started }) => (started ? instant(started) : now);
  const endOf = (run, next) => {
    const start = startOf(run);
    const following = next ? startOf(next) : start;
    if (run.finished) {
      const end = instant(run.finished);
      // A run that was taken for dead can end after the next one has begun.
      return next && following >= start ? Math.min(end, following) : end;
    }
    if (!run.verdict) return now;
    // It was lost, and nobody knows when: before the next attempt was due, if that was set after it.
    return next && instant(next.due) > start ? Math.min(instant(next.due), following) : following;
  };
  const segments = [];
  let length = 0;
  // Each segment is as long as its own two times are apart: where the clock was set back, only the segment that this
  // fell into has no length.
  const add = (what, from, to, run) => {
    const end = length + Math.max(0, to - from);
    if (end > length || what === "runs") segments.push({ what, begin: length, end, run });
    length = end;
  };
  let ended = null;
  own.forEach((run, place) => {
    const before = own[place - 1];
    const start = startOf(run);
    const due = Math.min(instant(run.due), start);
    if (before) add("between", ended, due, before);
    add("waits", before ? Math.max(due, ended) : due, start, run);
    if (!run.started) return;
    ended = endOf(run, own[place + 1]);
    add("runs", start, ended, run);
  });
  return segments;
}

/** Where the axis of rows of these lengths ends, in milliseconds: at a round figure. */
export function axisOf(lengths) {
  const sorted = lengths.filter((length) => length > 0).sort((a, b) => a - b);
  const most = sorted[(sorted.length - 1) >> 1] * UNUSUAL;
  const longest = sorted.filter((length) => length <= most).at(-1) ?? 0;
  const unit = [86_400_000, 3_600_000, 60_000].find((size) => longest >= size) ?? 1;
  return Math.max(longest, round(longest / unit) * unit);
}

const BETWEEN = { snoozed: ["was snoozed for", ""], fanned_out: ["waited", " for its batch"] };

/** What a segment is, and how long. */
function inWords({ what, begin, end, run }) {
  const verdict = verdictOf(run);
  const long = span(end - begin);
  if (what === "waits") return run.started ? `waited ${long} to start` : `has waited ${long} to start`;
  if (what === "between") {
    const [before, after] = BETWEEN[verdict] ?? ["waited", " for the next attempt"];
    return `${before} ${long}${after}`;
  }
  if (NEVER_RAN.has(verdict)) return `did not run: ${verdict}`;
  if (run.finished) return `ran ${span(Math.max(0, instant(run.finished) - instant(run.started)))}: ${wordsOf(verdict)}`;
  return verdict === "runs" ? `has run for ${long}` : `started, and was ${verdict}`;
}

/** A tick in one sentence. */
function sentenceOf({ tick, manual, due, from, attempts, verdict, segments, length }) {
  const sum = (what) => segments.filter((one) => one.what === what).reduce((all, { begin, end }) => all + end - begin, 0);
  const parts = [
    sum("waits") > 0 && `waited ${span(sum("waits"))} to start`,
    attempts > 0 && !NEVER_RAN.has(verdict) && `ran ${span(sum("runs"))}${attempts > 1 ? ` in ${count(attempts)} attempts` : ""}`,
    sum("between") > 0 && `waited ${span(sum("between"))} between attempts`,
  ].filter(Boolean);
  return `${manual ? "Manual run" : "Tick"} ${count(tick)}${from > 1 ? ` from attempt ${count(from)} on` : ""}, due ${clock(due)}: `
    + `${parts.map((part) => `${part}, `).join("")}${wordsOf(verdict)}, ${span(length)} in all.`;
}

/** The latest ticks of a chain, each from its due time on: how long it waited, ran, and waited for further attempts. */
export function timeline(attempts, now) {
  const ticks = ticksOf(attempts, now);
  if (!ticks.length) return null;
  const axis = axisOf(ticks.map(({ length }) => length));
  const words = `The latest ${plural(ticks.length, "tick")}, each from its due time on, over ${span(axis)}. ${ticks.map(sentenceOf).join(" ")}`;
  const verdicts = new Map();
  for (const { what, run } of ticks.flatMap(({ segments }) => segments)) {
    if (what === "runs") verdicts.set(verdictOf(run), (verdicts.get(verdictOf(run)) ?? 0) + 1);
  }
  return h("figure", { class: "chart timeline" },
    h("figcaption", { class: "dim" }, `The latest ${plural(ticks.length, "tick")}, each from its due time on.`),
    h("div", { class: "ticks", role: "img", "aria-label": words },
      ticks.map((tick) => row(tick, axis)),
      h("div", { class: "tick", key: "axis" },
        h("div", { class: "axis-x ends" }, ["due", span(axis / 2), span(axis)].map((said, place) =>
          h("span", { style: { left: `${place * 50}%` } }, said))))),
    h("p", { class: "key" },
      h("span", { key: "waits", class: "mark" }, swatch("waits", "tick-waits"), "waits to start"),
      [...verdicts].map(([verdict, n]) => h("span", { key: verdict, class: `mark ${toneOf(verdict)}` }, swatch("runs", `run ${verdict}`),
        shape(verdict), `${wordsOf(verdict)} ${count(n)}`)),
      h("span", { key: "between", class: "mark" }, swatch("between", "tick-between"), "waits for the next attempt")));
}

// Where the kinds of segments lie in their row: they differ in height as well as in colour.
const LIES = { waits: ["25%", "50%"], runs: ["5%", "90%"], between: ["43%", "14%"] };

function row(tick, axis) {
  const { id, manual, due, from, verdict, segments, length } = tick;
  // What is drawn last lies on top: short runs do.
  const drawn = [...segments.filter(({ what }) => what !== "runs"), ...segments.filter(({ what }) => what === "runs")]
    .filter(({ what, begin }) => begin < axis || (what === "runs" && begin === axis));
  return h("div", { class: "tick", key: id },
    h("span", { class: "tick-name" }, h("strong", null, count(tick.tick)), at(due),
      manual && h("span", { class: "dim" }, "manual run"),
      from > 1 && h("span", { class: "dim" }, `from attempt ${count(from)} on`)),
    h("span", { class: `tick-length mark ${toneOf(verdict)}` }, shape(verdict), span(length)),
    h("div", { class: "tick-strip" },
      h("svg", { "aria-hidden": "true" },
        [0, 50, 100].map((x) => h("line", { class: "grid", x1: `${x}%`, x2: `${x}%`, y1: 0, y2: "100%" })),
        drawn.map((segment) => {
          const { what, begin, end, run } = segment;
          const width = Math.max((Math.min(end, axis) - begin) / axis * 100, what === "runs" ? LEAST : 0);
          const x = Math.min(begin / axis * 100, 100 - width);
          const [y, height] = LIES[what];
          return h("rect", { class: what === "runs" ? `run ${verdictOf(run)}` : `tick-${what}`,
            x: `${x.toFixed(2)}%`, width: `${width.toFixed(2)}%`, y, height },
          h("title", null, `Attempt ${count(run.attempt)} ${inWords(segment)}`));
        })),
      length > axis && h("span", { class: "tick-goes-on" }, `goes on: ${span(length)} in all →`)));
}

const swatch = (what, kind) => {
  const [y, height] = LIES[what];
  return h("svg", { class: "tick-swatch", "aria-hidden": "true" }, h("rect", { class: kind, x: 0, width: "100%", y, height }));
};
