//! `belljar new`: numbered folders that are ready to run.

use std::fs;
use std::path::PathBuf;

use belljar_testkit::{Lab, each_user};

fn new(lab: &Lab, words: &[&str]) -> PathBuf {
    let words: Vec<&str> = ["new"].iter().chain(words).copied().collect();
    let done = lab.belljar(words).done();
    done.expect(0);
    PathBuf::from(done.out().trim_end())
}

#[test]
fn folders_are_numbered_and_have_what_they_need() {
    each_user(|lab| {
        let names = |path: &PathBuf| {
            let mut names: Vec<String> = fs::read_dir(path)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        let first = new(lab, &["parser"]);
        assert!(first.ends_with("001_parser"), "{}", first.display());
        assert_eq!(names(&first), ["NOTES.md", "PROMPT.md", "belljar.toml", "data"]);
        let second = new(lab, &["count.v2", "--template", "command"]);
        assert!(second.ends_with("002_count.v2"));
        assert_eq!(names(&second), ["NOTES.md", "belljar.toml", "data", "work.sh"]);
        let done = lab
            .belljar(["new", "compare", "--template", "fleet", "--agent", "codex", "--json"])
            .done()
            .expect(0)
            .json();
        assert_eq!(
            (done["name"].as_str(), done["template"].as_str()),
            (Some("003_compare"), Some("fleet"))
        );
        let third = PathBuf::from(done["path"].as_str().unwrap());
        assert_eq!(names(&third), ["NOTES.md", "PROMPT.md", "README.md", "belljar.toml", "data"]);
        let shown = lab.belljar(["config", "show"]).from(third).done();
        shown.expect(0);
        assert!(shown.out().contains("codex"), "{shown}");
    });
}

#[test]
fn the_command_of_a_folder_runs_with_its_data_read_only() {
    each_user(|lab| {
        let folder = new(lab, &["count", "--template", "command"]);
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        fs::write(folder.join("data/one"), "1").unwrap();
        // What the manifest's agent would run, by hand: the same settings, the same boundary.
        let script = "sh work.sh && ! touch data/two 2>/dev/null && cat result.txt";
        let words = ["run", "-q", "--", "sh", "-c", script];
        let done = lab.belljar(words).from(folder.clone()).done();
        done.expect(0);
        assert!(done.out().contains("files in data: 1"), "{done}");
        assert!(!folder.join("result.txt").exists(), "the workspace is an overlay");
        let diff = lab.belljar(["diff", "--name-only", &name]).done();
        diff.expect(0);
        assert_eq!(diff.out().trim(), "result.txt", "{diff}");
    });
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let lab = Lab::me();
    for name in ["../x", "a/b", "", ".x", "a b"] {
        lab.belljar(["new", "--template", "command", "--", name]).done().expect(2);
    }
    lab.belljar(["new", "x", "--agent", "command"]).done().expect(2);
    assert_eq!(fs::read_dir(lab.work()).unwrap().count(), 0);
    new(&lab, &["x"]);
    assert_eq!(fs::read_dir(lab.work()).unwrap().count(), 1);
}
