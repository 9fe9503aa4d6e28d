// The pieces that screens are made of: times, names, states, tables, filters, pages.

import { h } from "./dom.js";
import { path, query } from "./api.js";
import { away, clock, count, cut, exact, fieldOf, span, timeOfField } from "./format.js";

// --- Links ------------------------------------------------------------------------------------------

/** A link within the dashboard: `to("chains", [kind, key], {…})`. */
export function to(screen, segments = [], entries) {
  try {
    return `#/${[screen, ...segments.map((segment) => path(segment))].join("/")}${query(entries)}`;
  } catch {
    // A name that cannot stand in an address has no page of its own.
    return `#/${screen}`;
  }
}

export const link = (href, ...children) => h("a", { href }, children);

export const chainLink = (kind, key) =>
  h("a", { href: to("chains", [kind, key]), class: "name" }, text(key, 120));

// --- Data from strangers ----------------------------------------------------------------------------

// Controls, spaces of no width and marks that turn the direction of writing: two keys that look the same may
// differ in them. (What joins two pictures into one is seen by what it does.)
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\ufff9-\ufffb]|(?<!\p{Extended_Pictographic}\ufe0f?)\u200d/u;
const EVERY_UNSEEN = new RegExp(UNSEEN.source, "gu");
const PIECES = new RegExp(`(${UNSEEN.source})`, "u");
const codeOf = (character) => character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");

/** Text of any origin on one line, isolated from the direction of what stands around it. */
export function text(value, length = 400) {
  const whole = String(value ?? "");
  const shown = cut(whole, length);
  return h("bdi", { title: shown === whole ? null : cut(whole, 2_000) }, seen(shown));
}

function seen(shown) {
  const inner = shown.trim();
  const begin = shown.indexOf(inner);
  return [
    [...shown.slice(0, begin)].map(chip),
    UNSEEN.test(inner) ? inner.split(PIECES).map((piece) => (UNSEEN.test(piece) ? chip(piece) : piece)) : inner,
    [...shown.slice(begin + inner.length)].map(chip),
  ];
}

const chip = (character) => h("span", { class: "unseen", "data-code": codeOf(character) });

/** Text that may be long, cut until somebody asks for all of it. */
export function long(ctx, id, value, length = 160) {
  if (String(value).length <= length * 1.25) return text(value, Infinity);
  const all = ctx.state[`all ${id}`];
  return [text(value, all ? Infinity : length), " ", h("button", {
    type: "button", class: "more", "aria-expanded": String(Boolean(all)), onclick: () => ctx.set({ [`all ${id}`]: !all }),
  }, all ? "less" : "more")];
}

/** A value as JSON, cut when it is long until somebody asks for all of it. */
export function json(ctx, id, value, length = 1_500) {
  const whole = (JSON.stringify(value, null, 2) ?? "").replace(EVERY_UNSEEN, (character) => (character === "\n" ? character : `\\u${codeOf(character)}`));
  const all = ctx.state[`all ${id}`];
  const long = whole.length > length;
  return [
    h("pre", { class: "json", tabindex: "0" }, h("bdi", null, all ? whole : cut(whole, length))),
    long && h("button", { type: "button", class: "quiet", onclick: () => ctx.set({ [`all ${id}`]: !all }) },
      all ? "Show less" : `Show all (${count(whole.length)} characters)`),
  ];
}

// --- Times ------------------------------------------------------------------------------------------

/** How far away a time is; the exact time is its title. */
export const ago = (time) => (time ? h("time", { datetime: time, title: exact(time) }, away(time)) : none());

/** A time of day; the exact time is its title. */
export const at = (time) => (time ? h("time", { datetime: time, title: exact(time) }, clock(time)) : none());

/** "20:07:18, 12 s ago". */
export const both = (time) => (time ? [at(time), h("span", { class: "dim" }, ", ", ago(time))] : none());

