// One lock: its holders and waiters and, with permission, buttons to ask for it and to take it away.
import { Chart } from "./chart.js";
import { Parties } from "./parties.js";
import { after } from "./server.js";
import { duration, el, named, number, plain, put, where } from "./text.js";

const EVERY = 2000; // ms

const $ = (id) => document.getElementById(id);

export class Details {
  /** `server` is a `Server`, see server.js. */
  constructor(server) {
    this.server = server;
    this.dialog = $("details");
    this.said = $("details-said");
    this.orders = $("details-orders");
    this.confirm = new Confirm();
    $("details-close").addEventListener("click", () => this.dialog.close());
    $("details-ask").addEventListener("click", () => this.ask());
    this.all = $("details-take");
    this.all.addEventListener("click", () => this.take(this.found.more_holders ? null : this.found.holders));
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
  }

  open(kind, name) {
    if (this.dialog.open) return;
    this.lock = { kind, name };
    const mayBreak = this.server.session.may_break;
    if (!mayBreak) this.orders.remove();
    this.holders = new Parties(mayBreak ? (party) => this.take([party]) : null);
    this.waiters = new Parties();
    this.chart = new Chart("Waiting", number, this.server.session.history);
    $("details-name").replaceChildren(el("span", "kind", kind), " ", named(name));
    $("details-holders").replaceChildren(this.holders.node);
    $("details-waiters").replaceChildren(this.chart.node, this.waiters.node);
    put(this.said, "");
    $("details-body").hidden = true;
    this.dialog.showModal();
    this.follow(this.lock);
  }

  /** Load it again and again; the next time when the answer has come, however slow the store is. */
  async follow(lock) {
    while (lock === this.lock && this.dialog.open) {
      await this.load();
      await after(EVERY);
    }
  }

  async load() {
    const { lock } = this;
    try {
      const found = await this.server.get("lock", lock);
      if (lock === this.lock && this.dialog.open) this.show(found);
    } catch (error) {
      put(this.said, error.message);
    }
  }

  show(found) {
    this.found = found;
    const { holders, waiters, more_holders: moreHolders, more_waiters: moreWaiters } = found;
    const facts = [];
    if (found.interval) facts.push(`A token every ${found.interval} s, ${number(found.limit)} at most.`);
    else if (found.limit !== null) facts.push(`At most ${number(found.limit)} at a time.`);
    const shares = found.shares.map(([name, [held, waiting]]) => {
      const holds = found.kind === "rate_limit" ? "" : `${number(held)} held, `; // tokens are not held
      return `${plain(name)}: ${holds}${number(waiting)} waiting`;
    });
    if (found.more_shares) shares.push(`and ${number(found.more_shares)} more`);
    if (shares.length) facts.push(`Shares: ${shares.join("; ")}.`);
    if (found.closed) facts.push(`No waiter may enter for ${duration(found.closed)}.`);
    put($("details-facts"), facts.join(" "));
    put($("details-held"), holders.length ? "Held by" : "No holder");
    this.holders.show(holders, moreHolders);
    this.orders.hidden = !holders.length;
    put(this.all, holders.length + moreHolders > 1 ? "Take away from all" : "Take away");
    put($("details-waiting"), waiters.length ? `${number(waiters.length + moreWaiters)} waiting` : "No waiters");
    this.chart.node.hidden = found.history.length < 3;
    this.chart.draw(found.history, 90);
    this.waiters.show(waiters, moreWaiters);
    $("details-body").hidden = false;
  }

  async ask() {
    await this.send("ask", {}, "Asked to release.", "It has no holder any more.");
  }

  /** Take the lock from these holders, not from later ones. Without `holders`: from all that hold it. */
  async take(holders) {
    const who = holders?.length === 1 ? where(holders[0]) : "all who hold it";
    if (!(await this.confirm.ask(`Take ${plain(this.lock.name)} away from ${who}?`))) return;
    const fences = holders?.map((party) => party.fence);
    await this.send("break", fences ? { fences } : {}, "Taken away.", "They did not hold it any more.");
  }

  async send(order, more, done, notDone) {
    try {
      const answer = await this.server.post(order, { ...this.lock, ...more });
      put(this.said, answer.done ? done : notDone);
    } catch (error) {
      put(this.said, error.message);
    }
    await this.load();
  }
}

/** Asks for a confirmation. The button that has the focus, and that Enter presses, is No. */
class Confirm {
  constructor() {
    this.dialog = $("confirm");
    $("confirm-no").addEventListener("click", () => this.dialog.close("no"));
    $("confirm-yes").addEventListener("click", () => this.dialog.close("yes"));
  }

  ask(question) {
    put($("confirm-question"), question);
    this.dialog.returnValue = "no";
    this.dialog.showModal();
    return new Promise((answered) => {
      this.dialog.addEventListener("close", () => answered(this.dialog.returnValue === "yes"), { once: true });
    });
  }
}
