/** Pictures that are to be sent, read into memory; what the server would refuse is refused here. */
import type { NewFile } from "./store";

export const TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
export const MOST_FILES = 4;
const MOST_BYTES = 4 * 1024 * 1024;

/** Those that can be sent, and why others cannot. */
export async function readFiles(
  files: readonly File[],
  room: number,
): Promise<{ read: NewFile[]; refused: string | null }> {
  const read: NewFile[] = [];
  let refused: string | null = null;
  for (const file of files) {
    if (!TYPES.includes(file.type)) refused = `${file.name} is not a PNG, JPEG, GIF or WebP picture.`;
    else if (file.size > MOST_BYTES) refused = `${file.name} is larger than 4 MB.`;
    else if (file.size === 0) refused = `${file.name} is empty.`;
    else if (read.length >= room) refused = `A message has ${MOST_FILES} pictures at most.`;
    else {
      const { name, type, size } = file;
      read.push({ info: { id: "", name: plain(name), type, size }, data: await base64(file) });
    }
  }
  return { read, refused };
}

/** A name that the server takes. */
const plain = (name: string): string => name.replace(/\p{C}/gu, "").slice(0, 200) || "picture";

async function base64(file: File): Promise<string> {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000)
    text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}
