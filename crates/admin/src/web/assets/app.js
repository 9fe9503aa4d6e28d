// The frame around the screens: which one an address means, when it asks again, who is signed in, and keys.

import { get, Refusal } from "./api.js";
import { ask, askForToken, explain, putAway, report, reportRefusal } from "./dialogs.js";
import { h, render } from "./dom.js";
import { clock, count, now, setZone, span, zoneName } from "./format.js";
import { disconnect, isPaused, listen, live, reconnect, setPaused, wanted } from "./live.js";
import { button, notice, shape, text, to } from "./parts.js";
import { allows, begin, session, signIn, signOut } from "./session.js";
import { audit } from "./screens/audit.js";
import { chain } from "./screens/chain.js";
import { chains } from "./screens/chains.js";
import { failures } from "./screens/failures.js";
import { foresight } from "./screens/foresight.js";
import { kinds } from "./screens/kinds.js";
import { ladder } from "./screens/ladder.js";
import { overview } from "./screens/overview.js";
import { owners } from "./screens/owners.js";
import { quarantine } from "./screens/quarantine.js";
import { queues } from "./screens/queues.js";
import { runs } from "./screens/runs.js";
import { throttles } from "./screens/throttles.js";
import { workers } from "./screens/workers.js";

// In the order of the menu; `hot` is the key after `g`.
const SCREENS = [
  { name: "overview", screen: overview, hot: "o" },
  { name: "chains", screen: chains, hot: "c", alarm: ({ chains: told }) => [told.overdue, "late", true] },
  { name: "kinds", screen: kinds, hot: "k" },
  { name: "runs", screen: runs, hot: "r" },
  { name: "queues", screen: queues, hot: "q" },
  { name: "throttles", screen: throttles, hot: "t" },
  { name: "failures", screen: failures, hot: "f" },
  { name: "quarantine", screen: quarantine, hot: "n", alarm: (told) => [told.quarantined_messages, "messages"] },
  { name: "workers", screen: workers, hot: "w", alarm: (told) => [told.workers.silent, "silent", true] },
  { name: "owners", screen: owners, hot: "u" },
  { name: "foresight", screen: foresight, hot: "s" },
  { name: "audit", screen: audit, hot: "a" },
  { name: "ladder", screen: ladder, hot: "l" },
];

const AFTER_AN_ERROR_MS = 10_000;

const places = {
  bar: document.getElementById("bar"),
  nav: document.getElementById("nav"),
  main: document.getElementById("main"),
};

let visit = null;
let ready = false;
let unreachable = null;
let refusing = false;

// --- Addresses --------------------------------------------------------------------------------------