export const none = () => h("span", { class: "dim nothing" }, "–");

/** A figure that stands back when it is nothing. */
export const figure = (n) => (n ? count(n) : h("span", { class: "dim" }, count(n)));

const INSTANT = /(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)/;

/** A sentence of the server's, with its times in the zone in which all times are shown. */
export function sentence(words, length = 4_000) {
  return cut(words, length).split(INSTANT).map((part) => {
    if (INSTANT.test(part)) return at(part);
    // Spaces at the ends belong between the pieces.
    const [, before, inner, after] = /^(\s*)(.*?)(\s*)$/su.exec(part);
    return [before && " ", inner && text(inner, Infinity), after && " "];
  });
}

// --- States -----------------------------------------------------------------------------------------

// Every state has a shape as well as a colour.
const SHAPES = {
  ring: ["circle", { cx: 5, cy: 5, r: 3.5, class: "hollow" }],
  disc: ["circle", { cx: 5, cy: 5, r: 3.8 }],
  half: ["path", { d: "M5 1a4 4 0 0 1 0 8z" }],
  up: ["path", { d: "M5 .6 9.8 9.2H.2z" }],
  right: ["path", { d: "M1.8.8 9.2 5l-7.4 4.2z" }],
  bars: ["path", { d: "M1.6 1h2.4v8H1.6zM6 1h2.4v8H6z" }],
  square: ["path", { d: "M1.7 1.7h6.6v6.6H1.7z", class: "hollow" }],
  diamond: ["path", { d: "M5 .2 9.8 5 5 9.8.2 5z" }],
  dots: ["path", { d: "M0 4h2.4v2.4H0zM3.8 4h2.4v2.4H3.8zM7.6 4H10v2.4H7.6z" }],
  tick: ["path", { d: "M.8 5.4 3.9 8.4 9.2 1.8", class: "hollow" }],
  cross: ["path", { d: "M1.4 1.4 8.6 8.6M8.6 1.4 1.4 8.6", class: "hollow" }],
  dash: ["path", { d: "M1 4h8v2H1z" }],
  again: ["path", { d: "M8.6 5A3.6 3.6 0 1 1 7.2 2.1M7.4.2v2.4H5", class: "hollow" }],
};

const LOOKS = {
  sleeps: ["ring", "calm"], due: ["half", "info"], late: ["up", "bad"], runs: ["right", "info"],
  gathers: ["dots", "info"], paused: ["bars", "warn"], retired: ["square", "calm"], quarantined: ["diamond", "bad"],
  active: ["disc", "calm"],
  done: ["tick", "good"], retried: ["again", "warn"], failed: ["cross", "bad"], snoozed: ["ring", "calm"],
  fanned_out: ["dots", "info"], dropped: ["dash", "warn"], skipped: ["dash", "warn"], cut: ["dash", "warn"],
  lost: ["up", "bad"], fenced: ["diamond", "bad"],
  working: ["disc", "good"], draining: ["half", "warn"], drained: ["bars", "calm"], silent: ["up", "bad"],
  error: ["up", "bad"], warning: ["diamond", "warn"], held: ["bars", "warn"], open: ["disc", "good"], used: ["disc", "calm"],
  waits: ["dots", "info"],
  read: ["ring", "calm"], operate: ["disc", "warn"], admin: ["diamond", "warn"],
};

export function shape(state) {
  const [name] = LOOKS[state] ?? ["disc"];
  const [tag, props] = SHAPES[name];
  return h("svg", { class: "shape", viewBox: "0 0 10 10", "aria-hidden": "true" }, h(tag, props));
}

/** A state in words; the API's word, unless people would not know it. */
export const wordsOf = (state) => (state === "gathers" ? "waits for its batch" : state.replaceAll("_", " "));

/** A state as a shape and a word. */
export function mark(state, words = wordsOf(state)) {
  const tone = LOOKS[state]?.[1] ?? "calm";
  return h("span", { class: `mark ${tone}` }, shape(state), h("span", null, text(words, 60)));
}

