// The key of the page, where it needs one. It comes behind the # of the address, which is never sent, and is kept
// in the storage of this tab, which belongs to this host and port alone.

export const KEY = "X-Aiolock-Key"; // the header that has it

const STORED = "aiolock key";
let key = "";

function take() {
  const here = new URLSearchParams(location.hash.slice(1)).get("key");
  if (!here) return false;
  key = here;
  try {
    sessionStorage.setItem(STORED, key);
  } catch {
    // The browser keeps nothing: then it is lost when the page is loaded again.
  }
  history.replaceState(null, "", location.pathname + location.search);
  return true;
}

/** The key; empty where none was given. */
export function given() {
  return key;
}

if (!take()) {
  try {
    key = sessionStorage.getItem(STORED) ?? "";
  } catch {
    key = "";
  }
}
// Another key is typed in behind the address of a page that is open: that loads nothing by itself.
addEventListener("hashchange", () => take() && location.reload());
