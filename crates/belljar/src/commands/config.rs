//! `belljar config`: prints the settings, or the manifest's schema.

use belljar::config::{ConfigFiles, Invocation, ManifestSource, load_settings};
use belljar::spec::layers::Shown;
use belljar::spec::{EXIT_NOT_STARTED, MainCommand};

use super::{environment, open_home};
use crate::cli::{ConfigArgs, ConfigVerb};
use crate::report::{self, DIM};

pub(crate) fn run(args: ConfigArgs) -> i32 {
    let done = match args.what {
        ConfigVerb::Schema => report::json(&belljar::spec::manifest::schema()).map_err(Into::into),
        ConfigVerb::Show { origin, json, manifest, no_config } => {
            let source = match (manifest, no_config) {
                (Some(file), _) => ManifestSource::File(file),
                (None, true) => ManifestSource::None,
                (None, false) => ManifestSource::Nearest,
            };
            show(origin, json, source)
        }
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            report::error(error.as_ref(), None);
            EXIT_NOT_STARTED
        }
    }
}

fn show(
    origin: bool,
    json: bool,
    source: ManifestSource,
) -> Result<(), Box<dyn std::error::Error>> {
    let home = open_home()?;
    let cwd = std::env::current_dir()?;
    let mut invocation = Invocation::new(cwd, environment(), MainCommand::Agent);
    if source == ManifestSource::None {
        invocation.config_files = ConfigFiles::Ignore;
    }
    invocation.source = source;
    let loaded = load_settings(&invocation, &home)?;
    for warning in &loaded.warnings {
        report::eprintln(&format!("warning: {warning}"));
    }
    if json {
        let list: Vec<_> = loaded
            .settings
            .shown()
            .into_iter()
            .map(|Shown { key, value, origin }| {
                serde_json::json!({ "key": key, "value": value, "origin": origin.to_string() })
            })
            .collect();
        return Ok(report::json(&list)?);
    }
    let mut text = String::new();
    for Shown { key, value, origin: from } in loaded.settings.shown() {
        let from = if origin { format!("  {DIM}# {from}{DIM:#}") } else { String::new() };
        text.push_str(&format!("{key} = {value}{from}\n"));
    }
    report::out(&text);
    Ok(())
}
