// How values are written. Names are not trusted: they become text nodes, never HTML.

// Characters that are invisible or change the text beside them: controls, marks of direction, line ends.
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

/** Change a text only if it differs, so that nothing is laid out again in vain. */
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A name, with its odd characters written out. A <bdi>, so its direction does not affect the text around it. */
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

/** The same name as plain text, for a title. */
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

/** Where a holder or waiter runs. A detached lease does not run anywhere until it is adopted. */
export function where(party) {
  if (party.detached) return "detached";
  return plain(party.host ? `${party.host}:${party.pid}` : `client ${party.client}`);
}
