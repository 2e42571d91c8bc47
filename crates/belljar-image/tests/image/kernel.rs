//! Mounts layers with the kernel's overlayfs, in a mount namespace of its own, and reads what it shows.

use std::path::{Path, PathBuf};
use std::process::Command;

use belljar_image::OverlayForm;

use crate::merge::{Node, Tree};

/// The tree that an overlay of these layers shows, bottom first. Nothing where no overlay can be mounted.
pub(crate) fn merged(layers: &[PathBuf], form: OverlayForm) -> Option<Tree> {
    let place = tempfile::tempdir().unwrap();
    for name in ["empty", "mount"] {
        std::fs::create_dir(place.path().join(name)).unwrap();
    }
    // One lower directory alone is refused.
    let mut lower: Vec<String> =
        layers.iter().rev().map(|path| path.display().to_string()).collect();
    lower.push(place.path().join("empty").display().to_string());
    let userxattr = match form {
        OverlayForm::Trusted => "",
        OverlayForm::User | OverlayForm::UserXattrWhiteouts => ",userxattr",
    };
    let script = format!(
        "mount -t overlay overlay -o 'lowerdir={}{userxattr}' mount || exit 77; cd mount && \
         find . -mindepth 1 -printf '%P\\t%y\\t%m\\t%l\\t' \\( -type f -exec cat {{}} \\; -o -true \\) -printf '\\n'",
        lower.join(":")
    );
    let namespaces = if crate::tools::is_root() { "-m" } else { "-rm" };
    let shown = Command::new("unshare")
        .args([namespaces, "sh", "-c", &script])
        .current_dir(place.path())
        .output()
        .unwrap();
    if shown.status.code() == Some(77) || !Path::new("/proc/filesystems").exists() {
        println!("NOT CHECKED: no overlay can be mounted here: {shown:?}");
        return None;
    }
    assert!(shown.status.success(), "{shown:?}");
    let text = String::from_utf8(shown.stdout).unwrap();
    Some(text.lines().map(node).collect())
}

fn node(line: &str) -> (Vec<String>, Node) {
    let [path, kind, mode, target, content] = line.splitn(5, '\t').collect::<Vec<_>>()[..] else {
        panic!("{line}");
    };
    let mode = u32::from_str_radix(mode, 8).unwrap_or(0);
    let node = match kind {
        "f" => Node::File { content: content.to_owned(), mode },
        "d" => Node::Directory { mode },
        "l" => Node::Symlink { target: target.to_owned() },
        other => panic!("{other}: {line}"),
    };
    (path.split('/').map(str::to_owned).collect(), node)
}
