/** Icons, drawn here on a grid of 24. They say nothing by themselves: what has only an icon needs a label. */
import type { ReactNode } from "react";

const PATHS = {
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  cross: "M6 6l12 12M18 6L6 18",
  check: "M5 12.5l4.5 4.5L19 7.5",
  alert: "M12 8v5M12 16.5v.01M12 3.5l9 16H3z",
  question:
    "M9.2 9.2a2.9 2.9 0 1 1 4.3 2.6c-.9.5-1.5 1.1-1.5 2.2M12 17.2v.01M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18z",
  chevron: "M9 6l6 6-6 6",
  back: "M15 6l-6 6 6 6",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M8 8h8v8H8z",
  trash: "M5 7h14M10 7V4.5h4V7M7 7l.8 12.5h8.4L17 7M10.3 10.5v6M13.7 10.5v6",
  pencil: "M5 19l1-4.5L15.5 5 19 8.5 9.5 18zM13.5 7l3.5 3.5",
  more: "M5.5 12h.01M12 12h.01M18.5 12h.01",
  clip: "M18.5 11.5l-6.8 6.8a4 4 0 0 1-5.7-5.7l7.4-7.4a2.7 2.7 0 0 1 3.8 3.8l-7.4 7.4a1.3 1.3 0 0 1-1.9-1.9l6.3-6.3",
  download: "M12 4v11M7 10.5l5 5 5-5M5 20h14",
  copy: "M9 9h10.5v10.5H9zM15 9V4.5H4.5V15H9",
  chat: "M4.5 5.5h15v10.5H12l-4.5 4v-4h-3z",
  tool: "M14.5 6.2a4.2 4.2 0 0 0-5.3 5.3L4 16.7 7.3 20l5.2-5.2a4.2 4.2 0 0 0 5.3-5.3l-2.6 2.6-2.7-.6-.6-2.7z",
  machine: "M8.5 4h7v4.5h-7zM3.5 15.5h7V20h-7zM13.5 15.5h7V20h-7zM12 8.5V12M7 15.5V12h10v3.5",
  fork: "M6 4v16M6 14c0-4 11-2.5 11-7.5M13.8 9l3.2-3.2L20.2 9",
  calls: "M3.5 12h4l2.5-6.5 4 13 2.5-6.5h4",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2.5v2.2M12 19.3v2.2M2.5 12h2.2M19.3 12h2.2M5.3 5.3l1.5 1.5M17.2 17.2l1.5 1.5M5.3 18.7l1.5-1.5M17.2 6.8l1.5-1.5",
  moon: "M20 14.2A8.4 8.4 0 0 1 9.8 4 8.4 8.4 0 1 0 20 14.2z",
  system: "M12 20.5a8.5 8.5 0 1 0 0-17zM12 3.5a8.5 8.5 0 1 0 0 17z",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM16.2 16.2L20.5 20.5",
  play: "M8 5.5v13l10.5-6.5z",
  open: "M13.5 5H19v5.5M19 5l-8.5 8.5M16 14v5H5V8h5",
  file: "M6.5 3.5h7l4 4v13h-11zM13.5 3.5v4h4",
  book: "M5 4.5h6a1 1 0 0 1 1 1v14a1 1 0 0 0-1-1H5zM19 4.5h-6a1 1 0 0 0-1 1v14a1 1 0 0 1 1-1h6z",
  bell: "M6 16.5V11a6 6 0 1 1 12 0v5.5l1.5 1.5h-15zM10 20.5h4",
  key: "M8 19a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM11 12.2L19.5 4M15.5 8l3 3M17.5 6l2 2",
  clock: "M12 20.5a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17zM12 7.5V12l3 2",
  again: "M19.5 12a7.5 7.5 0 1 1-2.4-5.5M19.5 4v4.5H15",
  plane:
    "M21.5 3.2c-1-1-2.6-.8-3.6.2l-3.3 3.3-9-2.6-1.4 1.4 7.3 4.3-3.6 3.7-2.7-.4-1.1 1.1 3.6 2 2 3.6 1.1-1.1-.4-2.7 3.7-3.6 4.3 7.3 1.4-1.4-2.6-9 3.3-3.3c1-1 1.9-1.9 1-2.8z",
} as const;

export type IconName = keyof typeof PATHS;

const FILLED = new Set<IconName>(["stop", "play", "plane"]);

export function Icon({ name, className = "" }: { name: IconName; className?: string }): ReactNode {
  return (
    <svg
      className={`icon ${FILLED.has(name) ? "icon-filled" : ""} ${className}`}
      viewBox="0 0 24 24"
      aria-hidden="true"
    >
      <path d={PATHS[name]} />
    </svg>
  );
}

/** The sign of midcall: a circle that stops in the middle, for a question. */
export function Sign(): ReactNode {
  return (
    <svg className="sign" viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="9" />
      <path d="M8 16a8 8 0 0 1 13.9-5.4M24 16a8 8 0 0 1-13.9 5.4" />
      <circle cx="16" cy="16" r="2.4" />
    </svg>
  );
}
