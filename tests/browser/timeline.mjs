// The timelines on a chain's page: the arithmetic for attempts of all sorts, and the picture at the width of a phone
// and of a large window.

import { accessible, check, clean, go, open, sane } from "./browser.mjs";

const ZERO = Date.UTC(2026, 2, 1, 12);
const SECOND = 1_000;

let fence = 0;

/** An attempt, in seconds since `ZERO`: when it was due, started and ended. */
const attempt = (tick, number, due, started, finished, verdict, more = {}) => {
  const at = (seconds) => (seconds === null ? null : ZERO + seconds * SECOND);
  fence += 1;
  return { fence, epoch: 1, tick, attempt: number, due: at(due), started: at(started), finished: at(finished), verdict, ...more };
};

/** Fifty attempts of a tick: each runs for 1 s, and the next is due 2 s later. */
const fifty = Array.from({ length: 50 }, (_, n) => attempt(1, n + 1, n * 3, n * 3, n * 3 + 1, n < 49 ? "retried" : "failed"));

// Attempts from the oldest to the latest, the seconds that it is now, and the ticks as text: the tick, then what began
// and ended when, and the verdict.
const CASES = [
  ["one attempt alone", [attempt(1, 1, 0, 2, 5, "done")], 60, ["1: waits 0-2 runs 2-5 done"]],
  ["claimed a moment before it was due", [attempt(1, 1, 0, 0, 3, "done")], 60, ["1: runs 0-3 done"]],
  ["a retry that waits again", [attempt(1, 1, 0, 1, 3, "retried"), attempt(1, 2, 13, 15, 16, "done")], 60,
    ["1: waits 0-1 runs 1-3 between 3-13 waits 13-15 runs 15-16 done"]],
  ["one that runs", [attempt(1, 1, 0, 1, null, null)], 9, ["1: waits 0-1 runs 1-9 runs"]],
  ["ticks, latest first", [attempt(1, 1, 0, 0, 1, "done"), attempt(2, 1, 60, 60, 61, "failed")], 90,
    ["2: runs 0-1 failed", "1: runs 0-1 done"]],
  ["a tick that was skipped", [attempt(1, 1, 0, 4, 4, "skipped")], 60, ["1: waits 0-4 runs 4-4 skipped"]],
  ["lost, with the next attempt due since before", [attempt(1, 1, 0, 1, null, "lost"), attempt(1, 1, 0, 31, 33, "done")], 60,
    ["1: waits 0-1 runs 1-31 runs 31-33 done"]],
  ["lost, with the next attempt due later", [attempt(1, 1, 0, 1, null, "lost"), attempt(1, 2, 11, 12, 13, "done")], 60,
    ["1: waits 0-1 runs 1-11 waits 11-12 runs 12-13 done"]],
  ["lost for good", [attempt(1, 1, 0, 1, null, "lost")], 60, ["1: waits 0-1 runs 1-1 lost"]],
  ["without an end, and not the latest", [attempt(1, 1, 0, 1, null, null), attempt(2, 1, 60, 60, 61, "done")], 90,
    ["2: runs 0-1 done", "1: waits 0-1 runs 1-1 lost"]],
  ["fenced: the next began before it ended", [attempt(1, 1, 0, 0, 50, "fenced"), attempt(1, 1, 0, 30, 40, "done")], 60,
    ["1: runs 0-30 runs 30-40 done"]],
  ["the first attempts are not known", [attempt(7, 4, 100, 101, 102, "retried"), attempt(7, 5, 110, 110, 111, "done")], 120,
    ["7 from 4: waits 0-1 runs 1-2 between 2-10 runs 10-11 done"]],
  ["the clock was set back within a run", [attempt(1, 1, 0, 1, -3_600, "retried"), attempt(1, 2, -3_590, -3_589, -3_587, "done")], 60,
    ["1: waits 0-1 runs 1-1 between 1-11 waits 11-12 runs 12-14 done"]],
  ["the clock was set back before the start", [attempt(1, 1, 0, -60, -58, "done")], 60, ["1: runs 0-2 done"]],
  ["a manual run between the attempts of a tick", [attempt(3, 1, 0, 0, 1, "retried"),
    attempt(1, 1, 2, 2, 3, "done", { epoch: 2, manual: true }), attempt(3, 2, 5, 5, 6, "done")], 60,
  ["3: runs 0-1 between 1-5 runs 5-6 done", "1 manual: runs 0-1 done"]],
  ["a retry to come", [attempt(1, 1, 0, 0, 1, "retried"), attempt(1, 2, 31, null, null, "sleeps")], 11, ["1: runs 0-1 between 1-11 sleeps"]],
  ["a retry that should have started", [attempt(1, 1, 0, 0, 1, "retried"), attempt(1, 2, 6, null, null, "late")], 11,
    ["1: runs 0-1 between 1-6 waits 6-11 late"]],
  ["a tick that should have started", [attempt(1, 1, 0, 0, 1, "done"), attempt(2, 1, 60, null, null, "late")], 90,
    ["2: waits 0-30 late", "1: runs 0-1 done"]],
  ["a tick to come", [attempt(1, 1, 0, 0, 1, "done"), attempt(2, 1, 60, null, null, "sleeps")], 11, ["1: runs 0-1 done"]],
  ["no more than twelve", Array.from({ length: 14 }, (_, n) => attempt(n + 1, 1, n * 9, n * 9, n * 9 + 1, "done")), 200,
    Array.from({ length: 12 }, (_, n) => `${14 - n}: runs 0-1 done`)],
];

