//! A tree mounted `overlay`: the run can change all of it, the real one stays as it is, the changes are kept.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use belljar_testkit::{Input, Lab, each_engine, each_user};
use serde_json::Value;

/// In the jail as root and as an ordinary user, and on every engine that is here.
fn everywhere(test: impl Fn(&Lab)) {
    each_user(&test);
    each_engine(|_, lab| test(lab));
}

/// Everything about a tree that a run must not change.
fn snapshot(tree: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut todo = vec![tree.to_owned()];
    while let Some(path) = todo.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let content = if meta.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            String::new()
        } else if meta.is_symlink() {
            fs::read_link(&path).unwrap().display().to_string()
        } else if meta.is_file() {
            String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned()
        } else {
            String::new()
        };
        let (dev, ino, nlink, mode) = (meta.dev(), meta.ino(), meta.nlink(), meta.mode());
        let (owner, changed) = ((meta.uid(), meta.gid()), (meta.ctime(), meta.ctime_nsec()));
        let facts = format!("{dev} {ino} {nlink} {mode:o} {owner:?} {changed:?} {content}");
        all.insert(path, facts);
    }
    all
}

fn upper(lab: &Lab, result: &Value, number: u32) -> PathBuf {
    let id = result["id"].as_str().unwrap();
    lab.home().join("runs").join(id).join(format!("upper/{number}/data"))
}

fn fill(lab: &Lab) {
    lab.make_file("work/kept", "kept\n");
    lab.make_file("work/written", "before\n");
    lab.make_file("work/moved", "moved\n");
    lab.make_file("work/removed", "removed\n");
    lab.make_file("work/file-to-directory", "x\n");
    lab.make_file("work/dir/below/deep", "deep\n");
    lab.make_file("work/directory-to-file/x", "x\n");
    lab.make_file("work/gone/inner/x", "x\n");
    symlink("kept", lab.path("work/link")).unwrap();
}

/// Without the names whose place is held in a tree that is mounted rw.
const CHANGES: &str = "set -e
    echo more >> written; : > made; mkdir -p new/dir; echo x > new/dir/file
    mv moved elsewhere; rm removed; rm -r gone
    rm file-to-directory; mkdir file-to-directory; echo y > file-to-directory/y
    rm -r directory-to-file; echo z > directory-to-file
    mv dir renamed; echo changed > renamed/below/deep; chmod 600 kept; chmod 700 renamed
    ln written twice; ln -sf written link; echo last > kept.new; mv kept.new kept
    find . ! -name '.?*' ! -name belljar.toml | sort; cat written kept renamed/below/deep";

const AFTER: &str = ".\n./directory-to-file\n./elsewhere\n./file-to-directory\n./file-to-directory/y\n\
    ./kept\n./link\n./made\n./new\n./new/dir\n./new/dir/file\n./renamed\n./renamed/below\n\
    ./renamed/below/deep\n./twice\n./written\nbefore\nmore\nlast\nchanged\n";

#[test]
fn the_run_can_change_all_of_it_and_the_real_tree_stays() {
    everywhere(|lab| {
        fill(lab);
        let before = snapshot(&lab.work());
        let result = lab.sh_json(&["--workspace", ".:overlay"], CHANGES);
        assert_eq!(result["stdout"], AFTER, "{result:#}");
        assert_eq!(snapshot(&lab.work()), before, "the real tree was changed");
        let upper = upper(lab, &result, 0);
        assert_eq!(fs::read_to_string(upper.join("kept")).unwrap(), "last\n");
        assert_eq!(fs::read_to_string(upper.join("new/dir/file")).unwrap(), "x\n");
        // The control: the same changes are made in a tree that is mounted rw.
        assert_eq!(lab.sh_json(&[], CHANGES)["stdout"], AFTER);
        assert_ne!(snapshot(&lab.work()), before);
    });
}

#[test]
fn what_the_run_made_belongs_to_the_owner_of_the_tree() {
    everywhere(|lab| {
        fill(lab);
        let meta = fs::metadata(lab.work()).unwrap();
        let result = lab.sh_json(&["--workspace", ".:overlay"], CHANGES);
        let upper = upper(lab, &result, 0);
        let mut seen = 0;
        for path in snapshot(&upper).keys() {
            let found = fs::symlink_metadata(path).unwrap();
            if found.file_type().is_char_device() {
                continue; // what stands for something removed is nobody's work
            }
            seen += 1;
            let (owner, expected) = ((found.uid(), found.gid()), (meta.uid(), meta.gid()));
            assert_eq!(owner, expected, "{} as {:?}", path.display(), lab.actor);
            assert_eq!(found.mode() & 0o6000, 0, "{}", path.display());
        }
        assert!(seen > 8, "only {seen} entries in {}", upper.display());
    });
}

