// The table of locks. A lock keeps its row while it is shown, so that nothing flickers and focus stays.
import { duration, el, named, number, put, where } from "./text.js";

const LABELS = ["Name", "Held by", "Held for", "Lease left", "Waiting", "Longest wait"];

export class Table {
  /** `open` is called with the kind and the name of the lock whose details are wanted. */
  constructor(body, open) {
    this.body = body;
    this.open = open;
    this.rows = new Map();
  }

  show(locks) {
    const focused = document.activeElement;
    const longest = Math.max(5, ...locks.map((lock) => lock.waiting));
    const rows = new Map();
    for (const lock of locks) {
      const key = JSON.stringify([lock.kind, lock.name]);
      const row = this.rows.get(key) ?? new Row(lock, this.open);
      row.show(lock, longest);
      rows.set(key, row);
    }
    for (const [key, row] of this.rows) if (!rows.has(key)) row.node.remove();
    this.rows = rows;
    let place = this.body.firstElementChild;
    for (const { node } of rows.values()) {
      if (node === place) place = place.nextElementSibling;
      else this.body.insertBefore(node, place);
    }
    if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
  }
}

class Row {
  constructor(lock, open) {
    this.button = el("button", "open", named(lock.name));
    this.button.type = "button";
    this.marks = el("span", "marks");
    this.held = el("td", "number");
    this.lease = el("td", "number");
    this.longest = el("td", "number");
    this.label = el("span", "label");
    this.where = el("span", "where");
    this.bar = el("span", "bar");
    this.waiting = el("span");
    const what = el("div", "", el("span", "kind", lock.kind), el("div", "", this.button, this.marks));
    const name = el("td", "what", what);
    const holder = el("td", "holder", this.label, " ", this.where);
    const queue = el("td", "queue", this.bar, this.waiting);
    this.node = el("tr", "", name, holder, this.held, this.lease, queue, this.longest);
    this.node.setAttribute("role", "row");
    [...this.node.children].forEach((cell, place) => {
      cell.setAttribute("role", "cell");
      cell.dataset.label = LABELS[place];
    });
    this.node.addEventListener("click", () => open(lock.kind, lock.name));
  }

  show(lock, longest) {
    const { holder } = lock;
    put(this.label, holder?.label ?? "");
    put(this.where, holder ? where(holder) + beside(lock) : "–");
    put(this.held, holder ? duration(lock.held) : "–");
    put(this.lease, holder ? duration(lock.lease) : "–");
    put(this.waiting, lock.waiting ? number(lock.waiting) : "–");
    put(this.longest, lock.waiting ? duration(lock.longest) : "–");
    this.bar.style.setProperty("--part", lock.waiting / longest);
    this.node.classList.toggle("free", !holder);
    this.mark(marks(lock));
  }

  mark(found) {
    const said = found.map(([, text]) => text).join("|");
    if (said === this.said) return;
    this.said = said;
    this.marks.replaceChildren(...found.map(([name, text]) => el("span", `mark ${name}`, text)));
  }
}

function beside(lock) {
  const others = lock.holders > 1 ? ` and ${number(lock.holders - 1)} more` : "";
  const permits = lock.limit !== null && lock.taken ? `, ${lock.taken} of ${lock.limit}` : "";
  return others + permits;
}

function marks(lock) {
  const found = [];
  if (lock.blocked) found.push(["bad", "deadlock"]);
  if (lock.holder && !lock.holder.alive) found.push(["bad", "holder does not answer"]);
  else if (lock.dead) found.push(["warn", `${number(lock.dead)} do not answer`]);
  if (lock.growth) found.push(["warn", `queue grows: +${number(lock.growth)}`]);
  if (lock.closed) found.push(["", `closed for ${duration(lock.closed)}`]);
  return found;
}
