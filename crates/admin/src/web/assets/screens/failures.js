// What has failed for good, by reason and one by one.

import { h } from "../dom.js";
import { count, plural } from "../format.js";
import { ago, chainLink, filters, long, mark, names, pager, readPage, section, table, text, to } from "../parts.js";
import { act, inWords, steerMany } from "../steering.js";

const FILTER = ["kind", "owner", "code", "text", "item", "permanent", "recovered"];

export const failures = {
  title: "Failures",
  query: { text: null, kind: null, owner: null, code: null, item: null, permanent: ["", "true", "false"], recovered: ["", "true", "false"] },
  every: 6_000,

  async load(ctx) {
    const [choices, page, told] = await Promise.all([
      names(ctx),
      readPage(ctx, "failures"),
      ctx.get("failures/reasons", filterOf(ctx)),
    ]);
    return { ...page, reasons: told.reasons, allReasons: told.complete !== false, choices };
  },

  view(ctx) {
    const { data: page } = ctx;
    const filter = filterOf(ctx);
    return [
      filters(ctx, [
        { name: "text", label: "Key contains", search: true, wide: true },
        { name: "kind", label: "Kind", list: page.choices.kind },
        { name: "code", label: "Code" },
        { name: "owner", label: "Owner" },
        { name: "recovered", label: "State", options: [["", "all"], ["false", "failing now"], ["true", "recovered"]] },
        { name: "permanent", label: "Tried again", options: [["", "either"], ["false", "yes"], ["true", "no: permanent"]] },
      ]),
      ctx.session.operating && h("div", { class: "orders" },
        h("span", null, Object.keys(filter).length ? "All that match, on every page:" : "All failures:"),
        orders(ctx, filter)),
      section("By reason", table({
        label: "Failures by reason", rows: page.reasons, empty: "No failure is kept.",
        keyOf: ({ kind, code, permanent, example }) => JSON.stringify([kind, code, permanent, code === null && headOf(example)]),
        columns: [
          { head: "Reason", row: true, wide: true, cell: (reason) => [
            h("a", { class: "name", href: to("failures", [], { ...filter, ...narrower(reason) }) }, text(reason.code ?? headOf(reason.example), 60)),
            h("span", { class: "sub" }, text(reason.example, 240))] },
          { head: "Kind", cell: ({ kind }) => text(kind, 60) },
          { head: "Failing", num: true, cell: ({ parts, wholes, recovered }) => count(parts + wholes - recovered) },
          { head: "Recovered", num: true, cell: ({ recovered }) => count(recovered) },
          { head: "Parts", num: true, cell: ({ parts }) => count(parts) },
          { head: "Last", num: true, cell: ({ last_at: time }) => ago(time) },
          { head: "Tried again", cell: ({ permanent }) => (permanent ? mark("failed", "no") : mark("retried", "by itself")) },
          ctx.session.operating && { head: "Steer", buttons: true, cell: (reason) => orders(ctx, { ...filter, ...narrower(reason) }, reason) },
        ],
      }), !page.allReasons && h("p", { class: "hint" }, `The ${count(page.reasons.length)} reasons with the most failures; there are more.`)),
      section("One by one", table({
        label: "Failures", rows: page.rows, keyOf: ({ kind, key, item }) => JSON.stringify([kind, key, item]),
        empty: page.complete ? "No failure matches." : "None found so far.",
        columns: [
          { head: "Chain", row: true, wide: true, cell: ({ kind, key, item }) => [
            chainLink(kind, key), h("span", { class: "sub" }, text(kind, 60), item === "" ? ", the whole entity" : [", part ", text(item, 80)])] },
          { head: "Reason", wide: true, cell: ({ kind, key, item, code, reason }) => [code !== null && h("strong", null, text(code, 60), ": "), long(ctx, JSON.stringify([kind, key, item]), reason)] },
          { head: "Times", num: true, cell: ({ times, attempts }) => [count(times), h("span", { class: "sub" }, plural(attempts, "attempt"))] },
          { head: "First", num: true, cell: ({ first_at: time }) => ago(time) },
          { head: "Last", num: true, cell: ({ last_at: time }) => ago(time) },
          { head: "Then", cell: ({ then, next_retry_at: time, permanent, recovered }) => [mark(permanent ? "failed" : recovered ? "done" : "retried", then), time && h("span", { class: "sub" }, ago(time))] },
        ],
      }), pager(ctx, page, async () => ctx.show({ ...page, ...await readPage(ctx, "failures", page) }))),
    ];
  },
};

// What a reason without a code begins with: "HTTP 503 Service Unavailable", "exit 1". The ledger groups by the same.
const headOf = (reason) => reason.split(":", 1)[0].slice(0, 60);

const filterOf = ({ place: { query } }) => Object.fromEntries(FILTER.filter((name) => query[name]).map((name) => [name, query[name]]));

// There is no word for "no code" in a filter, so such a row is narrowed by the rest alone.
const narrower = ({ kind, code, permanent }) => ({ kind, ...(code !== null && { code }), permanent: String(permanent) });

function orders(ctx, filter, reason) {
  const broader = reason?.code === null && h("p", { class: "hint" }, "Failures without a code cannot be told apart by a filter: this is about all of this kind, those with a code among them.");
  const what = [inWords(filter, "There is no filter: this is about every failure."), broader];
  const content = (action) => ({ action, filter: { ...filter, ...(filter.permanent && { permanent: filter.permanent === "true" }),
    ...(filter.recovered && { recovered: filter.recovered === "true" }) } });
  return [
    act("Retry…", () => steerMany(ctx, {
      title: "Retry all that match", verb: "Retry", one: "failed part", what, where: "failures/actions", content: content("retry"),
      note: "They are due now, permanent ones too, with no attempt counted any more. The kind’s reconcile feeds them back at its next look. Whole entities stay as they are.",
    }), { key: "retry" }),
    act("Drop…", () => steerMany(ctx, {
      title: "Drop all that match", verb: "Drop", one: "failure", what, where: "failures/actions", content: content("drop"), danger: true, irreversible: true,
      note: "They are forgotten. A part that fails again is kept again.",
    }), { key: "drop", class: "danger" }),
  ];
}
