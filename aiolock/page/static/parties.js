// A list of holders or waiters. Each keeps its line while it is shown, so that no button moves under a finger.
import { duration, el, number, plain, put, where } from "./text.js";

export class Parties {
  /** `take`, if given, is called with the party that is to lose the lock. */
  constructor(take = null) {
    this.take = take;
    this.lines = new Map();
    this.list = el("ol", "parties");
    this.more = el("p");
    this.node = el("div", "", this.list, this.more);
  }

  show(parties, more) {
    const lines = new Map();
    for (const party of parties) {
      const key = `${party.client}#${party.seq}#${party.fence}`;
      const line = this.lines.get(key) ?? new Line(party, this.take);
      line.show(party);
      lines.set(key, line);
    }
    for (const [key, line] of this.lines) if (!lines.has(key)) line.node.remove();
    this.lines = lines;
    let place = this.list.firstElementChild;
    for (const { node } of lines.values()) {
      if (node === place) place = place.nextElementSibling;
      else this.list.insertBefore(node, place);
    }
    put(this.more, more ? `and ${number(more)} more` : "");
  }
}

class Line {
  constructor(party, take) {
    this.label = el("strong");
    this.facts = el("span", "facts");
    this.dead = el("span", "mark bad", "does not answer");
    const place = party.detached ? where(party) : `${where(party)}#${party.seq}`;
    this.node = el("li", "", this.label, " ", el("span", "where", place), " ", this.facts, " ", this.dead);
    if (take) {
      this.button = el("button", "", "Take away");
      this.button.type = "button";
      this.button.addEventListener("click", () => take(party));
      this.node.append(this.button);
    }
  }

  show(party) {
    const facts = [`for ${duration(party.since)}`];
    const lease = party.detached ? `${duration(party.lease)} left` : `lease ${duration(party.lease)}`;
    if (!party.place) facts.push(lease, `fence ${party.fence}`);
    if (party.as) facts.push(party.as);
    put(this.facts, facts.join(", "));
    put(this.label, plain(party.label));
    this.dead.hidden = party.alive;
    if (party.place) this.node.value = party.place;
  }
}
