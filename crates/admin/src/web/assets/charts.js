// Pictures of figures. The drawing is stretched to the room there is; labels are text beside it, which is not.
// Each picture has a text that says its figures, for those who cannot see it.

import { h } from "./dom.js";
import { clock, count, instant, plural, rate, span } from "./format.js";
import { shape, text, toneOf, verdictOf } from "./parts.js";

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
  const words = `Latest ${plural(recent.length, "run")}: ${[...tally].map(([verdict, n]) => `${count(n)} ${verdict.replaceAll("_", " ")}`).join(", ")}; `
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

/** The attempts of a chain from the oldest to the latest, each by how long it took. */
export function timeline(attempts) {
  const shown = attempts.slice().reverse();
  if (!shown.length) return null;
  const took = (run) => (run.finished && run.started ? Math.max(0, instant(run.finished) - instant(run.started)) : null);
  const longest = Math.max(1, ...shown.map((run) => took(run) ?? 0));
  const base = 68;
  const each = WIDTH / Math.max(shown.length, 24);
  const tally = new Map();
  for (const run of shown) tally.set(verdictOf(run), (tally.get(verdictOf(run)) ?? 0) + 1);
  const words = `${plural(shown.length, "attempt")} from ${clock(shown[0].started)} to ${clock(shown.at(-1).started)}: `
    + `${[...tally].map(([verdict, n]) => `${count(n)} ${verdict.replaceAll("_", " ")}`).join(", ")}; the longest took ${span(longest)}.`;
  return h("figure", { class: "chart timeline" },
    h("figcaption", { class: "dim" }, `Height: how long they took, at most ${span(longest)}. Below the line: did not work.`),
    h("div", { class: "plot", role: "img", "aria-label": words },
      h("div", { class: "axis-y" }, h("span", { style: { top: "0%" } }, span(longest)), h("span", { style: { top: `${base}%` } }, "0")),
      h("div", { class: "canvas" },
        h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
          h("path", { class: "grid", d: `M0 ${base}H${WIDTH}` }),
          shown.map((run, place) => {
            const verdict = verdictOf(run);
            const stands = STANDS[verdict] ?? 0;
            const tall = stands > 0 ? 3 + (base - 5) * ((took(run) ?? longest) / longest) : stands < 0 ? -(HEIGHT - base) * stands : 6;
            return h("rect", { class: `run ${verdict}`, x: (place * each + each * 0.12).toFixed(1), width: (each * 0.76).toFixed(1),
              y: (stands > 0 ? base - tall : stands < 0 ? base : base - 3).toFixed(1), height: tall.toFixed(1) });
          }))),
      h("div", { class: "axis-x ends" }, h("span", null, clock(shown[0].started)),
        h("span", { style: { left: `${Math.min(100, shown.length * each / WIDTH * 100)}%` } }, clock(shown.at(-1).started)))),
    h("p", { class: "key" }, [...tally].map(([verdict, n]) =>
      h("span", { key: verdict, class: `mark ${toneOf(verdict)}` }, shape(verdict), `${verdict.replaceAll("_", " ")} ${count(n)}`))));
}
