//! Layers unpacked one by one and stacked by the kernel give the tree that a naive model gives.

use std::collections::BTreeMap;

use belljar_image::{OverlayForm, UnpackOptions};
use proptest::prelude::*;

use crate::archives::{Entry, tar};
use crate::kernel;
use crate::tools::{Place, options};

/// What is at a path. Directories that no entry named keep what is below them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    File { content: String, mode: u32 },
    Directory { mode: u32 },
    Implicit,
    Symlink { target: String },
}

pub(crate) type Tree = BTreeMap<Vec<String>, Node>;

/// One line of a layer.
#[derive(Clone, Debug)]
pub(crate) enum Line {
    File { path: Vec<String>, content: String, mode: u32 },
    Directory { path: Vec<String>, mode: u32 },
    Symlink { path: Vec<String> },
    Whiteout { path: Vec<String> },
    Opaque { path: Vec<String> },
}

fn path() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]).prop_map(str::to_owned), 1..4)
}

fn line() -> impl Strategy<Value = Line> {
    let mode = prop::sample::select(vec![0o644, 0o600, 0o755, 0o4755]);
    let dir_mode = prop::sample::select(vec![0o755, 0o700, 0o1777, 0o555]);
    let dir = prop_oneof![3 => path(), 1 => Just(Vec::new())];
    prop_oneof![
        4 => (path(), "[xyz]{0,3}", mode)
            .prop_map(|(path, content, mode)| Line::File { path, content, mode }),
        3 => (path(), dir_mode).prop_map(|(path, mode)| Line::Directory { path, mode }),
        1 => path().prop_map(|path| Line::Symlink { path }),
        3 => path().prop_map(|path| Line::Whiteout { path }),
        1 => dir.prop_map(|path| Line::Opaque { path }),
    ]
}

fn entry(line: &Line) -> Entry {
    let prefixed = |path: &[String], name: String| {
        let mut path = path.to_vec();
        path.push(name);
        path.join("/")
    };
    match line {
        Line::File { path, content, mode } => Entry::file(path.join("/"), content).mode(*mode),
        Line::Directory { path, mode } => Entry::dir(path.join("/")).mode(*mode),
        Line::Symlink { path } => Entry::symlink(path.join("/"), "/target"),
        Line::Whiteout { path } => {
            let (name, above) = path.split_last().unwrap();
            Entry::file(prefixed(above, format!(".wh.{name}")), "")
        }
        Line::Opaque { path } => Entry::file(prefixed(path, ".wh..wh..opq".to_owned()), ""),
    }
}

fn remove_below(tree: &mut Tree, path: &[String]) {
    tree.retain(|other, _| !(other.len() > path.len() && other.starts_with(path)));
}

fn remove(tree: &mut Tree, path: &[String]) {
    remove_below(tree, path);
    tree.remove(path);
}

/// The tree of one layer by itself; nothing if an entry leads through something that is no directory.
fn layer_tree(lines: &[Line]) -> Option<Tree> {
    let mut tree = Tree::new();
    for line in lines {
        let (path, node) = match line {
            Line::File { path, content, mode } => {
                (path, Node::File { content: content.clone(), mode: *mode })
            }
            Line::Directory { path, mode } => (path, Node::Directory { mode: *mode }),
            Line::Symlink { path } => (path, Node::Symlink { target: "/target".to_owned() }),
            Line::Whiteout { .. } | Line::Opaque { .. } => continue,
        };
        for length in 1..path.len() {
            match tree.get(&path[..length]) {
                None => drop(tree.insert(path[..length].to_vec(), Node::Implicit)),
                Some(Node::Directory { .. } | Node::Implicit) => {}
                Some(_) => return None,
            }
        }
        if !matches!(node, Node::Directory { .. }) {
            remove(&mut tree, path);
        }
        tree.insert(path.clone(), node);
    }
    Some(tree)
}

