// All chains, by filter, and orders to all that a filter finds.

import { spark } from "../charts.js";
import { h } from "../dom.js";
import { count, instant, now } from "../format.js";
import { ago, chainLink, filters, lag, link, mark, names, OWN, ownField, ownHint, pager, readPage, shape, table, text, to, unlessOwn } from "../parts.js";
import { act, inWords, publish, steerMany } from "../steering.js";

const STATES = [["", "any"], ["late", "late"], ["held", "held"], ["running", "running"], ["active", "active"], ["paused", "paused"],
  ["quarantined", "quarantined"], ["retired", "retired"]];

/** What may need a look: a word, the screen and the filter that have it, how many there are, and how bad that is. */
const LOOKS = [
  ["late", "chains", { state: "late" }, ({ chains: { overdue } }) => overdue, "bad"],
  ["failing", "failures", { recovered: "false" }, (told) => told.failures - told.recovered, "warn"],
  ["held", "chains", { state: "held" }, ({ chains: { held } }) => held],
  ["paused", "chains", { state: "paused" }, ({ chains: { paused } }) => paused],
  ["running", "chains", { state: "running" }, ({ chains: { running } }) => running],
  ["quarantined", "chains", { state: "quarantined" }, ({ chains: { quarantined } }) => quarantined, "bad"],
];

const SHAPES = { failing: "failed", running: "runs" };

const ORDER = [["", "by kind and key"], ["late", "longest first"]];

const ORDERS = [
  { action: "pause", verb: "Pause", note: "They keep their place and stop ticking. What runs finishes." },
  { action: "resume", verb: "Resume", note: "They go on; those that are due come at once." },
  { action: "advance", verb: "Advance", note: "The next tick of each comes now, and what follows counts from it. Throttles apply as ever." },
  { action: "retire", verb: "Retire", danger: true, irreversible: true, note: "They end. Enrolling them again with --revive begins them anew." },
];

export const chains = {
  title: "Chains",
  query: { text: null, kind: null, queue: null, owner: null, state: STATES.map(([state]) => state), sort: ["", "late"],
    own: OWN.map(([own]) => own) },
  every: 5_000,
  async load(ctx) {
    const choices = await names(ctx);
    const show = (page) => ctx.show({ ...page, choices });
    const page = await readPage(ctx, "chains", undefined, "chains", show, unlessOwn(ctx));
    // The longest late first are found among all chains: that is not to be done again every few seconds.
    return { ...page, choices, still: page.still || Boolean(ctx.place.query.sort) };
  },
  actions: (ctx) => act("Publish a job…", () => publish(ctx, { kind: ctx.place.query.kind })),

  view(ctx) {
    const { data: page } = ctx;
    const filter = filterOf(ctx);
    return [
      filters(ctx, [
        { name: "text", label: "Key contains", search: true, wide: true },
        { name: "kind", label: "Kind", list: page.choices?.kind },
        { name: "state", label: "State", options: STATES },
        { name: "queue", label: "Queue", list: page.choices?.queue },
        { name: "owner", label: "Owner" },
        { name: "sort", label: "Order", options: ORDER, fits: ({ state }) => state === "late" },
        ownField,
      ]),
      looks(ctx),
      // An order has no such filter: it would be about all chains.
      ctx.session.operating && ctx.place.query.own !== "only" && h("div", { class: "orders" },
        h("span", null, Object.values(filter).some(Boolean) ? "All that match, on every page:" : "All chains:"),
        ORDERS.map((order) => act(`${order.verb}…`, () => many(ctx, order, filter), { class: order.danger ? "danger" : null }))),
      table({
        label: "Chains", rows: page.rows, keyOf: ({ kind, key }) => JSON.stringify([kind, key]),
        empty: page.complete ? "No chain matches." : "None found so far.",
        columns: [
          { head: "Chain", row: true, wide: true, cell: ({ kind, key }) => [
            chainLink(kind, key), h("span", { class: "sub" }, text(kind, 60))] },
          { head: "Does", cell: ({ doing, unavailable }) => [mark(doing), unavailable && h("span", { class: "sub warn" }, "unavailable: ", text(unavailable, 24))] },
          { head: "Late by", num: true, cell: ({ lag_ms: ms }) => lag(ms > 0 ? ms + now() - instant(page.now) : 0) },
          { head: "Next", num: true, cell: ({ due, doing }) => (doing === "retired" ? "–" : ago(due)) },
          { head: "Last end", num: true, cell: ({ last_finish: time }) => ago(time) },
          { head: "Latest runs", cell: ({ recent }) => spark(recent) },
          { head: "Schedule", cell: ({ schedule }) => (schedule ? text(schedule, 28) : "–") },
          { head: "Queue", cell: ({ queue }) => link(to("chains", [], { ...filter, queue }), text(queue, 28)) },
          { head: "Owner", cell: ({ owner }) => (owner ? link(to("chains", [], { ...filter, owner }), text(owner, 28)) : "–") },
        ],
      }),
      pager(ctx, page, async () => {
        const show = (more) => ctx.show({ ...more, choices: page.choices });
        show(await readPage(ctx, "chains", page, "chains", show, unlessOwn(ctx)));
      }),
      ownHint(ctx),
    ];
  },
};

/** Of all chains, whatever the filter is: healthy ones come first in the list. The stream may not have told yet. */
function looks({ live: { overview: told }, place: { query } }) {
  return h("nav", { class: "looks", "aria-label": "What may need a look" }, LOOKS.map(([word, screen, filter, countOf, tone]) => {
    const n = told ? countOf(told) : null;
    return h("a", { key: word, class: `mark ${n === 0 ? "dim" : tone ?? ""}`, href: to(screen, [], filter),
      "aria-current": screen === "chains" && query.state === filter.state ? "true" : null },
    shape(SHAPES[word] ?? word), `${n === null ? "" : `${count(n)} `}${word}`);
  }));
}

const filterOf = ({ place: { query: { kind, owner, queue, state, text: words } } }) =>
  Object.fromEntries(Object.entries({ kind, owner, queue, state, text: words }).filter(([, value]) => value));

function many(ctx, { action, verb, note, danger, irreversible }, filter) {
  return steerMany(ctx, {
    title: `${verb} all chains that match`, verb, one: "chain", note, danger, irreversible,
    where: "chains/actions", content: { action, filter },
    what: inWords(filter, "There is no filter: this is about every chain but the engine’s own."),
  });
}
