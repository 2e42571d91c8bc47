//! `belljar image load|pull|import|list|inspect|export|rm|prune`: Belljar's own store.

use std::error::Error;
use std::path::Path;

use belljar::own_images::{
    self, Image, ImageConfig, LayerFacts, LoadSource, LoadedImage, OwnImageError, PruneReport,
    PruneScope, Removed,
};
use belljar::spec::EXIT_NOT_STARTED;
use belljar::spec::text::escape;
use serde_json::{Value, json};

use super::super::progress::PullLine;
use super::super::{CommandResult, open_home, result, time_format};
use crate::cli::{
    ExportArgs, ImageListArgs, ImagePruneArgs, ImageRmArgs, ImportArgs, InspectArgs, LoadArgs,
    PullArgs,
};
use crate::report::{self, BOLD, DIM, WARN};

/// Standard input or output in place of a file.
const DASH: &str = "-";
/// Digits of a digest in a table.
const SHORT: usize = 12;

/// Prints an error with what to do next, and returns the exit code.
pub(super) fn finish(done: CommandResult, json: bool) -> i32 {
    done.unwrap_or_else(|error| {
        if json {
            let _ = report::json(&json!({ "error": result::causes(error.as_ref()) }));
        }
        match error.downcast_ref::<OwnImageError>() {
            Some(error) => report::error(error, error.fix()),
            None => report::failure(error.as_ref()),
        }
        EXIT_NOT_STARTED
    })
}

pub(super) fn load(args: &LoadArgs) -> CommandResult {
    let store = own_images::open(&open_home()?)?;
    let mut input = std::io::stdin();
    let source = match args.file == Path::new(DASH) {
        true => LoadSource::Stream(&mut input),
        false => LoadSource::Path(&args.file),
    };
    let loaded = own_images::load(&store, source, args.name.as_deref())?;
    print_loaded(&loaded, args.json)
}

pub(super) fn pull(args: &PullArgs) -> CommandResult {
    let store = own_images::open(&open_home()?)?;
    let progress = PullLine::new(!args.quiet && !args.json);
    let pulled = own_images::pull(&store, &args.image, &progress)?;
    match (args.json, args.quiet) {
        (true, _) => report::json(&loaded_object(&pulled))?,
        (false, true) => {}
        (false, false) => return print_loaded(&[pulled], false),
    }
    Ok(0)
}

pub(super) fn import(args: &ImportArgs) -> CommandResult {
    let store = own_images::open(&open_home()?)?;
    let loaded = own_images::import(&store, &args.source)?;
    print_loaded(&loaded, args.json)
}

fn loaded_object(image: &LoadedImage) -> Value {
    json!({
        "names": image.names.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "digest": image.manifest.to_string(),
        "moved": image
            .moved
            .iter()
            .map(|moved| json!({ "name": moved.name, "from": moved.from.to_string() }))
            .collect::<Vec<_>>(),
    })
}

/// All names to use it by, on standard output.
fn print_loaded(loaded: &[LoadedImage], json: bool) -> CommandResult {
    for name in loaded.iter().flat_map(|image| &image.bad_names) {
        report::eprintln(&format!(
            "{WARN}warning:{WARN:#} left out a name that is none of the image: {name}"
        ));
    }
    for moved in loaded.iter().flat_map(|image| &image.moved) {
        let (name, from) = (escape(moved.name.as_bytes()), moved.from);
        report::eprintln(&format!("{DIM}{name} was the name of {from} before{DIM:#}"));
    }
    if json {
        report::json(&loaded.iter().map(loaded_object).collect::<Vec<_>>())?;
        return Ok(0);
    }
    for image in loaded {
        let names = match image.names.as_slice() {
            [] => vec![image.manifest.to_string()],
            names => names.iter().map(ToString::to_string).collect(),
        };
        for name in names {
            report::out(&format!("{}\n", escape(name.as_bytes())));
        }
    }
    Ok(0)
}

pub(super) fn list(args: &ImageListArgs) -> CommandResult {
    let images = own_images::open(&open_home()?)?.list()?;
    if args.json {
        let object = |image: &own_images::ImageSummary| {
            json!({
                "names": image.names,
                "digest": image.manifest.to_string(),
                "index_digest": image.source.map(|digest| digest.to_string()),
                "platform": image.platform.as_ref().map(ToString::to_string),
                "created": image.created,
                "added_ms": image.added * 1000,
                "stored_bytes": image.blob_bytes,
                "unpacked_bytes": image.unpacked_bytes,
            })
        };
        report::json(&images.iter().map(object).collect::<Vec<_>>())?;
        return Ok(0);
    }
    if args.quiet {
        report::out(
            &images.iter().map(|image| format!("{}\n", image.manifest)).collect::<String>(),
        );
        return Ok(0);
    }
    let mut rows = vec![["NAME", "DIGEST", "PLATFORM", "ADDED", "SIZE"].map(str::to_owned)];
    for image in &images {
        let digest: String = image.manifest.hex().chars().take(SHORT).collect();
        let platform = image.platform.as_ref().map(ToString::to_string);
        let names = match image.names.as_slice() {
            [] => vec!["<none>".to_owned()],
            names => names.iter().map(|name| escape(name.as_bytes())).collect(),
        };
        for name in names {
            rows.push([
                name,
                digest.clone(),
                escape(platform.clone().unwrap_or_else(|| "damaged".into()).as_bytes()),
                time_format::shown(image.added * 1000),
                size(image.blob_bytes + image.unpacked_bytes),
            ]);
        }
    }
    report::out(&table(&rows));
    Ok(0)
}