// Lengths of rows, and where their axis ends, in seconds.
const AXES = [[[0], 0.001], [[0.25], 0.3], [[1, 7], 8], [[1, 2, 19], 20], [[1, 1, 21], 1], [[3, 3, 55, 2], 60], [[0, 0, 0, 5], 5],
  [[5, 400], 5], [[61, 170], 180], [[1_500], 1_800], [[5_000], 5_400], [[90_000], 129_600]];

/** What the tests need of the page's own modules, by a name of the page. */
async function modules(page) {
  await page.evaluate(async () => {
    window.timelines = { ...await import("/assets/charts.js"), ...await import("/assets/dom.js") };
  });
}

async function arithmetic(page) {
  for (const [what, attempts, seconds, expected] of CASES) {
    const found = await page.evaluate(({ attempts, now }) => window.timelines.ticksOf(attempts, now).map((tick) => {
      const segments = tick.segments.map(({ what, begin, end }) => `${what} ${begin / 1_000}-${end / 1_000}`);
      return `${tick.tick}${tick.manual ? " manual" : ""}${tick.from > 1 ? ` from ${tick.from}` : ""}: ${segments.join(" ")} ${tick.verdict}`;
    }), { attempts: attempts.toReversed(), now: ZERO + seconds * SECOND });
    check(`timeline, ${what}`, JSON.stringify(found) === JSON.stringify(expected), { found, expected });
  }
  for (const [lengths, expected] of AXES) {
    const found = await page.evaluate((lengths) => window.timelines.axisOf(lengths), lengths.map((seconds) => seconds * SECOND));
    check(`timeline, the axis of ${lengths}`, found === expected * SECOND, `${found} for ${expected * SECOND}`);
  }
}

/** Draws a timeline of these attempts (oldest first) below the page, which goes on by itself, and says what is in it. */
async function drawn(page, attempts, seconds) {
  await page.evaluate(({ attempts, now }) => {
    const { render, timeline } = window.timelines;
    let box = document.querySelector("#timelines");
    if (!box) {
      box = document.createElement("section");
      box.id = "timelines";
      document.body.append(box);
    }
    render(box, timeline(attempts, now));
    box.scrollIntoView();
  }, { attempts: attempts.toReversed(), now: ZERO + seconds * SECOND });
  return page.evaluate(() => {
    const strips = [...document.querySelectorAll(".tick-strip svg")];
    const outside = (rect) => {
      const [inner, outer] = [rect.getBoundingClientRect(), rect.closest("svg").getBoundingClientRect()];
      return inner.left < outer.left - 1 || inner.right > outer.right + 1 || inner.width < 0.5;
    };
    const rects = strips.flatMap((svg) => [...svg.querySelectorAll("rect")]);
    return {
      rows: strips.length, narrowest: Math.min(...strips.map((svg) => svg.getBoundingClientRect().width)),
      outside: rects.filter(outside).length,
      titles: rects.map((rect) => rect.querySelector("title")?.textContent ?? ""),
      fills: new Set(rects.map((rect) => getComputedStyle(rect).fill)).size,
      words: document.querySelector(".ticks[role=img]").getAttribute("aria-label"),
      axis: [...document.querySelectorAll(".ticks .axis-x span")].map((one) => one.textContent),
      key: document.querySelector(".timeline .key").textContent,
      further: [...document.querySelectorAll(".tick-goes-on")].map((one) => one.textContent),
      wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    };
  });
}

