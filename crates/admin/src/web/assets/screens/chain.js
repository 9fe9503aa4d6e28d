// One chain: why it does what it does, what comes, what has been, and orders to it.

import { timeline } from "../charts.js";
import { h } from "../dom.js";
import { path } from "../api.js";
import { count, instant, now, span } from "../format.js";
import { ago, at, both, button, facts, json, lag, link, long, mark, notice, none, outcomeOf, progress, section, sentence, table, text, to,
  toneOf, verdictMark } from "../parts.js";
import { act, asJson, publish, steer, tell } from "../steering.js";

export const chain = {
  title: "Chain",
  every: 4_000,
  tab: ({ place: { segments: [, key] } }) => key,
  heading: ({ place: { segments: [kind, key] } }) => [
    h("span", { class: "over" }, link(to("chains", [], { kind }), text(kind, 80)), " chain "), text(key, 512)],

  load: (ctx) => ctx.get(address(ctx)),

  actions: (ctx) => ctx.data && orders(ctx),

  view(ctx) {
    const { chain: told, single, failures, running } = ctx.data;
    const whole = told ?? single;
    return [
      !told && !single && notice("warning", "There is no chain of this name. What is below belongs to jobs of it."),
      told && why(told),
      running.length > 0 && section("One-off jobs that run", jobs(running)),
      failures.length > 0 && section("Failures that are kept", kept(ctx, failures)),
      told && h("div", { class: "columns" },
        section("What comes", upcoming(told)),
        section("Facts", aboutIt(told))),
      whole && section("Attempts", attempts(ctx, whole)),
      told && single && section("Its manual run", why(single), aboutIt(single)),
      whole && h("div", { class: "columns" },
        section("Payload", json(ctx, "payload", whole.payload)),
        section("Carry", whole.carry === null ? h("p", { class: "empty" }, "No run has handed anything on.") : json(ctx, "carry", whole.carry))),
    ];
  },
};

const FEW = 15;
const TOLD = 50;

const address = ({ place: { segments: [kind, key] } }) => `chains/${path(kind, key)}`;

function why(told) {
  return h("section", { class: `why ${toneOf(told.doing)}`, "aria-label": "What it does, and why" },
    h("div", { class: "why-state" }, mark(told.doing),
      told.state !== told.doing && told.state !== "active" && mark(told.state),
      told.owner_state && told.owner_state !== "active" && h("span", { class: "warn" }, `its owner is ${told.owner_state}`)),
    h("p", { class: "why-words" }, sentence(told.why)),
    told.unavailable && notice("warning", "Unavailable: ", text(told.unavailable, 2_000)),
    progress(told.progress),
    told.batch && h("div", { class: "progress" }, h("progress", { max: told.batch.total, value: told.batch.total - told.batch.open, "aria-label": "Jobs of its batch that have ended" }),
      h("div", null, `Its batch: ${count(told.batch.total - told.batch.open)} of ${count(told.batch.total)} jobs have ended`)));
}

function aboutIt(told) {
  return facts(
    ["Queue", link(to("queues"), text(told.queue, 120))],
    ["Owner", told.owner ? link(to("chains", [], { owner: told.owner }), text(told.owner, 120)) : none()],
    ["Schedule", [told.schedule ? text(told.schedule, 200) : "none", told.own_schedule !== null && h("span", { class: "warn" }, " its own, ", text(JSON.stringify(told.own_schedule), 200))]],
    ["Tick", `${count(told.tick)}, attempt ${count(told.attempt)}, epoch ${told.epoch}`],
    ["Due", both(told.due)],
    told.nominal && told.nominal !== told.due && ["Nominal time", both(told.nominal)],
    ["Last start", both(told.last_start)],
    ["Last end", both(told.last_finish)],
    ["Lease", told.lease_until && instant(told.lease_until) > 0 ? both(told.lease_until) : none()],
    ["Message", told.sent ? "sent" : h("span", { class: "warn" }, "unsent: not known to be on the broker")],
    ["Catch-up", [told.looks > 0 && `has looked ${count(told.looks)} times; `, told.watch_at ? ["looks next ", ago(told.watch_at)] : "does not look"]],
    told.depth > 0 && ["Depth", count(told.depth)]);
}

