// What a configuration will do: the simulator, on the running configuration or an edited one.

import { overTime } from "../charts.js";
import { h } from "../dom.js";
import { order, path, send } from "../api.js";
import { ask, report, reportRefusal } from "../dialogs.js";
import { count, instant, percent, rate, span } from "../format.js";
import { bar, button, facts, none, notice, section, table, text, to } from "../parts.js";

const LENGTHS = [["1h", "1 hour"], ["6h", "6 hours"], ["24h", "24 hours"], ["3days", "3 days"]];
const MOST_LIMITS_DRAWN = 4;

export const foresight = {
  title: "Simulate",
  every: 1_000,

  async load(ctx) {
    const { run } = ctx.place.query;
    const [configuration, fleet, simulation] = await Promise.all([
      ctx.data?.configuration ?? ctx.get("configuration"),
      // A server that has just started has not counted chains yet.
      ctx.data?.fleet.counted_at ? ctx.data.fleet : ctx.get("queues"),
      run ? ctx.get(`simulations/${path(run)}`).catch((refusal) => {
        if (refusal.status === 404) return { state: "gone" };
        throw refusal;
      }) : null,
    ]);
    // Nothing changes here by itself, except while a simulation runs.
    return { configuration, fleet, simulation, still: fleet.counted_at !== null && simulation?.state !== "running" };
  },

  view(ctx) {
    const { configuration, fleet, simulation } = ctx.data;
    return [
      h("p", { class: "lead" }, "Runs the engine itself on a configuration in virtual time, with modelled handlers: what starts when, how late, and how old data gets. Nothing is connected to, and nothing of the running installation changes."),
      simulation && section("What it will do", outcome(ctx, simulation)),
      section("What to simulate", form(ctx, configuration, fleet)),
    ];
  },
};

// More than this is refused.
const MOST_CHAINS = 100_000;

function form(ctx, { toml, kinds }, { queues }) {
  const of = (kind) => queues.reduce((sum, queue) => sum + (queue.kinds[kind] ?? 0), 0);
  const all = kinds.reduce((sum, { kind }) => sum + of(kind), 0);
  const scale = Math.min(1, MOST_CHAINS / Math.max(1, all));
  const chains = (kind) => Math.floor(of(kind) * scale);
  return h("form", { class: "simulate", onsubmit: (event) => { event.preventDefault(); begin(ctx, event.currentTarget, toml); } },
    h("label", { class: "field" },
      h("span", null, "Configuration ", h("span", { class: "dim" }, "as it is in use, without secrets and comments")),
      h("textarea", { name: "toml", rows: "14", spellcheck: "false", autocomplete: "off", autocapitalize: "none", value: toml })),
    h("div", { class: "inline" },
      h("label", { class: "field" }, h("span", null, "For"), h("select", { name: "for", value: "24h" }, LENGTHS.map(([value, words]) => h("option", { value }, words)))),
      h("label", { class: "field" }, h("span", null, "Workers"), h("input", { name: "workers", type: "number", min: "1", max: "100", step: "1", required: true, value: "1" }))),
    kinds.length > 0 && h("fieldset", null, h("legend", null, "Chains of each kind"),
      h("p", { class: "hint" }, scale < 1 ? `One in ${count(Math.ceil(1 / scale))} of those that there are, since at most ${count(MOST_CHAINS)} can be simulated: make limits as much lower. Empty: as the kind’s model says, or one.`
        : "As many as there are now. Empty: as the kind’s model says, or one."),
      h("div", { class: "inline" }, kinds.map(({ kind, schedule }) => h("label", { class: "field", key: kind },
        h("span", null, text(kind, 60), schedule && h("span", { class: "dim" }, " ", text(schedule, 60))),
        h("input", { type: "number", min: "0", step: "1", "data-kind": kind, value: chains(kind) > 0 ? String(chains(kind)) : "" }))))),
    h("div", { class: "buttons" },
      h("button", { type: "submit", class: "primary", disabled: ctx.state.sending }, "Simulate"),
      button("Take the running configuration again", (event) => { event.currentTarget.form.elements.toml.value = toml; })));
}

async function begin(ctx, filled, running) {
  const edited = filled.elements.toml.value;
  const chains = {};
  for (const input of filled.querySelectorAll("[data-kind]")) {
    // A kind that was taken out of the configuration has none.
    const there = edited === running || edited.includes(`kinds.${input.dataset.kind}`) || edited.includes(`kinds."${input.dataset.kind}"`);
    if (input.value !== "" && there) chains[input.dataset.kind] = Number(input.value);
  }
  const asked = order("POST", "simulations", {
    // The masked text would not be the same configuration: what is not edited is taken where it is.
    toml: edited === running ? null : edited,
    for: filled.elements.for.value, chains, workers: Number(filled.elements.workers.value),
  });
  ctx.set({ sending: true });
  try {
    const { id } = await send(asked);
    ctx.go(to("foresight", [], { run: id }));
    scrollTo(0, 0);
  } catch (refusal) {
    reportRefusal(refusal);
  } finally {
    ctx.set({ sending: false });
  }
}

