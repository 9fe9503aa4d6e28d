// How long each screen and each request of theirs takes, and how much memory the server has: `tests/browser/run --chains`.

import { readFile } from "node:fs/promises";
import { join } from "node:path";

import { check, end, go, open, origin } from "./browser.mjs";

const { ROUNDELAY_TEST_TOKEN: token, ROUNDELAY_TEST_SERVER: server, ROUNDELAY_TEST_PICTURES: folder } = process.env;

/** What nobody is to wait longer for, in milliseconds. */
const MOMENT = 300;
/** What the server may need, in MiB. */
const MEMORY = 150;
const TIMES = 7;

const SCREENS = ["overview", "chains", "kinds", "chains?state=late", "chains?owner=ann", "chains?text=eu%2F69", "chains/sync/eu%2F1",
  "runs", "queues", "throttles", "failures", "quarantine", "ladder", "workers", "owners", "foresight", "audit"];
const REQUESTS = ["overview", "chains", "chains?own=false", "chains?state=late", "chains?state=late&sort=late", "chains?state=running",
  "chains?state=paused", "chains?kind=app", "chains?owner=ann", "chains?owner=corp-76", "chains?owner=ann&kind=app",
  "chains?queue=sync-ios", "chains?text=eu%2F69",
  "chains?text=nowhere", "chains/sync/eu%2F1", "chains/sync/eu%2F1/attempts", "runs", "runs?own=false", "runs?text=nowhere", "runs?kind=bad",
  "runs?kind=app&verdict=failed", "owners", "owners?limit=500", "queues", "throttles", "throttles/ios", "failures",
  "failures/reasons", "quarantine", "ladder", "workers", "configuration", "audit"];

/** The median and the longest of so many times, in milliseconds. */
async function times(what) {
  const taken = [];
  for (let n = 0; n < TIMES; n += 1) {
    const begun = performance.now();
    await what();
    taken.push(performance.now() - begun);
  }
  taken.sort((a, b) => a - b);
  return { median: taken[(TIMES - 1) / 2], longest: taken[TIMES - 1] };
}

function tell(what, { median, longest }) {
  console.log(`${what.padEnd(32)} ${median.toFixed(1).padStart(8)} ms ${longest.toFixed(1).padStart(8)} ms`);
  check(`${what} is there in a moment`, median < MOMENT, `${median.toFixed(0)} ms`);
}

async function memory() {
  const status = await readFile(`/proc/${server}/status`, "utf8");
  const [now, peak] = ["VmRSS", "VmHWM"].map((name) => Number(status.match(new RegExp(`${name}:\\s*(\\d+) kB`))[1]) / 1_024);
  return { now, peak };
}

async function ask(path) {
  const answer = await fetch(`${origin}/api/v1/${path}`, { headers: { Authorization: `Bearer ${token}` } });
  const body = await answer.json();
  check(`${path} is answered`, answer.ok, body);
  return body;
}

const deadline = Date.now() + 120_000;
let total = 0;
while (total === 0 && Date.now() < deadline) {
  total = (await ask("overview")).chains?.total ?? 0;
  if (total === 0) await new Promise((again) => setTimeout(again, 500)); // Until they are counted.
}
check("they are counted", total > 0);
console.log(`${total} chains, ${TIMES} times each`);
console.log(`\n${"request".padEnd(32)} ${"median".padStart(11)} ${"longest".padStart(11)}`);
for (const path of REQUESTS) tell(path, await times(() => ask(path)));
console.log(`\n${"screen".padEnd(32)} ${"median".padStart(11)} ${"longest".padStart(11)}`);
const page = await open({ token });
for (const screen of SCREENS) {
  const visits = [];
  for (let n = 0; n < TIMES; n += 1) {
    await go(page, "#/configuration-of-nothing");
    const begun = performance.now();
    await go(page, `#/${screen}`);
    visits.push(performance.now() - begun);
  }
  visits.sort((a, b) => a - b);
  tell(screen, { median: visits[(TIMES - 1) / 2], longest: visits[TIMES - 1] });
}
if (folder) {
  for (const theme of ["light", "dark"]) {
    const page = await open({ token, theme });
    for (const screen of SCREENS.filter((screen) => !screen.includes("?"))) {
      await go(page, `#/${screen}`);
      await page.screenshot({ path: join(folder, `${screen.split("/")[1] ? "chain" : screen}-${theme}.png`) });
    }
    await page.close();
  }
}
const { now, peak } = await memory();
console.log(`\nmemory of the server: ${now.toFixed(0)} MiB, at most ${peak.toFixed(0)} MiB`);
check("the server needs little", peak < MEMORY, `${peak.toFixed(0)} MiB`);
await end();
