// The queues: what waits, who takes it, and how much at once.

import { h } from "../dom.js";
import { path } from "../api.js";
import { count, percent, plural, rate, span } from "../format.js";
import { ago, at, bar, figure, link, mark, none, notice, table, text, to } from "../parts.js";
import { act, pauseAll, resumeAll, steer, tell } from "../steering.js";

export const queues = {
  title: "Queues",
  query: {},
  every: 5_000,
  async load(ctx) {
    const [queues, shares] = await Promise.all([ctx.get("queues"), ctx.get("tenants")]);
    return { ...queues, shares };
  },
  actions: (ctx) => {
    const paused = (ctx.data?.queues ?? []).filter(({ own }) => !own).map((queue) => Boolean(queue.paused));
    return [paused.includes(false) && act("Pause all…", () => pauseAll(ctx)), paused.includes(true) && act("Resume all…", () => resumeAll(ctx))];
  },

  view(ctx) {
    const { queues: all, broker_why: brokerWhy, counted_at: counted, shares } = ctx.data;
    // The engine's own chains are not the user's, and need no buttons.
    const rows = all.filter(({ own }) => !own);
    const own = all.filter((queue) => queue.own);
    return [
      brokerWhy && notice("warning", "The broker cannot be asked, so ready, consumers and rates are unknown: ", text(brokerWhy, 600)),
      table({
        label: "Queues", rows, keyOf: ({ queue }) => queue, empty: "No queue is configured, and no chain has one.",
        columns: [
          { head: "Queue", row: true, wide: true, cell: (queue) => [
            h("a", { class: "name", href: to("chains", [], { queue: queue.queue }) }, text(queue.queue, 80)),
            queue.paused && h("span", { class: "sub" }, mark("paused"), " by ", text(queue.paused.by, 60), ", ", ago(queue.paused.at), queue.paused.why && [": ", text(queue.paused.why, 300)]),
            queue.throttle && h("span", { class: "sub" }, "throttle ", link(to("throttles", [queue.throttle]), text(queue.throttle, 60))),
            queue.priority !== 0 && h("span", { class: "sub" }, `priority ${queue.priority}`),
            queue.fair && h("span", { class: "sub" }, "shared by ", h("code", null, text(queue.fair, 80)), queue.most !== null && `, at most ${count(queue.most)} of a tenant`)] },
          ctx.session.operating && { head: "Steer", buttons: true, stacked: true, cell: (queue) => steering(ctx, queue) },
          { head: "Sleeping", num: true, cell: ({ sleeping }) => figure(sleeping) },
          { head: "Due", num: true, cell: ({ due, oldest_due: oldest }) => [figure(due), oldest && h("span", { class: "sub" }, "oldest ", ago(oldest))] },
          { head: "Running", num: true, cell: ({ running }) => figure(running) },
          { head: "Held", num: true, cell: (queue) => (queue.held > 0
            ? link(to("chains", [], { state: "held", queue: queue.queue }), count(queue.held)) : figure(0)) },
          { head: "Late", num: true, cell: (queue) => [queue.overdue > 0
            ? h("a", { class: "bad", href: to("chains", [], { state: "late", queue: queue.queue }) }, count(queue.overdue)) : figure(0),
          queue.unsent > 0 && h("span", { class: "sub warn" }, `${count(queue.unsent)} unsent`)] },
          { head: "Ready", num: true, cell: ({ ready, rates, backlog }) => [ready === null ? none() : figure(ready),
            backlog > 0 && h("span", { class: "sub" }, `${count(backlog)} in the backlog`),
            rates && h("span", { class: "sub" },
              h("span", { class: "whole" }, `in ${rate(rates.in)}/s`), " ", h("span", { class: "whole" }, `out ${rate(rates.out)}/s`))] },
          { head: "Consumers", num: true, cell: ({ consumers }) => (consumers === null ? none() : consumers === 0 ? h("span", { class: "bad" }, "none") : count(consumers)) },
          { head: "Starts/s", num: true, cell: ({ starts_per_second: n, late_ms: late }) => [rate(n),
            late && h("span", { class: "sub" }, "late p99 ", h("span", { class: "whole" }, span(late.p99)))] },
          { head: "In use", cell: ({ concurrency, paused }) => (paused ? "paused" : use(concurrency)) },
        ],
      }),
      h("p", { class: "hint" }, counted ? ["Chains were counted ", at(counted), " (", ago(counted), "). "] : "Chains have not been counted yet. ",
        "In use: the share of the places that is taken, and below it the places of a worker × workers. ",
        !ctx.session.operating && ["To stop everything: Operating, above, and then Pause all; or ", h("code", { class: "whole" }, "roundelay queue pause --all --why TEXT"), ". To let it go on: Resume there, or ", h("code", { class: "whole" }, "roundelay queue resume"), ". "],
        own.map(({ queue, overdue, unsent, consumers }) => ["The engine’s own chains, on ", text(queue, 80), overdue > 0 ? `: ${count(overdue)} are late.` : unsent > 0 ? `: ${count(unsent)} unsent.` : consumers === 0 ? ": nobody takes them." : ", are well."])),
      (shares.fair || shares.tenants.length > 0) && tenants(ctx, shares),
    ];
  },
};

