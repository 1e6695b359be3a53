import type { ReactNode } from "react";
import { Linked } from "./Linked";

export function Progress({
  message,
  percentage,
}: {
  message: string;
  percentage?: number | null;
}): ReactNode {
  const known = typeof percentage === "number";
  return (
    <div className="progress">
      <span className="progress-message">
        <Linked text={message} />
      </span>
      {known && <span className="progress-number">{Math.round(percentage)}%</span>}
      <progress aria-label={message || "Progress"} max={100} {...(known ? { value: percentage } : {})} />
    </div>
  );
}
