// A table that can be sorted and is shown a page at a time: a fleet of thousands must not slow the page.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

export interface Column<T> {
  title: string;
  cell: (row: T) => ComponentChildren;
  by?: (row: T) => string | number; // sorts
  numeric?: boolean;
}

interface Props<T> {
  caption: string;
  columns: Column<T>[];
  rows: T[];
  id: (row: T) => string | number;
  empty: string;
  pageSize?: number;
}

interface Order {
  column: number;
  down: boolean;
}

export function Table<T>({ caption, columns, rows, id, empty, pageSize = 25 }: Props<T>) {
  const [order, setOrder] = useState<Order | undefined>();
  const [wanted, setPage] = useState(0);
  const pages = Math.max(1, Math.ceil(rows.length / pageSize));
  const page = Math.min(wanted, pages - 1);
  const shown = sorted(rows, columns, order).slice(page * pageSize, (page + 1) * pageSize);
  const turn = (column: number) => setOrder({ column, down: order?.column === column ? !order.down : !!columns[column]?.numeric });
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={caption}>
      <table>
        <caption class="unseen">{caption}</caption>
        <thead>
          <tr>
            {columns.map((c, k) => (
              <Heading key={c.title} column={c} order={order?.column === k ? order : undefined} turn={() => turn(k)} />
            ))}
          </tr>
        </thead>
        <tbody>
          {shown.map((row) => (
            <tr key={id(row)}>
              {columns.map((c, k) =>
                k === 0 ? (
                  <th key={c.title} scope="row">
                    {c.cell(row)}
                  </th>
                ) : (
                  <td key={c.title} class={c.numeric ? "number" : undefined}>
                    {c.cell(row)}
                  </td>
                ),
              )}
            </tr>
          ))}
          {shown.length === 0 && (
            <tr>
              <td colSpan={columns.length} class="muted">
                {empty}
              </td>
            </tr>
          )}
        </tbody>
      </table>
      {pages > 1 && <Pager page={page} pages={pages} size={pageSize} rows={rows.length} what={caption} turn={setPage} />}
    </div>
  );
}

function Heading<T>({ column, order, turn }: { column: Column<T>; order: Order | undefined; turn: () => void }) {
  const sort = order ? (order.down ? "descending" : "ascending") : undefined;
  return (
    <th scope="col" class={column.numeric ? "number" : undefined} aria-sort={sort}>
      {column.by ? (
        <button type="button" class="sort" onClick={turn}>
          {column.title}
          <i aria-hidden="true">{order ? (order.down ? " ↓" : " ↑") : ""}</i>
        </button>
      ) : (
        column.title
      )}
    </th>
  );
}

function Pager({
  page,
  pages,
  size,
  rows,
  what,
  turn,
}: {
  page: number;
  pages: number;
  size: number;
  rows: number;
  what: string;
  turn: (page: number) => void;
}) {
  return (
    <nav class="pager" aria-label={`Pages of ${what}`}>
      <button type="button" disabled={page === 0} onClick={() => turn(page - 1)}>
        Previous
      </button>
      <span>
        {page * size + 1}–{Math.min(rows, (page + 1) * size)} of {rows}
      </span>
      <button type="button" disabled={page === pages - 1} onClick={() => turn(page + 1)}>
        Next
      </button>
    </nav>
  );
}

function sorted<T>(rows: T[], columns: Column<T>[], order: Order | undefined): T[] {
  const by = order && columns[order.column]?.by;
  if (!by) return rows;
  const sign = order.down ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [by(a), by(b)];
    return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
  });
}