#[test]
fn a_tree_that_nobody_may_write_to_can_still_be_an_overlay() {
    each_user(|lab| {
        lab.make_file("work/file", "x\n");
        fs::set_permissions(lab.work(), fs::Permissions::from_mode(0o555)).unwrap();
        let script =
            "cat file; touch new 2>/dev/null && echo wrote; chmod 755 . && touch new && echo wrote";
        let result = lab.sh_json(&["--workspace", ".:overlay"], script);
        assert_eq!(result["stdout"], "x\nwrote\n", "{result:#}");
        assert_eq!(fs::metadata(lab.work()).unwrap().mode() & 0o777, 0o555);
    });
}

#[test]
fn workers_share_a_warm_cache_and_not_what_they_put_into_it() {
    everywhere(|lab| {
        lab.make_file("cache/index/warm", "warm\n");
        let before = snapshot(&lab.path("cache"));
        let mount = format!("{}:/cache:overlay", lab.path("cache").display());
        let start = |name: &str| {
            let script = format!(
                "cat /cache/index/warm; echo {name} > /cache/index/{name}; echo {name} > /cache/index/warm; \
                 echo ready; read go; ls /cache/index; cat /cache/index/warm"
            );
            let words = ["-v", &mount, "--", "sh", "-c", &script];
            let live = lab.run(words).input(Input::Open).spawn();
            live.wait_for_output("ready");
            live
        };
        let (one, two) = (start("one"), start("two"));
        // Both have written by now, and neither has read.
        for (mut live, name) in [(one, "one"), (two, "two")] {
            live.type_in(b"go\n");
            let done = live.done();
            assert_eq!(done.expect(0).out(), format!("warm\nready\n{name}\nwarm\n{name}\n"));
        }
        assert_eq!(snapshot(&lab.path("cache")), before);
    });
}

#[test]
fn a_socket_of_the_host_does_not_answer() {
    let connect = "use Socket; socket(my $s, PF_UNIX, SOCK_STREAM, 0) or die; \
        print connect($s, pack_sockaddr_un('sock')) ? 'answered' : 'refused'";
    each_user(|lab| {
        // By a relative name, so that the kernel does not tell where it is and nothing covers it.
        std::env::set_current_dir(lab.work()).unwrap();
        let _listener = UnixListener::bind("sock").unwrap();
        if let Some(user) = lab.actor.user() {
            std::os::unix::fs::chown("sock", Some(user.uid), Some(user.gid)).unwrap();
        }
        let at = |options: &[&str]| {
            let command = ["--", "perl", "-e", connect];
            lab.run(["--json"].iter().chain(options).chain(&command)).done().json()
        };
        let result = at(&["--workspace", ".:overlay", "--require", "fs.sockets"]);
        assert_eq!(result["stdout"], "refused", "{result:#}");
        // The control.
        let result = at(&["--workspace", ".:rw"]);
        assert_eq!(result["stdout"], "answered", "{result:#}");
    });
}

#[test]
fn engines_show_no_socket_of_the_tree_either() {
    each_engine(|_, lab| {
        let _listener = UnixListener::bind(lab.work().join("sock")).unwrap();
        let result = lab.sh_json(&["--workspace", ".:overlay", "--require", "fs.sockets"], "true");
        assert_eq!(result["exit"]["code"], 0, "{result:#}");
    });
}

#[test]
fn marks_of_overlayfs_that_lie_in_the_tree_lead_nowhere() {
    each_user(|lab| {
        lab.make_file("work/secret/file", "secret\n");
        lab.make_file("work/plain/file", "plain\n");
        let plant = |path: &str, name: &str, value: &str| {
            let flags = rustix::fs::XattrFlags::empty();
            let path = lab.work().join(path);
            rustix::fs::lsetxattr(&path, name, value.as_bytes(), flags).unwrap();
        };
        plant("plain", "user.overlay.opaque", "y");
        plant("plain", "user.overlay.redirect", "/secret");
        plant("plain/file", "user.overlay.redirect", "/secret/file");
        let look = |mode: &str| {
            lab.sh_json(&["--workspace", mode], "ls plain; cat plain/file")["stdout"].clone()
        };
        assert_eq!(look(".:overlay"), "file\nplain\n");
        assert_eq!(look(".:ro"), "file\nplain\n");
        // The kernel may refuse a file with this one, and never shows another's content for it.
        plant("plain/file", "user.overlay.metacopy", "");
        let shown = look(".:overlay");
        assert!(shown == "file\nplain\n" || shown == "file\n", "{shown}");
        assert_eq!(look(".:ro"), "file\nplain\n");
    });
}

