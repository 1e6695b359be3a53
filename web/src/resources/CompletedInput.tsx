/** A field for text, with what the server suggests while the person types. */
import { type ReactNode, useEffect, useId, useState } from "react";
import { mcp, type Reference } from "../api/mcp";

const PAUSE = 150;

export function CompletedInput(props: {
  of: Reference;
  name: string;
  label: string;
  about?: string | undefined;
  required: boolean;
  /** All arguments, this one among them. */
  values: Record<string, string>;
  fault: string | null;
  onChange: (value: string) => void;
}): ReactNode {
  const { of, name, values } = props;
  const id = useId();
  const [suggested, setSuggested] = useState<readonly string[]>([]);
  const [isWanted, setWanted] = useState(false);
  const { [name]: value = "", ...others } = values;
  const context = JSON.stringify(others);
  const reference = JSON.stringify(of);
  useEffect(() => {
    if (!isWanted) return;
    let current = true;
    const timer = setTimeout(() => {
      mcp
        .complete(
          JSON.parse(reference) as Reference,
          name,
          value,
          JSON.parse(context) as Record<string, string>,
        )
        .then(
          (found) => current && setSuggested(found),
          () => {}, // without suggestions it can be filled in all the same
        );
    }, PAUSE);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [isWanted, reference, name, value, context]);
  return (
    <div className="field">
      <label htmlFor={id} className="field-label">
        {props.label}
        {!props.required && <span className="field-mark"> optional</span>}
      </label>
      {props.about && (
        <p className="field-help" id={`${id}-help`}>
          {props.about}
        </p>
      )}
      <input
        id={id}
        type="text"
        list={`${id}-list`}
        value={value}
        autoComplete="off"
        spellCheck={false}
        aria-required={props.required || undefined}
        aria-invalid={props.fault !== null || undefined}
        aria-describedby={
          [props.about ? `${id}-help` : "", props.fault ? `${id}-fault` : ""].join(" ").trim() || undefined
        }
        onFocus={() => setWanted(true)}
        onChange={(event) => props.onChange(event.target.value)}
      />
      <datalist id={`${id}-list`}>
        {suggested.map((one) => (
          <option key={one} value={one} />
        ))}
      </datalist>
      {props.fault !== null && (
        <p className="field-fault" id={`${id}-fault`}>
          {props.fault}
        </p>
      )}
    </div>
  );
}
