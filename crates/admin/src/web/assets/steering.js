// Everything that changes something goes through here: it asks first, sends once, and reports in the server's words.

import { h } from "./dom.js";
import { get, order, send } from "./api.js";
import { ask, report, reportRefusal } from "./dialogs.js";
import { count, plural } from "./format.js";
import { button, text } from "./parts.js";
import { session } from "./session.js";

/** A button that is only there while operating. */
export function act(label, onclick, props) {
  return session.operating && button(label, onclick, props);
}

/** Sends orders; what was never answered keeps its key, so that sending it again cannot do it twice. */
function sender() {
  let unanswered = null;
  return async (method, where, body) => {
    const sent = JSON.stringify([method, where, body]);
    const asked = unanswered?.sent === sent ? unanswered.order : order(method, where, body);
    unanswered = null;
    try {
      return await send(asked);
    } catch (refusal) {
      if (refusal.order) unanswered = { sent, order: asked };
      throw refusal;
    }
  };
}

/**
 * Asks, and sends one order: `{title, body, fields, confirm, danger, method, where, content, done}`. `where` and
 * `content` may be functions of what was filled in.
 */
export async function steer(ctx, { method = "POST", where, content, done, ...question }) {
  const sending = sender();
  const answer = await ask({
    ...question,
    submit: (values) => sending(method, typeof where === "function" ? where(values) : where,
      typeof content === "function" ? content(values) : content ?? {}),
  });
  if (!answer) return null;
  report("done", done?.(answer) ?? answer.words ?? "Done.");
  ctx.refresh();
  return answer;
}

/**
 * The same for all that match: counts first by a dry run, then says the number and asks. `what` names them in words,
 * `content` is the order without `dry_run`.
 */
export async function steerMany(ctx, { title, verb, one, many, what, note, where, content, danger, irreversible,
  evenNone = false }) {
  const sending = sender();
  const named = (n) => plural(n, one, many);
  const answer = await ask({
    title, danger,
    prepare: () => send(order("POST", where, { ...content, dry_run: true })),
    nothing: ({ matching }) => matching === 0 && !evenNone,
    body: ({ matching }) => (matching === 0 && !evenNone
      ? [h("p", null, `No ${one} matches. Nothing was done.`), what]
      : [h("p", { class: "asks" }, `${verb} `, h("strong", null, named(matching)), "?"), what,
        note && h("p", { class: "hint" }, note)]),
    confirm: ({ matching }) => `${verb} ${named(matching)}`,
    typed: ({ matching }) => irreversible && matching > 1 && count(matching),
    submit: () => sending("POST", where, { ...content, dry_run: false }),
  });
  if (!answer) return;
  const { matching, changed } = answer;
  report("done", `${verb}: ${named(changed ?? matching)} changed`,
    changed !== null && changed !== undefined && changed !== matching ? `${count(matching)} matched.` : null);
  ctx.refresh();
}

/** A filter in words, for a question about all that match it. */
export function inWords(filter, everything) {
  const said = Object.entries(filter).filter(([, value]) => value);
  if (!said.length) return h("p", { class: "asks warn" }, everything);
  return h("dl", { class: "facts" }, said.map(([name, value]) =>
    h("div", { key: name }, h("dt", null, name), h("dd", null, text(value, 200)))));
}

/** Asks why, and pauses every queue: nothing starts any more, whatever is due. */
export const pauseAll = (ctx) => steer(ctx, {
  title: "Pause all queues?", confirm: "Pause all", danger: true, where: "queues/actions",
  body: h("p", { class: "asks" }, "Nothing more starts, in any worker, until queues are resumed. What runs finishes. Queues that are paused already stay as they are."),
  fields: [{ name: "why", label: "Why", required: true, hint: "Shown to everybody who asks why nothing runs. Queues can be resumed by it." }],
  content: ({ why }) => ({ action: "pause", why }),
});

/** Resumes every queue that is paused, or was paused for this. */
export const resumeAll = (ctx) => steer(ctx, {
  title: "Resume all queues?", confirm: "Resume", where: "queues/actions",
  body: h("p", { class: "asks" }, "Workers take jobs again from all queues that are paused, whoever paused them."),
  fields: [{ name: "why", label: "Only those paused because of", hint: "The reason, word for word. Empty: all." }],
  content: ({ why }) => ({ action: "resume", why: why.trim() || null }),
});

/** Asks for a job, and publishes it. */
export async function publish(ctx, known = {}) {
  let kinds = [];
  try {
    ({ kinds } = await get("configuration"));
  } catch { /* The list only helps typing. */ }
  return steer(ctx, {
    title: "Publish a job",
    wide: true,
    body: h("p", { class: "hint" }, "It runs once, beside the chain of its kind and key if there is one, and without touching it."),
    fields: [
      { name: "kind", label: "Kind", required: true, value: known.kind, list: kinds.map(({ kind }) => kind) },
      { name: "key", label: "Key", required: true, value: known.key, maxlength: "512" },
      { name: "payload", label: "Payload (JSON)", type: "textarea", value: "{}" },
      { name: "delay", label: "Delay", placeholder: "now", hint: "Such as 10m, 1h 30m. Empty: now." },
      { name: "queue", label: "Queue", hint: "Empty: as the kind says." },
      { name: "owner", label: "Owner", hint: "Empty: nobody's." },
    ],
    confirm: "Publish",
    where: "jobs",
    content: ({ kind, key, payload, delay, queue, owner }) => ({
      kind, key, payload: asJson(payload), delay: delay.trim() || null, queue: queue.trim() || null, owner: owner.trim() || null,
    }),
    done: ({ id, queue, due }) => `published as ${id} to ${queue}, ${due ? `due ${due}` : "now"}`,
  });
}

/** What was typed as JSON; a refusal that the dialog shows when it is none. */
export function asJson(typed) {
  try {
    return JSON.parse(typed);
  } catch (error) {
    throw Object.assign(new Error(error.message), { title: "This is not JSON", detail: error.message, status: 422 });
  }
}

/** An order that needs no question: it takes nothing away. */
export async function tell(ctx, method, where, content) {
  const asked = order(method, where, content);
  const run = async () => {
    try {
      const { words } = await send(asked);
      report("done", words ?? "Done.");
    } catch (refusal) {
      reportRefusal(refusal, refusal.order && { label: "Send again", run });
    }
    ctx.refresh();
  };
  await run();
}

