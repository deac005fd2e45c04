// The server: asked, told, and listened to. All addresses are beside this page's own.

const AGAIN = 3000; // ms after which a server that did not want to answer is asked again

export class Server {
  session = null;
  trouble = ""; // why nothing comes
  watching = false;

  /** What we may, and the token that says that an order comes from this page. Asked for until it is there. */
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

  /** Call what is named like an event with what comes, until there is something else to watch. */
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
      // A stream that has ended is followed by the next. Where that was refused, we are to ask again.
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

  /** Why a stream was refused: that, an EventSource does not tell. */
  async reason(address, source) {
    const ending = new AbortController();
    try {
      const response = await fetch(address, { signal: ending.signal });
      if (!response.ok && source === this.source) this.say(await why(response));
    } catch {
      return; // it has been said that it does not answer
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