/** Why an attempt ended as it did, or how far it has come. */
export const outcomeOf = (ctx, run) => (run.finished || !run.progress
  ? (run.reason ? long(ctx, run.fence, run.reason) : none())
  : progress(run.progress));

export const toneOf = (state) => LOOKS[state]?.[1] ?? "calm";

export const verdictOf = (attempt) => attempt.verdict ?? "runs";

export const verdictMark = (attempt) => mark(verdictOf(attempt));

export const VERDICTS = ["done", "retried", "failed", "snoozed", "retired", "fanned_out", "dropped", "skipped", "cut",
  "lost", "fenced"];

/** How late something is, said only when it is. */
export const lag = (ms) => (ms > 0 ? h("span", { class: ms >= 1_000 ? "bad" : null }, span(ms)) : none());

// --- Structure --------------------------------------------------------------------------------------

export function section(title, ...content) {
  return h("section", { class: "section", key: `section ${title}` }, h("h2", null, title), content);
}

/** A figure with its name; a link where there is more to see. */
export function tile(name, value, { href, tone, note, title, shape: state } = {}) {
  const inside = [
    h("span", { class: "tile-name" }, state && shape(state), name),
    h("span", { class: "tile-value" }, value),
    note && h("span", { class: "tile-note" }, note),
  ];
  return h(href ? "a" : "div", { class: `tile ${tone ?? ""}`, title, ...(href && { href }) }, inside);
}

/** Names with what they are, as pairs. */
export function facts(...pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, ...value]) =>
    h("div", { key: name }, h("dt", null, name), h("dd", null, value))));
}

/**
 * A table. A column has a `head` and a `cell(row)`; `row: true` marks the one that names the row, `num` figures,
 * `wide` what needs room. On narrow screens each row is a card.
 */
export function table({ label, columns, rows, keyOf, empty = "Nothing." }) {
  const shown = columns.filter(Boolean);
  if (!rows.length) return h("p", { class: "empty" }, empty);
  const name = (column) => [column.num && "num", column.wide && "wide", column.buttons && "steer", column.stacked && "stacked"]
    .filter(Boolean).join(" ") || null;
  return h("div", { class: "scroll", role: "region", "aria-label": label, tabindex: "0" },
    h("table", null,
      h("caption", { class: "unseen-text" }, label),
      h("thead", null, h("tr", null, shown.map((column) =>
        h("th", { scope: "col", class: name(column) }, column.head)))),
      h("tbody", null, rows.map((row, place) => h("tr", { key: keyOf ? keyOf(row) : place },
        shown.map((column) => column.row
          ? h("th", { scope: "row", class: name(column) }, column.cell(row))
          : h("td", { class: name(column), "data-head": column.head }, h("div", null, column.cell(row)))))))));
}

/** What is to be known before the figures: a line with a shape. */
export function notice(level, ...words) {
  return h("p", { class: `notice ${toneOf(level)}` }, shape(level), h("span", null, words));
}

/** A share of a whole, as a bar; the words beside it say the same. */
export function bar(share, tone = "info") {
  const width = Math.max(0, Math.min(1, Number.isFinite(share) ? share : 0)) * 100;
  return h("span", { class: "meter", "aria-hidden": "true" },
    h("span", { class: `fill ${tone}`, style: { width: `${width}%` } }));
}

/** How far a run has come. */
export function progress(told) {
  if (!told) return null;
  const known = Number.isFinite(told.done) && told.total > 0;
  const words = known ? `${count(told.done)} of ${count(told.total)}`
    : Number.isFinite(told.done) ? `${count(told.done)} done` : "";
  return h("div", { class: "progress" },
    known && h("progress", { max: told.total, value: Math.min(told.done, told.total), "aria-label": "How far it has come" }),
    h("div", null, words, words && told.phase && ": ", told.phase && text(told.phase),
      h("span", { class: "dim" }, ", told ", ago(told.at))));
}