function parse(hash) {
  const [where, entries = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [name, ...rest] = where.split("/");
  let segments;
  try {
    segments = rest.map(decodeURIComponent);
  } catch {
    segments = [];
  }
  return { screen: name || "overview", segments, query: Object.fromEntries(new URLSearchParams(entries)) };
}

/** Takes out of an address's query what the screen does not know: links live longer than filters. */
function sift(query, known) {
  if (!known) return [];
  const strange = Object.entries(query).filter(([name, value]) => {
    const values = Object.hasOwn(known, name) ? known[name] : undefined;
    return name !== "after" && (values === undefined || (values !== null && !values.includes(value)));
  });
  strange.forEach(([name]) => delete query[name]);
  return strange.map(([name, value]) => `${name}=${value}`);
}

function screenOf({ screen: name, segments }) {
  if (name === "chains" && segments.length === 2) return chain;
  return SCREENS.find((entry) => entry.name === name)?.screen ?? null;
}

function go(href, { replace = false } = {}) {
  if (href === location.hash) return;
  if (!replace) {
    location.hash = href;
    return;
  }
  history.replaceState(null, "", href);
  arrive();
}

function arrive() {
  const place = parse(location.hash);
  const screen = screenOf(place);
  const ignored = sift(place.query, screen?.query);
  const same = visit && visit.screen === screen && visit.place.segments.join("\0") === place.segments.join("\0");
  visit?.controller.abort();
  visit = {
    screen, place, ignored, controller: new AbortController(), loading: false, again: false, asked: 0, error: null,
    // While another filter of the same screen is read, what is there stays.
    number: same ? visit.number : (visit?.number ?? 0) + 1,
    data: same ? visit.data : null,
    stale: same,
    from: same ? visit.from : null,
    state: same ? visit.state : {},
  };
  visit.ctx = contextOf(visit);
  places.nav.hidePopover?.();
  draw();
  load(visit);
  if (!same) {
    scrollTo(0, 0);
    if (ready) places.main.querySelector("h1")?.focus({ preventScroll: true });
  }
}

/** What a screen has to work with. */
function contextOf(mine) {
  return {
    live,
    session,
    get place() { return mine.place; },
    get data() { return mine.data; },
    get state() { return mine.state; },
    get: (where, entries) => get(where, entries, mine.controller.signal),
    set: (entries) => { Object.assign(mine.state, entries); draw(); },
    show: (data) => { Object.assign(mine, { data, stale: false }); draw(); },
    refresh: () => { mine.again = mine.loading; load(mine); },
    go,
  };
}

// --- Reading ----------------------------------------------------------------------------------------

async function load(mine) {
  if (!ready || !mine.screen || mine.loading || !allows("read")) return;
  mine.loading = true;
  mine.asked = Date.now();
  try {
    const data = await mine.screen.load(mine.ctx);
    if (mine !== visit) return;
    Object.assign(mine, { data, stale: false, error: null, from: now() });
  } catch (error) {
    if (mine !== visit || error.name === "AbortError") return;
    mine.error = error;
    if (error.status === 401) refused();
  } finally {
    mine.loading = false;
  }
  draw();
  if (mine.again) {
    mine.again = false;
    load(mine);
  }
}

function beat() {
  if (visit.screen && wanted() && !visit.loading && !visit.data?.still) {
    const every = visit.error ? AFTER_AN_ERROR_MS : visit.screen.every;
    const streamed = visit.screen.streamed && live.state === "live" && visit.data;
    if (every && !streamed && Date.now() - visit.asked >= every) load(visit);
  }
  if (document.visibilityState === "visible") draw();
}

/** The server no longer takes our word for who we are: ask it what is left. */
async function refused() {
  if (refusing) return;
  refusing = true;
  if (session.signedIn) report("error", "Signed out", "The server does not know the token, or no longer.");
  signOut();
  try {
    await begin();
  } catch { /* Whatever is asked for next says so. */ }
  refusing = false;
  if (!allows("read")) disconnect();
  draw();
}

async function start() {
  try {
    await begin();
    unreachable = null;
  } catch (error) {
    unreachable = error;
    draw();
    setTimeout(start, 5_000);
    return;
  }
  ready = true;
  if (allows("read")) reconnect();
  else disconnect();
  draw();
  load(visit);
}

// --- Drawing ----------------------------------------------------------------------------------------

function draw() {
  const { screen } = visit;
  const title = screen?.title ?? "No such screen";
  document.title = `${screen?.tab?.(visit.ctx) ?? title} · ${session.name || "Roundelay"}`;
  document.documentElement.toggleAttribute("data-operating", session.operating);
  render(places.bar, bar());
  render(places.nav, menu());
  render(places.main, h("div", { key: visit.number, class: `screen ${visit.stale ? "stale" : ""}`,
    "aria-busy": visit.loading && (!visit.data || visit.stale) ? "true" : null },
    h("header", { class: "title" },
      h("h1", { tabindex: "-1" }, screen?.heading?.(visit.ctx) || title),
      ready && allows("read") && screen?.actions && h("div", { class: "buttons" }, screen.actions(visit.ctx))),
    body(screen)));
}

function body(screen) {
  if (!ready) return unreachable ? notice("error", explain(unreachable), " Trying again.") : h("p", { class: "empty" }, "Asking…");
  if (!allows("read")) {
    return h("div", { class: "wall" },
      h("p", null, "This installation shows nothing without a token."),
      button("Sign in…", () => enter("Sign in with a token to look at it."), { class: "primary" }));
  }
  if (!screen) return h("p", null, "There is nothing at this address. ", h("a", { href: "#/overview" }, "Overview"));
  // What was read for another filter is not an answer to this one.
  const shown = visit.data && !(visit.error && visit.stale);
  const old = visit.error && notice("error",
    shown && `What is below is from ${clock(new Date(visit.from).toISOString())}, ${span(now() - visit.from)} ago. `, explain(visit.error));
  if (!shown) return old || h("p", { class: "empty" }, "Asking…");
  try {
    const ignored = visit.ignored.length > 0 && notice("warning",
      "Not known here, and left out of the filter: ", text(visit.ignored.join(", "), 200));
    return [ignored, old, screen.view(visit.ctx)];
  } catch (error) {
    console.error(error);
    return notice("error", "The answer cannot be shown: ", text(error.message), ". Are page and server of the same version?");
  }
}

const STATES = { live: "Live", paused: "Not updating", reconnecting: "Reconnecting", asleep: "Asleep" };

function bar() {
  // Whole seconds: tenths would flicker.
  const silent = Math.floor((Date.now() - live.heard) / 1_000) * 1_000;
  const heard = live.heard && `heard ${silent >= 1_000 ? `${span(silent)} ago` : "just now"}`;
  return [
    h("button", { type: "button", class: "menu-button", popovertarget: "nav" }, "Menu"),
    h("a", { class: "brand", href: "#/overview" }, h("strong", null, "Roundelay"),
      session.name && h("span", { class: "installation" }, text(session.name, 40))),
    h("div", { class: `live ${live.state}`, title: live.why },
      h("span", { class: "pulse", "aria-hidden": "true" }),
      h("span", null, h("strong", null, STATES[live.state]), heard && h("span", { class: "heard" }, `, ${live.state === "live" ? "" : "last "}${heard}`)),
      h("span", { class: "unseen-text", role: "status" }, STATES[live.state]),
      button(isPaused() ? "Update again" : "Stop updating this page", togglePause,
        { class: "quiet", "aria-keyshortcuts": "p", title: "Only this page: nothing else stops. Key: p" })),
    button(zoneName(), () => prefer("zone", preferences.zone === "utc" ? "local" : "utc"),
      { class: "quiet zone", title: "All times are shown in this zone; press to change it", "aria-label": `Times are ${zoneName()}` }),
    ready && allows("read") && h("div", { class: "mode", role: "group", "aria-label": "Mode" },
      button("Read only", () => { session.operating = false; draw(); }, { "aria-pressed": String(!session.operating) }),
      button("Operating", operate, { "aria-pressed": String(session.operating), class: "operating" })),
    h("button", { type: "button", class: "settings-button", popovertarget: "settings" }, session.signedIn ? text(session.actor, 20) : "Settings"),
    h("div", { id: "settings", popover: "auto", class: "settings", role: "dialog", "aria-label": "Settings" }, settings()),
  ];
}

function settings() {
  return [
    h("p", null, session.signedIn ? ["Signed in as ", h("strong", null, text(session.actor, 80))] : "Not signed in",
      `, scope ${session.scope}`),
    h("div", { class: "buttons" },
      button(session.signedIn ? "Other token…" : "Sign in…", () => enter("Sign in with a token.")),
      session.signedIn && button("Sign out", leave)),
    choice("Appearance", "theme", [["auto", "Auto"], ["light", "Light"], ["dark", "Dark"]]),
    choice("Times", "zone", [["utc", "UTC"], ["local", "Local"]]),
    h("p", { class: "hint" }, session.version && `Roundelay ${session.version}, ledger ${session.ledger}, broker ${session.broker}. `,
      `It is ${clock(new Date(now()).toISOString())}, ${zoneName()}.`),
    button("Keys…", help, { class: "quiet" }),
  ];
}

function choice(title, name, options) {
  return h("fieldset", { key: name }, h("legend", null, title), options.map(([value, words]) =>
    h("label", { key: value }, h("input", {
      type: "radio", name, value, checked: preferences[name] === value, onchange: () => prefer(name, value),
    }), words)));
}

function menu() {
  return h("ul", null, SCREENS.map(({ name, screen, alarm }) => {
    const [number, words, seen] = (live.overview && alarm?.(live.overview)) || [];
    return h("li", { key: name }, h("a", {
      href: to(name), "aria-current": visit.place.screen === name ? (visit.place.segments.length ? "true" : "page") : null,
    }, screen.title, number > 0 && h("span", { class: "badge" }, shape("error"), count(number), h("span", { class: seen ? null : "unseen-text" }, words))));
  }));
}

// --- Who, and what they may -------------------------------------------------------------------------

async function enter(why) {
  document.getElementById("settings")?.hidePopover?.();
  if (!await askForToken(why, signIn)) return false;
  report("done", `Signed in as ${session.actor}, scope ${session.scope}`);
  reconnect();
  draw();
  load(visit);
  return true;
}

async function leave() {
  signOut();
  document.getElementById("settings")?.hidePopover?.();
  report("done", "Signed out");
  await start();
}

async function operate() {
  if (session.operating) return;
  if (!allows("operate")) {
    const why = session.signedIn
      ? ["The token “", text(session.actor, 80), `” has the scope “${session.scope}”. Operating needs one with the scope “operate” or “admin”.`]
      : "Operating needs a token with the scope “operate” or “admin”.";
    if (!await enter(why)) return;
    if (!allows("operate")) {
      report("error", "Still read only", `The token “${session.actor}” has the scope “${session.scope}”.`);
      return;
    }
  } else if (!session.signedIn) {
    const meant = await ask({
      title: "Switch to operating?",
      body: [h("p", null, "Buttons that pause, run, retire and change things are shown then, here and until you switch back or load the page again. Each still asks first."),
        h("p", { class: "hint" }, "Nobody has to sign in to this installation: the audit log will say “", text(session.actor, 80), "”.")],
      confirm: "Operate",
      submit: async () => true,
    });
    if (!meant) return;
  }
  session.operating = true;
  draw();
}

// --- Preferences ------------------------------------------------------------------------------------

const preferences = { theme: "auto", zone: "utc" };

function prefer(name, value) {
  preferences[name] = value;
  try {
    localStorage.setItem(`roundelay.${name}`, value);
  } catch { /* It is forgotten with the page then. */ }
  applyPreferences();
  draw();
}

function readPreferences() {
  for (const name of Object.keys(preferences)) {
    try {
      preferences[name] = localStorage.getItem(`roundelay.${name}`) ?? preferences[name];
    } catch { /* as it is */ }
  }
  applyPreferences();
}

function applyPreferences() {
  document.documentElement.dataset.theme = preferences.theme;
  setZone(preferences.zone);
}

// --- Keys -------------------------------------------------------------------------------------------

const SEQUENCE_MS = 1_500;
let wentAt = 0;

function onKey(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") {
    const typingIn = event.target.closest?.("input, textarea, select");
    if (typingIn) typingIn.blur();
    else if (!document.querySelector(":popover-open")) putAway();
    return;
  }
  if (event.target.closest?.("input, textarea, select, [contenteditable]")) return;
  const follows = Date.now() - wentAt < SEQUENCE_MS;
  wentAt = 0;
  if (follows) {
    const entry = SCREENS.find(({ hot }) => hot === event.key);
    if (!entry) return;
    go(to(entry.name));
  } else if (event.key === "g") {
    wentAt = Date.now();
  } else if (event.key === "/") {
    search();
  } else if (event.key === "?") {
    help();
  } else if (event.key === "p") {
    togglePause();
  } else {
    return;
  }
  event.preventDefault();
}

