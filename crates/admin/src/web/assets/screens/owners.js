// Who has how many chains, what of them is late or failing, and orders to all of an owner's.

import { h } from "../dom.js";
import { path } from "../api.js";
import { count } from "../format.js";
import { figure, link, mark, pager, readPage, table, text, to } from "../parts.js";
import { act, steerMany } from "../steering.js";

const ORDERS = [
  { action: "pause", verb: "Pause", offered: (state) => state === "active",
    note: "The owner as a whole: chains, and one-off jobs that wait or come later, until resumed. What runs finishes." },
  { action: "resume", verb: "Resume", offered: (state) => state === "paused", note: "Those that are due come at once." },
  { action: "retire", verb: "Retire", offered: (state) => state !== "retired", danger: true, irreversible: true,
    note: "The owner as a whole, for good: chains end, and jobs that wait or come later are dropped." },
];

/** A count that leads to what was counted. Of very many, only some were looked at. */
function trouble(href, n, all, tone) {
  if (n > 0) return h("a", { class: tone, href }, all ? count(n) : `${count(n)}+`);
  return all ? figure(0) : link(href, "look");
}

export const owners = {
  title: "Owners",
  query: {},
  every: 8_000,
  load: (ctx) => readPage(ctx, "owners"),

  view(ctx) {
    const { data: page } = ctx;
    const chainsOf = (owner, state, n) => (n > 0 ? link(to("chains", [], { owner, state }), figure(n)) : figure(0));
    return [
      table({
        label: "Owners", rows: page.rows, keyOf: ({ owner }) => owner, empty: "No chain has an owner.",
        columns: [
          { head: "Owner", row: true, wide: true, cell: ({ owner }) => h("a", { class: "name", href: to("chains", [], { owner }) }, text(owner, 120)) },
          { head: "State", cell: ({ state }) => mark(state) },
          { head: "Active", num: true, cell: ({ owner, active }) => chainsOf(owner, "active", active) },
          { head: "Paused", num: true, cell: ({ owner, paused }) => chainsOf(owner, "paused", paused) },
          { head: "Retired", num: true, cell: ({ owner, retired }) => chainsOf(owner, "retired", retired) },
          { head: "Quarantined", num: true, cell: ({ owner, quarantined }) => chainsOf(owner, "quarantined", quarantined) },
          { head: "Late", num: true, cell: ({ owner, late, late_complete: all }) =>
            trouble(to("chains", [], { owner, state: "late" }), late, all, "bad") },
          { head: "Failing", num: true, cell: ({ owner, failing, failing_complete: all }) =>
            trouble(to("failures", [], { owner, recovered: "false" }), failing, all, "warn") },
          ctx.session.operating && { head: "Steer", buttons: true, cell: ({ owner, state }) =>
            ORDERS.filter(({ offered }) => offered(state)).map(({ action, verb, note, danger, irreversible }) =>
              act(`${verb}…`, () => steerMany(ctx, {
                title: `${verb} this owner`, verb, one: "chain", note, danger, irreversible,
                where: `owners/${path(owner)}/${action}`, content: {},
                // Jobs that wait in queues are paused as well, and nobody has counted those.
                evenNone: true,
                what: h("p", { class: "asks" }, "of owner ", h("strong", null, text(owner, 300))),
              }), { key: action, class: danger ? "danger" : null })) },
        ],
      }),
      pager(ctx, page, async () => ctx.show(await readPage(ctx, "owners", page))),
    ];
  },
};