export const button = (label, onclick, props) =>
  h("button", { type: "button", onclick, ...props }, label);

// --- Filters and pages ------------------------------------------------------------------------------

const PATIENCE_OF_TYPING_MS = 400;
let typing;

const NAMES_MS = 60_000;
let known = { at: 0, names: null };

/** The names of kinds and queues, to choose from in filters. Asked for once in a while. */
export async function names(ctx) {
  if (!known.names || Date.now() - known.at > NAMES_MS) {
    // They help typing: what is looked for is found without them.
    const { queues } = await ctx.get("queues").catch((error) => {
      if (error.name === "AbortError") throw error;
      return { queues: [] };
    });
    const kinds = [...new Set(queues.flatMap(({ kinds: of }) => Object.keys(of)))].sort();
    known = { at: Date.now(), names: { kind: kinds, queue: queues.filter(({ own }) => !own).map(({ queue }) => queue) } };
  }
  return known.names;
}

/**
 * A form whose fields are the address's query: a filtered view is a link. Fields are
 * `{name, label, options?, search?, list?, time?, fits?}`; `list` has values to choose from beside what one types. A `time`
 * is chosen in the zone in which all times are shown; the address has it in UTC. A field that does not fit the rest
 * (`fits(chosen)`) is left out. On narrow screens all but the field that searches are behind a button.
 */
export function filters(ctx, fields) {
  const { query: entries } = ctx.place;
  const shown = fields.filter(({ fits = () => true }) => fits(entries));
  const apply = (form, replace) => {
    clearTimeout(typing);
    const read = ({ name, time }) => {
      const value = form.elements[name].value.trim();
      if (!time) return value;
      // The field has whole seconds: what nobody has touched stays as the address has it.
      const chosen = timeOfField(value);
      return chosen === timeOfField(fieldOf(entries[name])) ? entries[name] : chosen;
    };
    const chosen = Object.fromEntries(shown.map((field) => [field.name, read(field)]));
    for (const { name, fits = () => true } of shown) {
      if (!fits(chosen)) delete chosen[name];
    }
    ctx.go(to(ctx.place.screen, ctx.place.segments, chosen), { replace });
  };
  const used = fields.some(({ name }) => entries[name]);
  const [first, rest] = [shown.filter(({ search }) => search), shown.filter(({ search }) => !search)];
  const folds = rest.length > 1;
  const open = Boolean(ctx.state.filters);
  const set = rest.filter(({ name }) => entries[name]).length;
  const field = ({ name, label, options, search, wide, list, time }) => h("label", {
    key: name, class: [wide && "wide", time && "time", folds && !search && "folded"].filter(Boolean).join(" ") || null,
  },
  h("span", null, label),
  options
    ? h("select", { name, value: entries[name] ?? "", onchange: (event) => apply(event.currentTarget.form, false) },
      options.map(([value, words]) => h("option", { value }, words)))
    : h("input", {
      name, value: time ? fieldOf(entries[name]) : entries[name] ?? "",
      type: time ? "datetime-local" : search ? "search" : "text", autocomplete: "off", spellcheck: "false",
      autocapitalize: "none", ...(time && { step: "1", max: "9999-12-31T23:59:59" }),
      ...(list?.length > 0 && { list: `choose-${name}` }), ...(search && { "data-search": "", "aria-keyshortcuts": "/" }),
      oninput: (event) => {
        const { form } = event.currentTarget;
        clearTimeout(typing);
        typing = setTimeout(() => form.isConnected && apply(form, true), PATIENCE_OF_TYPING_MS);
      },
    }),
  list?.length > 0 && h("datalist", { id: `choose-${name}` }, list.slice(0, 200).map((value) => h("option", { key: value, value }))));
  return h("form", {
    class: folds && !open ? "filters closed" : "filters", role: "search", "aria-label": "Filter", key: "filters",
    onsubmit: (event) => { event.preventDefault(); apply(event.currentTarget, false); },
  },
  first.map(field),
  folds && button(set > 0 ? `Filters: ${count(set)} set` : "Filters", () => ctx.set({ filters: !open }),
    { key: "fold", class: "fold", "aria-expanded": String(open) }),
  rest.map(field),
  h("button", { type: "submit", class: "unseen-text" }, "Filter"),
  used && h("a", { class: "quiet", href: to(ctx.place.screen, ctx.place.segments) }, "Clear"));
}

