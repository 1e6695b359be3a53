import { type ReactNode, useEffect, useState } from "react";
import { announce } from "./Announcer";
import { Icon } from "./Icon";

export function CopyButton({ text, label }: { text: string; label: string }): ReactNode {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return;
    const timer = setTimeout(() => setCopied(false), 1500);
    return () => clearTimeout(timer);
  }, [copied]);
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(true);
      announce("Copied");
    } catch {
      announce("Could not copy");
    }
  };
  return (
    <button
      type="button"
      className="icon-button"
      aria-label={label}
      title={label}
      onClick={() => void copy()}
    >
      <Icon name={copied ? "check" : "copy"} />
    </button>
  );
}
