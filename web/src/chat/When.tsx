import type { ReactNode } from "react";

const DAY = 86_400;

/** A moment, in seconds since 1970, as short as it is clear: the time of today, the day of this year, or the date. */
export function whenText(time: number, now: number = Date.now() / 1000): string {
  const moment = new Date(time * 1000);
  const today = new Date(now * 1000);
  if (moment.toDateString() === today.toDateString())
    return moment.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
  if (now - time < 300 * DAY && moment.getFullYear() === today.getFullYear())
    return moment.toLocaleDateString(undefined, { day: "numeric", month: "short" });
  return moment.toLocaleDateString(undefined, { day: "numeric", month: "short", year: "numeric" });
}

export function When({ time }: { time: number }): ReactNode {
  const moment = new Date(time * 1000);
  if (!Number.isFinite(moment.getTime())) return null;
  return (
    <time className="when" dateTime={moment.toISOString()} title={moment.toLocaleString()}>
      {whenText(time)}
    </time>
  );
}
