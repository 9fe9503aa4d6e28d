// Every order that can be given on the dashboard, and that it was done: as the API tells it afterwards.

import { accessible, check, clean, go, open, origin } from "./browser.mjs";

const SOON = 30_000;

/** What the API tells. */
async function told(path, token) {
  const answer = await fetch(`${origin}/api/v1/${path}`, { headers: { Authorization: `Bearer ${token}` } });
  return answer.json();
}

/** Waits until the API tells what is expected. */
async function until(what, token, path, holds) {
  const deadline = Date.now() + SOON;
  let last;
  while (Date.now() < deadline) {
    last = await told(path, token);
    if (holds(last)) return check(what, true);
    await new Promise((again) => setTimeout(again, 200)); // Between two looks.
  }
  return check(what, false, last);
}

const toasts = (page) => page.textContent("#toasts");

async function said(page, words) {
  await page.waitForFunction((words) => document.querySelector("#toasts").textContent.includes(words), words, { timeout: SOON })
    .catch(async () => check(`it is said that ${words}`, false, await toasts(page)));
  check(`it is said that ${words}`, (await toasts(page)).includes(words));
  await page.evaluate(() => document.querySelectorAll("#toasts [aria-label='Put away']").forEach((one) => one.click()));
}

/** Gives an order by its button on a screen: fills the dialog, if it asks, and confirms. */
async function order(page, hash, button, fields, words) {
  await go(page, hash);
  await page.locator(button).first().click();
  if (fields !== null) {
    await page.waitForSelector("dialog .confirm");
    for (const [name, value] of Object.entries(fields)) {
      const field = page.locator(`dialog [name=${name}]`);
      const chooses = await field.evaluate((one) => one.tagName === "SELECT");
      await (chooses ? field.selectOption(value) : typeof value === "boolean" ? field.setChecked(value) : field.fill(value));
    }
    // Where the number has to be typed, it is the one that the dialog states.
    const typed = page.locator("dialog [name=typed]");
    if (await typed.count()) {
      check(`${button}: not before the number was typed`, await page.isDisabled("dialog .confirm"));
      await typed.fill((await page.textContent("dialog")).match(/\d[\d,]*/)[0].replaceAll(",", ""));
    }
    await page.click("dialog .confirm");
    await page.waitForSelector("dialog", { state: "detached" });
  }
  await said(page, words);
}

async function signIn(page, token) {
  await page.click(".mode .operating");
  await page.fill("dialog [name=token]", "rl_wrong");
  await page.click("dialog .confirm");
  await page.waitForSelector("dialog .refusal strong");
  await accessible(page, "signing in");
  await page.fill("dialog [name=token]", token);
  await page.click("dialog .confirm");
  await page.waitForFunction(() => document.documentElement.hasAttribute("data-operating"));
  const kept = await page.evaluate(() => JSON.stringify([localStorage, sessionStorage, location.href]));
  check("the token is nowhere but in memory", !kept.includes(token));
}

async function oneChain(page, token) {
  const [place, path] = [`#/chains/sync/${encodeURIComponent("eu/1")}`, `chains/sync/${encodeURIComponent("eu/1")}`];
  await order(page, place, ".title >> text=Pause…", {}, "is paused");
  await until("the chain is paused", token, path, ({ chain }) => chain.state === "paused");
  await order(page, place, ".title >> text=Resume", null, "goes on");
  await until("the chain ticks", token, path, ({ chain }) => chain.state === "active");
  await order(page, place, ".title >> text=Advance…", {}, "is due now");
  await order(page, place, ".title >> text=Run once…", {}, "runs one time more");
  await until("it has run beside its rotation", token, path, ({ single }) => single?.attempts[0]?.verdict === "done");
  const asked = { if_running: "beside", queue: "work", priority: "0", payload: "{\"by\":\"hand\"}", force: true };
  await order(page, place, ".title >> text=Run once…", asked, "runs one time more");
  await until("it has run with a payload of its own", token, path, ({ single }) =>
    single?.payload?.by === "hand" && single.attempts[0]?.tick === 2 && single.attempts[0].verdict === "done");
  await order(page, place, "text=Publish…", { payload: "{\"a\":1}", delay: "10m" }, "published");
  const gone = `#/chains/sync/${encodeURIComponent("eu/2")}`;
  await order(page, gone, ".title >> text=Retire…", {}, "has ended");
  await until("the other chain has ended", token, `chains/sync/${encodeURIComponent("eu/2")}`, ({ chain }) => chain.state === "retired");
}

async function manyChains(page, token) {
  await go(page, "#/chains?own=only");
  check("no order looks as if it were for the engine's own chains alone", (await page.locator(".orders").count()) === 0);
  const filter = "#/chains?kind=app&text=ios";
  const paused = (n) => ({ chains }) => chains.length === n;
  await go(page, filter);
  await page.click(".orders >> text=Pause…");
  await page.waitForSelector("dialog .confirm");
  check("it is said how many there are", (await page.textContent("dialog")).includes("30 chains"), await page.textContent("dialog"));
  await accessible(page, "the question about many");
  await page.keyboard.press("Escape");
  await page.waitForSelector("dialog", { state: "detached" });
  await until("nothing was done yet", token, "chains?kind=app&state=paused", paused(0));
  await order(page, filter, ".orders >> text=Pause…", {}, "30 chains changed");
  await until("all that fit are paused", token, "chains?kind=app&state=paused", paused(30));
  await order(page, "#/chains?kind=app&state=paused", ".orders >> text=Resume…", {}, "30 chains changed");
  await until("all tick again", token, "chains?kind=app&state=paused", paused(0));
}

