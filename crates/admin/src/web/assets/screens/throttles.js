// The throttles: how much of each limit is used, what holds a throttle, and who waits for it.

import { h } from "../dom.js";
import { path } from "../api.js";
import { count, instant, now, plural, span } from "../format.js";
import { ago, at, bar, facts, link, mark, notice, sentence, text, to } from "../parts.js";
import { act, steer, tell } from "../steering.js";

export const throttles = {
  title: "Throttles",
  every: 3_000,
  tab: ({ place: { segments: [name] } }) => name && `Throttle ${name}`,
  heading: ({ place: { segments: [name] } }) => name !== undefined && [
    h("span", { class: "over" }, link(to("throttles"), "Throttles"), " throttle "), text(name, 200)],

  async load(ctx) {
    const { segments: [name], query: { key } } = ctx.place;
    if (name === undefined) return ctx.get("throttles");
    return { throttles: [await ctx.get(`throttles/${path(name)}`, { key })] };
  },

  view(ctx) {
    const { throttles: all } = ctx.data;
    const single = ctx.place.segments.length > 0;
    if (!all.length) return h("p", { class: "empty" }, "No throttle is configured: nothing but concurrency limits starts.");
    return h("div", { class: "cards" }, all.map((throttle) => card(ctx, throttle, single)));
  },
};

function card(ctx, throttle, single) {
  const { name, waiting, in_the_way: inTheWay, only_used: onlyUsed, shortage: short, keys } = throttle;
  const held = keys.find(({ held: hold }) => hold);
  return h("article", { class: "card", key: name, "aria-label": name },
    h("header", null,
      !single && h("h2", null, h("a", { class: "name", href: to("throttles", [name]) }, text(name, 80))),
      stateOf(throttle),
      waiting > 0 && h("strong", null, `${plural(waiting, "chain waits", "chains wait")}`)),
    short && notice("warning", sentence(short, 2_000)),
    inTheWay && notice(held ? "held" : onlyUsed ? "used" : "warning", sentence(inTheWay, 2_000)),
    keys.map((key) => keyOf(throttle, key)),
    throttle.keyed_by && lookUp(ctx, throttle, single),
    facts(
      ["Limits", [limits(throttle.ordered ?? throttle.configured), throttle.ordered
        && h("span", { class: "warn" }, " ordered by ", text(throttle.ordered.by, 80), ", ", ago(throttle.ordered.at), `; configured ${limits(throttle.configured)}`)]],
      ["For", [throttle.scope === "worker" ? "each worker by itself" : "all workers together",
        throttle.keyed_by && [", for each value of ", h("code", null, text(throttle.keyed_by, 80)), `, ${plural(throttle.remembered, "key")} remembered`]]],
      ["Queues", throttle.queues.length ? throttle.queues.map((queue, place) =>
        [place > 0 && ", ", link(to("chains", [], { queue }), text(queue, 60))]) : "none"],
      throttle.budget_headers && ["Budget headers", [h("code", null, text(throttle.budget_headers.remaining, 80)), ", ", h("code", null, text(throttle.budget_headers.reset, 80))]]),
    ctx.session.operating && h("div", { class: "buttons" }, steering(ctx, throttle, Boolean(held))));
}

function stateOf({ keyed_by: keyed, keys, in_the_way: inTheWay, only_used: onlyUsed, shortage: short }) {
  const held = keys.filter((key) => key.held).length;
  if (held) return mark("held", keyed ? plural(held, "key held", "keys held") : "held");
  // A limit that is used is what it is for; one that is too low is not.
  if (short) return mark("draining", "too low");
  if (onlyUsed && !keyed && keys.some(usedUp)) return mark("used", "in use");
  return inTheWay ? mark("draining", "slowed") : mark("open");
}

const usedUp = ({ windows }) => windows.some(({ allow, used }) => used >= allow);

const limits = ({ allow, per_ms: per, burst }) => `${count(allow)} in ${span(per)}${burst > 1 ? `, burst ${count(burst)}` : ""}`;

