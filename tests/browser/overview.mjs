// A picture of the dashboard's overview, in light and dark: node overview.mjs FILE URL
// For docs/images: start a demo, `roundelay demo appstore --for 40s`, and call this after half a minute.
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { take } from "./picture.mjs";

const [file, url] = process.argv.slice(2);
const { chromium } = await import(pathToFileURL(join(process.env.ROUNDELAY_TEST_MODULES, "node_modules/playwright-core/index.mjs")));
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
await page.goto(url);
await page.waitForSelector(".tiles");
await page.waitForTimeout(2_000);
await take(page, file, { themes: true });
await browser.close();
