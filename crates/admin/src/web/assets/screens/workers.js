// The workers: who they are, what they run, and when they were last heard of.

import { h } from "../dom.js";
import { path } from "../api.js";
import { count, rate, span } from "../format.js";
import { ago, button, chainLink, link, mark, none, progress, table, text, to } from "../parts.js";
import { act, steer, tell } from "../steering.js";

export const workers = {
  title: "Workers",
  every: 4_000,
  async load(ctx) {
    const told = await ctx.get("workers");
    const open = told.workers.filter(({ worker }) => ctx.state[opened(worker)]);
    const runs = await Promise.all(open.map(async ({ worker }) => [worker, await runsOf(ctx, worker)]));
    return { ...told, runs: Object.fromEntries(runs) };
  },

  view(ctx) {
    return table({
      label: "Workers", rows: ctx.data.workers, keyOf: ({ worker }) => worker,
      empty: "No worker has been heard of. Chains keep their place, and nothing runs until one is started.",
      columns: [
        { head: "Worker", row: true, wide: true, cell: ({ worker, host, pid, version, started }) => [
          h("span", { class: "name" }, text(worker, 60)),
          h("span", { class: "sub" }, text(host, 60), `, process ${pid}, version `, text(version, 30), ", started ", ago(started))] },
        { head: "State", cell: ({ state, seen }) => [mark(state), h("span", { class: state === "silent" ? "sub bad" : "sub" }, "heard ", ago(seen))] },
        ctx.session.operating && { head: "Steer", buttons: true, cell: (worker) => steering(ctx, worker) },
        { head: "Running", num: true, cell: ({ leases }) => count(leases) },
        { head: "For a slot", num: true, cell: ({ waiting }) => count(waiting) },
        { head: "Starts/s", num: true, cell: ({ starts_per_second: n }) => rate(n) },
        { head: "Late p99", num: true, cell: ({ late_ms: late }) => (late ? span(late.p99) : none()) },
        { head: "Queues", wide: true, cell: ({ queues }) => h("ul", { class: "plain" }, queues.map(({ queue, concurrency, running, paused }) =>
          h("li", { key: queue }, link(to("chains", [], { queue, state: "running" }), text(queue, 60)), ` ${count(running)} of ${count(concurrency)} `, paused && mark("paused")))) },
        { head: "Runs now", wide: true, cell: ({ worker }) => running(ctx, worker) },
        { head: "Kinds", wide: true, cell: ({ kinds }) => text(kinds.join(", "), 200) },
      ],
    });
  },
};

const opened = (worker) => `runs of ${worker}`;

/** What a worker runs. A worker that has ended meanwhile runs nothing, and that is no error of the page. */
async function runsOf(ctx, worker) {
  try {
    return (await ctx.get(`workers/${path(worker)}/runs`)).runs;
  } catch (error) {
    if (error.status === 404) return [];
    throw error;
  }
}

/** What a worker runs, once somebody asks for it. */
function running(ctx, worker) {
  const open = Boolean(ctx.state[opened(worker)]);
  const runs = ctx.data.runs[worker];
  const toggle = () => {
    ctx.set({ [opened(worker)]: !open });
    if (!open) ctx.refresh();
  };
  return [
    button([open ? "Hide" : "Show", h("span", { class: "unseen-text" }, ` what ${worker} runs`)], toggle,
      { class: "more", "aria-expanded": String(open) }),
    open && (!runs ? h("p", { class: "sub" }, "Asking…")
      : !runs.length ? h("p", { class: "sub" }, "Nothing that the ledger knows of.")
      : h("ul", { class: "open-runs" }, runs.map((run, place) => h("li", { key: place }, line(run))))),
  ];
}

const SOURCES = { batch: "of a batch", job: "a one-off job" };

function line({ source, kind, key, attempt, started, progress: told }) {
  return [
    // A job of a batch has no page of its own.
    source === "batch" ? h("span", { class: "name" }, text(key, 120)) : chainLink(kind, key),
    h("span", { class: "sub" }, text(kind, 60), SOURCES[source] && `, ${SOURCES[source]}`, attempt > 1 && `, attempt ${count(attempt)}`,
      ", started ", ago(started)),
    progress(told),
  ];
}

function steering(ctx, { worker, state, leases, host }) {
  const where = (action) => `workers/${path(worker)}/${action}`;
  if (state === "draining" || state === "drained") return act("Resume", () => tell(ctx, "POST", where("resume"), {}));
  return act("Drain…", () => steer(ctx, {
    title: "Drain this worker?", confirm: "Drain", where: where("drain"), danger: true,
    body: [h("p", { class: "asks" }, "Worker ", h("strong", null, text(worker, 200)), " on ", text(host, 100)),
      h("p", { class: "hint" }, `It takes nothing new; what it runs (${count(leases)}) finishes. Others take over if they consume its queues.`)],
  }));
}
