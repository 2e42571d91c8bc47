//! Declares a table of the manifest once; its reader, printer, schema and merge follow from that, so
//! that they cannot disagree.

use serde_json::{Map, Value as Json, json};

/// A struct whose members are the table's keys. `Option<T>` members may be left out, plain ones may
/// not, unless their type is a [`section!`].
macro_rules! table {
    (
        $(#[doc = $doc:literal])*
        $visibility:vis struct $name:ident {
            $($(#[doc = $field_doc:literal])* $field:ident: $type:ty,)*
        }
        $(check $check:path;)?
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, Default, PartialEq)]
        $visibility struct $name {
            $($(#[doc = $field_doc])* $visibility $field: $type,)*
        }

        impl $crate::manifest::value::Value for $name {
            fn read(
                node: &$crate::manifest::node::Node,
            ) -> Result<Self, $crate::manifest::node::Problem> {
                use $crate::manifest::{table::key_of, value::Field};
                let entries = node.entries(&[$(key_of(stringify!($field)),)*])?;
                let table = Self {
                    $($field: Field::read_field(node, entries, key_of(stringify!($field)))?,)*
                };
                $(
                    $check(&table)
                        .map_err(|what: String| $crate::manifest::node::Problem::at(node, what))?;
                )?
                Ok(table)
            }

            fn write(&self) -> $crate::manifest::node::Data {
                use $crate::manifest::{table::key_of, value::Field};
                let mut entries = Vec::new();
                $(self.$field.write_field(key_of(stringify!($field)), &mut entries);)*
                $crate::manifest::node::Data::Table(entries)
            }

            fn schema() -> serde_json::Value {
                use $crate::manifest::{table::{KeySchema, key_of, table_schema}, value::Field};
                table_schema(&[$($doc),*], &[$(KeySchema {
                    key: key_of(stringify!($field)),
                    doc: &[$($field_doc),*],
                    required: <$type as Field>::REQUIRED,
                    schema: <$type as Field>::field_schema(),
                },)*])
            }

            fn rebase(&mut self, base: &$crate::manifest::value::Base) {
                $($crate::manifest::value::Field::rebase_field(&mut self.$field, base);)*
            }
        }
    };
}

/// A table that is always there, and merges key by key.
macro_rules! section {
    (
        $(#[doc = $doc:literal])*
        $visibility:vis struct $name:ident {
            $($(#[doc = $field_doc:literal])* $field:ident: $type:ty,)*
        }
        $(check $check:path;)?
    ) => {
        $crate::manifest::table::table! {
            $(#[doc = $doc])*
            $visibility struct $name {
                $($(#[doc = $field_doc])* $field: $type,)*
            }
            $(check $check;)?
        }

        impl $crate::manifest::value::Field for $name {
            const REQUIRED: bool = false;

            fn read_field(
                _: &$crate::manifest::node::Node,
                entries: &[$crate::manifest::node::TableEntry],
                key: &str,
            ) -> Result<Self, $crate::manifest::node::Problem> {
                match $crate::manifest::value::find(entries, key) {
                    Some(node) => $crate::manifest::value::Value::read(node)
                        .map_err(|problem: $crate::manifest::node::Problem| problem.under(key)),
                    None => Ok(Self::default()),
                }
            }

            fn write_field(&self, key: &str, out: &mut Vec<$crate::manifest::node::TableEntry>) {
                use $crate::manifest::{node::Data, value::{Value, entry}};
                match self.write() {
                    Data::Table(entries) if entries.is_empty() => {}
                    data => out.push(entry(key, data)),
                }
            }

            fn field_schema() -> serde_json::Value {
                <Self as $crate::manifest::value::Value>::schema()
            }

            fn merge_field(
                &mut self,
                higher: Self,
                key: String,
                merge: &mut $crate::manifest::value::Merge<'_>,
            ) {
                use $crate::manifest::{node::join, table::key_of};
                $(
                    let below = join(&key, key_of(stringify!($field)));
                    self.$field.merge_field(higher.$field, below, merge);
                )*
            }

            fn rebase_field(&mut self, base: &$crate::manifest::value::Base) {
                $crate::manifest::value::Value::rebase(self, base);
            }

            fn leaf_keys(key: String, out: &mut Vec<String>) {
                use $crate::manifest::{node::join, table::key_of};
                $(<$type>::leaf_keys(join(&key, key_of(stringify!($field))), out);)*
            }
        }
    };
}

pub(crate) use {section, table};

/// A member's key: `r#loop` is `loop`.
pub(crate) const fn key_of(field: &'static str) -> &'static str {
    match field.as_bytes() {
        [b'r', b'#', ..] => field.split_at(2).1,
        _ => field,
    }
}

pub(crate) struct KeySchema {
    pub(crate) key: &'static str,
    pub(crate) doc: &'static [&'static str],
    pub(crate) required: bool,
    pub(crate) schema: Json,
}

pub(crate) fn table_schema(doc: &[&str], keys: &[KeySchema]) -> Json {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for key in keys {
        let mut schema = key.schema.clone();
        describe(&mut schema, key.doc);
        properties.insert(key.key.to_owned(), schema);
        if key.required {
            required.push(key.key);
        }
    }
    let mut schema = json!({
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    });
    describe(&mut schema, doc);
    if let (Json::Object(schema), false) = (&mut schema, required.is_empty()) {
        schema.insert("required".to_owned(), json!(required));
    }
    schema
}

fn describe(schema: &mut Json, doc: &[&str]) {
    let lines: Vec<&str> = doc.iter().map(|line| line.trim()).collect();
    if let (Json::Object(schema), false) = (schema, lines.is_empty()) {
        schema.insert("description".to_owned(), json!(lines.join(" ").trim()));
    }
}
