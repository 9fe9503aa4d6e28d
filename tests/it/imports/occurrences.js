// When BullMQ's job schedulers come next, by the parser that BullMQ uses: occurrences.js FILE
// Prints a JSON object: for each key the next 200 times after the beginning, in seconds since 1970.
"use strict";

const { readFileSync } = require("node:fs");
const { CronExpressionParser } = require("cron-parser");

const found = {};
for (const { key, pattern, tz } of JSON.parse(readFileSync(process.argv[2], "utf8"))) {
  if (!pattern) continue;
  const times = CronExpressionParser.parse(pattern, { tz: tz ?? "UTC", currentDate: new Date("2026-01-15T00:00:00Z") });
  found[key] = Array.from({ length: 200 }, () => Math.round(times.next().getTime() / 1000));
}
console.log(JSON.stringify(found));
