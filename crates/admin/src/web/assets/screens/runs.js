// The latest attempts of everything.

import { count, instant, span } from "../format.js";
import { at, ago, chainLink, filters, lag, names, none, outcomeOf, OWN, ownField, ownHint, pager, readPage, table, text, unlessOwn, VERDICTS, verdictMark } from "../parts.js";
import { h } from "../dom.js";

export const runs = {
  title: "Runs",
  query: { text: null, verdict: ["", ...VERDICTS], kind: null, key: null, queue: null, owner: null, since: null, until: null,
    own: OWN.map(([own]) => own) },
  every: 5_000,
  async load(ctx) {
    const choices = await names(ctx);
    const show = (page) => ctx.show({ ...page, choices });
    return { ...await readPage(ctx, "runs", undefined, "runs", show, unlessOwn(ctx)), choices };
  },

  view(ctx) {
    const { data: page } = ctx;
    return [
      filters(ctx, [
        { name: "text", label: "Reason contains", search: true, wide: true },
        { name: "verdict", label: "Verdict", options: [["", "any"], ...VERDICTS.map((verdict) => [verdict, verdict.replaceAll("_", " ")])] },
        { name: "kind", label: "Kind", list: page.choices?.kind },
        { name: "key", label: "Key" },
        { name: "queue", label: "Queue", list: page.choices?.queue },
        { name: "owner", label: "Owner" },
        { name: "since", label: "Started since", time: true },
        { name: "until", label: "Started before", time: true },
        ownField,
      ]),
      table({
        label: "Attempts, latest first", rows: page.rows, keyOf: ({ fence }) => String(fence),
        empty: page.complete ? "No attempt matches." : "None found so far.",
        columns: [
          { head: "Started", num: true, cell: ({ started }) => [at(started), h("span", { class: "sub" }, ago(started))] },
          { head: "Chain", row: true, wide: true, cell: ({ kind, key }) => (kind === null || key === null ? "begun anew since"
            : [chainLink(kind, key), h("span", { class: "sub" }, text(kind, 60))]) },
          { head: "Tick", num: true, cell: ({ tick, attempt }) => `${count(tick)}.${attempt}` },
          { head: "Verdict", cell: verdictMark },
          { head: "Took", num: true, cell: ({ started, finished }) => (finished ? span(instant(finished) - instant(started)) : "runs") },
          { head: "Late by", num: true, cell: ({ started, due }) => (due && started ? lag(instant(started) - instant(due)) : none()) },
          { head: "Reason", wide: true, cell: (run) => outcomeOf(ctx, run) },
          { head: "Worker", cell: ({ worker }) => (worker ? text(worker, 28) : none()) },
        ],
      }),
      pager(ctx, page, async () => {
        const show = (more) => ctx.show({ ...more, choices: page.choices });
        show(await readPage(ctx, "runs", page, "runs", show, unlessOwn(ctx)));
      }),
      ownHint(ctx),
    ];
  },
};
