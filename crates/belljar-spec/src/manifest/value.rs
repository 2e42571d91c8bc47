//! Reads, prints, describes and merges one value of the manifest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use super::node::{Data, Node, Problem, TableEntry, join};
use crate::layers::Origin;
use crate::text::OsText;

/// The directory that a layer's relative paths start from, and the home directory for `~`.
#[derive(Clone, Debug)]
pub(crate) struct Base {
    pub(crate) directory: PathBuf,
    pub(crate) home: Option<PathBuf>,
}

/// Which layer set each key, while layers are merged.
#[derive(Debug)]
pub(crate) struct Merge<'a> {
    pub(crate) origin: &'a Origin,
    pub(crate) origins: &'a mut BTreeMap<String, Origin>,
}

impl Merge<'_> {
    pub(crate) fn won(&mut self, key: String) {
        self.origins.insert(key, self.origin.clone());
    }
}

pub(crate) trait Value: Sized {
    fn read(node: &Node) -> Result<Self, Problem>;
    fn write(&self) -> Data;
    fn schema() -> Json;

    /// A higher layer's value replaces a lower one's, unless the type overrides this.
    fn merge(slot: &mut Option<Self>, higher: Self, key: &str, merge: &mut Merge<'_>) {
        *slot = Some(higher);
        merge.won(key.to_owned());
    }

    /// Makes host paths absolute.
    fn rebase(&mut self, _base: &Base) {}
}

/// A member of a table: an optional value, a required one, or a section.
pub(crate) trait Field: Sized {
    const REQUIRED: bool;
    fn read_field(table: &Node, entries: &[TableEntry], key: &str) -> Result<Self, Problem>;
    fn write_field(&self, key: &str, out: &mut Vec<TableEntry>);
    fn field_schema() -> Json;
    fn merge_field(&mut self, higher: Self, key: String, merge: &mut Merge<'_>);
    fn rebase_field(&mut self, base: &Base);
    /// Dotted keys of everything that can be set below `key`.
    fn leaf_keys(key: String, out: &mut Vec<String>);
}

pub(crate) fn entry(key: &str, data: Data) -> TableEntry {
    TableEntry { key: key.to_owned(), key_place: None, node: Node::new(data) }
}

pub(crate) fn find<'a>(entries: &'a [TableEntry], key: &str) -> Option<&'a Node> {
    entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node)
}

impl<T: Value> Field for Option<T> {
    const REQUIRED: bool = false;

    fn read_field(_: &Node, entries: &[TableEntry], key: &str) -> Result<Self, Problem> {
        find(entries, key)
            .map(|node| T::read(node).map_err(|problem| problem.under(key)))
            .transpose()
    }

    fn write_field(&self, key: &str, out: &mut Vec<TableEntry>) {
        out.extend(self.as_ref().map(|value| entry(key, value.write())));
    }

    fn field_schema() -> Json {
        T::schema()
    }

    fn merge_field(&mut self, higher: Self, key: String, merge: &mut Merge<'_>) {
        if let Some(higher) = higher {
            T::merge(self, higher, &key, merge);
        }
    }

    fn rebase_field(&mut self, base: &Base) {
        if let Some(value) = self {
            value.rebase(base);
        }
    }

    fn leaf_keys(key: String, out: &mut Vec<String>) {
        out.push(key);
    }
}

/// Required members have one of these types.
macro_rules! required {
    ($($type:ty),*) => {$(
        impl Field for $type {
            const REQUIRED: bool = true;

            fn read_field(table: &Node, entries: &[TableEntry], key: &str) -> Result<Self, Problem> {
                match find(entries, key) {
                    Some(node) => Value::read(node).map_err(|problem| problem.under(key)),
                    None => Err(Problem::at(table, format!("\"{key}\" is missing here"))),
                }
            }

            fn write_field(&self, key: &str, out: &mut Vec<TableEntry>) {
                out.push(entry(key, self.write()));
            }

            fn field_schema() -> Json {
                <Self as Value>::schema()
            }

            fn merge_field(&mut self, higher: Self, key: String, merge: &mut Merge<'_>) {
                *self = higher;
                merge.won(key);
            }

            fn rebase_field(&mut self, base: &Base) {
                self.rebase(base);
            }

            fn leaf_keys(key: String, out: &mut Vec<String>) {
                out.push(key);
            }
        }
    )*};
}
required!(String, OsText, HostPath, u16, Vec<String>);

impl Value for String {
    fn read(node: &Node) -> Result<Self, Problem> {
        match &node.data {
            Data::Text(text) if text.contains('\0') => {
                Err(Problem::at(node, "a NUL byte is not allowed"))
            }
            Data::Text(text) => Ok(text.clone()),
            _ => Err(Problem::wrong_type(node, "a string (in quotes)")),
        }
    }

    fn write(&self) -> Data {
        Data::Text(self.clone())
    }

    fn schema() -> Json {
        json!({ "type": "string" })
    }
}

/// A string, or `{ b64 = "…" }` for one that is not UTF-8.
impl Value for OsText {
    fn read(node: &Node) -> Result<Self, Problem> {
        let Data::Table(_) = &node.data else {
            return String::read(node).map(Self::from);
        };
        let [entry] = node.entries(&["b64"])? else {
            return Err(Problem::wrong_type(node, "a string, or { b64 = \"…\" }"));
        };
        let text = String::read(&entry.node)?;
        let bytes = data_encoding::BASE64
            .decode(text.as_bytes())
            .map_err(|error| Problem::at(&entry.node, format!("is not base64: {error}")))?;
        if bytes.contains(&0) {
            return Err(Problem::at(&entry.node, "a NUL byte is not allowed"));
        }
        Ok(Self::from_bytes(bytes))
    }

