// Questions before something is done, and reports afterwards.

import { h, render } from "./dom.js";
import { shape, text } from "./parts.js";
import { session } from "./session.js";

const REPORT_MS = 9_000;

/** What a refusal means for whoever sees it: the server's words, and what would help. */
export function explain(refusal) {
  return [
    h("strong", null, text(refusal.title, 200)),
    refusal.detail && h("span", { class: "detail" }, text(refusal.detail, 4_000)),
    refusal.status === 403 && h("span", { class: "detail" },
      session.signedIn
        ? ["The token “", text(session.actor, 80), `” has the scope “${session.scope}”. Sign in with one that has the scope named above.`]
        : "You are not signed in. Sign in with a token that has the scope named above."),
    refusal.status === 401 && session.signedIn && h("span", { class: "detail" }, "Sign in again: the token is not known, or no longer."),
  ];
}

/**
 * Asks in a dialog, and does it: `{title, body, fields, prepare, confirm, danger, typed, submit}`. `prepare` finds
 * out beforehand what it is about; `body`, `confirm` and `typed` may be functions of what it found. The dialog stays
 * open until `submit` has worked, so that nothing typed is lost. Resolves to what `submit` gave, or null.
 */
export function ask(question) {
  const dialog = document.createElement("dialog");
  dialog.className = question.wide ? "wide" : "";
  dialog.setAttribute("aria-labelledby", "question");
  document.body.append(dialog);
  const state = { busy: Boolean(question.prepare), refusal: null, prepared: undefined, result: null, typed: "" };
  const of = (part) => (typeof part === "function" ? part(state.prepared) : part);

  const draw = () => {
    const ready = !question.prepare || state.prepared !== undefined;
    const typed = ready && of(question.typed);
    const none = ready && question.nothing?.(state.prepared);
    render(dialog, h("form", { onsubmit: submit, class: question.danger ? "danger" : null },
      h("h2", { id: "question" }, question.title),
      h("div", { class: "question" }, ready ? of(question.body) : !state.refusal && h("p", null, "Counting…")),
      ready && !none && question.fields?.map(field),
      typed && !none && h("label", { class: "field" },
        h("span", null, "This cannot be undone. Type ", h("strong", null, typed), " to go on"),
        h("input", { name: "typed", autocomplete: "off", inputmode: "numeric", oninput: (event) => {
          state.typed = event.currentTarget.value;
          draw();
        } })),
      h("div", { class: "refusal", role: "alert" }, state.refusal && [shape("error"), h("div", null, explain(state.refusal))]),
      h("div", { class: "buttons" },
        h("button", { type: "button", class: "cancel", onclick: () => dialog.close() },
          none || !question.confirm ? "Close" : "Cancel"),
        ready && !none && question.confirm && h("button", {
          type: "submit", class: question.danger ? "danger confirm" : "primary confirm",
          disabled: state.busy || (typed && state.typed.replace(/[\s,.]/g, "") !== typed.replace(/[\s,.]/g, "")),
        }, state.busy ? "Sending…" : of(question.confirm)))));
  };

  async function submit(event) {
    event.preventDefault();
    if (state.busy) return;
    const values = {};
    for (const { name, type } of question.fields ?? []) {
      const input = event.currentTarget.elements[name];
      values[name] = type === "checkbox" ? input.checked : input.value;
    }
    await during(async () => {
      state.result = await question.submit(values, state.prepared);
      dialog.close();
    });
  }

  async function during(work) {
    Object.assign(state, { busy: true, refusal: null });
    draw();
    try {
      await work();
    } catch (refusal) {
      state.refusal = refusal;
    }
    state.busy = false;
    if (dialog.isConnected) draw();
  }

  function settle() {
    const first = dialog.querySelector(".field input, .field textarea, .field select");
    const confirm = dialog.querySelector(".confirm:not(:disabled)");
    (first ?? (question.danger ? null : confirm) ?? dialog.querySelector(".cancel")).focus();
  }

  return new Promise((resolve) => {
    dialog.addEventListener("cancel", (event) => { if (state.busy && state.prepared !== undefined) event.preventDefault(); });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(state.result);
    });
    draw();
    dialog.showModal();
    settle();
    if (question.prepare) {
      during(async () => {
        state.prepared = await question.prepare();
      }).then(() => dialog.isConnected && settle());
    }
  });
}

function field({ name, label, hint, type = "text", options, value = "", required, list, ...rest }) {
  const props = { name, value, required, "aria-describedby": hint ? `hint-${name}` : null, autocomplete: "off",
    spellcheck: "false", autocapitalize: "none", ...rest };
  if (type === "checkbox") {
    return h("label", { class: "field check", key: name }, h("input", { name, type, checked: value }), h("span", null, label));
  }
  return h("label", { class: "field", key: name },
    h("span", null, label),
    options ? h("select", props, options.map(([choice, words]) => h("option", { value: choice }, words)))
      : type === "textarea" ? h("textarea", { rows: "6", ...props })
        : h("input", { type, ...props, ...(list && { list: `list-${name}` }) }),
    list && h("datalist", { id: `list-${name}` }, list.map((choice) => h("option", { value: choice }))),
    hint && h("span", { class: "hint", id: `hint-${name}` }, hint));
}

// --- Reports ----------------------------------------------------------------------------------------

let toasts = [];
let number = 0;

/** Reports an outcome. Good news goes by itself; a refusal stays until it is put away. */
export function report(level, title, detail, act) {
  const toast = { number: ++number, level, title, detail, act };
  toasts = [...toasts.slice(-4), toast];
  drawToasts();
  if (level !== "error" && !act) setTimeout(() => away(toast), REPORT_MS);
}

export function reportRefusal(refusal, act) {
  report("error", explain(refusal), null, act);
}

/** Puts the latest report away; false if there is none. */
export function putAway() {
  if (!toasts.length) return false;
  away(toasts.at(-1));
  return true;
}

function away(toast) {
  toasts = toasts.filter((other) => other !== toast);
  drawToasts();
}

function drawToasts() {
  render(document.getElementById("toasts"), toasts.map((toast) =>
    h("div", { class: `toast ${toast.level}`, key: toast.number },
      shape(toast.level === "error" ? "error" : "done"),
      h("div", { class: "toast-words" }, typeof toast.title === "string" ? h("strong", null, text(toast.title, 2_000)) : toast.title,
        toast.detail && h("span", { class: "detail" }, toast.detail)),
      toast.act && h("button", { type: "button", onclick: () => { away(toast); toast.act.run(); } }, toast.act.label),
      h("button", { type: "button", class: "quiet", "aria-label": "Put away", onclick: () => away(toast) }, "×"))));
}

/** Asks for a token. */
export function askForToken(why, signIn) {
  return ask({
    title: "Sign in",
    body: [h("p", null, why), h("p", { class: "hint" },
      "An administrator makes tokens on the server. A token stays in this page's memory, and nowhere else unless you say so.")],
    fields: [
      { name: "token", label: "Token", type: "password", required: true, placeholder: "rl_…" },
      { name: "keep", label: "Keep it until this tab is closed", type: "checkbox" },
    ],
    confirm: "Sign in",
    submit: async ({ token, keep }) => {
      await signIn(token.trim(), keep);
      return true;
    },
  });
}

