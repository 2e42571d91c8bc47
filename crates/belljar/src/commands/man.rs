//! `belljar man`: prints or writes manual pages, generated from the command line's definition.

use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::{CommandResult, exit_code};
use crate::cli::{ManArgs, command};
use crate::report;

#[derive(Debug, thiserror::Error)]
enum ManError {
    #[error("there is no command \"{0}\"; belljar --help lists the commands")]
    Unknown(String),
    #[error("cannot write {path}")]
    Write {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
}

/// One page: its file name, and its text in roff.
struct ManPage {
    file: String,
    text: Vec<u8>,
}

pub(crate) fn run(args: &ManArgs) -> i32 {
    exit_code(match &args.dir {
        Some(directory) => write_all(directory),
        None => print_one(&args.command),
    })
}

fn print_one(path: &[String]) -> CommandResult {
    let root = definition();
    let mut command = &root;
    for name in path {
        command = command
            .get_subcommands()
            .find(|command| command.get_name() == name && !command.is_hide_set())
            .ok_or_else(|| ManError::Unknown(path.join(" ")))?;
    }
    report::out(&String::from_utf8_lossy(&page(command)?.text));
    Ok(0)
}

fn write_all(directory: &Path) -> CommandResult {
    let write =
        |path: PathBuf, done: io::Result<()>| done.map_err(|error| ManError::Write { path, error });
    write(directory.to_owned(), std::fs::create_dir_all(directory))?;
    let mut pages = Vec::new();
    collect(&definition(), &mut pages)?;
    for ManPage { file, text } in &pages {
        let path = directory.join(file);
        write(path.clone(), std::fs::write(&path, text))?;
    }
    report::eprintln(&format!("wrote {} pages to {}", pages.len(), directory.display()));
    Ok(0)
}

/// With the full names of all subcommands. `help` has no page of its own.
fn definition() -> Command {
    let mut command = command().disable_help_subcommand(true);
    command.build();
    command
}

fn collect(command: &Command, pages: &mut Vec<ManPage>) -> io::Result<()> {
    pages.push(page(command)?);
    for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        collect(subcommand, pages)?;
    }
    Ok(())
}

fn page(command: &Command) -> io::Result<ManPage> {
    let man = Man::new(command.clone())
        .source(concat!("belljar ", env!("CARGO_PKG_VERSION")))
        .manual("Belljar manual");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    text.extend(synopsis(command).to_roff().into_bytes());
    man.render_description_section(&mut text)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut text)?;
    }
    if command.get_subcommands().any(|command| !command.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    if let Some(after) = command.get_after_help() {
        text.extend(after_help(&after.to_string()).to_roff().into_bytes());
    }
    Ok(ManPage { file: man.get_filename(), text })
}

/// The usage line of the help page: clap_mangen would list every option, and `run` has more than fifty.
fn synopsis(command: &Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    for line in usage.lines() {
        roff.text([roman(line.trim_start_matches("Usage:").trim())]);
        roff.control("br", []);
    }
    roff
}

/// The text after a help page, line by line: clap_mangen would join the lines of the examples.
fn after_help(text: &str) -> Roff {
    let (heading, body) = match text.split_once(":\n") {
        Some((heading, body)) if !heading.contains('\n') => (heading, body),
        _ => ("Notes", text),
    };
    let mut roff = Roff::new();
    roff.control("SH", [heading.to_uppercase().as_str()]);
    roff.control("nf", []);
    for line in body.lines() {
        roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
    }
    roff.control("fi", []);
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_has_a_page_with_its_sections() {
        let root = definition();
        let mut pages = Vec::new();
        collect(&root, &mut pages).unwrap();
        let page = |file: String| {
            let page = pages.iter().find(|page| page.file == file);
            String::from_utf8(page.unwrap_or_else(|| panic!("no {file}")).text.clone()).unwrap()
        };
        let top = page("belljar.1".to_owned());
        let mut seen = 0;
        for command in root.get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            let text = page(format!("belljar-{name}.1"));
            for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"] {
                assert!(text.contains(&format!("\n.SH {section}\n")), "{name}: no {section}");
            }
            assert!(text.contains(&format!(".TH belljar-{name} 1")), "{name}: {text}");
            assert!(top.contains(&format!("belljar\\-{name}(1)")), "{name} is not in belljar.1");
            seen += 1;
        }
        assert!(seen >= 33, "{seen} commands");
        page("belljar-config-show.1".to_owned());
        assert!(top.contains(".SH EXAMPLES\n.nf\n"), "{top}");
        for ManPage { file, text } in &pages {
            let text = String::from_utf8_lossy(text);
            assert!(!text.contains("__init") && !text.contains("\\_\\_init"), "{file}");
        }
    }
}