fn table(rows: &[[String; 5]]) -> String {
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: [usize; 5] = std::array::from_fn(width);
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        let line = line.trim_end();
        match number {
            0 => text.push_str(&format!("{BOLD}{line}{BOLD:#}\n")),
            _ => text.push_str(&format!("{line}\n")),
        }
    }
    text
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{} kB", bytes.div_ceil(1000)),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

pub(super) fn inspect(args: &InspectArgs) -> CommandResult {
    let store = own_images::open(&open_home()?)?;
    let name = own_images::name(&args.image)?;
    let image = store.inspect(&name)?.ok_or_else(|| missing(&args.image))?;
    match args.json {
        true => report::json(&image_object(&image))?,
        false => report::out(&image_page(&image)),
    }
    Ok(0)
}

fn missing(name: &str) -> Box<dyn Error> {
    let name = escape(name.as_bytes());
    format!("there is no image \"{name}\" here; run: belljar image list").into()
}

fn image_object(image: &Image) -> Value {
    let ImageConfig {
        env,
        entrypoint,
        cmd,
        working_dir,
        user,
        volumes,
        exposed_ports,
        labels,
        stop_signal,
        created,
    } = &image.config;
    let layer = |layer: &LayerFacts| {
        json!({
            "digest": layer.blob.to_string(),
            "bytes": layer.blob_bytes,
            "diff_id": layer.diff_id.to_string(),
        })
    };
    json!({
        "names": image.names,
        "digest": image.manifest.to_string(),
        "index_digest": image.source.map(|digest| digest.to_string()),
        "config_digest": image.config_digest.to_string(),
        "platform": image.platform.to_string(),
        "added_ms": image.added * 1000,
        "config": {
            "env": env,
            "entrypoint": entrypoint,
            "cmd": cmd,
            "working_dir": working_dir,
            "user": user,
            "volumes": volumes,
            "exposed_ports": exposed_ports,
            "labels": labels,
            "stop_signal": stop_signal,
            "created": created,
        },
        "layers": image.layers.iter().map(layer).collect::<Vec<_>>(),
    })
}

fn image_page(image: &Image) -> String {
    let mut text = String::new();
    let mut row = |key: &str, values: &[String]| {
        for (at, value) in values.iter().enumerate() {
            let key = if at == 0 { key } else { "" };
            let value = escape(value.as_bytes());
            text.push_str(&format!("{BOLD}{key:<11}{BOLD:#} {value}\n"));
        }
    };
    let words = |words: &[String]| match words {
        [] => Vec::new(),
        words => {
            let words: Vec<_> = words.iter().map(|word| word.as_str().into()).collect();
            vec![belljar::spec::text::quote_command(&words)]
        }
    };
    let one = |text: &str| if text.is_empty() { Vec::new() } else { vec![text.to_owned()] };
    let config = &image.config;
    row("names", &image.names);
    row("digest", &[image.manifest.to_string()]);
    row("index", &image.source.map(|digest| digest.to_string()).into_iter().collect::<Vec<_>>());
    row("config", &[image.config_digest.to_string()]);
    row("platform", &[image.platform.to_string()]);
    row("created", &config.created.clone().into_iter().collect::<Vec<_>>());
    row("added", &[time_format::shown(image.added * 1000)]);
    row("entrypoint", &words(&config.entrypoint));
    row("command", &words(&config.cmd));
    row("workdir", &one(&config.working_dir));
    row("user", &one(&config.user));
    row("env", &config.env);
    row("volumes", &config.volumes);
    let layers = image.layers.iter();
    let layers = layers.map(|layer| format!("{} ({})", layer.diff_id, size(layer.blob_bytes)));
    row("layers", &layers.collect::<Vec<_>>());
    text
}

pub(super) fn export(args: &ExportArgs) -> CommandResult {
    let store = own_images::open(&open_home()?)?;
    let name = own_images::name(&args.image)?;
    match args.output == Path::new(DASH) {
        true => own_images::export_to(&store, &name, &mut std::io::stdout().lock())?,
        false => own_images::export(&store, &name, &args.output)?,
    }
    Ok(0)
}

pub(super) fn remove(args: &ImageRmArgs) -> CommandResult {
    let store = own_images::open(&open_home()?)?;
    for image in &args.images {
        let removed = store.remove(&own_images::name(image)?).map_err(OwnImageError::from)?;
        let shown = escape(image.as_bytes());
        match removed {
            Removed::Name { left } => report::eprintln(&format!(
                "the name {shown} is removed; the image is still called {}",
                escape(left.join(", ").as_bytes())
            )),
            Removed::Image(report) => {
                report::eprintln(&format!("{shown} is removed; {}", freed(&report)));
            }
        }
    }
    Ok(0)
}

pub(super) fn prune(args: &ImagePruneArgs) -> CommandResult {
    let store = own_images::open(&open_home()?)?;
    let scope = if args.all { PruneScope::Unused } else { PruneScope::Unnamed };
    let pruned = store.prune(scope)?;
    if args.json {
        report::json(&json!({
            "images": pruned.images.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "blobs": pruned.blobs,
            "layers": pruned.layers,
            "bytes": pruned.bytes(),
        }))?;
        return Ok(0);
    }
    let images = pruned.images.len();
    let plural = if images == 1 { "" } else { "s" };
    report::eprintln(&format!("{images} image{plural} removed; {DIM}{}{DIM:#}", freed(&pruned)));
    Ok(0)
}

fn freed(report: &PruneReport) -> String {
    format!("{} freed", size(report.bytes()))
}
