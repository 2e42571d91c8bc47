//! The sandbox's own root: what is made for the run, and what it finds of itself.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use belljar_testkit::{Lab, each_user};

fn owner(path: &Path) -> (u32, u32) {
    let meta = fs::symlink_metadata(path).unwrap();
    (meta.uid(), meta.gid())
}

#[test]
fn the_root_is_minimal_read_only_and_the_runs_own() {
    each_user(|lab| {
        let script = "ls -d /sys /root /boot /mnt /media /lost+found 2>/dev/null; \
             for d in / /usr /etc /bin /workspace/..; do touch $d/belljar-was-here 2>/dev/null && echo wrote $d; done; \
             touch /tmp/x /var/tmp/x /run/x /dev/shm/x $HOME/x && echo could; id -u; echo $HOME $PWD; cat /proc/sys/kernel/hostname";
        let done = lab.sh(&[], script);
        let expected = "could\n1000\n/home/agent /workspace\nbelljar\n";
        assert_eq!(done.expect(0).out(), expected, "{done}");
        for place in ["/", "/usr", "/etc"] {
            assert!(!Path::new(place).join("belljar-was-here").exists(), "{place}");
        }
    });
}

#[test]
fn users_and_groups_inside_are_made_up() {
    each_user(|lab| {
        let passwd = lab.sh(&[], "cat /etc/passwd").out();
        assert!(passwd.contains("agent:x:1000:1000:"), "{passwd}");
        for line in fs::read_to_string("/etc/passwd").unwrap().lines() {
            let name = line.split(':').next().unwrap();
            let uid: u32 = line.split(':').nth(2).unwrap().parse().unwrap();
            if (1000..60000).contains(&uid) && name != "agent" {
                assert!(!passwd.contains(name), "{name} of the host is known inside: {passwd}");
            }
        }
        assert_eq!(lab.sh(&[], "id -un; id -gn").expect(0).out(), "agent\nagent\n");
        let done = lab.sh(
            &["--user", "4321:4322"],
            "id -u; id -g; touch made; touch $HOME/x /tmp/x && echo ok",
        );
        assert_eq!(done.expect(0).out(), "4321\n4322\nok\n");
        assert_eq!(owner(&lab.work().join("made")), owner(&lab.work()));
        assert!(!lab.sh(&[], "cat /etc/shadow").out().contains(':'));
    });
}

#[test]
fn home_is_on_disk_in_the_runs_directory_and_nobody_elses() {
    each_user(|lab| {
        let result = lab.sh_json(&[], "echo kept > $HOME/file; mkdir -p $HOME/.cache/x");
        let home = lab.home().join("runs").join(result["id"].as_str().unwrap()).join("home");
        assert_eq!(fs::read_to_string(home.join("file")).unwrap(), "kept\n");
        assert_eq!(lab.sh(&[], "ls -A $HOME").expect(0).out(), "", "a new run has a new home");
    });
}

/// A shell and what it needs, without the rest of the system.
fn small_root(lab: &Lab) -> String {
    for name in ["bin", "dev", "etc", "home", "opt", "proc", "tmp", "var", "workspace"] {
        lab.make_directory(Path::new("rootfs").join(name));
    }
    let shell = fs::canonicalize("/bin/sh").unwrap();
    fs::copy(&shell, lab.path("rootfs/bin/sh")).unwrap();
    // A static shell has no libraries, and the guest has no `ldd`.
    let listed = std::process::Command::new("ldd").arg(&shell).output();
    let listed = listed
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    for library in listed.split_whitespace().filter(|word| word.starts_with('/')) {
        let copy = lab.path(Path::new("rootfs").join(library.trim_start_matches('/')));
        lab.make_directory(copy.parent().unwrap());
        fs::copy(library, copy).unwrap();
    }
    lab.make_file("rootfs/opt/only-in-this-root", "yes\n");
    lab.path("rootfs").display().to_string()
}

#[test]
fn a_directory_can_be_the_root() {
    each_user(|lab| {
        let root = small_root(lab);
        // Only what a shell has built in.
        let script = "read line < /opt/only-in-this-root; echo $line; echo x > /new || echo read-only; \
             echo made > /workspace/made; echo /usr/bin/* /sys/*; echo $HOME; echo kept > $HOME/x && echo home; \
             echo t > /tmp/t && echo tmp";
        let done = lab.run(["--rootfs", &root, "--", "/bin/sh", "-c", script]).done();
        let expected = "yes\nread-only\n/usr/bin/* /sys/*\n/home/agent\nhome\ntmp\n";
        assert_eq!(done.expect(0).out(), expected, "{done}");
        assert_eq!(fs::read_to_string(lab.work().join("made")).unwrap(), "made\n");
        assert!(!lab.path("rootfs/new").exists());
        assert!(
            !lab.path("rootfs/home/agent").exists(),
            "something was made in the operator's directory"
        );
        let done = lab.run(["--rootfs", "/no/such/root", "--", "/bin/sh"]).done();
        done.expect(125).says(&["/no/such/root"]);
    });
}

