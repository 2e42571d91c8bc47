//! A launcher that sees other files than the engine whose socket it was given, as one in a container
//! that has the host's: refused, because all its paths would be wrong. What only looks like it is not.

use std::os::unix::fs::PermissionsExt;

use belljar_testkit::{Actor, Lab, PrivateDocker, TestEngine, each_engine, test_user};

/// Mounts what the launcher needs below a root of its own, and goes there. The marks of a container are
/// not among it.
const ANOTHER_ROOT: &str = r#"
set -e
root=$(mktemp -d -p /tmp)
mount -t tmpfs root "$root"
for name in bin lib lib64 usr etc proc dev sys run var tmp; do
    [ -e /$name ] || continue
    if [ -L /$name ]; then cp -P /$name "$root/$name"; continue; fi
    mkdir "$root/$name"
    mount --rbind /$name "$root/$name"
done
cd "$root"
exec chroot "$root" sh -c 'cd "$0" && exec "$@"' "$OLDPWD" "$@"
"#;

fn refused(lab: &Lab, wrapper: &[&str], words: &[&str]) {
    let before = lab.runs();
    let done = lab.run(["--", "true"]).through(wrapper).done();
    done.expect(125).says(words);
    assert_eq!(lab.runs(), before);
}

fn works(lab: &Lab, wrapper: &[&str]) {
    let done = lab.run(["--", "sh", "-c", "echo in; exit 4"]).through(wrapper).done();
    assert_eq!(done.expect(4).out(), "in\n");
}

/// Root mounts first what it gives to an engine, so that has to reach it; an ordinary user names paths.
#[test]
fn another_mount_namespace_is_another_place_only_for_root() {
    each_engine(|engine, lab| {
        works(lab, &[]);
        match engine.actor() {
            Actor::Me => {
                let alone = ["unshare", "--mount", "--propagation", "private"];
                refused(lab, &alone, &["does not see what this process mounts"]);
            }
            // A rootless Podman has one of its own anyway.
            _ => works(lab, &["unshare", "--user", "--map-current-user", "--mount"]),
        }
    });
}

#[test]
fn another_pid_namespace_or_another_root_is_refused() {
    let Some(lab) = TestEngine::Docker.lab() else { return };
    refused(
        &lab,
        &["unshare", "--mount", "--pid", "--fork", "--mount-proc"],
        &["pid namespace", "run belljar where the engine runs"],
    );
    let root = ["unshare", "--mount", "sh", "-c", ANOTHER_ROOT, "--"];
    refused(&lab, &root, &["another root directory", "run belljar where the engine runs"]);
    works(&lab, &[]);
}

/// Who cannot look into the engine's root compares what is mounted there.
#[test]
fn an_ordinary_user_is_told_the_same() {
    let Some(docker) = PrivateDocker::start() else { return };
    let Some(user) = test_user() else {
        eprintln!("NOT CHECKED: as an ordinary user (needs root and the user belljar-test)");
        return;
    };
    let access = docker.access();
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(access.socket().parent().unwrap(), 0o755);
    open(access.socket(), 0o666);
    let lab = Lab::on(docker.access(), Actor::User);
    works(&lab, &[]);
    let as_user = format!("chroot --userspec={}:{}", user.uid, user.gid);
    let script = ANOTHER_ROOT.replace("exec chroot", &format!("exec {as_user}"));
    // Root makes the place, and the launcher in it is the user.
    let as_root = Lab::on(docker.access(), Actor::Me);
    std::os::unix::fs::chown(as_root.home(), Some(user.uid), Some(user.gid)).unwrap();
    let root = ["unshare", "--mount", "sh", "-c", &script, "--"];
    refused(&as_root, &root, &["another root directory"]);
}