/** What `own` may be in an address: whether the engine's own chains are listed. */
export const OWN = [["false", "left out"], ["only", "nothing else"], ["true", "listed too"]];

/** A field for that, where the address says something of it. */
export const ownField = { name: "own", label: "The engine’s own", options: OWN, fits: ({ own }) => own };

const isOwn = (kind) => kind?.startsWith("roundelay.");

/** The engine's own chains are nobody's work: they are listed for who asks for them. */
export const unlessOwn = ({ place: { query: { kind } } }) => (isOwn(kind) ? {} : { own: "false" });

/** Where they are, below a list without them. */
export const ownHint = ({ place: { screen, query: { own, kind } } }) => (!own || own === "false") && !isOwn(kind)
  && h("p", { class: "hint" }, "This list leaves out ", link(to(screen, [], { own: "only" }), "the engine’s own chains"), ".");

const PAGE = 50;
const SEARCH_MS = 4_000;

/**
 * Reads a page of what the address asks for. Where the server has stopped a search before it came to an end, it
 * is asked to go on, for some seconds: a rare word among a million chains is found without a click for each part.
 * `show` is given what has been found so far; `unless` are parameters for what the address leaves open.
 */
export async function readPage(ctx, name, from, where = name, show = () => {}, unless = {}) {
  const { after, ...filter } = ctx.place.query;
  const page = from ?? { rows: [], after: after ?? null, complete: true, parts: 0 };
  const rows = [...page.rows];
  let { after: place, parts } = page;
  let answer;
  const began = Date.now();
  do {
    if (answer) show({ ...answer, rows: [...rows], after: place, complete: false, parts, still: true, searching: true });
    answer = await ctx.get(where, { ...unless, ...filter, limit: PAGE, after: place });
    rows.push(...answer[name]);
    place = answer.after ?? null;
    parts += 1;
  } while (answer.complete === false && place && rows.length < PAGE && Date.now() - began < SEARCH_MS);
  const complete = answer.complete !== false || !place;
  // To look again would be the whole search again: that is for whoever watches to say.
  return { ...answer, rows, after: place, complete, parts, still: parts > 1 || !complete };
}

/** What stands below a page: the way on, or how far the search has come. */
export function pager(ctx, page, goOn) {
  const { screen, segments, query: entries } = ctx.place;
  const first = entries.after && link(to(screen, segments, { ...entries, after: null }), "First page");
  const next = page.after && (page.complete || page.rows.length >= PAGE)
    && link(to(screen, segments, { ...entries, after: page.after }), "Next page");
  const found = page.rows.length ? `${count(page.rows.length)} found so far` : "nothing found so far";
  if (page.searching) return h("p", { class: "pager", role: "status" }, `Searching: ${found}…`);
  const searching = !page.complete && page.rows.length < PAGE && [
    h("span", { class: "warn" }, `Not all has been searched yet: ${found}. `),
    button("Search on", goOn),
  ];
  return h("nav", { class: "pager", "aria-label": "Pages" }, first, searching, next,
    page.still && button("Search again", () => ctx.refresh(), { class: "quiet" }),
    !first && !next && !searching && page.rows.length > 0
      && h("span", { class: "dim" }, `${count(page.rows.length)} in all`));
}
