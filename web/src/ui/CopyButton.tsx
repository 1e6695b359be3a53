import { type ReactNode, useEffect, useState } from "react";
import { announce } from "./Announcer";
import { Icon } from "./Icon";

export function CopyButton({ text, label }: { text: string; label: string }): ReactNode {
  const [copied, setCopied] = useState<"yes" | "no" | null>(null);
  useEffect(() => {
    if (copied === null) return;
    const timer = setTimeout(() => setCopied(null), 1500);
    return () => clearTimeout(timer);
  }, [copied]);
  const copy = async (): Promise<void> => {
    try {
      await toClipboard(text);
      setCopied("yes");
      announce("Copied");
    } catch {
      setCopied("no");
      announce("Could not copy");
    }
  };
  return (
    <button
      type="button"
      className="icon-button"
      aria-label={label}
      title={copied === "no" ? "Could not copy" : label}
      onClick={() => void copy()}
    >
      <Icon name={copied === null ? "copy" : copied === "yes" ? "check" : "alert"} />
    </button>
  );
}

/** A page that came over plain HTTP from another machine has no clipboard, but can copy what is selected. */
async function toClipboard(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const give = (event: ClipboardEvent): void => {
    event.clipboardData?.setData("text/plain", text);
    event.preventDefault();
  };
  document.addEventListener("copy", give);
  try {
    if (!document.execCommand("copy")) throw new Error("Could not copy");
  } finally {
    document.removeEventListener("copy", give);
  }
}