async function queuesAndWorkers(page, token) {
  const work = ({ queues }) => queues.find(({ queue }) => queue === "work");
  const row = "tr:has(th:has-text(\"work\"))";
  await order(page, "#/queues", `${row} >> text=Pause…`, { why: "because <b>" }, "is paused");
  await until("the queue is paused, and why", token, "queues", (told) => work(told).paused?.why === "because <b>");
  await until("the worker obeys", token, "workers",
    ({ workers: [worker] }) => worker.queues.some(({ queue, paused }) => queue === "work" && paused));
  await order(page, "#/queues", `${row} >> text=Resume`, null, "goes on");
  await until("the queue goes on", token, "queues", (told) => work(told).paused === null);
  await order(page, "#/queues", `${row} >> text=Concurrency…`, { concurrency: "12" }, "12 jobs");
  await until("the queue is wider", token, "queues", (told) => work(told).concurrency.ordered === 12);
  await order(page, "#/queues", `${row} >> text=Concurrency…`, { concurrency: "" }, "as are configured");
  await until("as wide as before", token, "queues", (told) => work(told).concurrency.ordered === null);
  const state = (wanted) => ({ workers: [worker] }) => worker.state === wanted;
  await order(page, "#/workers", "text=Drain…", {}, "takes nothing more");
  await until("the worker is drained", token, "workers", state("drained"));
  await go(page, "#/overview");
  await go(page, "#/workers");
  await order(page, "#/workers", "td >> text=Resume", null, "takes jobs again");
  await until("the worker works", token, "workers", state("working"));
}

async function throttles(page, token) {
  const ios = (holds) => (throttle) => holds(throttle);
  await order(page, "#/throttles", "text=Hold…", { for: "30m", why: "they are down" }, "nothing starts until");
  await until("the throttle is held", token, "throttles/ios", ios(({ hold }) => hold?.why === "they are down"));
  await order(page, "#/throttles", "text=Release…", {}, "released");
  await until("the throttle is released", token, "throttles/ios", ios(({ hold }) => hold === null));
  await order(page, "#/throttles", "text=Limits…", { allow: "20", per: "1m", burst: "2" }, "in place of the configured");
  await until("other limits hold", token, "throttles/ios", ios(({ ordered }) => ordered?.allow === 20));
  await order(page, "#/throttles", "text=Reset limits", null, "as configured");
  await until("the configured limits hold", token, "throttles/ios", ios(({ ordered }) => ordered === null));
}

async function owners(page, token) {
  const ann = (holds) => ({ owners }) => holds(owners.find(({ owner }) => owner === "ann"));
  const row = "tr:has(th:has-text(\"ann\"))";
  await order(page, "#/owners", `${row} >> text=Pause…`, {}, "changed");
  await until("all of hers is paused", token, "owners", ann(({ state, active }) => state === "paused" && active === 0));
  await go(page, "#/overview");
  await order(page, "#/owners", `${row} >> text=Resume…`, {}, "changed");
  await until("all of hers goes on", token, "owners", ann(({ state, paused }) => state === "active" && paused === 0));
}

async function whatHasGoneWrong(page, token) {
  await until("something has failed", token, "failures", ({ failures }) => failures.length >= 2);
  await order(page, "#/failures?kind=bad", ".orders >> text=Drop…", {}, "changed");
  await until("failures are forgotten", token, "failures?kind=bad", ({ failures }) => failures.length === 0);
  await until("a message cannot be used", token, "quarantine", ({ messages }) => messages.length >= 1);
  await order(page, "#/quarantine", "td >> text=Retry…", {}, "changed");
  await until("it comes back, since it still cannot be used", token, "quarantine", ({ messages }) => messages.length >= 1);
  await go(page, "#/overview");
  await order(page, "#/quarantine", "td >> text=Drop…", {}, "changed");
  await until("it is forgotten", token, "quarantine", ({ messages }) => messages.length === 0);
}

async function foresight(page) {
  await go(page, "#/foresight");
  await page.selectOption("[name=for]", "1h");
  const begins = await page.inputValue("[data-kind=app]");
  check("the form begins with the chains that there are", begins === "30", begins);
  await page.fill("[data-kind=sync]", "20");
  await page.click("button.primary");
  await page.waitForSelector(".chart");
  check("the picture says its figures", /mean .* highest/.test(await page.getAttribute(".plot", "aria-label")));
  await accessible(page, "what it will do");
}

async function whatWasDone(page, token) {
  await go(page, "#/audit");
  const text = await page.textContent("main");
  check("the audit has it all", text.includes("/queues/{queue}/pause") && text.includes("operate-of-tests"), text.slice(0, 300));
  const { entries } = await told("audit?limit=500", token);
  check("each order is there once", entries.filter(({ action }) => action.endsWith("/throttles/{name}/hold")).length === 1);
}

export async function orders({ token }) {
  const page = await open({ expected: ["Failed to load resource"] });
  await signIn(page, token);
  for (const part of [oneChain, manyChains, queuesAndWorkers, throttles, owners, whatHasGoneWrong, foresight, whatWasDone]) {
    await part(page, token);
    await clean(page, part.name);
  }
  await page.close();
}
