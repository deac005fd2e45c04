// Requests to the server, and its stream of events. All addresses are beside this page's own.

const AGAIN = 3000; // ms after which a server that refused to answer is asked again

export class Server {
  session = null;
  trouble = ""; // why no data comes
  watching = false;

  /** Our permissions, and the token that proves that an order comes from this page. Asks until it has them. */
  async begin(changed) {
    this.changed = changed;
    while (!this.session) {
      try {
        this.session = await this.get("session");
      } catch (error) {
        this.say(error.message);
        await new Promise((after) => setTimeout(after, AGAIN));
      }
    }
    return this.session;
  }

  async get(what, query = {}) {
    const search = new URLSearchParams(query);
    return answered(fetch(search.size ? `${what}?${search}` : what));
  }

  async post(order, body) {
    const headers = { "Content-Type": "application/json", "X-Aiolock-Token": this.session.token };
    return answered(fetch(order, { method: "POST", headers, body: JSON.stringify(body) }));
  }

  /** Call the listener named like an event with its data, until the next `watch` or `stop`. */
  watch(query, listeners) {
    this.stop();
    this.watching = true;
    const address = `events?${query}`;
    const source = new EventSource(address);
    this.source = source;
    for (const [name, listener] of Object.entries(listeners)) {
      source.addEventListener(name, (event) => {
        this.say("");
        listener(JSON.parse(event.data));
      });
    }
    source.addEventListener("error", () => {
      // The browser replaces a stream that has ended. If that is refused, it stops, and we ask again.
      this.say("The server does not answer.");
      if (source.readyState !== EventSource.CLOSED) return;
      this.reason(address, source);
      this.timer = setTimeout(() => this.watch(query, listeners), AGAIN);
    });
  }

  stop() {
    clearTimeout(this.timer);
    this.source?.close();
    this.watching = false;
  }

  /** Find out why a stream was refused: an EventSource does not tell. */
  async reason(address, source) {
    const ending = new AbortController();
    try {
      const response = await fetch(address, { signal: ending.signal });
      if (!response.ok && source === this.source) this.say(await why(response));
    } catch {
      return; // the page already says that the server does not answer
    } finally {
      ending.abort();
    }
  }

  say(trouble) {
    if (trouble === this.trouble) return;
    this.trouble = trouble;
    this.changed();
  }
}

async function answered(asking) {
  let response;
  try {
    response = await asking;
  } catch {
    throw new Error("The server does not answer.");
  }
  if (!response.ok) throw new Error(await why(response));
  return response.json();
}

async function why(response) {
  try {
    return sentence((await response.json()).error);
  } catch {
    return `The server says ${response.status}.`;
  }
}

function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}
