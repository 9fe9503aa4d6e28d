// What a person reads first, with an ordinary mix of chains: one fast kind, one throttled below its demand, one that
// fails three times in ten, one queue that an operator has paused. Every screen is kept as a picture with --pictures.

import { appendFileSync } from "node:fs";
import { join } from "node:path";
import { check, clean, end, go, open, origin, sane } from "./browser.mjs";
import { take } from "./picture.mjs";

const { ROUNDELAY_TEST_PICTURES: pictures, ROUNDELAY_TEST_PROGRAM_CALLED: program, ROUNDELAY_TEST_CONFIG: config } = process.env;
const SCREENS = ["overview", "chains", "kinds", "runs", "queues", "throttles", "failures", "workers", "ladder", "audit"];
const run = async (...words) => {
  const { execFile } = await import("node:child_process");
  return new Promise((done) => {
    execFile(program, [...words, "--config", config], (error, out) => done({ out, code: error?.code ?? 0 }));
  });
};
const api = async (where) => (await fetch(`${origin}/api/v1/${where}`)).json();

const page = await open();
await go(page, "#/overview");
const lines = async () => (await page.locator(".troubles li").allTextContents()).map((line) => line.trim());
const told = [];
const says = async (name, pattern) => {
  const until = Date.now() + 90_000;
  let all = [];
  while (Date.now() < until) {
    all = await lines();
    const found = all.find((line) => pattern.test(line));
    if (found) {
      told.push(`${name}: ${found}`);
      return found;
    }
    await page.waitForTimeout(500);
  }
  check(`${name} is said`, false, all.join(" | "));
  return "";
};

const held = await says("the paused queue", /the queue reports is paused by .*: deploy/u);
check("what was paused is held, and no error", held.startsWith("Held: "), held);
const short = await says("the throttle that is too low", /pull needs 60\/min, and the throttle stock allows 30\/min/u);
check("what is short is a warning", short.startsWith("Warning: "), short);
const failing = await says("what fails", /(is|are) failing$/u);
check("what fails now is a warning", failing.startsWith("Warning: "), failing);
let seen = await api("overview");
// The chains that were paused are due with the next minute, and are counted within half a minute more.
for (let n = 0; n < 200 && !(seen.chains.held > 0 && seen.recovered > 0); n += 1) {
  await page.waitForTimeout(500);
  seen = await api("overview");
}
const { chains, recovered, failures } = seen;
check("the held chains are counted apart", chains.held > 0 && chains.overdue < 30, chains);
check("some have recovered, and some fail", recovered > 0 && recovered < failures, { recovered, failures });

const listed = await run("list", "--kind", "report");
check("a list says held", /\bheld\b/u.test(listed.out) && !/\blate\b/u.test(listed.out), listed.out);
const status = await run("status");
check("status says who holds what", /the queue reports is paused by .*: deploy .*roundelay queue resume reports/u.test(status.out), status.out);
check("status says what is short", status.out.includes("pull needs 60/min"), status.out);
const doctor = await run("doctor");
check("the doctor finds nothing wrong with what was paused", /good +held on reports/u.test(doctor.out), doctor.out);
const metrics = await api("queues");
check("the engine's own queue is marked", metrics.queues.some(({ own, queue }) => own && queue === "roundelay.chores"), metrics);
const audit = await api("audit");
check("the audit has the command line's order", audit.entries.some(({ action, target }) => action === "roundelay queue pause" && target === "reports"), audit);

// A link from before: its filter is not known any more.
await go(page, "#/chains?state=overdue&kind=pull");
check("an unknown filter is named", (await page.textContent("main")).includes("state=overdue"));
check("and the rest of it holds", (await page.locator("tbody tr").count()) > 0);

// What comes begins with the tick that is next.
await go(page, "#/chains/fast/f1");
const { chain } = await api("chains/fast/f1");
const first = await page.textContent(".next li");
// The page may be a tick behind the answer, or ahead of it.
const said = Number(/tick ([\d,]+)/u.exec(first)?.[1].replaceAll(",", ""));
check("the next tick comes first", Math.abs(said - chain.tick) <= 1, `${first} and ${chain.tick}`);