const MIXED = [
  ...fifty.map((one) => ({ ...one, tick: 11 })),
  attempt(12, 1, 200, 201, 215, "done"),
  attempt(13, 1, 260, 260, 260.002, "done"),
  attempt(14, 1, 320, 334, 334, "skipped"),
  attempt(15, 1, 380, 382, 385, "retried"), attempt(15, 2, 395, 396, 9_000, "cut"),
  attempt(16, 1, 9_010, 9_011, null, null),
];

/** The page of a chain that runs and fails. */
async function onItsPage() {
  const page = await open({ width: 390 });
  await go(page, "#/chains/wrong/marked");
  await page.waitForSelector(".timeline .tick-strip rect.run title", { state: "attached" });
  check("a chain's page: its latest tick comes first", /^[\d,]+$/.test(await page.textContent(".timeline .tick-name strong")));
  await sane(page, "a chain's page with timelines");
  await clean(page, "a chain's page with timelines");
  await page.close();
}

export async function timelines({ picture }) {
  await onItsPage();
  const pages = [];
  for (const theme of ["light", "dark"]) {
    for (const width of [390, 1_600]) pages.push([theme, width, await open({ width, height: 900, theme })]);
  }
  for (const [theme, width, page] of pages) {
    const where = `timeline ${width} ${theme}`;
    await modules(page);
    if (page === pages[0][2]) await arithmetic(page);
    const shown = await drawn(page, MIXED, 9_020);
    check(`${where}: a row for each tick`, shown.rows === 6, shown.rows);
    check(`${where}: there is room for the rows`, shown.narrowest > Math.min(300, width * 0.6), shown.narrowest);
    check(`${where}: each segment is in its row, and to be seen`, shown.outside === 0, shown.outside);
    check(`${where}: each segment has words`, shown.titles.every((title) => /^Attempt \d+ /.test(title)), shown.titles);
    for (const title of ["Attempt 1 waited 2 s to start", "Attempt 1 ran 3 s: retried", "Attempt 1 waited 10 s for the next attempt",
      "Attempt 1 did not run: skipped", "Attempt 1 has run for 9 s"]) {
      check(`${where}: it says “${title}”`, shown.titles.includes(title), shown.titles.slice(-12));
    }
    check(`${where}: segments of different kinds look different`, shown.fills >= 6, shown.fills);
    check(`${where}: the axis ends where most rows do`, shown.axis.join() === "due,1 m 30 s,3 m", shown.axis);
    check(`${where}: a row that goes on says so`, shown.further.join() === "goes on: 2 h 23 m in all →", shown.further);
    check(`${where}: the whole has words`, shown.words.includes("Tick 15, due 2026-03-01 12:06:20: waited 3 s to start, ran 2 h 23 m in 2 attempts, "
      + "waited 10 s between attempts, cut, 2 h 23 m in all."), shown.words);
    for (const kind of ["waits to start", "waits for the next attempt", "done 2", "skipped 1", "runs 1"]) {
      check(`${where}: the key has “${kind}”`, shown.key.includes(kind), shown.key);
    }
    check(`${where}: it fits the width`, shown.wide <= 0, `${shown.wide}px too wide`);
    await accessible(page, where);
    await picture(page, `timeline-${width}-${theme}`);
    await clean(page, where);
    for (const [what, attempts, seconds] of CASES) {
      const { outside, titles, wide } = await drawn(page, attempts, seconds);
      check(`${where}, ${what}: it can be drawn`, outside === 0 && wide <= 0 && titles.every((title) => title && !/NaN|undefined/.test(title)),
        { outside, wide, titles });
    }
    await clean(page, where);
    await page.close();
  }
}
