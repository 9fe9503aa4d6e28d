// Pictures of RabbitMQ's management UI for docs/rabbitmq-ui.md. Each scene waits for a line on standard input, so that
// who calls this can set the scene up first:
//   node management.mjs FOLDER URL USER PASSWORD
import { createInterface } from "node:readline";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { take } from "./picture.mjs";

const [folder, url, user, password] = process.argv.slice(2);
const modules = process.env.ROUNDELAY_TEST_MODULES;
const { chromium } = await import(pathToFileURL(join(modules, "node_modules/playwright-core/index.mjs")));
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
await page.goto(url);
await page.fill("input[name=username]", user);
await page.fill("input[name=password]", password);
await page.click("input[type=submit]");
await page.waitForSelector("#main h1");

const queues = async (filter) => {
  await page.goto(`${url}/#/queues`);
  const field = page.locator("#queues-name");
  await field.waitFor();
  const regex = page.locator("#queues-filter-regex-mode, input[type=checkbox][id*=regex]").first();
  if (filter && !(await regex.isChecked())) await regex.check();
  await field.fill(filter);
  await field.press("Enter");
  await page.waitForTimeout(6_000);
};
const queue = async (name) => {
  await page.goto(`${url}/#/queues/%2F/${name}`);
  await page.waitForSelector("h1 b");
  await page.waitForTimeout(6_000);
};

const scenes = {
  healthy: async () => { await queues("^(?!roundelay\\.)"); return 480; },
  all: async () => { await queues(""); return 560; },
  backlog: async () => { await queues("^(?!roundelay\\.)"); return 480; },
  rung: async () => {
    await queues("^roundelay\\.delay");
    // The fullest first.
    for (let n = 0; n < 2; n += 1) {
      await page.click("th a[sort=messages], th:has-text('Total') a");
      await page.waitForTimeout(2_000);
    }
    return 640;
  },
  quarantine: async () => {
    await queue("roundelay.quarantine");
    await page.click("h2:has-text('Get messages')");
    await page.click("input[value='Get Message(s)']");
    await page.waitForTimeout(1_500);
    const place = await page.locator("h2:has-text('Get messages')").boundingBox();
    const scrolled = await page.evaluate(() => window.scrollY);
    return { top: place.y + scrolled - 12, height: 720 };
  },
};
for await (const scene of createInterface({ input: process.stdin })) {
  if (!scenes[scene]) break;
  const shown = await scenes[scene]();
  await take(page, join(folder, `rabbitmq-${scene}`), typeof shown === "number" ? { height: shown } : shown);
  console.log(`took ${scene}`);
}
await browser.close();