function search() {
  const field = document.querySelector("[data-search]");
  if (field) field.focus();
  else {
    go(to("chains"));
    const looking = setInterval(() => {
      const found = document.querySelector("[data-search]");
      if (!found) return;
      clearInterval(looking);
      found.focus();
    }, 50);
    setTimeout(() => clearInterval(looking), 5_000);
  }
}

function togglePause() {
  setPaused(!isPaused());
  if (!isPaused()) load(visit);
  draw();
}

function help() {
  document.getElementById("settings")?.hidePopover?.();
  const keys = [
    ...SCREENS.map(({ screen, hot }) => [["g", hot], screen.title]),
    [["/"], "Search"], [["p"], "Stop updating this page; update again"], [["?"], "These keys"], [["Esc"], "Close; put a report away"],
  ];
  ask({
    title: "Keys",
    body: h("dl", { class: "keys" }, keys.map(([pressed, what]) => h("div", { key: what },
      h("dt", null, pressed.map((key) => [h("kbd", null, key), " "])), h("dd", null, what)))),
  });
}

function unexpected(error) {
  if (error instanceof Refusal) reportRefusal(error);
  else if (error && error.name !== "AbortError") report("error", "Something went wrong on this page", error.message);
}

// --- Beginning --------------------------------------------------------------------------------------

readPreferences();
document.getElementById("skip").addEventListener("click", (event) => {
  // The address is taken: it says which screen this is.
  event.preventDefault();
  places.main.focus();
});
// What a click has begun and nobody waits for, such as reading older attempts.
addEventListener("unhandledrejection", ({ reason }) => unexpected(reason));
addEventListener("error", ({ error }) => unexpected(error));
document.addEventListener("keydown", onKey);
document.addEventListener("visibilitychange", beat);
addEventListener("hashchange", arrive);
arrive();
await start();
listen((what) => {
  if (what === "refused") refused();
  draw();
});
setInterval(beat, 1_000);
