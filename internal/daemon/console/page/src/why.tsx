// Why a server gets what it gets, asked for while it is shown.
import { useEffect, useRef } from "preact/hooks";
import type { Server } from "./fleet";
import { clock } from "./format";
import { useAnswer } from "./once";

const period = 2000;

interface Reasons {
  at: number; // when the daemon looked
  factors: { name: string; text: string }[];
}

export function Why({ server, close }: { server: Server; close: () => void }) {
  const path = `/server?service=${encodeURIComponent(server.service)}&id=${server.id}`;
  const { answer, error } = useAnswer<Reasons>(path, 0, period);
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => heading.current?.focus(), [path]);
  return (
    <section class="why" aria-label={`Why ${server.name} gets what it gets`}>
      <h3 tabIndex={-1} ref={heading}>
        Why {server.name} of {server.service} gets what it gets
      </h3>
      {error && <p>Not known{answer ? " any more" : ""}: {error}</p>}
      {!answer && !error && <p class="muted">Asking the daemon.</p>}
      {answer && (
        <dl>
          {answer.factors.map((f) => (
            <div key={f.name}>
              <dt>{f.name}</dt>
              <dd>{f.text}</dd>
            </div>
          ))}
        </dl>
      )}
      <p>
        {answer && <small>As of {clock(answer.at)}. </small>}
        <button type="button" onClick={close}>
          Close
        </button>
      </p>
    </section>
  );
}
