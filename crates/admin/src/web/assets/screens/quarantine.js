// Messages that could not be used.

import { h } from "../dom.js";
import { count } from "../format.js";
import { ago, at, json, none, notice, pager, readPage, section, table, text } from "../parts.js";
import { act, inWords, steerMany } from "../steering.js";

export const quarantine = {
  title: "Quarantine",
  every: 6_000,
  load: (ctx) => readPage(ctx, "messages", undefined, "quarantine"),

  view(ctx) {
    const { data: page } = ctx;
    const groups = grouped(page.rows);
    return [
      h("p", { class: "lead" }, "Messages that could not be used. Mend the cause, then retry them. Hints of chains need no rescue: catch-up sends the current one."),
      page.ready > 0 && notice("warning", `${count(page.ready)} wait on the quarantine queue of the broker.`),
      ctx.session.operating && h("div", { class: "orders" }, h("span", null, "All messages:"), orders(ctx, {})),
      section("By reason", table({
        label: "Quarantined messages by reason", rows: groups, keyOf: ({ reason, from }) => JSON.stringify([reason, from]),
        empty: "No message is in quarantine.",
        columns: [
          { head: "Reason", row: true, wide: true, cell: ({ reason }) => text(reason, 400) },
          { head: "From", cell: ({ from }) => text(from, 80) },
          { head: page.after || ctx.place.query.after ? "On this page" : "Messages", num: true, cell: ({ n }) => count(n) },
          { head: "Last", num: true, cell: ({ last }) => (last === null ? none() : ago(last)) },
          ctx.session.operating && { head: "Steer", buttons: true, cell: ({ reason, from }) => orders(ctx, { reason, from }) },
        ],
      })),
      page.rows.length > 0 && section("One by one", page.rows.map((message, place) => h("details", { class: "message", key: message.number ?? `broker ${place}` },
        h("summary", null, message.number !== null && h("span", { class: "num" }, `${count(message.number)}`), message.at !== null && at(message.at), " ", text(message.reason, 200),
          h("span", { class: "dim" }, " from ", text(message.from, 80), `, kept ${message.where === "broker" ? "on" : "in"} the ${message.where}`)),
        json(ctx, message.number ?? `broker ${place}`, asRead(message.body))))),
      pager(ctx, page, async () => ctx.show(await readPage(ctx, "messages", page, "quarantine"))),
    ];
  },
};

function grouped(messages) {
  const groups = new Map();
  for (const { reason, from, at: time } of messages) {
    const name = JSON.stringify([reason, from]);
    const group = groups.get(name) ?? { reason, from, n: 0, last: time };
    group.n += 1;
    if (time > group.last) group.last = time;
    groups.set(name, group);
  }
  return [...groups.values()].sort((one, other) => other.n - one.n);
}

/** A body that is JSON is easier to read as such; anything else is shown as the text that it is. */
function asRead(body) {
  try {
    return JSON.parse(body);
  } catch {
    return body;
  }
}

function orders(ctx, filter) {
  const what = inWords(filter, "There is no filter: this is about every message in quarantine.");
  const order = { one: "message", what, where: "quarantine/actions" };
  return [
    act("Retry…", () => steerMany(ctx, { ...order, title: "Retry messages", verb: "Retry", content: { action: "retry", filter },
      note: "They go back to the queue that they came from. What still cannot be used comes back here." }), { key: "retry" }),
    act("Drop…", () => steerMany(ctx, { ...order, title: "Drop messages", verb: "Drop", content: { action: "drop", filter }, danger: true, irreversible: true,
      note: "They are gone for good." }), { key: "drop", class: "danger" }),
  ];
}