    fn write(&self) -> Data {
        match self.to_str() {
            Some(text) => Data::Text(text.to_owned()),
            None => {
                let text = data_encoding::BASE64.encode(self.as_bytes());
                Data::Table(vec![entry("b64", Data::Text(text))])
            }
        }
    }

    fn schema() -> Json {
        json!({ "anyOf": [
            { "type": "string" },
            {
                "type": "object",
                "description": "A string that is not UTF-8, in base64.",
                "properties": { "b64": { "type": "string", "contentEncoding": "base64" } },
                "required": ["b64"],
                "additionalProperties": false,
            },
        ]})
    }
}

/// A path of the host. `~` is the home directory; a relative path starts at its layer's directory.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HostPath(pub OsText);

impl HostPath {
    pub fn as_path(&self) -> &Path {
        self.0.as_path()
    }
}

impl From<&str> for HostPath {
    fn from(path: &str) -> Self {
        Self(path.into())
    }
}

impl From<OsText> for HostPath {
    fn from(path: OsText) -> Self {
        Self(path)
    }
}

impl Value for HostPath {
    fn read(node: &Node) -> Result<Self, Problem> {
        match OsText::read(node)? {
            path if path.as_bytes().is_empty() => Err(Problem::at(node, "a path cannot be empty")),
            path => Ok(Self(path)),
        }
    }

    fn write(&self) -> Data {
        self.0.write()
    }

    fn schema() -> Json {
        OsText::schema()
    }

    fn rebase(&mut self, base: &Base) {
        self.0 =
            crate::paths::absolute(self.as_path(), &base.directory, base.home.as_deref()).into();
    }
}

impl Value for bool {
    fn read(node: &Node) -> Result<Self, Problem> {
        match node.data {
            Data::Boolean(flag) => Ok(flag),
            _ => Err(Problem::wrong_type(node, "true or false")),
        }
    }

    fn write(&self) -> Data {
        Data::Boolean(*self)
    }

    fn schema() -> Json {
        json!({ "type": "boolean" })
    }
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Value for $type {
            fn read(node: &Node) -> Result<Self, Problem> {
                match node.data {
                    Data::Integer(number) => Self::try_from(number).map_err(|_| {
                        let limit = i64::try_from(Self::MAX).unwrap_or(i64::MAX);
                        Problem::at(node, format!("{number} is not between 0 and {limit}"))
                    }),
                    _ => Err(Problem::wrong_type(node, "a whole number")),
                }
            }

            fn write(&self) -> Data {
                Data::Integer(i64::try_from(*self).unwrap_or(i64::MAX))
            }

            fn schema() -> Json {
                json!({ "type": "integer", "minimum": 0, "maximum": i64::try_from(Self::MAX).unwrap_or(i64::MAX) })
            }
        }
    )*};
}
integers!(u16, u32, u64);

/// Any list that a higher layer replaces.
impl<T: Value> Value for Vec<T> {
    fn read(node: &Node) -> Result<Self, Problem> {
        let Data::List(items) = &node.data else {
            return Err(Problem::wrong_type(node, "a list, such as [\"a\", \"b\"]"));
        };
        items.iter().map(T::read).collect()
    }

    fn write(&self) -> Data {
        Data::List(self.iter().map(|item| Node::new(item.write())).collect())
    }

    fn schema() -> Json {
        json!({ "type": "array", "items": T::schema() })
    }

    fn rebase(&mut self, base: &Base) {
        self.iter_mut().for_each(|item| item.rebase(base));
    }
}

/// A list to which every layer adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added<T>(pub Vec<T>);

impl<T> Added<T> {
    /// Adds an item to a list that may not be there yet.
    pub fn add(list: &mut Option<Self>, item: T) {
        list.get_or_insert_default().0.push(item);
    }
}

impl<T> Default for Added<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Value> Value for Added<T> {
    fn read(node: &Node) -> Result<Self, Problem> {
        Vec::read(node).map(Self)
    }

    fn write(&self) -> Data {
        self.0.write()
    }

    fn schema() -> Json {
        Vec::<T>::schema()
    }

    fn merge(slot: &mut Option<Self>, higher: Self, key: &str, merge: &mut Merge<'_>) {
        let list = slot.get_or_insert_default();
        for item in higher.0 {
            merge.won(format!("{key}[{}]", list.0.len()));
            list.0.push(item);
        }
    }

    fn rebase(&mut self, base: &Base) {
        self.0.rebase(base);
    }
}

/// Every layer adds names, and replaces those it names again.
impl<T: Value> Value for BTreeMap<String, T> {
    fn read(node: &Node) -> Result<Self, Problem> {
        let Data::Table(entries) = &node.data else {
            return Err(Problem::wrong_type(node, "a table, such as { name = \"value\" }"));
        };
        let read = |entry: &TableEntry| {
            let value = T::read(&entry.node).map_err(|problem| problem.under(&entry.key))?;
            Ok((entry.key.clone(), value))
        };
        entries.iter().map(read).collect()
    }

    fn write(&self) -> Data {
        Data::Table(self.iter().map(|(key, value)| entry(key, value.write())).collect())
    }

    fn schema() -> Json {
        json!({ "type": "object", "additionalProperties": T::schema() })
    }

    fn merge(slot: &mut Option<Self>, higher: Self, key: &str, merge: &mut Merge<'_>) {
        let map = slot.get_or_insert_default();
        for (name, value) in higher {
            merge.won(join(key, &name));
            map.insert(name, value);
        }
    }

    fn rebase(&mut self, base: &Base) {
        self.values_mut().for_each(|value| value.rebase(base));
    }
}
