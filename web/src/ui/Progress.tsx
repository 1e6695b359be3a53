import type { ReactNode } from "react";

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
      <span className="progress-message">{message}</span>
      {known && <span className="progress-number">{Math.round(percentage)}%</span>}
      <progress aria-label={message || "Progress"} max={100} {...(known ? { value: percentage } : {})} />
    </div>
  );
}