function outcome(ctx, { state, progress, why, report: told }) {
  if (state === "gone") return notice("warning", "This simulation is no longer kept. Begin another.");
  if (state === "failed") return notice("error", text(why ?? "It has failed.", 4_000));
  if (state === "running") {
    return h("div", { class: "progress" }, h("progress", { max: "1", value: progress, "aria-label": "How far the simulation has come" }),
      h("div", null, `${percent(progress)} of the time has passed. `, button("End it", () => end(ctx))));
  }
  return results(ctx, told);
}

async function end(ctx) {
  const ended = await ask({
    title: "End the simulation?", confirm: "End it", body: h("p", null, "What it has found so far is lost. Nothing else changes."),
    submit: () => send(order("DELETE", `simulations/${path(ctx.place.query.run)}`)),
  });
  if (!ended) return;
  report("done", "The simulation was ended.");
  ctx.go(to("foresight"));
}

function results(ctx, told) {
  const kinds = Object.entries(told.kinds);
  const throttles = Object.entries(told.throttles);
  const queues = Object.entries(told.longest_queues).filter(([, n]) => n > 0).sort(([, one], [, other]) => other - one);
  const chosen = told.series.kinds[ctx.state.kind] ? ctx.state.kind : "";
  const from = instant(told.from);
  const points = (chosen ? told.series.kinds[chosen] : told.series.all)
    .map((value, place) => ({ at: new Date(from + place * told.series.bucket_s * 1_000).toISOString(), value }));
  const limits = throttles.map(([name, { per_s: value }]) => ({ name, value }));
  return [
    told.warnings.length
      ? h("ul", { class: "warnings" }, told.warnings.map((words, place) => h("li", { key: place }, notice("warning", text(words, 1_000)))))
      : notice("done", "It keeps up: no warnings."),
    h("div", { class: "inline" }, h("label", { class: "field" }, h("span", null, "Starts of"),
      h("select", { value: chosen, onchange: (event) => ctx.set({ kind: event.currentTarget.value }) },
        h("option", { value: "" }, "all kinds"), kinds.map(([kind]) => h("option", { value: kind, key: kind }, kind))))),
    overTime({
      id: `load ${chosen}`, title: "Starts per second", unit: `over ${span(told.for_s * 1_000)}`, points,
      limits: limits.slice(0, MOST_LIMITS_DRAWN),
    }),
    limits.length > 0 && h("p", { class: "hint" }, "A dashed line is what a throttle allows to the starts that are under it."),
    facts(
      ["Flatness", told.peak_to_mean === null ? "not known: too short" : `${rate(told.peak_to_mean)}× the mean in the busiest second`],
      ["Backlog at the end", `${count(told.backlog)} due and not running`],
      queues.length > 0 && ["Longest queues", queues.slice(0, 8).map(([queue, n], place) => [place > 0 && ", ", text(queue, 60), ` ${count(n)}`])]),
    table({
      label: "What becomes of each kind", rows: kinds, keyOf: ([kind]) => kind, empty: "No kind has a schedule.",
      columns: [
        { head: "Kind", row: true, cell: ([kind]) => text(kind, 60) },
        { head: "Chains", num: true, cell: ([, kind]) => count(kind.chains) },
        { head: "Starts", num: true, cell: ([, kind]) => count(kind.starts) },
        { head: "Late p50, p99, max", num: true, cell: ([, { late_ms: late }]) => (late ? three(late, 1) : none()) },
        { head: "Age p50, p99, max", num: true, cell: ([, { freshness_s: age }]) => (age ? three(age, 1_000) : none()) },
        { head: "Never fresh", num: true, cell: ([, kind]) => count(kind.never) },
        { head: "Failed", num: true, cell: ([, kind]) => [count(kind.failed), h("span", { class: "sub" }, `${count(kind.retried)} retried`)] },
        { head: "Left out", num: true, cell: ([, kind]) => [count(kind.dropped + kind.skipped), h("span", { class: "sub" }, reasonsOf(kind))] },
        { head: "Backlog", num: true, cell: ([, kind]) => count(kind.backlog) },
        { head: "Flatness", num: true, cell: ([, kind]) => (kind.peak_to_mean === null ? none() : `${rate(kind.peak_to_mean)}×`) },
      ],
    }),
    throttles.length > 0 && table({
      label: "How much of each throttle is used", rows: throttles, keyOf: ([name]) => name,
      columns: [
        { head: "Throttle", row: true, cell: ([name]) => text(name, 60) },
        { head: "Used", cell: ([, { share }]) => h("div", { class: "metered" }, bar(share, share >= 0.95 ? "warn" : "info"), h("span", null, percent(share))) },
        { head: "Allows", num: true, cell: ([, { allow, per_s: perSecond }]) => [count(allow), h("span", { class: "sub" }, `${rate(perSecond)} a second`)] },
        { head: "Most in a window", num: true, cell: ([, { most }]) => count(most) },
      ],
    }),
  ];
}

const three = ({ p50, p99, max }, unit) => [p50, p99, max].map((n) => span(n * unit)).join(", ");

const reasonsOf = ({ reasons }) => Object.entries(reasons ?? {}).slice(0, 3).map(([reason, n], place) =>
  [place > 0 && ", ", text(reason, 60), ` ${count(n)}`]);
