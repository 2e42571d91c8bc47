//! Writes down the number of every system call that the filter names, so that the probes can make
//! each of them by name. The numbers come from the library that the filter itself is compiled with;
//! a test compares them with the C library's.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

const FILTER: &str = "../belljar-linux/filters/command.filter";

fn main() {
    println!("cargo::rerun-if-changed={FILTER}");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let out = env::var("OUT_DIR").unwrap_or_default();
    let mut table = String::from("&[\n");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        let source = fs::read_to_string(FILTER).unwrap_or_default();
        for name in names(&source, &arch) {
            let Some(number) = number(&name, &arch) else {
                panic!("{FILTER}: {name} has no number on {arch}");
            };
            let _ = writeln!(table, "    ({name:?}, {number}),");
        }
    }
    table.push(']');
    if let Err(error) = fs::write(Path::new(&out).join("numbers.rs"), table) {
        panic!("cannot write numbers.rs: {error}");
    }
}

fn names(source: &str, arch: &str) -> BTreeSet<String> {
    let lines = source.lines().filter(|line| !line.starts_with(['#', '[']));
    let here = lines.filter_map(|line| match line.strip_prefix('@') {
        Some(rest) => rest.split_once(' ').filter(|(only, _)| *only == arch).map(|(_, rest)| rest),
        None => Some(line),
    });
    let calls = here.filter(|line| !line.starts_with("set "));
    calls
        .flat_map(|line| line.split_whitespace().skip(1).take_while(|word| *word != "when"))
        .map(str::to_owned)
        .collect()
}

fn number(name: &str, arch: &str) -> Option<i32> {
    match arch {
        "x86_64" => Some(name.parse::<syscalls::x86_64::Sysno>().ok()?.id()),
        "aarch64" => Some(name.parse::<syscalls::aarch64::Sysno>().ok()?.id()),
        _ => None,
    }
}
