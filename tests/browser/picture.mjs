// A picture of a page as WebP, for docs/images: in light and dark, unless the page has one look only.
import { mkdirSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";

/** Writes FILE, or FILE-light.webp and FILE-dark.webp with `themes`. */
export async function take(page, file, { themes = false, top = 0, height = 800, width = 1280 } = {}) {
  mkdirSync(dirname(file), { recursive: true });
  const session = await page.context().newCDPSession(page);
  for (const theme of themes ? ["light", "dark"] : [null]) {
    if (theme) await page.emulateMedia({ colorScheme: theme });
    await page.waitForTimeout(300);
    const clip = { x: 0, y: top, width, height, scale: 1 };
    const { data } = await session.send("Page.captureScreenshot", { format: "webp", quality: 75, clip, captureBeyondViewport: true });
    writeFileSync(theme ? `${file}-${theme}.webp` : `${file}.webp`, Buffer.from(data, "base64"));
  }
}