#[test]
fn the_manifest_is_read_only_inside_a_writable_workspace() {
    each_user(|lab| {
        lab.make_file("work/belljar.toml", "[limits]\npids = 100\n");
        let before = fs::read(lab.work().join("belljar.toml")).unwrap();
        let script = "echo 'x' >> belljar.toml; rm -f belljar.toml; mv belljar.toml away; \
             echo y > new && mv new belljar.toml; ls; cat belljar.toml";
        let done = lab.sh(&[], script);
        assert!(done.out().contains("pids = 100"), "{done}");
        assert_eq!(fs::read(lab.work().join("belljar.toml")).unwrap(), before);
        // The control: everything beside it can be written.
        lab.sh(&[], "echo z > beside").expect(0);
        assert!(lab.work().join("beside").exists());
    });
}

/// A manifest above the current directory counts too, and stays out of reach.
#[test]
fn a_manifest_in_a_parent_is_found_and_protected() {
    each_user(|lab| {
        lab.make_file(
            "work/belljar.toml",
            "[sandbox]\nworkspace = { path = \".\", mode = \"rw\" }\n",
        );
        let sub = lab.make_directory("work/sub");
        let done = lab
            .run(["--", "sh", "-c", "cd /workspace; echo x > belljar.toml; touch made; ls"])
            .from(sub)
            .done();
        assert_eq!(done.out(), "belljar.toml\nmade\nsub\n", "{done}");
        assert!(
            fs::read_to_string(lab.work().join("belljar.toml")).unwrap().starts_with("[sandbox]")
        );
    });
}

/// Whatever the caller's shell has set.
#[test]
fn the_callers_umask_changes_nothing() {
    each_user(|lab| {
        for mask in ["000", "077", "777"] {
            let script = format!("umask {mask}; exec \"$0\" \"$@\"");
            let inside = "umask; touch made && ls -l /etc/passwd made | cut -c1-10; touch $HOME/x /tmp/x; rm made";
            let done = lab.run(["--", "sh", "-c", inside]).through(&["sh", "-c", &script]).done();
            assert_eq!(
                done.expect(0).out(),
                "0022\n-rw-r--r--\n-rw-r--r--\n",
                "umask {mask}: {done}"
            );
            assert_eq!(done.err(), "", "umask {mask}");
        }
    });
}

/// A link in a directory that is to be the root leads to places in that directory, as in a `chroot`.
#[test]
fn a_link_in_a_root_directory_does_not_lead_to_the_host() {
    each_user(|lab| {
        let root = small_root(lab);
        let secret = lab.make_file("private/file", "of the host\n");
        symlink(secret.parent().unwrap(), lab.path("rootfs/srv")).unwrap();
        let script = "read line < /srv/file && echo $line; exit 0";
        let done = lab.run(["--rootfs", &root, "--", "/bin/sh", "-c", script]).done();
        assert!(!done.out().contains("of the host"), "{done}");
    });
}

/// Environment: named variables only.
#[test]
fn the_environment_is_made_anew() {
    each_user(|lab| {
        let call = lab.run(["-e", "GIVEN=1", "-e", "PASSED", "--pass-env", "ALSO", "--", "env"]);
        let done = call.env("PASSED", "2").env("ALSO", "3").env("SECRET_THING", "hunter2").done();
        let out = done.expect(0).out();
        let mut names: Vec<&str> = out.lines().filter_map(|line| line.split('=').next()).collect();
        names.sort_unstable();
        for name in ["GIVEN", "PASSED", "ALSO", "HOME", "PATH", "USER", "LANG", "BELLJAR_RUN"] {
            assert!(names.contains(&name), "{name} is missing: {out}");
        }
        assert!(!out.contains("hunter2") && !names.contains(&"BELLJAR_HOME"), "{out}");
        assert!(out.contains("HOME=/home/agent\n") && out.contains("USER=agent\n"), "{out}");
        lab.make_file("vars", "ONE=1\n# a comment\nTWO=two words\n");
        let file = lab.path("vars").display().to_string();
        let done = lab.run(["--env-file", &file, "--", "sh", "-c", "echo $ONE,$TWO"]).done();
        assert_eq!(done.expect(0).out(), "1,two words\n");
    });
}
