// Times, spans and numbers as words. All spans are counted by the server's clock, as far as it is known:
// the clock of somebody's laptop may be minutes off, and "late" must be true.

let ahead = 0;
let zone = "utc";

/** A time as the server tells it, in milliseconds since 1970; what a simulation tells is text. */
export const instant = (time) => (typeof time === "number" ? time : Date.parse(time));

/** Notes what time it is on the server. */
export function setClock(time) {
  const now = instant(time);
  if (Number.isFinite(now)) ahead = now - Date.now();
}

export const now = () => Date.now() + ahead;

/** Shows times of day in "utc", as logs do, or in the "local" zone. */
export function setZone(name) {
  zone = name === "local" ? "local" : "utc";
}

const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });

/** 1234567 → "1,234,567"; what is not known is a dash. */
export function count(n) {
  return Number.isFinite(n) ? whole.format(n) : "–";
}

/** A figure per second: as many digits as matter. */
export function rate(n) {
  if (!Number.isFinite(n)) return "–";
  const size = Math.abs(n);
  if (size >= 100) return count(n);
  if (size >= 10) return trim(n, 1);
  return size === 0 || size >= 0.01 ? trim(n, 2) : "< 0.01";
}

const trim = (n, digits) => String(Number(n.toFixed(digits)));

export function percent(share) {
  if (!Number.isFinite(share)) return "–";
  return share > 0 && share < 0.01 ? "< 1 %" : `${whole.format(share * 100)} %`;
}

/** "1 chain", "2 chains". */
export function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}

const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["m", 60_000], ["s", 1_000]];

/** A span in its two largest units: 2889000 → "48 m 9 s". */
export function span(ms) {
  if (!Number.isFinite(ms)) return "–";
  const size = Math.abs(ms);
  if (size < 1_000) return size < 10 && size % 1 ? `${trim(size, 1)} ms` : `${Math.round(size)} ms`;
  if (size < 10_000) return `${trim(size / 1_000, 1)} s`;
  // Rounded first, or 59,999 ms would be "60 s".
  let left = Math.round(size / 1_000) * 1_000;
  const parts = [];
  for (const [unit, length] of UNITS) {
    const n = Math.floor(left / length);
    left -= n * length;
    if (n > 0) parts.push(`${n} ${unit}`);
    else if (parts.length) break;
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

/** How far away a time is: "in 5 m", "12 s ago". */
export function away(time) {
  const at = instant(time);
  if (!Number.isFinite(at)) return "–";
  // Tenths that change with each look tell nobody anything.
  const ms = Math.trunc((at - now()) / 1_000) * 1_000;
  if (ms === 0) return "now";
  return ms > 0 ? `in ${span(ms)}` : `${span(ms)} ago`;
}

/** A time of day, with the date unless it is today's. */
export function clock(time, { seconds = true } = {}) {
  const at = new Date(time);
  if (Number.isNaN(at.getTime())) return "–";
  const day = dayOf(at);
  const shown = timeOf(at).slice(0, seconds ? 8 : 5);
  return day === dayOf(new Date(now())) ? shown : `${day} ${shown}`;
}

/** In full, for titles. */
export function exact(time) {
  const at = new Date(time);
  if (Number.isNaN(at.getTime())) return "";
  return zone === "utc" ? at.toISOString() : `${dayOf(at)} ${timeOf(at)} here, ${at.toISOString()}`;
}

/** A time as a field for date and time has it, in the zone that times are shown in; nothing for what is no time. */
export function fieldOf(time) {
  const at = new Date(/^\d{4}-\d\d-\d\dT/.test(time) ? time : NaN);
  return Number.isNaN(at.getTime()) ? "" : `${dayOf(at)}T${timeOf(at)}`;
}

/** The time that such a field says, in UTC; nothing while it is not filled in. */
export function timeOfField(value) {
  const at = new Date(value && zone === "utc" ? `${value}Z` : value);
  return Number.isNaN(at.getTime()) ? "" : at.toISOString().replace(".000Z", "Z");
}

/** The name of the zone that times are shown in. */
export const zoneName = () => (zone === "utc" ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone || "local time");

function dayOf(at) {
  return zone === "utc"
    ? at.toISOString().slice(0, 10)
    : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

function timeOf(at) {
  return zone === "utc"
    ? at.toISOString().slice(11, 19)
    : `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

const two = (n) => String(n).padStart(2, "0");

/** Cuts without tearing a character apart. */
export function cut(text, length) {
  const shown = String(text ?? "");
  if (shown.length <= length) return shown;
  const end = shown.charCodeAt(length - 1) >= 0xd800 && shown.charCodeAt(length - 1) <= 0xdbff ? length - 1 : length;
  return `${shown.slice(0, end)}…`;
}
