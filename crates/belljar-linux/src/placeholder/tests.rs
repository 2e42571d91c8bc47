use std::fs;

use super::*;

struct Scene {
    directory: tempfile::TempDir,
    list: PathBuf,
    tree: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(directory.path()).unwrap();
        let (list, tree) = (root.join("list"), root.join("tree"));
        fs::create_dir_all(tree.join("git")).unwrap();
        Self { directory, list, tree }
    }

    fn hold(&self, run: &str) -> Vec<PathBuf> {
        hold(&self.list, run, &self.tree, &wanted()).unwrap()
    }

    fn release(&self, run: &str) {
        release(&self.list, run).unwrap();
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = ["", "git"]
            .iter()
            .flat_map(|below| fs::read_dir(self.tree.join(below)).unwrap())
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "git")
            .collect();
        names.sort();
        names
    }
}

fn wanted() -> Vec<Wanted> {
    let one = |path: &str, stand_in| Wanted { path: PathBuf::from(path), stand_in };
    vec![
        one(".envrc", StandIn::Socket),
        one("git/hooks", StandIn::EmptyDirectory),
        one("git/commondir", StandIn::File(".\n")),
    ]
}

#[test]
fn is_there_until_it_is_released() {
    let scene = Scene::new();
    assert_eq!(scene.hold("one").len(), 3);
    assert_eq!(scene.names(), [".envrc", "commondir", "hooks"]);
    assert!(holds_a_place(&scene.tree.join(".envrc")));
    scene.release("one");
    assert!(scene.names().is_empty(), "{:?}", scene.names());
    assert!(runs(&scene.list).unwrap().is_empty());
    scene.release("one"); // twice is once
    drop(scene.directory);
}

#[test]
fn stays_while_another_run_needs_it_whoever_made_it() {
    let scene = Scene::new();
    scene.hold("one");
    scene.hold("two");
    scene.release("one");
    assert_eq!(scene.names(), [".envrc", "commondir", "hooks"]);
    scene.release("two");
    assert!(scene.names().is_empty());
}

#[test]
fn what_was_there_before_stays() {
    let scene = Scene::new();
    fs::create_dir(scene.tree.join("git/hooks")).unwrap();
    fs::write(scene.tree.join(".envrc"), "export A=1").unwrap();
    assert_eq!(scene.hold("one").len(), 3, "all of it is there, so all of it is covered");
    scene.release("one");
    assert_eq!(scene.names(), [".envrc", "hooks"]);
}

#[test]
fn what_took_its_place_meanwhile_stays() {
    let scene = Scene::new();
    scene.hold("one");
    fs::write(scene.tree.join("git/hooks/pre-commit"), "x").unwrap();
    fs::remove_file(scene.tree.join(".envrc")).unwrap();
    fs::write(scene.tree.join(".envrc"), "").unwrap();
    fs::remove_file(scene.tree.join("git/commondir")).unwrap();
    fs::write(scene.tree.join("git/commondir"), "../other").unwrap();
    scene.release("one");
    assert_eq!(scene.names(), [".envrc", "commondir", "hooks"]);
}

#[test]
fn a_launcher_that_died_before_it_knew_the_inode_leaves_nothing() {
    let scene = Scene::new();
    scene.hold("one");
    let note = Note::of(&scene.list, "one");
    let planned: Vec<Entry> =
        wanted().into_iter().map(|wanted| Entry::planned(scene.tree.join(wanted.path))).collect();
    note.forget().unwrap();
    note.add(&planned).unwrap();
    // A write that was cut short.
    let mut torn = fs::read(scene.list.join("one")).unwrap();
    torn.extend_from_slice(b"/torn");
    fs::write(scene.list.join("one"), torn).unwrap();
    scene.release("one");
    assert!(scene.names().is_empty(), "{:?}", scene.names());
}

#[test]
fn is_never_made_or_removed_through_a_link() {
    let scene = Scene::new();
    let elsewhere = scene.tree.with_file_name("elsewhere");
    fs::create_dir_all(elsewhere.join("hooks")).unwrap();
    fs::remove_dir(scene.tree.join("git")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, scene.tree.join("git")).unwrap();
    scene.hold("one");
    assert!(!elsewhere.join("commondir").exists());
    scene.release("one");
    assert!(elsewhere.join("hooks").exists());
}
