// Every screen, in light and dark, wide and narrow, and what the keyboard does.

import { accessible, check, clean, go, open, origin, sane } from "./browser.mjs";

const SCREENS = ["overview", "chains", "kinds", "runs", "queues", "throttles", "failures", "quarantine", "ladder", "workers", "owners",
  "foresight", "audit"];
const KEYS = { c: "Chains", k: "Kinds", r: "Runs", q: "Queues", t: "Throttles", f: "Failures", n: "Quarantine", l: "Delay queues", w: "Workers",
  u: "Owners", s: "Simulate", a: "Audit", o: "Overview" };
const SIZES = [[1_280, 800], [360, 740]];

/** What a browser is told about the page. */
async function policy() {
  const answer = await fetch(origin);
  const said = answer.headers.get("content-security-policy") ?? "";
  for (const part of ["default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "frame-ancestors 'none'",
    "base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'"]) {
    check(`the policy has ${part}`, said.includes(part), said);
  }
  check("no script or style within the page", !/<script(?![^>]*src=)|<style|style=|\son\w+=/i.test(await answer.text()));
}

async function everyScreen(token, picture) {
  for (const theme of ["light", "dark"]) {
    for (const [width, height] of SIZES) {
      const page = await open({ width, height, theme, token });
      let chain = null;
      for (const screen of SCREENS) {
        const where = `${screen} ${width} ${theme}`;
        await go(page, `#/${screen}`);
        await sane(page, where);
        await clean(page, where);
        await accessible(page, where);
        if (width > 1_000) await picture(page, `${screen}-${theme}`);
        if (screen === "chains") {
          chain = await page.evaluate(() => document.querySelector("tbody th a")?.getAttribute("href"));
        }
      }
      check("there is a chain to look at", chain !== null);
      await go(page, chain);
      await sane(page, `chain ${width} ${theme}`);
      await clean(page, `chain ${width} ${theme}`);
      await accessible(page, `chain ${width} ${theme}`);
      if (width > 1_000) await picture(page, `chain-${theme}`);
      await page.close();
    }
  }
}

/** Data of strangers is only ever text. */
async function strangers(keys) {
  const page = await open();
  for (const key of keys) {
    await go(page, `#/chains/sync/${encodeURIComponent(key)}`);
    const where = `the chain ${key.slice(0, 30)}`;
    check(`${where} is found`, (await page.locator(".why").count()) > 0);
    // What cannot be seen, or turns the writing around, is shown by its number.
    const plain = key.replaceAll(/[\u200B\u202E]/gu, "").slice(0, 20);
    check(`${where} is called so`, (await page.textContent("h1")).replaceAll(/[\u200B\u202E]|20(0B|2E)/gu, "").includes(plain));
    await sane(page, where);
    await clean(page, where);
  }
  // What runs have said: how far one is; carry, parts and their reasons; why another failed; and what was enrolled.
  for (const [kind, marks] of [["slow", [5, 9]], ["odd", [6, 7, 8, 9]], ["wrong", [9, 10]]]) {
    await go(page, `#/chains/${kind}/marked`);
    const where = `what the run of ${kind} has said`;
    const shown = (marks) => marks.every((mark) => document.querySelector("main").textContent.includes(`alert(${mark})`));
    await page.waitForFunction(shown, marks).catch(() => null);
    check(`${where} is there as text`, await page.evaluate(shown, marks), await page.textContent("main"));
    await sane(page, where);
    await clean(page, where);
  }
  for (const screen of ["failures", "runs", "chains"]) {
    await go(page, `#/${screen}`);
    await sane(page, `${screen} with what runs have said`);
    await clean(page, `${screen} with what runs have said`);
  }
  await page.close();
}

async function keyboard() {
  const page = await open();
  for (const [key, title] of Object.entries(KEYS)) {
    await page.keyboard.press("g");
    await page.keyboard.press(key);
    await page.waitForFunction((title) => document.querySelector("h1")?.textContent === title
      && document.activeElement?.tagName === "H1", title);
    check(`g ${key}: the menu says so`, (await page.textContent("nav [aria-current=page]")).startsWith(title));
  }
  await page.keyboard.press("/");
  await page.waitForFunction(() => document.activeElement?.matches("[data-search]"));
  await page.keyboard.press("p");
  check("a letter in a field is a letter", (await page.inputValue("[data-search]")) === "p");
  await page.keyboard.press("Backspace");
  await page.keyboard.press("Escape");
  await page.keyboard.press("?");
  await page.waitForSelector("dialog[open]");
  await page.keyboard.press("Escape");
  await page.waitForSelector("dialog", { state: "detached" });
  await page.keyboard.press("p");
  await page.waitForFunction(() => document.querySelector(".live").textContent.startsWith("Not updating"));
  await page.keyboard.press("p");
  await page.waitForFunction(() => document.querySelector(".live").textContent.startsWith("Live"));
  await page.reload();
  await page.waitForSelector("h1");
  await page.keyboard.press("Tab");
  check("the first Tab leads to the content", await page.evaluate(() => document.activeElement?.id === "skip"));
  await go(page, "#/chains");
  let unseen = 0;
  for (let n = 0; n < 30; n += 1) {
    await page.keyboard.press("Tab");
    unseen += await page.evaluate(() => Number(document.activeElement !== document.body
      && getComputedStyle(document.activeElement).outlineStyle === "none"));
  }
  check("what has the focus can be seen to have it", unseen === 0, `${unseen} of 30`);
  await clean(page, "the keyboard");
  await page.close();
}

