// Asking the server: JSON with fetch, and server-sent events with fetch too, because EventSource cannot send a token.

const TOKEN = "quietcount-token";
const IDLE_MS = 15000;
const WAIT_MS = [500, 1000, 2000, 4000];

export class NoToken extends Error {}

// A link may end in #token=...: it is kept for this tab and taken out of the address, which people copy.
export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) return;
  setToken(given);
  history.replaceState(history.state, "", location.pathname + location.search);
}

export function setToken(token) {
  sessionStorage.setItem(TOKEN, token);
}

function headers() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

export function address(path, query) {
  const parameters = new URLSearchParams();
  for (const [name, values] of Object.entries(query)) {
    for (const value of Array.isArray(values) ? values : [values]) if (value !== null && value !== undefined) parameters.append(name, value);
  }
  const text = parameters.toString();
  return text ? `${path}?${text}` : path;
}

export async function ask(path, query = {}) {
  const { status, body } = await asked(path, query);
  if (status === 404) return null;
  if (status !== 200) throw new Error(`the server answers with ${status}`);
  return body;
}

// The same, with what a refusal says: {status, body}.
export async function asked(path, query = {}) {
  const answer = await fetch(address(path, query), { headers: headers(), cache: "no-store", credentials: "same-origin" });
  if (answer.status === 401) throw new NoToken();
  return { status: answer.status, body: await answer.json() };
}

// A file: {status, blob, file}, or of a refusal {status, error}.
export async function fetched(url) {
  try {
    const answer = await fetch(url, { headers: headers(), cache: "no-store", credentials: "same-origin" });
    if (!answer.ok) return { status: answer.status, error: (await answer.json()).error };
    const file = /filename="([^"]*)"/.exec(answer.headers.get("Content-Disposition"))?.[1] ?? "quietcount";
    return { status: answer.status, blob: await answer.blob(), file };
  } catch {
    return { status: 0, error: "the dashboard does not answer" };
  }
}

// One stream of events that is opened again whenever it ends.
//   onEvent(name, data)   each event
//   onOpen(again)         the server has answered; again: it had done so before
//   onLost()              it does not answer any more
export class Events {
  constructor(path, query, { onEvent, onOpen, onLost, onNoToken }) {
    this.address = address(path, query);
    this.on = { onEvent, onOpen, onLost, onNoToken };
    this.last = null;
    this.closed = false;
    this.stop = new AbortController();
    this.run();
  }

  close() {
    this.closed = true;
    this.stop.abort();
  }

  async run() {
    let tries = 0;
    let opened = false;
    while (!this.closed) {
      try {
        this.stop = new AbortController();
        this.watch();
        const extra = this.last ? { "Last-Event-ID": this.last } : {};
        const answer = await fetch(this.address, { headers: { ...headers(), ...extra }, cache: "no-store", signal: this.stop.signal });
        if (answer.status === 401) {
          this.close();
          clearTimeout(this.timer);
          this.on.onNoToken();
          return;
        }
        if (!answer.ok || !answer.body) throw new Error(`${answer.status}`);
        tries = 0;
        if (!this.closed) this.on.onOpen(opened);
        opened = true;
        await this.read(answer.body.getReader());
      } catch {
        // whatever it was, it is tried again
      }
      clearTimeout(this.timer);
      if (this.closed) return;
      this.on.onLost();
      const wait = WAIT_MS[Math.min(tries++, WAIT_MS.length - 1)];
      await new Promise((resume) => setTimeout(resume, wait * (0.8 + 0.4 * Math.random())));
    }
  }

  // The server says something every five seconds; a connection that is silent for longer is a dead one.
  watch() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.stop.abort(), IDLE_MS);
  }

  async read(reader) {
    const decoder = new TextDecoder();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      this.watch();
      text += decoder.decode(value, { stream: true });
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        this.take(text.slice(0, end));
        text = text.slice(end + 2);
      }
    }
  }

  take(block) {
    let name = "message";
    let data = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
      else if (line.startsWith("id: ")) this.last = line.slice(4);
    }
    if (data && !this.closed) this.on.onEvent(name, JSON.parse(data));
  }
}
