// The stream of the daemon's looks, opened again whenever it breaks.
import type { Message } from "./fleet";

const patience = 4000; // without a word, in milliseconds: the daemon says something every second
const pause = 1000; // before the next attempt

export interface Listener {
  message(m: Message): void;
  lost(why: string): void;
}

// watch calls its listener for as long as the page is open.
export function watch(listener: Listener): void {
  const source = new EventSource("/events");
  let next: number | undefined;
  const again = (why: string) => {
    if (next !== undefined) return;
    source.close();
    clearTimeout(silence);
    listener.lost(why);
    next = window.setTimeout(() => watch(listener), pause);
  };
  let silence = window.setTimeout(() => again("the daemon says nothing"), patience);
  source.onmessage = (event: MessageEvent<string>) => {
    clearTimeout(silence);
    silence = window.setTimeout(() => again("the daemon says nothing"), patience);
    listener.message(JSON.parse(event.data) as Message);
  };
  source.onerror = () => void reason().then(again);
}

// reason finds out why there is no stream. Who is not logged in any more is led to the login.
async function reason(): Promise<string> {
  try {
    const answer = await fetch("/events", { signal: AbortSignal.timeout(patience) });
    void answer.body?.cancel();
    if (answer.status === 401) location.assign("/login");
    return answer.ok ? "the stream broke" : (await answer.text()).trim();
  } catch {
    return "the daemon does not answer";
  }
}