function keyOf(throttle, { key, windows, opens, held, gentle_until: gentle, probing, budget }) {
  const reopening = gentle && instant(gentle) > now();
  return h("div", { class: "throttle-key", key },
    throttle.keyed_by && h("h3", null, "Key ", text(key, 120)),
    windows.map(({ allow, per_ms: per, used }, place) => h("div", { class: "metered", key: place },
      bar(used / allow, "info"),
      h("span", null, h("strong", null, count(used)), ` of ${count(allow)} in ${span(per)}`,
        used >= allow && allow > 1 && ", all in use"))),
    // One that is not keyed has said all this above.
    !(throttle.in_the_way && !throttle.keyed_by) && h("p", { class: "state-line" },
      held ? ["Held until ", at(held.until), " (", ago(held.until), ")", held.by ? [" by order of ", text(held.by, 80)] : " because its upstream asks for it", held.why && [": ", text(held.why, 400)]]
        : instant(opens) > now() ? ["Next slot opens ", ago(opens)] : "A slot is open"),
    (reopening || probing || budget) && h("p", { class: "state-line warn" },
      probing && "Tries one start at a time: its upstream did not work. ",
      reopening && ["Slow start until ", at(gentle), ". "],
      budget && ["Its upstream’s budget is low: a start every ", span(budget.apart_ms), " until ", at(budget.until), "."]));
}

function lookUp(ctx, { name, remembered, keys }, single) {
  return h("form", { class: "look-up", onsubmit: (event) => {
    event.preventDefault();
    ctx.go(to("throttles", [name], { key: event.currentTarget.elements.key.value }));
  } },
  h("label", null, h("span", null, "Look at one key"), h("input", { name: "key", required: true, autocomplete: "off", spellcheck: "false",
    value: single ? ctx.place.query.key ?? "" : "", "data-search": single })),
  h("button", { type: "submit" }, "Look"),
  keys.length < remembered && h("span", { class: "hint" }, `${count(keys.length)} of ${count(remembered)} shown`));
}

function steering(ctx, { name, ordered, configured }, held) {
  const where = (action) => `throttles/${path(name)}/${action}`;
  const named = h("p", { class: "asks" }, "Throttle ", h("strong", null, text(name, 200)));
  const current = ordered ?? configured;
  return [
    act("Limits…", () => steer(ctx, {
      title: "Which limits?", confirm: "Set", method: "PUT", where: where("limits"),
      body: [named, h("p", { class: "hint" }, `In place of the configured ones (${limits(configured)}), for every worker, from the next slot on, until they are reset.`)],
      fields: [
        { name: "allow", label: "Starts allowed", type: "number", min: "1", step: "1", required: true, value: String(current.allow) },
        { name: "per", label: "in any stretch of", required: true, value: span(current.per_ms), hint: "Such as 1s, 1m, 1h 30m." },
        { name: "burst", label: "Burst", type: "number", min: "1", step: "1", required: true, value: String(current.burst) },
      ],
      content: ({ allow, per, burst }) => ({ allow: Number(allow), per: per.trim(), burst: Number(burst) }),
    }), { key: "limits" }),
    ordered && act("Reset limits", () => tell(ctx, "DELETE", where("limits"), {}), { key: "reset" }),
    act(held ? "Hold longer…" : "Hold…", () => steer(ctx, {
      title: "Hold this throttle?", confirm: "Hold", where: where("hold"),
      body: [named, h("p", { class: "hint" }, "Nothing starts for so long; what runs finishes.")],
      fields: [
        { name: "for", label: "For", required: true, value: "30m", hint: "Such as 10m, 2h." },
        { name: "why", label: "Why", required: true, hint: "Shown to everybody who asks why nothing runs." },
      ],
      content: (values) => ({ for: values.for.trim(), why: values.why }),
    }), { key: "hold" }),
    held && act("Release…", () => steer(ctx, {
      title: "Release this throttle?", confirm: "Release", where: where("release"),
      body: [named, h("p", { class: "hint" }, "It begins with a slow start. What was postponed meanwhile comes within five minutes. What its upstream has said of its budget is forgotten.")],
    }), { key: "release" }),
  ];
}