/** The engine's own chains are listed for who asks for them, and what has delay queues shows them. */
async function own() {
  const page = await open();
  for (const screen of ["chains", "runs"]) {
    const kinds = () => page.locator("tbody th .sub").allTextContents();
    const whole = (all) => all.length > 0 && all.every((kind) => kind.startsWith("roundelay."));
    await go(page, `#/${screen}`);
    const others = await kinds();
    check(`${screen}: the engine's own are left out`, others.length > 0 && !others.some((kind) => kind.startsWith("roundelay.")), others);
    await page.click(".hint a");
    await page.waitForURL(/own=only/);
    await go(page, `#/${screen}?own=only`);
    const found = await kinds();
    check(`${screen}: and a link leads to them`, whole(found), found);
    check(`${screen}: the filter says so`, (await page.locator("[name=own] option:checked").textContent()) === "nothing else");
    await go(page, `#/${screen}?kind=${found[0]}`);
    check(`${screen}: a kind of the engine's own is found`, whole(await kinds()), await kinds());
  }
  await go(page, "#/ladder");
  check("delay queues: each has its count", (await page.locator(".ladder li").count()) > 0
    && !(await page.textContent(".ladder")).includes("unknown"));
  check("delay queues: nothing is wrong with them", (await page.locator(".notice").count()) === 0);
  await clean(page, "the engine's own");
  await page.close();
}

/** Reading changes nothing, and filters are addresses. */
async function reading() {
  const page = await open();
  for (const screen of SCREENS) {
    await go(page, `#/${screen}`);
    const orders = "main .title .buttons button, main .orders button, main td.steer button, main button.danger";
    check(`${screen}: no orders while one only reads`, (await page.locator(orders).count()) === 0);
  }
  await go(page, "#/chains");
  await page.fill("[data-search]", "eu");
  await page.waitForURL(/text=eu/);
  await page.selectOption("[name=state]", "late");
  await page.waitForURL(/state=late/);
  await page.selectOption("[name=sort]", "late");
  await page.waitForURL(/sort=late/);
  await page.selectOption("[name=state]", "held");
  await page.waitForURL((url) => url.hash.includes("state=held") && !url.hash.includes("sort="));
  check("only late chains have an order by lateness", (await page.locator("[name=sort]").count()) === 0);
  await page.evaluate(() => history.go(-3));
  await page.waitForURL((url) => !url.hash.includes("state="));
  check("wide: filters are there", await page.isVisible("[name=state]") && !(await page.isVisible(".fold")));
  await page.setViewportSize({ width: 360, height: 740 });
  check("narrow: filters are behind a button", !(await page.isVisible("[name=state]")) && await page.isVisible("[data-search]"));
  await page.focus(".fold");
  await page.keyboard.press("Enter");
  await page.waitForSelector("[name=state]", { state: "visible" });
  check("narrow: the button says so", (await page.getAttribute(".fold", "aria-expanded")) === "true");
  await page.selectOption("[name=state]", "paused");
  await page.waitForURL(/state=paused/);
  check("narrow: how many filters are set", (await page.textContent(".fold")) === "Filters: 1 set");
  await sane(page, "the filters on a phone");
  await accessible(page, "the filters on a phone");
  const stops = page.locator(".live button");
  check("the button that stops updates is about the page", (await stops.textContent()) === "Stop updating this page");
  await stops.click();
  check("and the one that undoes it, too", (await stops.textContent()) === "Update again");
  await sane(page, "a page that is not updated");
  await stops.click();
  check("narrow: the menu is closed", !(await page.isVisible("#nav")));
  await page.click(".menu-button");
  await page.waitForSelector("#nav", { state: "visible" });
  await accessible(page, "the menu on a phone");
  await page.click("#nav >> text=Queues");
  await page.waitForFunction(() => document.querySelector("h1")?.textContent === "Queues");
  await page.waitForSelector("#nav", { state: "hidden" });
  await clean(page, "reading");
  await page.close();
}

export async function screens({ token, hostile, picture }) {
  await policy();
  await everyScreen(token, picture);
  await strangers(hostile);
  await keyboard();
  await own();
  await reading();
}
