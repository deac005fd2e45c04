// How things are written. Names are somebody else's: they become text nodes, and nothing else does.

// What would not be seen, or would change what stands beside it: controls, marks of direction, line ends.
const ODD = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/u;
const ODD_OR_NOT = /([\p{Cc}\p{Cf}\p{Zl}\p{Zp}])/u;
const SHORT = new Map([["\n", "\\n"], ["\r", "\\r"], ["\t", "\\t"]]);

/** An element with this class, and with these texts or elements in it. */
export function el(tag, name = "", ...children) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.append(...children);
  return made;
}

/** Change a text only if it is another, so that nothing is laid out again in vain. */
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A name, with what is odd in it written out. A <bdi>: its direction stays in it. */
export function named(name) {
  const made = el("bdi", "name");
  for (const part of name.split(ODD_OR_NOT)) {
    if (part) made.append(ODD.test(part) ? el("span", "odd", written(part)) : part);
  }
  return made;
}

function written(character) {
  return SHORT.get(character) ?? `\\u{${character.codePointAt(0).toString(16)}}`;
}

/** The same as a text, for a title. */
export function plain(name) {
  return name.split(ODD_OR_NOT).map((part) => (ODD.test(part) ? written(part) : part)).join("");
}

/** Seconds, for people. */
export function duration(seconds) {
  if (seconds < 60) return `${seconds.toFixed(1)}\u00a0s`;
  const [minutes, hours] = [Math.floor(seconds / 60), Math.floor(seconds / 3600)];
  if (minutes < 60) return `${minutes}\u00a0min ${Math.floor(seconds % 60)}\u00a0s`;
  if (hours < 48) return `${hours}\u00a0h ${minutes % 60}\u00a0min`;
  return `${Math.floor(hours / 24)} days`;
}

export function number(value) {
  return value.toLocaleString("en");
}

/** Where a holder or waiter runs. */
export function where(party) {
  return plain(party.host ? `${party.host}:${party.pid}` : `client ${party.client}`);
}
