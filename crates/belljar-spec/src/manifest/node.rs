//! A TOML document as a plain tree that remembers the position of each value, and the problems found in it.

use std::ops::Range;

use toml_edit::{Item, TableLike, Value as TomlValue};

use crate::text::escape;

pub(crate) type ByteRange = Option<Range<usize>>;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Data {
    Text(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    Date(String),
    List(Vec<Node>),
    Table(Vec<TableEntry>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) data: Data,
    pub(crate) place: ByteRange,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TableEntry {
    pub(crate) key: String,
    pub(crate) key_place: ByteRange,
    pub(crate) node: Node,
}

/// What is wrong, and with which key. Keys are added while the error returns from the tree.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Problem {
    /// From the innermost key to the outermost.
    keys: Vec<String>,
    pub(crate) place: ByteRange,
    pub(crate) what: String,
    /// Set where the problem is an unknown key.
    pub(crate) unknown: Option<String>,
}

impl Problem {
    pub(crate) fn at(node: &Node, what: impl Into<String>) -> Self {
        Self { keys: Vec::new(), place: node.place.clone(), what: what.into(), unknown: None }
    }

    pub(crate) fn wrong_type(node: &Node, wanted: &str) -> Self {
        Self::at(node, format!("expected {wanted}, found {}", node.data.kind()))
    }

    pub(crate) fn under(mut self, key: &str) -> Self {
        self.keys.push(key.to_owned());
        self
    }

    /// The dotted key.
    pub(crate) fn key(&self) -> String {
        let mut path = String::new();
        for key in self.keys.iter().rev() {
            path = join(&path, key);
        }
        path
    }
}

/// `a.b`, with quotes where TOML needs them.
pub(crate) fn join(path: &str, key: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let key = if !key.is_empty() && key.chars().all(plain) {
        key.to_owned()
    } else {
        format!("\"{}\"", escape(key.as_bytes()))
    };
    if path.is_empty() { key } else { format!("{path}.{key}") }
}

impl Data {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a string",
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a number with a fraction",
            Self::Boolean(_) => "true or false",
            Self::Date(_) => "a date",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
        }
    }
}

impl Node {
    pub(crate) fn new(data: Data) -> Self {
        Self { data, place: None }
    }

    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::new(Data::Text(text.into()))
    }

    /// The entries of a table, if it has no keys but these.
    pub(crate) fn entries(&self, known: &[&str]) -> Result<&[TableEntry], Problem> {
        let Data::Table(entries) = &self.data else {
            return Err(Problem::wrong_type(self, "a table"));
        };
        match entries.iter().find(|entry| !known.contains(&entry.key.as_str())) {
            Some(entry) => Err(unknown_key(entry, known)),
            None => Ok(entries),
        }
    }

    pub(crate) fn from_item(item: &Item) -> Self {
        let data = match item {
            Item::None => Data::Table(Vec::new()),
            Item::Value(value) => return Self::from_value(value),
            Item::Table(table) => table_data(table),
            Item::ArrayOfTables(tables) => Data::List(
                tables
                    .iter()
                    .map(|table| Self { data: table_data(table), place: table.span() })
                    .collect(),
            ),
        };
        Self { data, place: item.span() }
    }

    pub(crate) fn from_value(value: &TomlValue) -> Self {
        let data = match value {
            TomlValue::String(text) => Data::Text(text.value().clone()),
            TomlValue::Integer(number) => Data::Integer(*number.value()),
            TomlValue::Float(number) => Data::Float(*number.value()),
            TomlValue::Boolean(flag) => Data::Boolean(*flag.value()),
            TomlValue::Datetime(date) => Data::Date(date.value().to_string()),
            TomlValue::Array(values) => Data::List(values.iter().map(Self::from_value).collect()),
            TomlValue::InlineTable(table) => table_data(table),
        };
        Self { data, place: value.span() }
    }
}

fn table_data(table: &dyn TableLike) -> Data {
    let entry = |(key, item): (&str, &Item)| {
        let key_place = table.key(key).and_then(toml_edit::Key::span);
        let mut node = Node::from_item(item);
        // A table made by a dotted key has no position itself.
        node.place = node.place.or_else(|| key_place.clone());
        TableEntry { key: key.to_owned(), key_place, node }
    };
    Data::Table(table.iter().map(entry).collect())
}

fn unknown_key(entry: &TableEntry, known: &[&str]) -> Problem {
    let given = escape(entry.key.as_bytes());
    let distance = |key: &&&str| strsim::damerau_levenshtein(key, &entry.key);
    let nearest = known.iter().min_by_key(distance);
    let hint = match nearest {
        Some(key) if distance(&key) <= (key.len() / 2).max(2) => format!("did you mean \"{key}\"?"),
        _ => format!("the keys here are {}", known.join(", ")),
    };
    Problem {
        keys: vec![entry.key.clone()],
        place: entry.key_place.clone().or_else(|| entry.node.place.clone()),
        what: format!("unknown key \"{given}\"; {hint}"),
        unknown: Some(entry.key.clone()),
    }
}
