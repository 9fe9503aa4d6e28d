// Keeps the overview coming from the server, and knows how fresh it is.

import { events } from "./api.js";

// The server sends every two seconds. After this long without anything the connection is dead, whatever it says.
const SILENCE_MS = 10_000;
const LONGEST_WAIT_MS = 15_000;

export const live = {
  /** "live", "paused", "reconnecting" or "asleep" (the tab is hidden). */
  state: "reconnecting",
  /** When something was last heard, by this machine's clock. */
  heard: null,
  overview: null,
  why: null,
};

let connection = null;
let told = () => {};
let paused = false;
let barred = false;

/** Begins to listen; `onTold` is called with what has changed: "overview", "state" or "refused". */
export function listen(onTold) {
  told = onTold;
  document.addEventListener("visibilitychange", settle);
  settle();
}

export function setPaused(pause) {
  paused = pause;
  settle();
}

export const isPaused = () => paused;

/** Whether figures should be asked for at all now. */
export const wanted = () => !paused && document.visibilityState === "visible";

/** Connects anew, as somebody else perhaps. */
export function reconnect() {
  disconnect();
  barred = false;
  settle();
}

/** Stops listening until `reconnect`. */
export function disconnect() {
  barred = true;
  connection?.abort();
  connection = null;
}

function settle() {
  if (wanted() && !connection && !barred) {
    connection = new AbortController();
    follow(connection);
  } else if (!wanted()) {
    connection?.abort();
    connection = null;
    note(paused ? "paused" : "asleep");
  }
}

async function follow(mine) {
  for (let tries = 0; mine === connection; tries++) {
    note("reconnecting");
    const attempt = new AbortController();
    let begun = Date.now();
    const watch = setInterval(() => {
      if (mine !== connection || Date.now() - begun > SILENCE_MS) attempt.abort();
    }, 1_000);
    const stop = () => attempt.abort();
    mine.signal.addEventListener("abort", stop);
    try {
      for await (const { event, data } of events(attempt.signal)) {
        begun = Date.now();
        if (mine !== connection) return;
        live.heard = Date.now();
        live.why = null;
        tries = 0;
        note("live");
        if (event === "overview") {
          live.overview = data;
          told("overview");
        }
      }
    } catch (error) {
      if (mine !== connection) return;
      live.why = error.message;
      if (error.status === 401) told("refused");
    } finally {
      clearInterval(watch);
      mine.signal.removeEventListener("abort", stop);
    }
    // Some chance in it, so that a server that comes back is not met by everybody at once.
    const wait = Math.min(LONGEST_WAIT_MS, 1_000 * 2 ** tries) * (0.5 + Math.random() / 2);
    if (mine === connection) note("reconnecting");
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

function note(state) {
  if (live.state === state) return;
  live.state = state;
  told("state");
}