/// What the specification says that a layer does to what is below it.
fn apply(below: &mut Tree, lines: &[Line], layer: &Tree) {
    for line in lines {
        match line {
            Line::Whiteout { path } => remove(below, path),
            Line::Opaque { path } => remove_below(below, path),
            _ => {}
        }
    }
    for (path, node) in layer {
        let is_dir = matches!(below.get(path), Some(Node::Directory { .. }));
        match node {
            Node::Implicit if is_dir => {}
            Node::Implicit => {
                remove(below, path);
                below.insert(path.clone(), Node::Directory { mode: 0o755 });
            }
            Node::Directory { .. } if is_dir => drop(below.insert(path.clone(), node.clone())),
            node => {
                remove(below, path);
                below.insert(path.clone(), node.clone());
            }
        }
    }
}

/// Gives the merged tree by the model; nothing if a layer must be refused.
fn model(layers: &[Vec<Line>]) -> Option<Tree> {
    let mut tree = Tree::new();
    for lines in layers {
        apply(&mut tree, lines, &layer_tree(lines)?);
    }
    Some(tree)
}

fn check(layers: &[Vec<Line>], form: OverlayForm) -> Result<(), TestCaseError> {
    let place = Place::new();
    let options = UnpackOptions { form, ..options() };
    let names: Vec<String> = (0..layers.len()).map(|number| format!("layer{number}")).collect();
    let mut visible: Vec<&str> = Vec::new();
    let expected = model(layers);
    for (name, lines) in names.iter().zip(layers) {
        let archive = tar(&lines.iter().map(entry).collect::<Vec<_>>());
        match place.unpack(name, &archive, &visible, &options) {
            Ok(report) => {
                if report.hides_all_below {
                    visible.clear();
                }
                visible.push(name);
            }
            Err(error) => {
                prop_assert!(expected.is_none(), "refused: {error}");
                return Ok(());
            }
        }
    }
    prop_assert!(expected.is_some(), "a layer was taken that leads through a file");
    let paths: Vec<_> = visible.iter().map(|name| place.target(name)).collect();
    if let Some(found) = kernel::merged(&paths, form) {
        prop_assert_eq!(&found, &expected.unwrap_or_default());
    }
    Ok(())
}

/// As many as every property test has, or what the variable for longer runs says.
fn cases(default: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    ProptestConfig {
        cases: cases.unwrap_or(default),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(120))]

    #[test]
    fn stacked_layers_show_what_the_model_shows(
        layers in prop::collection::vec(prop::collection::vec(line(), 0..7), 1..5),
        form in prop::sample::select(vec![
            OverlayForm::Trusted, OverlayForm::User, OverlayForm::UserXattrWhiteouts,
        ]),
    ) {
        if form != OverlayForm::Trusted || crate::tools::is_root() {
            check(&layers, form)?;
        }
    }
}

fn p(text: &str) -> Vec<String> {
    text.split('/').map(str::to_owned).collect()
}

#[test]
fn whiteouts_with_nothing_to_hide_are_not_listed() {
    let layers = [
        vec![Line::File { path: p("a/x"), content: "1".into(), mode: 0o644 }],
        vec![
            Line::Whiteout { path: p("a/x") },
            Line::Whiteout { path: p("b/new") },
            Line::Directory { path: p("b"), mode: 0o755 },
            Line::Whiteout { path: p("b/gone") },
        ],
    ];
    for form in [OverlayForm::User, OverlayForm::UserXattrWhiteouts] {
        check(&layers, form).unwrap();
    }
}

#[test]
fn a_directory_that_replaces_a_whited_out_one_starts_empty() {
    for order in [[0, 1], [1, 0]] {
        let lines = [
            Line::Whiteout { path: p("d") },
            Line::File { path: p("d/new"), content: "2".into(), mode: 0o644 },
        ];
        let layers = [
            vec![Line::File { path: p("d/old"), content: "1".into(), mode: 0o644 }],
            order.iter().map(|number| lines[*number].clone()).collect(),
        ];
        for form in [OverlayForm::User, OverlayForm::UserXattrWhiteouts] {
            check(&layers, form).unwrap();
        }
    }
}

#[test]
fn a_directory_that_no_entry_names_keeps_its_mode() {
    let layers = [
        vec![Line::Directory { path: p("t"), mode: 0o1777 }],
        vec![Line::File { path: p("t/f"), content: "1".into(), mode: 0o644 }],
        vec![Line::Whiteout { path: p("t/f") }],
    ];
    for form in [OverlayForm::User, OverlayForm::UserXattrWhiteouts] {
        check(&layers, form).unwrap();
    }
}
