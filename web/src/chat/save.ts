import { nameText } from "../ui/size";

/** Have the browser save something as a file. */
export function save(name: string, blob: Blob): void {
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = nameText(name);
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
