// Who has changed what. For administrators also who may.

import { h } from "../dom.js";
import { ago, at, json, mark, none, pager, readPage, section, table, text } from "../parts.js";
import { allows } from "../session.js";

export const audit = {
  title: "Audit",
  every: 8_000,

  async load(ctx) {
    const [page, tokens] = await Promise.all([
      readPage(ctx, "entries", undefined, "audit"),
      allows("admin") ? ctx.get("tokens") : null,
    ]);
    return { ...page, tokens: tokens?.tokens };
  },

  view(ctx) {
    const { data: page } = ctx;
    return [
      table({
        label: "What was ordered, latest first", rows: page.rows, keyOf: ({ number }) => number, empty: "Nothing has been ordered.",
        columns: [
          { head: "When", row: true, cell: ({ at: time }) => [at(time), h("span", { class: "sub" }, ago(time))] },
          { head: "Who", cell: ({ actor, scope }) => [text(actor, 80), h("span", { class: "sub" }, text(scope, 20))] },
          { head: "What", wide: true, cell: ({ action }) => h("code", null, text(action, 160)) },
          { head: "To", wide: true, cell: ({ target }) => (target ? text(target, 160) : none()) },
          { head: "Answer", cell: ({ status }) => mark(status < 400 ? "done" : "failed", String(status)) },
          { head: "Detail", wide: true, cell: ({ detail, number }) => (detail === null || JSON.stringify(detail) === "{}" ? none()
            : h("details", null, h("summary", null, text(JSON.stringify(detail), 60)), json(ctx, `audit ${number}`, detail))) },
        ],
      }),
      pager(ctx, page, async () => ctx.show({ ...await readPage(ctx, "entries", page, "audit"), tokens: page.tokens })),
      page.tokens && section("Tokens", table({
        label: "Tokens", rows: page.tokens, keyOf: ({ id }) => id, empty: "There are no tokens.",
        columns: [
          { head: "Token", row: true, wide: true, cell: ({ name, id }) => [text(name, 80), h("span", { class: "sub" }, text(id, 40))] },
          { head: "Scope", cell: ({ scope }) => mark(scope) },
          { head: "Made", num: true, cell: ({ created }) => ago(created) },
          { head: "Expires", num: true, cell: ({ expires }) => (expires ? ago(expires) : "never") },
          { head: "Last used", num: true, cell: ({ last_used: time }) => (time ? ago(time) : "never") },
        ],
      })),
    ];
  },
};
