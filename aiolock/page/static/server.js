// Requests to the server, and its stream of events. All addresses are beside this page's own.
import { KEY, given } from "./key.js";

const AGAIN = 3000; // ms after which a server that refused to answer is asked again
const NEXT = 500; // ms after which a stream that has ended is followed by the next
const SILENT = "The server does not answer.";

export class Server {
  session = null;
  trouble = ""; // why no data comes
  watching = false;

  /** Our permissions. Asks until it has them. */
  async begin(changed) {
    this.changed = changed;
    while (!this.session) {
      try {
        this.session = await this.get("session");
      } catch (error) {
        this.say(error.message);
        await after(AGAIN);
      }
    }
    return this.session;
  }

  async get(what, query = {}) {
    const search = new URLSearchParams(query);
    return (await asked(search.size ? `${what}?${search}` : what)).json();
  }

  async post(order, body) {
    // Another origin may not send such a header.
    const headers = { "Content-Type": "application/json", "X-Aiolock-Page": "1" };
    return (await asked(order, { method: "POST", headers, body: JSON.stringify(body) })).json();
  }

  /** Call the listener named like an event with its data, until the next `watch` or `stop`. */
  async watch(query, listeners) {
    this.stop();
    this.watching = true;
    const { signal } = (this.ending = new AbortController());
    while (!signal.aborted) {
      let pause = NEXT;
      try {
        // Not an EventSource, which cannot send a header.
        const { body } = await asked(`events?${query}`, { signal });
        await each(body, (name, data) => {
          if (signal.aborted) return;
          this.say("");
          listeners[name]?.(data);
        });
      } catch (error) {
        if (signal.aborted) return;
        this.say(error.message);
        pause = AGAIN;
      }
      await after(pause);
    }
  }

  stop() {
    this.ending?.abort();
    this.watching = false;
  }

  say(trouble) {
    if (trouble === this.trouble) return;
    this.trouble = trouble;
    this.changed();
  }
}

export function after(ms) {
  return new Promise((done) => setTimeout(done, ms));
}

async function asked(what, { headers = {}, ...more } = {}) {
  let response;
  try {
    response = await fetch(what, { ...more, headers: { ...headers, ...(given() && { [KEY]: given() }) } });
  } catch {
    throw new Error(SILENT);
  }
  if (!response.ok) throw new Error(await why(response));
  return response;
}

/** Tell of each event of a stream, until it ends. */
async function each(body, tell) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch {
      throw new Error(SILENT);
    }
    if (part.done) return;
    const blocks = (text + part.value).split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const found = /^event: (.*)\ndata: (.*)$/.exec(block); // anything else is for an EventSource
      if (found) tell(found[1], JSON.parse(found[2]));
    }
  }
}

async function why(response) {
  try {
    return sentence((await response.json()).error);
  } catch {
    return `The server answers ${response.status}.`;
  }
}

function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}