function upcoming(told) {
  if (told.state !== "active") return h("p", { class: "empty" }, told.state === "paused" ? "Nothing, while it is paused." : "Nothing more is planned.");
  const tick = `, tick ${count(told.tick)}`;
  const next = {
    sleeps: [at(told.due), h("span", { class: "dim" }, " ", ago(told.due), tick)],
    runs: ["now", h("span", { class: "dim" }, tick)],
    gathers: ["when its batch has ended", h("span", { class: "dim" }, tick)],
    held: ["when its queue is resumed, or its throttle released", h("span", { class: "dim" }, tick)],
  }[told.doing] ?? ["as soon as it can start", h("span", { class: "dim" }, tick)];
  const later = told.next.filter((time) => instant(time) > now());
  return h("ol", { class: "next" }, h("li", { key: "next" }, next),
    later.map((time) => h("li", { key: time }, "about ", at(time), h("span", { class: "dim" }, " ", ago(time)))));
}

/** The attempt that is still to come, as the timeline takes it: what a chain waits for goes on until now. */
function toCome({ state, doing, epoch, tick, attempt, due }, now) {
  if (state !== "active" || doing === "runs") return [];
  // A batch ends when it ends, whatever is written as due.
  return [{ epoch, tick, attempt, due: doing === "gathers" ? now : due, verdict: doing }];
}

function attempts(ctx, told) {
  // What was read of the older ones stays below what has come since.
  const later = ctx.state.later ?? [];
  const known = new Set(told.attempts.map(({ fence }) => fence));
  const rows = [...told.attempts, ...later.filter(({ fence }) => !known.has(fence))];
  // As many as are told at once: there may be more.
  const first = told.attempts.length >= TOLD ? told.attempts.at(-1).fence : null;
  const older = ctx.state.older === undefined ? first : ctx.state.older;
  if (!rows.length) return h("p", { class: "empty" }, "It has not run yet.");
  return [
    timeline([...toCome(told, ctx.data.now), ...rows], instant(ctx.data.now)),
    table({
      label: "Attempts, latest first", rows: ctx.state.all ? rows : rows.slice(0, FEW), keyOf: ({ fence }) => String(fence),
      columns: [
        { head: "Started", row: true, cell: ({ started }) => [at(started), h("span", { class: "sub" }, ago(started))] },
        { head: "Tick", num: true, cell: ({ tick, attempt, manual }) => [`${count(tick)}.${attempt}`, manual && h("span", { class: "sub" }, "manual run")] },
        { head: "Verdict", cell: verdictMark },
        { head: "Took", num: true, cell: ({ started, finished }) => (finished ? span(instant(finished) - instant(started)) : "runs") },
        { head: "Late by", num: true, cell: ({ started, due }) => (due && started ? lag(instant(started) - instant(due)) : none()) },
        { head: "Reason", wide: true, cell: (run) => outcomeOf(ctx, run) },
        { head: "Left out", cell: ({ overlapped, misfired, excluded }) => [overlapped > 0 && `${count(overlapped)} overlapped `, misfired > 0 && `${count(misfired)} misfired `, excluded > 0 && `${count(excluded)} by calendars`, !overlapped && !misfired && !excluded && none()] },
        { head: "Worker", cell: ({ worker }) => (worker ? text(worker, 28) : none()) },
      ],
    }),
    !ctx.state.all && rows.length > FEW && h("div", { class: "pager" },
      button(`Show all ${count(rows.length)}`, () => ctx.set({ all: true }), { key: "all" })),
    ctx.state.all && older && h("div", { class: "pager" }, button("Older attempts", async () => {
      const page = await ctx.get(`${address(ctx)}/attempts`, { before: older });
      ctx.set({ later: [...later, ...page.attempts], older: page.more ? page.attempts.at(-1).fence : null });
    })),
  ];
}

