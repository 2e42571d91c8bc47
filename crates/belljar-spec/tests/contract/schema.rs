//! The published schema is the one that the code has.

use std::path::PathBuf;

use belljar_spec::{env, manifest};

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/manifest.schema.json")
}

#[test]
fn the_published_schema_is_current() {
    let now = manifest::schema_text();
    if std::env::var_os(env::BLESS).is_some_and(|value| value == "1") {
        std::fs::create_dir_all(file().parent().unwrap()).unwrap();
        std::fs::write(file(), &now).unwrap();
    }
    let published = std::fs::read_to_string(file()).unwrap_or_default();
    assert!(
        published == now,
        "docs/manifest.schema.json is out of date; run: cargo xtask schema (or this test with {}=1)",
        env::BLESS
    );
}

#[test]
fn every_key_is_described() {
    let schema = manifest::schema();
    for key in belljar_spec::Manifest::keys() {
        let mut at = &schema;
        for part in key.split('.') {
            at = &at["properties"][part];
        }
        assert!(at["description"].as_str().is_some_and(|text| text.len() > 3), "{key}");
    }
    assert_eq!(schema["additionalProperties"], false);
}
