/** A file that the person chooses; in JSON it is base64. */
import { type ReactNode, useRef, useState } from "react";
import { Icon } from "../ui/Icon";
import { sizeText } from "../ui/size";
import { type FieldProps, useForm } from "./context";
import { Labelled } from "./Field";
import { Unreadable } from "./schema";

/** Bytes of the largest file: a message to the server has 16 MiB at most, and base64 takes a third more. */
export const LARGEST = 10_000_000;

export function FileField(props: FieldProps): ReactNode {
  const { disabled, faults } = useForm();
  const { schema, value, path } = props;
  const [chosen, setChosen] = useState<File | null>(null);
  const latest = useRef<File | null>(null);
  const hasFile = typeof value === "string";
  const choose = async (file: File | null): Promise<void> => {
    latest.current = file;
    setChosen(file);
    if (file === null) return props.onChange(undefined);
    const refusal = refusalOf(file, schema.maxLength);
    props.onChange(new Unreadable(file.name, refusal ?? "The file is being read"));
    if (refusal !== null) return;
    const read = await base64Of(file).catch(() => new Unreadable(file.name, "The file cannot be read"));
    if (latest.current !== file) return; // another one was chosen meanwhile
    const isUrl = [schema.format, schema.contentEncoding].includes("base64url");
    props.onChange(isUrl && typeof read === "string" ? read.replaceAll("+", "-").replaceAll("/", "_") : read);
  };
  return (
    <Labelled of={props}>
      {({ id, describedBy }) => (
        <>
          <input
            id={id}
            type="file"
            // Chosen again, the same file counts as a change, too.
            key={chosen === null ? "none" : "some"}
            accept={schema.contentMediaType}
            disabled={disabled}
            aria-describedby={describedBy}
            aria-invalid={faults.has(path) || undefined}
            hidden={chosen !== null || hasFile}
            onChange={(event) => void choose(event.target.files?.[0] ?? null)}
          />
          {(chosen !== null || hasFile) && (
            <span className="file">
              <Icon name="file" />
              <span className="file-name">{chosen?.name ?? "A file"}</span>
              <span className="muted">
                {sizeText(chosen?.size ?? Math.floor((String(value).length * 3) / 4))}
              </span>
              <button
                type="button"
                className="button button-small"
                disabled={disabled}
                onClick={() => void choose(null)}
              >
                Remove<span className="sr-only"> {props.label}</span>
              </button>
            </span>
          )}
        </>
      )}
    </Labelled>
  );
}

function refusalOf({ size }: File, maxLength: number | undefined): string | null {
  const most = Math.min(LARGEST, maxLength ?? LARGEST);
  return size > most ? `The file has ${sizeText(size)}: ${sizeText(most)} is the most` : null;
}

function base64Of(file: File): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result).replace(/^[^,]*,?/, ""));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
