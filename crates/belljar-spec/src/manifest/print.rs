//! Prints the settings tree as TOML text and as JSON.

use serde_json::Value as Json;
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, Value as TomlValue};

use super::node::{Data, TableEntry};

/// One table a section, `[[…]]` for lists of tables, everything below inline.
pub(crate) fn document(entries: &[TableEntry]) -> String {
    let mut document = DocumentMut::new();
    for entry in entries {
        let item = match &entry.node.data {
            Data::Table(inner) => Item::Table(section(inner)),
            Data::List(items) if tables_only(items.iter().map(|item| &item.data)) => {
                let mut tables = ArrayOfTables::new();
                for item in items {
                    if let Data::Table(inner) = &item.data {
                        tables.push(section(inner));
                    }
                }
                Item::ArrayOfTables(tables)
            }
            data => Item::Value(inline(data)),
        };
        document.as_table_mut().insert(&entry.key, item);
    }
    document.to_string()
}

/// A section that holds nothing but tables, such as `[service]`, has each under a separate heading.
fn section(entries: &[TableEntry]) -> Table {
    let nested = tables_only(entries.iter().map(|entry| &entry.node.data));
    let mut table = Table::new();
    table.set_implicit(nested);
    for entry in entries {
        let item = match &entry.node.data {
            Data::Table(inner) if nested => Item::Table(flat(inner)),
            data => Item::Value(inline(data)),
        };
        table.insert(&entry.key, item);
    }
    table
}

fn flat(entries: &[TableEntry]) -> Table {
    let mut table = Table::new();
    for entry in entries {
        table.insert(&entry.key, Item::Value(inline(&entry.node.data)));
    }
    table
}

fn tables_only<'a>(data: impl Iterator<Item = &'a Data>) -> bool {
    let mut data = data.peekable();
    data.peek().is_some() && data.all(|data| matches!(data, Data::Table(_)))
}

/// A value on one line.
pub(crate) fn inline(data: &Data) -> TomlValue {
    match data {
        Data::Text(text) | Data::Date(text) => text.as_str().into(),
        Data::Integer(number) => (*number).into(),
        Data::Float(number) => (*number).into(),
        Data::Boolean(flag) => (*flag).into(),
        Data::List(items) => items.iter().map(|item| inline(&item.data)).collect::<Array>().into(),
        Data::Table(entries) => {
            let inner = entries.iter().map(|entry| (entry.key.as_str(), inline(&entry.node.data)));
            inner.collect::<InlineTable>().into()
        }
    }
}

pub(crate) fn json(data: &Data) -> Json {
    match data {
        Data::Text(text) | Data::Date(text) => text.as_str().into(),
        Data::Integer(number) => (*number).into(),
        Data::Float(number) => (*number).into(),
        Data::Boolean(flag) => (*flag).into(),
        Data::List(items) => items.iter().map(|item| json(&item.data)).collect(),
        Data::Table(entries) => {
            entries.iter().map(|entry| (entry.key.clone(), json(&entry.node.data))).collect()
        }
    }
}
