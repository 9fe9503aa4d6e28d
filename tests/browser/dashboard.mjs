// The dashboard in a real browser, against a program that runs. tests/browser/run starts both.

import { join } from "node:path";

import { end } from "./browser.mjs";
import { orders } from "./orders.mjs";
import { screens } from "./screens.mjs";
import { timelines } from "./timeline.mjs";

const { ROUNDELAY_TEST_TOKEN: token, ROUNDELAY_TEST_HOSTILE: hostile, ROUNDELAY_TEST_PICTURES: folder } = process.env;

/** A picture of a screen, where a folder is given. */
const picture = (page, name) => (folder ? page.screenshot({ path: join(folder, `${name}.png`) }) : null);

await orders({ token });
await screens({ token, hostile: JSON.parse(hostile), picture });
await timelines({ picture });
await end();
