/** One field of a form, whichever kind its schema asks for; those with fields inside use it again. */
import type { ReactNode } from "react";
import type { Schema } from "../api/types";
import { type FieldProps, useForm, useIds } from "./context";
import { FileField } from "./FileField";
import { ListField, MapField, ObjectField, TupleField, UnionField } from "./groups";
import {
  BooleanField,
  ChoiceField,
  ChoicesField,
  JsonField,
  MomentField,
  NumberField,
  TextField,
} from "./inputs";
import { kindOf, withoutNull } from "./schema";

export function Field(props: FieldProps): ReactNode {
  const { root } = useForm();
  const { nullable, schema } = withoutNull(props.schema, root);
  const kind = kindOf(schema, root);
  // An emptied field is null if that is allowed, else it is left out.
  const empty = nullable ? null : undefined;
  const onChange = (value: unknown): void => props.onChange(value === undefined ? empty : value);
  const given: FieldProps = { ...props, schema, onChange, required: props.required && !nullable };
  switch (kind.is) {
    case "const":
    case "null":
      return null;
    case "choice":
      return <ChoiceField {...given} choices={kind.choices} />;
    case "choices":
      return <ChoicesField {...given} choices={kind.choices} />;
    case "boolean":
      return <BooleanField {...given} />;
    case "number":
      return <NumberField {...given} whole={kind.whole} />;
    case "decimal":
      return <TextField {...given} decimal />;
    case "string":
      return schema.format === "date-time" ? <MomentField {...given} /> : <TextField {...given} />;
    case "file":
      return <FileField {...given} />;
    case "object":
      return <ObjectField {...given} kind={kind} />;
    case "map":
      return <MapField {...given} values={kind.values} />;
    case "array":
      return <ListField {...given} items={kind.items} />;
    case "tuple":
      return <TupleField {...given} items={kind.items} />;
    case "union":
      return <UnionField {...given} variants={kind.variants} />;
    case "any":
      return <JsonField {...given} />;
  }
}

/** Label, description and fault around a single control. */
export function Labelled(props: {
  of: FieldProps;
  children: (ids: ReturnType<typeof useIds>) => ReactNode;
  inline?: boolean;
}): ReactNode {
  const { schema, path, label, required, quiet } = props.of;
  const ids = useIds(path, !!schema.description);
  return (
    <div className={props.inline ? "field field-inline" : "field"}>
      {props.inline && props.children(ids)}
      <label htmlFor={ids.id} className={quiet && !props.inline ? "sr-only" : "field-label"}>
        {label}
        {!required && !props.inline && <span className="field-mark"> optional</span>}
      </label>
      <Help id={ids.help} schema={schema} />
      {!props.inline && props.children(ids)}
      <Fault id={ids.fault} path={path} />
    </div>
  );
}

/** The same around several controls. If one of those has the same path, the faults are shown there. */
export function Group(props: {
  of: FieldProps;
  children: ReactNode;
  className?: string;
  isOuter?: boolean;
}): ReactNode {
  const { schema, path, label, required, quiet } = props.of;
  const { faults } = useForm();
  const ids = useIds(path, !!schema.description);
  return (
    <fieldset
      className={`field group ${props.className ?? ""}`}
      id={props.isOuter ? undefined : ids.id}
      aria-describedby={props.isOuter ? undefined : ids.describedBy}
      aria-invalid={(!props.isOuter && faults.has(path)) || undefined}
      tabIndex={-1}
    >
      <legend className={quiet ? "sr-only" : "field-label"}>
        {label}
        {!required && <span className="field-mark"> optional</span>}
      </legend>
      <Help id={props.isOuter ? `${ids.help}-outer` : ids.help} schema={schema} />
      {props.children}
      {!props.isOuter && <Fault id={ids.fault} path={path} />}
    </fieldset>
  );
}

function Help({ id, schema }: { id: string; schema: Schema }): ReactNode {
  return schema.description ? (
    <p className="field-help" id={id}>
      {schema.description}
    </p>
  ) : null;
}

function Fault({ id, path }: { id: string; path: string }): ReactNode {
  const fault = useForm().faults.get(path);
  return fault === undefined ? null : (
    <p className="field-fault" id={id}>
      {fault}
    </p>
  );
}