// A kind that fails, and one that is not as fresh as promised, are not hidden by a fast one.
const { kinds } = await api("kinds");
const of = (kind) => kinds.find((told) => told.kind === kind);
check("the kind that fails has its rate", of("flaky").failure_rate > 0.1 && of("flaky").failure_rate < 0.6, of("flaky"));
check("the fast one has none", of("fast").failure_rate === 0 && of("fast").per_minute.done > 1_000, of("fast"));
check("what is short runs less often than promised", of("pull").promised_ms === 30_000 && (of("pull").apart_ms ?? 60_000) > 40_000, of("pull"));
check("the fast one keeps its promise", of("fast").apart_ms !== null && of("fast").apart_ms < 7_000, of("fast"));
check("its lateness is its own", of("pull").late_ms.p99 > of("fast").late_ms.p99, [of("pull").late_ms, of("fast").late_ms]);
await go(page, "#/kinds");
const bar = page.locator("tr", { hasText: "flaky" }).locator(".strip a.warn, .strip a.bad").first();
const leads = await bar.getAttribute("href");
check("a bar leads to its runs", /kind=flaky/u.test(leads) && /since=/u.test(leads) && /until=/u.test(leads), leads);
await go(page, leads);
check("and they are those of the kind", (await page.locator("tbody tr").allTextContents()).every((row) => row.includes("flaky")));

// What a figure is about is said where it stands.
await go(page, "#/overview");
const tile = (name) => page.locator(".tile", { hasText: name }).textContent();
const after = `due for more than ${seen.late_after_ms / 1_000} s`;
check("late says from when on", (await tile("Late")).includes(after), `${await tile("Late")} without “${after}”`);
const latest = page.locator(".facts > div", { hasText: "Latest kind" });
check("the kind that starts latest is named, and leads to Kinds", (await latest.textContent()).includes("pull")
  && (await latest.locator("a").getAttribute("href")) === "#/kinds", await latest.textContent());

// Healthy chains come first: a line above them leads to the others.
await go(page, "#/chains");
const looks = page.locator(".looks a");
// The page is told of the figures every few seconds.
await page.waitForFunction(() => document.querySelectorAll(".looks a")[2].textContent === "6 held", null, { timeout: 15_000 }).catch(() => {});
const words = await looks.allTextContents();
check("what may need a look is counted", words.map((word) => word.replace(/^[\d,]+ /u, "")).join()
  === "late,failing,held,paused,running,quarantined", words);
check("six are held, and none is quarantined", words[2] === "6 held" && words[5] === "0 quarantined", words);
check("what is none stands back", await looks.nth(5).evaluate((one) => one.classList.contains("dim"))
  && !await looks.nth(2).evaluate((one) => one.classList.contains("dim")));
check("what fails leads to Failures", (await looks.nth(1).getAttribute("href")) === "#/failures?recovered=false");
await looks.nth(2).click();
await page.waitForURL(/#\/chains\?state=held$/u);
await go(page, "#/chains?state=held");
check("the six are there", (await page.locator("tbody tr").count()) === 6);
check("the line says which is shown", (await page.textContent(".looks [aria-current]")) === "6 held");

// A pause, a limit that is used and a broker without delay queues are told without alarm.
await go(page, "#/queues");
const paused = page.locator("tr", { hasText: "reports" });
check("a paused queue says so", /paused by .*: deploy/u.test(await paused.textContent())
  && (await paused.locator("td").last().textContent()) === "paused", await paused.textContent());
await go(page, "#/throttles");
const used = page.locator(".notice", { hasText: "is used up" });
check("a limit that is used is neither good nor bad", (await used.getAttribute("class")) === "notice calm", await used.getAttribute("class"));
await go(page, "#/ladder");
check("there are no delay queues", (await page.locator(".ladder li").count()) === 0 && (await page.locator(".notice.calm").count()) === 1);
check("nothing is wrong with that", (await page.locator(".notice.warn").count()) === 0);
check("how many sleep is said", /^\d[\d,]* chains sleep/u.test(await page.textContent(".lead")), await page.textContent(".lead"));

for (const screen of SCREENS) {
  await go(page, `#/${screen}`);
  await page.waitForTimeout(700);
  await sane(page, screen);
  await clean(page, screen);
  if (pictures) await take(page, join(pictures, `mix-${screen}`), { themes: false });
}
if (pictures) appendFileSync(join(pictures, "mix.txt"), `${told.join("\n")}\n`);
console.log(told.join("\n"));
await end();
