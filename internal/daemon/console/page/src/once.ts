// What the page asks for once, as somebody opens it.
import { useEffect, useState } from "preact/hooks";

export interface Asked<T> {
  answer?: T;
  at: number; // when the answer came; 0: none has yet
  error: string; // why the newest is not known
  busy: boolean; // it is asked for just now
}

const nothing = { at: 0, error: "", busy: false };

// useAnswer asks for a path whenever it or version changes, and every so many milliseconds if every is not 0. An empty path is not asked for. An answer
// that is followed by an error stays, with its time.
export function useAnswer<T>(path: string, version = 0, every = 0): Asked<T> {
  const [asked, setAsked] = useState<Asked<T> & { path: string }>({ path, ...nothing });
  useEffect(() => {
    if (!path) return;
    const ends = new AbortController();
    let next: number | undefined;
    const ask = async () => {
      setAsked((before) => (before.path === path ? { ...before, busy: true } : { path, ...nothing, busy: true }));
      try {
        const answer = (await got(path, ends.signal)) as T;
        setAsked({ path, answer, at: Date.now(), error: "", busy: false });
      } catch (e) {
        if (ends.signal.aborted) return;
        const error = e instanceof Error ? e.message : String(e);
        setAsked((before) => (before.path === path ? { ...before, error, busy: false } : { path, ...nothing, error }));
      }
      if (every && !ends.signal.aborted) next = window.setTimeout(ask, every);
    };
    void ask();
    return () => {
      ends.abort();
      clearTimeout(next);
    };
  }, [path, version, every]);
  return asked.path === path ? asked : nothing;
}

async function got(path: string, signal: AbortSignal): Promise<unknown> {
  const answer = await fetch(path, { signal }).catch((e: unknown) => {
    throw signal.aborted ? e : new Error("the daemon does not answer");
  });
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}
