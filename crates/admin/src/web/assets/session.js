// Who is looking, what they may do, and whether they mean to: reading is the default, and operating has to be
// switched on.

import { get, setToken } from "./api.js";

const KEPT = "roundelay.token";
const RANK = { none: 0, read: 1, operate: 2, admin: 3 };

export const session = {
  actor: "anonymous", scope: "none", name: "", version: "", ledger: "", broker: "",
  signedIn: false, operating: false,
};

export const allows = (scope) => (RANK[session.scope] ?? 0) >= RANK[scope];

/** Asks the server who we are, with the token that this tab has kept, if any. */
export async function begin() {
  const kept = readKept();
  setToken(kept);
  try {
    await know(Boolean(kept));
  } catch (refusal) {
    if (!kept || refusal.status !== 401) throw refusal;
    // It has run out, or was revoked, since it was kept.
    signOut();
    await know(false);
  }
}

/** Goes on with this token, if the server knows it. */
export async function signIn(token, keep) {
  setToken(token);
  try {
    await know(true);
  } catch (refusal) {
    setToken(session.signedIn ? session.token : null);
    throw refusal;
  }
  session.token = token;
  if (keep) store(token);
  else store(null);
}

/** Forgets the token. Ask `begin` afterwards what is left. */
export function signOut() {
  setToken(null);
  store(null);
  Object.assign(session, { signedIn: false, operating: false, token: null });
}

async function know(signedIn) {
  const { actor, scope, version, ledger, broker, name } = await get("session");
  Object.assign(session, { actor, scope, version, ledger, broker, name, signedIn });
  if (!allows("operate")) session.operating = false;
}

// Storage may be switched off; then a token lasts as long as the page.
function readKept() {
  try {
    session.token = sessionStorage.getItem(KEPT);
  } catch {
    session.token = null;
  }
  return session.token;
}

function store(token) {
  try {
    if (token) sessionStorage.setItem(KEPT, token);
    else sessionStorage.removeItem(KEPT);
  } catch { /* see above */ }
}