function jobs(running) {
  return table({
    label: "One-off jobs of it that run", rows: running, keyOf: ({ id }) => id,
    columns: [
      { head: "Job", row: true, cell: ({ id }) => text(id, 60) },
      { head: "Started", cell: ({ started }) => both(started) },
      { head: "Attempt", num: true, cell: ({ attempt }) => count(attempt) },
      { head: "Queue", cell: ({ queue }) => text(queue, 60) },
      { head: "Worker", cell: ({ worker }) => (worker ? text(worker, 60) : none()) },
      { head: "How far", wide: true, cell: (job) => progress(job.progress) ?? none() },
    ],
  });
}

function kept(ctx, failures) {
  return table({
    label: "Failures of it that are kept", rows: failures, keyOf: ({ item }) => item,
    columns: [
      { head: "What", row: true, cell: ({ item }) => (item === "" ? "the whole entity" : ["part ", text(item, 80)]) },
      { head: "Reason", wide: true, cell: ({ item, code, reason }) => [code !== null && h("strong", null, text(code, 60), ": "), long(ctx, `failure ${item}`, reason)] },
      { head: "Times", num: true, cell: ({ times }) => count(times) },
      { head: "Last", num: true, cell: ({ last_at: time }) => ago(time) },
      { head: "Then", cell: ({ then }) => text(then, 120) },
    ],
  });
}

const ORDERS = [
  { action: "run", label: "Run once", title: "Run it once more now?", words: "A run of this chain, now, with retries by the kind's policy. It does not shift the rotation.",
    fields: [
      { name: "if_running", label: "While the rotation runs", options: [["", "as the kind says"], ["refuse", "refuse it"],
        ["after", "run it afterwards"], ["beside", "run it at the same time"]] },
      { name: "queue", label: "Queue", hint: "Empty: the chain's." },
      { name: "priority", label: "Priority", inputmode: "numeric", hint: "0 to 9. Empty: the chain's." },
      { name: "payload", label: "Payload (JSON)", type: "textarea", hint: "Empty: the chain's." },
      { name: "force", label: "Also within the cooldown", type: "checkbox", value: false },
    ],
    content: ({ if_running, queue, priority, payload, force }) => ({
      if_running: if_running || null, queue: queue.trim() || null, priority: priority.trim() ? asJson(priority) : null,
      payload: payload.trim() ? asJson(payload) : null, force,
    }),
    offered: ({ state }) => state !== "quarantined" },
  { action: "advance", label: "Advance", title: "Advance it?", words: "Its next tick comes now, and what follows counts from it. A retry that waits comes at once, too.",
    offered: ({ state }) => state === "active" },
  { action: "pause", label: "Pause", title: "Pause this chain?", words: "It keeps its place and stops ticking. What runs finishes.",
    offered: ({ state }) => state === "active" },
  { action: "resume", label: "Resume", offered: ({ state }) => state === "paused" },
  { action: "retire", label: "Retire", title: "Retire this chain?", words: "It ends. Only enrolling it with --revive begins it anew.", danger: true,
    offered: ({ state }) => state !== "retired" },
];

function orders(ctx) {
  const { chain: told } = ctx.data;
  const [kind, key] = ctx.place.segments;
  const where = (action) => `${address(ctx)}/${action}`;
  return [
    told && ORDERS.filter(({ offered }) => offered(told)).map(({ action, label, title, words, danger, fields, content }) => act(
      title ? `${label}…` : label,
      () => (title
        ? steer(ctx, {
          title, danger, fields, content, confirm: label, where: where(action),
          body: [h("p", { class: "asks" }, text(kind, 100), " ", h("strong", null, text(key, 512))), h("p", { class: "hint" }, words)],
        })
        : tell(ctx, "POST", where(action), {})),
      { key: action, class: danger ? "danger" : null })),
    act("Publish…", () => publish(ctx, { kind, key }), { key: "publish" }),
  ];
}
