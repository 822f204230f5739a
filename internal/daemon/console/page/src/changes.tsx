// The last changes: who made them, what they changed, and the way back.
import { useState } from "preact/hooks";
import type { Change } from "./fleet";
import { clock, moment } from "./format";
import { useAnswer } from "./once";

export function Changes({ changes, none }: { changes: Change[]; none: string }) {
  if (none) return <p class="muted">{none}</p>;
  if (!changes.length) return <p class="muted">Nothing was changed yet.</p>;
  const newest = changes[0]!.revision ?? 0;
  return (
    <ol class="changes" aria-label="Last changes, the newest first" tabIndex={0}>
      {changes.map((c) => (
        <li key={`${c.time} ${c.revision} ${c.by}`}>
          <time dateTime={new Date(c.time).toISOString()}>{moment(c.time)}</time>
          <div>
            <b>{c.by}</b>
            {c.from && <small>from {c.from}</small>}
            {c.revision && <small>revision {c.revision}</small>}
          </div>
          <div>
            {c.comment && <q>{c.comment}</q>}
            <Lines lines={c.changes} />
            <Back change={c} newest={newest} />
          </div>
        </li>
      ))}
    </ol>
  );
}

function Lines({ lines }: { lines: string[] }) {
  return (
    <ul class="plain">
      {lines.map((line, k) => (
        <li key={k}>{line}</li>
      ))}
    </ul>
  );
}

// Back is the whole difference and how to undo it, asked for when it is opened, and again when the fleet has changed.
function Back({ change, newest }: { change: Change; newest: number }) {
  const [open, setOpen] = useState(false);
  if (!change.back || !change.revision) return <small>No way back: the fleet before this change is not kept.</small>;
  const command = `ballast ctl fleet rollback ${change.back}`;
  return (
    <details onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary>Whole difference and rollback</summary>
      <h3>
        Revision {change.back} to {change.revision}
      </h3>
      <Difference path={open ? `/diff?from=${change.back}&to=${change.revision}` : ""} />
      <h3>Undo this change and all after it</h3>
      <p>
        <code>{command}</code> {navigator.clipboard && <Copy text={command} />}
      </p>
      <p class="muted">It shows its plan and asks first. As of now it would change:</p>
      <Difference path={open ? `/diff?from=0&to=${change.back}` : ""} version={newest} />
    </details>
  );
}

interface Changed {
  changes: string[];
  more?: number;
}

function Difference({ path, version }: { path: string; version?: number }) {
  const { answer, at, error } = useAnswer<Changed>(path, version);
  return (
    <div aria-live="polite">
      {error && <p>Not known: {error}</p>}
      {!answer && !error && <p class="muted">Asking the controller.</p>}
      {answer && (
        <>
          <Lines lines={answer.changes.length ? answer.changes : ["Nothing."]} />
          <small>
            {answer.more ? `And ${answer.more} more lines: ballast ctl fleet diff. ` : ""}As of {clock(at)}.
          </small>
        </>
      )}
    </div>
  );
}

function Copy({ text }: { text: string }) {
  const [done, setDone] = useState("");
  const copy = () =>
    navigator.clipboard.writeText(text).then(
      () => setDone("Copied"),
      () => setDone("The browser refuses: select the text"),
    );
  return (
    <>
      <button type="button" onClick={copy} aria-label={`Copy ${text}`}>
        Copy
      </button>{" "}
      <span role="status">{done}</span>
    </>
  );
}