/// What a run says about its own files must not be taken for the kernel's word.
#[test]
fn a_run_cannot_make_marks_of_overlayfs_in_its_own_layer() {
    const SET: &str = r#"
        for my $name (@ARGV) { for my $path ("made", "made/file", "there", "there/file") {
            my ($n, $p, $v) = ("$name", "$path", "y");
            syscall(188, $p, $n, $v, 1, 0);
        } }"#;
    let kinds = ["opaque", "redirect", "whiteout", "metacopy", "origin"];
    each_user(|lab| {
        lab.make_file("work/there/file", "there\n");
        let names = kinds
            .iter()
            .flat_map(|kind| [format!("user.overlay.{kind}"), format!("trusted.overlay.{kind}")]);
        let names: Vec<String> = names.chain(["user.mine".to_owned()]).collect();
        let script = format!(
            "mkdir made; echo made > made/file; echo more >> there/file; perl -e '{SET}' {}; \
             mknod there/node c 0 0 2>/dev/null && echo node; cat made/file there/file",
            names.join(" ")
        );
        let result = lab.sh_json(&["--workspace", ".:overlay"], &script);
        assert_eq!(result["stdout"], "made\nthere\nmore\n", "{result:#}");
        let upper = upper(lab, &result, 0);
        let honoured = if lab.actor.is_root() { "trusted.overlay." } else { "user.overlay." };
        let value = |path: &str, name: &str| {
            let mut room = [0_u8; 64];
            let length = rustix::fs::lgetxattr(upper.join(path), name, &mut room).ok()?;
            Some(room[..length].to_vec())
        };
        for path in ["made", "made/file", "there", "there/file"] {
            for kind in kinds {
                // The kernel's own are never the run's "y", but for a new directory's, which is what it is.
                let found = value(path, &format!("{honoured}{kind}"));
                let is_new = path == "made" && kind == "opaque";
                assert!(found.as_deref() != Some(b"y") || is_new, "{honoured}{kind} of {path}");
            }
            // The control: attributes can be set.
            assert_eq!(value(path, "user.mine").as_deref(), Some(&b"y"[..]), "{path}");
        }
    });
}

/// In a user namespace overlayfs can change nothing of an owner or group that is not in it.
#[test]
fn a_tree_of_another_group_is_copied_for_an_ordinary_user() {
    if belljar_testkit::test_user().is_none() {
        return; // said by `each_user`
    }
    let lab = Lab::new(belljar_testkit::Actor::User);
    fill(&lab);
    let user = lab.actor.user().unwrap();
    for path in snapshot(&lab.work()).keys() {
        std::os::unix::fs::lchown(path, Some(user.uid), Some(0)).unwrap();
    }
    let before = snapshot(&lab.work());
    let result = lab.sh_json(&["--workspace", ".:overlay"], CHANGES);
    assert_eq!(result["stdout"], AFTER, "{result:#}");
    assert_eq!(snapshot(&lab.work()), before, "the real tree was changed");
    assert!(result["posture"]["fs.mounts"]["how"].as_str().unwrap().contains("copied"));
}

#[test]
fn what_cannot_be_an_overlay_is_refused_in_words() {
    everywhere(|lab| {
        let file = lab.make_file("data/file", "x\n");
        let mount = format!("{}:/file:overlay", file.display());
        let done = lab.sh(&["-v", &mount], "true");
        done.expect(125).says(&["data/file", "is a file", "ro or rw"]);
        lab.assert_nothing_was_made();
    });
}

#[test]
fn file_systems_below_get_an_overlay_of_their_own_or_are_refused() {
    each_user(|lab| {
        if !belljar_testkit::as_root() {
            return; // nobody else can mount one
        }
        lab.make_file("work/top", "top\n");
        lab.make_directory("work/below");
        // In a mount namespace of the run's own launcher: nothing is left behind.
        let mode = if lab.actor.is_root() { 0 } else { 125 };
        let below = lab.work().join("below");
        let mounted = Mounted::tmpfs(&below);
        fs::write(below.join("inner"), "inner\n").unwrap();
        if let Some(user) = lab.actor.user() {
            std::os::unix::fs::chown(below.join("inner"), Some(user.uid), Some(user.gid)).unwrap();
        }
        let before = snapshot(&lab.work());
        let script =
            "cat top below/inner; echo x > below/inner; echo x > below/new; echo x > top; ls below";
        let done = lab.run(["--json", "--workspace", ".:overlay", "--", "sh", "-c", script]).done();
        done.expect(mode);
        if lab.actor.is_root() {
            let result = done.json();
            assert_eq!(result["stdout"], "top\ninner\ninner\nnew\n", "{result:#}");
            assert_eq!(fs::read_to_string(upper(lab, &result, 0).join("top")).unwrap(), "x\n");
            assert_eq!(fs::read_to_string(upper(lab, &result, 1).join("new")).unwrap(), "x\n");
        } else {
            done.says(&["another file system", "below"]);
        }
        assert_eq!(snapshot(&lab.work()), before);
        drop(mounted);
    });
}

struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(at: &Path) -> Self {
        let done = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
            .arg(at)
            .status();
        assert!(done.unwrap().success());
        Self(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let done = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
        assert!(done.unwrap().success());
    }
}