/** The shares of tenants that differ from those of others. */
function tenants(ctx, { fair, tenants: rows }) {
  return [
    h("h2", null, "Tenants"),
    table({
      label: "Tenants", rows, keyOf: ({ tenant }) => tenant, empty: "All tenants have the same share.",
      columns: [
        { head: "Tenant", row: true, wide: true, cell: ({ tenant, ordered }) => [
          tenant === "" ? "jobs without one" : text(tenant, 200),
          ordered && h("span", { class: "sub warn" }, "ordered by ", text(ordered.by, 80), ", ", ago(ordered.at))] },
        ctx.session.operating && { head: "Steer", buttons: true, cell: (share) => share.tenant !== "" && [
          act("Share…", () => giveShare(ctx, share), { key: "share" }),
          share.ordered && act("As configured", () => tell(ctx, "DELETE", `tenants/${path(share.tenant)}/share`, {}), { key: "reset" })] },
        { head: "Weight", num: true, cell: ({ weight, configured }) => [count(weight),
          weight !== configured.weight && h("span", { class: "sub" }, `configured ${count(configured.weight)}`)] },
        { head: "Runs at once", num: true, cell: ({ most, unlimited, configured }) => [
          most !== null ? count(most) : unlimited ? "no limit" : none(),
          configured.most !== null && configured.most !== most && h("span", { class: "sub" }, `configured ${count(configured.most)}`)] },
      ],
    }),
    h("p", { class: "hint" }, fair
      ? "A tenant that is not listed has the weight 1. What a tenant does not use, others have. "
      : "No queue or throttle has `fair`, so nothing is shared. ",
    act("Another tenant…", () => giveShare(ctx), { key: "another" })),
  ];
}

function giveShare(ctx, share) {
  return steer(ctx, {
    title: share ? "Which share?" : "A tenant’s share", confirm: "Set", method: "PUT",
    where: ({ tenant }) => `tenants/${path(share?.tenant ?? tenant)}/share`,
    body: [share && h("p", { class: "asks" }, "Tenant ", h("strong", null, text(share.tenant, 200))),
      h("p", { class: "hint" }, "It stays so until it is set again, through restarts.")],
    fields: [
      !share && { name: "tenant", label: "Tenant", required: true },
      { name: "weight", label: "Weight", type: "number", min: "1", max: "1000", step: "1", value: String(share?.weight ?? 1) },
      { name: "most", label: "Runs at once, over all workers", type: "number", min: "1", step: "1", value: share?.most ? String(share.most) : "",
        hint: "Empty: no change." },
    ].filter(Boolean),
    content: ({ weight, most }) => ({ weight: weight === "" ? null : Number(weight), most: most === "" ? null : Number(most) }),
  });
}

function use({ configured, ordered, workers, utilisation }) {
  return [
    h("div", { class: "metered" }, utilisation !== null && bar(utilisation, utilisation >= 0.95 ? "warn" : "info"),
      h("span", null, percent(utilisation ?? NaN))),
    h("span", { class: "sub" }, `${count(ordered ?? configured)} × ${plural(workers, "worker")}`,
      ordered !== null && h("span", { class: "warn" }, ` ordered; configured ${count(configured)}`)),
  ];
}

function steering(ctx, { queue, paused, concurrency }) {
  const where = (action) => `queues/${path(queue)}/${action}`;
  const named = h("p", { class: "asks" }, "Queue ", h("strong", null, text(queue, 200)));
  return [
    paused
      ? act("Resume", () => tell(ctx, "POST", where("resume"), {}), { key: "resume" })
      : act("Pause…", () => steer(ctx, {
        title: "Pause this queue?", confirm: "Pause", where: where("pause"),
        body: [named, h("p", { class: "hint" }, "Nothing more of it starts, in any worker, until it is resumed. What runs finishes.")],
        fields: [{ name: "why", label: "Why", required: true, hint: "Shown to everybody who asks why nothing runs." }],
        content: ({ why }) => ({ why }),
      }), { key: "pause" }),
    act("Concurrency…", () => steer(ctx, {
      title: "How much at once?", confirm: "Set", method: "PUT", where: where("concurrency"),
      body: [named, h("p", { class: "hint" }, `For each worker. Configured: ${count(concurrency.configured)}. It stays so until it is set again, through restarts.`)],
      fields: [{ name: "concurrency", label: "Runs at once, for each worker", type: "number", min: "1", step: "1",
        value: String(concurrency.ordered ?? concurrency.configured), hint: "Empty: as configured." }],
      content: ({ concurrency: n }) => ({ concurrency: n === "" ? null : Number(n) }),
    }), { key: "concurrency" }),
  ];
}
