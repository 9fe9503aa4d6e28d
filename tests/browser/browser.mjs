// A real browser, and what must hold on every page: no errors, nothing that leaves, nothing that the policy stops,
// nothing that a screen reader or a narrow screen cannot deal with.

import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";

const { ROUNDELAY_TEST_URL: base, ROUNDELAY_TEST_MODULES: modules } = process.env;
export const origin = new URL(base).origin;
const here = createRequire(join(modules, "x.js"));
const { chromium } = here("playwright-core");
const axe = await readFile(here.resolve("axe-core/axe.min.js"), "utf8");

/** How long anything may take that is bound to happen. */
const SOON = 30_000;
// Without the rest, the browser looks for its maker's hosts.
const ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];

const profile = await mkdtemp(join(tmpdir(), "roundelay-browser-"));
const context = await chromium.launchPersistentContext(profile, {
  executablePath: process.env.ROUNDELAY_TEST_CHROMIUM ?? "/usr/bin/chromium", headless: true, args: ARGUMENTS,
});

let passed = 0;
const failures = [];

/** Notes whether something is as it must be. */
export function check(what, holds, detail = "") {
  if (holds) {
    passed += 1;
    return;
  }
  const words = `${what}${detail ? `: ${typeof detail === "string" ? detail : JSON.stringify(detail)}` : ""}`;
  failures.push(words);
  console.log(`FAILED ${words}`);
}

/** Closes the browser, says what came of it, and ends. */
export async function end() {
  await context.close();
  await rm(profile, { recursive: true, force: true });
  console.log(`${passed} passed, ${failures.length} failed`);
  process.exit(failures.length > 0 ? 1 : 0);
}

/** A page on the dashboard. Messages that have one of the words in `expected` are no trouble. */
export async function open({ width = 1_280, height = 800, theme = "light", token = null, expected = [] } = {}) {
  const page = await context.newPage();
  page.setDefaultTimeout(SOON);
  await page.setViewportSize({ width, height });
  page.trouble = [];
  page.on("console", (message) => {
    const known = expected.some((words) => message.text().includes(words));
    if (["error", "warning"].includes(message.type()) && !known) page.trouble.push(`${message.type()}: ${message.text()}`);
  });
  page.on("pageerror", (error) => page.trouble.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => {
    page.trouble.push(`a script of somebody else's runs: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(origin)) page.trouble.push(`leaves: ${request.url()}`);
  });
  await page.addInitScript(({ theme, token }) => {
    window.violations = [];
    document.addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI }) =>
      window.violations.push(`${violatedDirective} ${blockedURI}`));
    localStorage.setItem("roundelay.theme", theme);
    if (token) sessionStorage.setItem("roundelay.token", token);
  }, { theme, token });
  await page.goto(base);
  await page.waitForSelector("h1");
  return page;
}

/** Goes to a screen, and waits until it is there. */
export async function go(page, hash) {
  await page.evaluate((hash) => { location.hash = hash; }, hash);
  await page.waitForFunction(() => !document.querySelector("main :is([aria-busy], .stale)")
    && !/^Asking…/.test(document.querySelector("main .empty")?.textContent ?? ""));
  // What the last answer has brought is drawn with the next frame.
  await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
}

/** Nothing has gone wrong since this was asked last. */
export async function clean(page, where) {
  check(`${where}: nothing has gone wrong`, page.trouble.length === 0, page.trouble);
  page.trouble.length = 0;
  const violations = await page.evaluate(() => window.violations.splice(0));
  check(`${where}: the policy has stopped nothing`, violations.length === 0, violations);
}

/** What holds for every page. */
export async function sane(page, where) {
  const found = await page.evaluate(() => {
    const all = (selector) => [...document.querySelectorAll(selector)];
    return {
      wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
      headings: all("h1").length,
      foreign: all("img, iframe, object, embed, script:not([src]), style, form[action]").map((one) => one.outerHTML.slice(0, 80)),
      away: all("a[href]").map((one) => one.getAttribute("href")).filter((href) => !href.startsWith("#")),
      handlers: all("*").filter((one) => [...one.attributes].some(({ name }) => name.startsWith("on"))).length,
      unnamed: all("table").filter((table) => !table.caption?.textContent || !table.querySelector("th[scope=col]")
        || (table.tBodies[0]?.rows.length && !table.querySelector("th[scope=row]"))).length,
      silent: all("[role=img]").filter((one) => !(one.getAttribute("aria-label")?.length > 10)).length,
    };
  });
  check(`${where}: it fits the width`, found.wide <= 0, `${found.wide}px too wide`);
  check(`${where}: one heading of the first rank`, found.headings === 1);
  check(`${where}: nothing in it that is not of the program`, found.foreign.length === 0, found.foreign);
  check(`${where}: links stay here`, found.away.length === 0, found.away);
  check(`${where}: no handlers in attributes`, found.handlers === 0);
  check(`${where}: tables have names and heads`, found.unnamed === 0);
  check(`${where}: pictures have words`, found.silent === 0);
}

/** What people who do not see, or not well, would stumble over. */
export async function accessible(page, where) {
  await page.evaluate(axe);
  const found = await page.evaluate(async () => (await window.axe.run(document, { resultTypes: ["violations"] })).violations
    .filter(({ impact }) => ["serious", "critical"].includes(impact))
    .map(({ id, nodes }) => `${id} (${nodes.length}): ${nodes[0].html.slice(0, 140)}`));
  check(`${where}: nobody stumbles`, found.length === 0, found);
  // What the looking itself has done is nobody's fault.
  await page.evaluate(() => window.violations.splice(0));
  page.trouble.length = 0;
}
