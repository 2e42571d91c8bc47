//! `version`, `completions` and `man`: read by the programs that they are written for.

use std::fs;
use std::process::{Command, Output, Stdio};

use belljar_testkit::Lab;

/// Runs a program of this machine; `None`, said aloud, where it is not installed.
fn tool(program: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(program).args(arguments).stdin(Stdio::null()).output() {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("NOT CHECKED: {program} is not installed ({error})");
            None
        }
    }
}

/// The commands that `--help` lists in its groups.
pub(crate) fn listed_commands(help: &str) -> Vec<String> {
    let rows = help.lines().skip_while(|line| *line != "Run:");
    let rows = rows.take_while(|line| *line != "Options:");
    // A continuation line of a description is indented more.
    let rows = rows.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    rows.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

fn verbs(lab: &Lab) -> Vec<String> {
    let help = lab.belljar(["--help"]).done().expect(0).out();
    listed_commands(&help)
}

#[test]
fn version_identifies_the_executable() {
    let lab = Lab::me();
    let data = lab.belljar(["version", "--json"]).done().expect(0).json();
    assert_eq!(data["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(data["build"], belljar::spec::BUILD);
    assert!(data.get("commit").is_some(), "{data}");
    assert_eq!(data["protocol"]["channel"]["max"], belljar::spec::wire::PROTOCOL_MAX);
    let text = lab.belljar(["version"]).done().expect(0).out();
    let short = lab.belljar(["--version"]).done().expect(0).out();
    assert_eq!(text.lines().next(), short.lines().next());
    assert!(text.contains(belljar::spec::BUILD), "{text}");
    // It is about the program alone.
    assert_eq!(fs::read_dir(lab.home()).unwrap().count(), 0, "version opened a home");
}

#[test]
fn bash_loads_and_uses_the_completions() {
    let lab = Lab::me();
    let script = lab.belljar(["completions", "bash"]).done().expect(0).out();
    lab.make_file("work/belljar.bash", &script);
    let path = lab.work().join("belljar.bash");
    let ask = |words: &str, at: usize| {
        let line = format!(
            "source {}; complete -p belljar >&2; COMP_WORDS=({words}); COMP_CWORD={at}; \
             _belljar belljar \"${{COMP_WORDS[{at}]}}\" \"${{COMP_WORDS[{at}-1]}}\"; \
             echo \"${{COMPREPLY[@]}}\"",
            path.display()
        );
        let done = tool("bash", &["--norc", "-c", &line]).expect("bash is required");
        assert!(done.status.success(), "{done:?}");
        let err = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(err.contains("-F _belljar"), "{err}");
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    };
    assert_eq!(ask("belljar rec", 1), "reconcile");
    assert_eq!(ask("belljar config sch", 2), "schema");
    assert_eq!(ask("belljar run --allow-h", 2), "--allow-host");
    assert_eq!(ask("belljar __i", 1), "", "a hidden process is offered");
}

#[test]
fn zsh_and_fish_accept_the_completions() {
    let lab = Lab::me();
    for shell in ["zsh", "fish"] {
        let script = lab.belljar(["completions", shell]).done().expect(0).out();
        let path = lab.work().join(shell);
        let no_syntax = lab.work().join(format!("{shell}.broken"));
        fs::write(&path, script).unwrap();
        fs::write(&no_syntax, "if true; (\n").unwrap();
        let check = |path: &std::path::Path| tool(shell, &["-n", path.to_str().unwrap()]);
        let Some(done) = check(&path) else { continue };
        assert!(done.status.success(), "{shell}: {done:?}");
        let refused = check(&no_syntax).unwrap();
        assert!(!refused.status.success(), "{shell} -n accepts anything");
    }
}

#[test]
fn every_command_has_a_manual_page_that_groff_renders() {
    let lab = Lab::me();
    let pages = lab.work().join("man1");
    lab.belljar(["man", "--dir", pages.to_str().unwrap()]).done().expect(0);
    let verbs = verbs(&lab);
    assert!(verbs.len() >= 33, "{verbs:?}");
    for verb in verbs {
        let path = pages.join(format!("belljar-{verb}.1"));
        let file = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{verb}: {error}"));
        assert!(file.contains(".TH ") && file.contains(".SH SYNOPSIS"), "{file}");
        assert_eq!(lab.belljar(["man", &verb]).done().expect(0).out(), file, "{verb}");
        let arguments = ["-man", "-Tutf8", "-ww", "-z", path.to_str().unwrap()];
        if let Some(done) = tool("groff", &arguments) {
            assert!(done.status.success() && done.stderr.is_empty(), "{verb}: {done:?}");
        }
    }
    let unknown = lab.belljar(["man", "__init"]).done();
    unknown.expect(125);
    assert!(unknown.err().contains("there is no command \"__init\""), "{}", unknown.err());
}
